"""One of several answers that grow in parallel."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any

from edge.runtime.decode.answer import FinishReason, Piece, Result, Timings, chooser, ends_of, result
from edge.runtime.decode.answer_text import AnswerText, Said
from edge.runtime.decode.generate_options import GenerateOptions
from edge.runtime.decode.loop import chosen
from edge.runtime.decode.sampling import Categorical, Sampler, Uncircling, greedy
from edge.runtime.engine.engine import Engine
from edge.runtime.engine.want import CANDIDATES, LOGITS, TOKENS, Want
from edge.runtime.text.thinking import Block
from edge.runtime.text.tokenizer import Text

Asked = tuple[list[int], Block | None]
"""A prompt's token ids, and the block of thoughts that its answer may begin with."""
Deliver = Callable[[Piece], None]


class BatchAnswer:
    """An answer that grows token by token, in whatever order it comes to its turn.

    Args:
        place: the prompt's number.
        asked: its prompt's token ids, and the block of thoughts that it may begin with.
        options: what shapes it.
        engine: that it is to grow in.
        text: the tokenizer.
        deliver: is given each piece as it comes; default: the text is asked for in the end.
        started: `time.perf_counter()` when it was asked for; default: it is set when its prompt begins to be read.
        wrap: changes its sampler, to see the logits that it chooses from.
    """

    def __init__(
        self,
        place: int,
        asked: Asked,
        options: GenerateOptions,
        engine: Engine,
        text: Text,
        *,
        deliver: Deliver | None = None,
        started: float | None = None,
        wrap: Callable[[Sampler], Sampler] | None = None,
    ) -> None:
        self.place, self.options = place, options
        self.prompt, block = asked
        self.tokens: list[int] = []
        self.finish: FinishReason | None = None
        self.error: Exception | None = None  # that ended it
        self.cancelled = False  # whether nobody wants the rest of it
        context = engine.context
        # As many tokens as when it is answered alone.
        self.capacity = min(context, len(self.prompt) + ends_of(options, context, block).most)
        self.ends = ends_of(options, self.capacity - len(self.prompt) + 1, block)
        sampler = chooser(options, self.prompt, self.ends, block, text)
        self.sampler = sampler if wrap is None else wrap(sampler)
        self.timings = Timings(len(self.prompt), simulated=engine.provider.simulated)
        self._text, self._deliver = text, deliver
        self._said = AnswerText(text, self.ends, block)
        self._thoughts = list[str]()
        # What streams show; without one, and where nothing is left out of it, the text is decoded once, in the end.
        self._shown: list[str] | None = [] if options.stop or block is not None or deliver is not None else None
        self._started, self._began = started, 0.0

    def begin(self) -> None:
        """Note that the prompt begins to be read."""
        self._began = time.perf_counter()

    @property
    def last(self) -> int:
        """The token that is not in the cache yet."""
        return self.tokens[-1]

    def take(self, row: Any, asked: Want) -> None:
        """Choose the next token by its logits [V], or by another result of the step (`asked`)."""
        if asked == CANDIDATES:
            assert isinstance(self.sampler, Categorical)
            token = self.sampler.among(row)
        elif asked == TOKENS:
            token = chosen(row)
            if isinstance(self.sampler, Uncircling):
                accepted = self.sampler.accepts(token)
                assert accepted, "logits are asked for where tokens are not enough"
        else:
            token = self.sampler(row)
        self.push(token)

    def try_take(self, row: Any, asked: Want) -> None:
        """The same; an error ends the answer (`error`), and concerns no other."""
        try:
            self.take(row, asked)
        except Exception as e:
            self.error = e

    def push(self, token: int) -> None:
        """Go on with a token, which may end the answer (`finish`)."""
        self.tokens.append(token)
        now, timings = time.perf_counter(), self.timings
        if len(self.tokens) == 1:
            started = self._began if self._started is None else self._started
            timings.prefill_s, timings.ttft_ms = now - self._began, (now - started) * 1e3
            self._began = now
        timings.generated_tokens, timings.decode_s = len(self.tokens), now - self._began
        if self._shown is None:
            self.finish = self._said.end(token)
        else:
            self._show(self._said.push(token), token)

    def _show(self, said: Said, token: int | None) -> None:
        assert self._shown is not None
        self.finish = said.finish
        self._shown.append(said.text)
        if said.thoughts is not None:
            self._thoughts.append(said.thoughts)
        if self._deliver is not None:
            self._deliver(Piece(said.text, token, said.finish, self.timings, said.thoughts))

    def interrupt(self) -> None:
        """End the answer where it is."""
        if self._shown is not None:
            self._show(self._said.flush(), None)
        self.finish = "interrupted"

    def whole(self) -> Result:
        """The answer, after its end."""
        assert self.finish is not None
        text = self._text.decode(self.tokens) if self._shown is None else "".join(self._shown)
        thoughts = "".join(self._thoughts) if self._thoughts else None
        return result(text, self.tokens, self.finish, self.timings, thoughts)


def wanted(engine: Engine, samplers: Sequence[Sampler]) -> Want:
    """Return what a step is asked for: of logits in a device's memory only what the samplers need."""
    if engine.remote and engine.chooses and all(map(_likeliest, samplers)):
        return TOKENS
    if engine.remote and all(isinstance(sampler, Categorical) for sampler in samplers):
        return CANDIDATES
    return LOGITS


def _likeliest(sampler: Sampler) -> bool:
    """True if a sampler is certain to choose the likeliest token next."""
    return not sampler.unsure if isinstance(sampler, Uncircling) else sampler is greedy
