"""Answers to several prompts in parallel.

A step of 8 sequences costs 2.2 (8 bits) to 3.3 times (4 bits) a step of one (SmolLM2-135M, two cores): they share the
reading of the weights. Each has its own rows and positions, so that answers do not depend on each other.
"""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edge.errors import InputError
from edge.runtime.batch.step import BatchStep, Slots
from edge.runtime.decode.answer import FinishReason, Result, Timings, chooser, ends_of, result
from edge.runtime.decode.answer_text import AnswerText, Said
from edge.runtime.decode.generate_options import GenerateOptions
from edge.runtime.decode.loop import prefill
from edge.runtime.decode.sampling import Categorical, Sampler, Uncircling, greedy
from edge.runtime.engine.cache import KVCache
from edge.runtime.engine.engine import Engine
from edge.runtime.engine.route import Route
from edge.runtime.engine.want import CANDIDATES, LOGITS, TOKENS, Want
from edge.runtime.text.thinking import Block
from edge.runtime.text.tokenizer import Text

_log = logging.getLogger(__name__)

Asked = tuple[list[int], Block | None]
"""A prompt's token ids, and the block of thoughts that its answer may begin with."""

WHOLE: Route = (0,)  # of a decoder that leaves nothing out


class Growing:
    """An answer that grows token by token. asked: its prompt's token ids, and the block of thoughts that it may begin
    with. cache: its keys and values, in a slot."""

    def __init__(
        self, place: int, asked: Asked, cache: KVCache, options: GenerateOptions, engine: Engine, text: Text
    ) -> None:
        prompt, block = asked
        self.place = place
        self.cache = cache
        self.tokens: list[int] = []
        self._text = text
        self._timings = Timings(len(prompt), simulated=engine.provider.simulated)
        ends = ends_of(options, cache.capacity - len(prompt) + 1, block)
        self.sampler = chooser(options, prompt, ends, block, text)
        self._said = AnswerText(text, ends, block)
        self._thoughts = list[str]()
        self._shown: list[str] | None = [] if options.stop or block is not None else None  # what streams show
        self._began = time.perf_counter()

    def take(self, row: Any, asked: Want = LOGITS) -> FinishReason | None:
        """Choose the next token by its logits [V], or by another result of the step (`asked`). Returns the reason if
        the answer ends."""
        timings = self._timings
        if asked == CANDIDATES:
            assert isinstance(self.sampler, Categorical)
            token = self.sampler.among(row)
        elif asked == TOKENS:
            token = int(row)
            if isinstance(self.sampler, Uncircling):
                accepted = self.sampler.accepts(token)
                assert accepted, "logits are asked for where tokens are not enough"
        else:
            token = self.sampler(row)
        self.tokens.append(token)
        now = time.perf_counter()
        if len(self.tokens) == 1:
            timings.prefill_s, timings.ttft_ms = now - self._began, (now - self._began) * 1e3
            self._began = now
        timings.generated_tokens, timings.decode_s = len(self.tokens), now - self._began
        if self._shown is None:  # the text is decoded once, in the end
            return self._said.end(token)
        return self._show(self._said.push(token))

    def _show(self, said: Said) -> FinishReason | None:
        assert self._shown is not None
        self._shown.append(said.text)
        if said.thoughts is not None:
            self._thoughts.append(said.thoughts)
        return said.finish

    def whole(self, finish: FinishReason) -> Result:
        if finish == "interrupted" and self._shown is not None:
            self._show(self._said.flush())
        text = self._text.decode(self.tokens) if self._shown is None else "".join(self._shown)
        thoughts = "".join(self._thoughts) if self._thoughts else None
        return result(text, self.tokens, finish, self._timings, thoughts)


class Batch:
    """Answers prompts in parallel in one engine, whose steps take several sequences. capacity: maximum tokens of a
    prompt with its answer. chunk: maximum prompt tokens of one step."""

    def __init__(self, engine: Engine, text: Text, *, capacity: int, width: int, chunk: int) -> None:
        self._engine, self._text, self._chunk, self._width = engine, text, chunk, width
        self._routes = engine.routes
        self._capacity = capacity
        # Kernels take pairs of rows, and a single one gets other last bits: exact steps have an even number of them.
        self._multiple = 2 if engine.pads else 1
        self._slots = self._fitting()
        self._steps: dict[tuple[int, Want], BatchStep] = {}  # by the number of rows and what is asked for

    def _fitting(self) -> Slots:
        """Memory for as many sequences as are wanted, or as there is room for."""
        while True:
            try:
                return Slots(self._engine.new_cache(self._capacity), self._rows(self._width))
            except MemoryError as e:
                if self._width == 1:
                    raise InputError(f"There is no memory for a KV cache of {self._capacity} tokens.") from e
                self._width //= 2
                _log.warning("There is memory for %d prompts at a time.", self._width)

    def _rows(self, sequences: int) -> int:
        """Rows of a step of this many sequences."""
        return -(-sequences // self._multiple) * self._multiple

    def answers(self, prompts: Sequence[Asked], options: Sequence[GenerateOptions]) -> Iterator[tuple[int, Result]]:
        """Yield each prompt's index and answer, as they are finished; the longest prompts are begun first. Once the
        first one's options interrupt, all answers end where they are."""
        interrupted = options[0].interrupted
        waiting = deque(sorted(range(len(prompts)), key=lambda i: -len(prompts[i][0])))
        growing: list[Growing] = []  # in the order of their slots
        while waiting or growing:
            if interrupted():
                break
            if waiting and len(growing) < self._width and self._open(growing):
                place = waiting[0]
                asked, own = prompts[place], options[place]
                cache = self._cache(asked, own, len(growing))
                if self._alike(growing, cache):
                    waiting.popleft()
                    new = Growing(place, asked, cache, own, self._engine, self._text)
                    growing.append(new)
                    tokens = np.array(asked[0], np.int64)
                    logits = prefill(self._engine, cache, tokens, chunk=self._chunk, interrupted=interrupted)
                    ended = [] if logits is None else self._taken([new], logits)
                    yield from self._left(growing, ended)
                    continue
            wanted = self._asked(growing)
            yield from self._left(growing, self._taken(growing, self._step(growing, wanted), wanted))
        yield from ((each.place, each.whole("interrupted")) for each in growing)
        yield from ((i, result("", [], "interrupted", Timings(len(prompts[i][0])))) for i in waiting)

    def _cache(self, asked: Asked, options: GenerateOptions, slot: int) -> KVCache:
        """A cache for a prompt, as large as when it is answered alone."""
        prompt, block = asked
        context = self._engine.context
        cache = self._engine.new_cache(self._capacity)
        cache.capacity = cache.ends = min(context, len(prompt) + ends_of(options, context, block).most)
        cache.prompt = len(prompt)
        self._slots.give(cache, slot)
        return cache

    def _open(self, growing: Sequence[Growing]) -> bool:
        """True if another answer may begin. Where layers depend on the length and are the same for all sequences of a
        step, it may only begin together with the others."""
        return self._free or not growing or growing[0].cache.length == growing[0].cache.prompt

    def _alike(self, growing: Sequence[Growing], cache: KVCache) -> bool:
        """True if an answer in this cache runs through the same layers as those that grow, token by token."""
        routes = self._routes
        if routes is None or routes.free or not growing:
            return True
        return routes.pace(growing[0].cache) == routes.pace(cache)

    @property
    def _free(self) -> bool:
        """True if an answer may run through other layers than those next to it, or all tokens run through the same."""
        return self._routes is None or self._routes.free

    def _asked(self, growing: Sequence[Growing]) -> Want:
        """Return what a step is asked for: of logits in a device's memory only what the samplers need."""
        engine, samplers = self._engine, [each.sampler for each in growing]
        if engine.remote and engine.chooses and all(map(_likeliest, samplers)):
            return TOKENS
        if engine.remote and all(isinstance(sampler, Categorical) for sampler in samplers):
            return CANDIDATES
        return LOGITS

    def _step(self, growing: Sequence[Growing], asked: Want) -> Any:
        size, engine = self._rows(len(growing)), self._engine
        step = self._steps.get((size, asked))
        if step is None:
            units = 1 if self._routes is None else len(self._routes.everything)
            step = BatchStep(engine, self._slots, size, units, asked)
            self._steps[size, asked] = step
        caches = [each.cache for each in growing]
        tokens, routes = [each.tokens[-1] for each in growing], [self._route(cache) for cache in caches]
        return step.run(caches, tokens, routes, [limits for cache in caches for limits in self._limits(cache)])

    def _route(self, cache: KVCache) -> Route:
        """The units that the next token in a cache runs through."""
        return WHOLE if self._routes is None else self._routes.next_units(cache)

    def _limits(self, cache: KVCache) -> list[NDArray[np.float32] | None]:
        """By what the next token in a cache leaves out units itself, where it may."""
        routes = self._routes
        return [] if routes is None or not routes.policy.limited else [routes.next_limits(cache)]

    def _taken(self, growing: Sequence[Growing], rows: Any, asked: Want = LOGITS) -> list[tuple[Growing, FinishReason]]:
        """The answers that end with the token that each takes from its row, of logits [S, V] or what else was asked
        for, and why."""
        found = [(each, each.take(row, asked)) for each, row in zip(growing, rows, strict=True)]
        return [(each, finish) for each, finish in found if finish is not None]

    def _left(
        self, growing: list[Growing], ended: Sequence[tuple[Growing, FinishReason]]
    ) -> Iterator[tuple[int, Result]]:
        """Give out what ended, and let the last ones take the slots that become free."""
        for each, finish in ended:
            slot = growing.index(each)
            last = growing.pop()
            if last is not each:
                growing[slot] = last
                self._slots.move(last.cache, slot)
            yield each.place, each.whole(finish)


def _likeliest(sampler: Sampler) -> bool:
    """True if a sampler is certain to choose the likeliest token next."""
    return not sampler.unsure if isinstance(sampler, Uncircling) else sampler is greedy
