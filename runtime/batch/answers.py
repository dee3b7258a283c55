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

from edge.errors import InputError
from edge.runtime.decode.answer import FinishReason, Result, Timings, chooser, ends_of, result
from edge.runtime.decode.answer_text import AnswerText, Said
from edge.runtime.decode.generate_options import GenerateOptions
from edge.runtime.decode.loop import chosen, prefill
from edge.runtime.decode.sampling import Categorical, Sampler, Uncircling, greedy
from edge.runtime.engine.cache import KVCache
from edge.runtime.engine.engine import Engine
from edge.runtime.engine.slots import Slots
from edge.runtime.engine.want import CANDIDATES, LOGITS, TOKENS, Want
from edge.runtime.text.thinking import Block
from edge.runtime.text.tokenizer import Text

_log = logging.getLogger(__name__)

Asked = tuple[list[int], Block | None]
"""A prompt's token ids, and the block of thoughts that its answer may begin with."""


class BatchAnswer:
    """An answer that grows token by token. asked: its prompt's token ids, and the block of thoughts that it may begin
    with. capacity: maximum tokens of both."""

    def __init__(
        self, place: int, asked: Asked, capacity: int, options: GenerateOptions, engine: Engine, text: Text
    ) -> None:
        prompt, block = asked
        self.place = place
        self.tokens: list[int] = []
        self._text = text
        self._timings = Timings(len(prompt), simulated=engine.provider.simulated)
        ends = ends_of(options, capacity - len(prompt) + 1, block)
        self.sampler = chooser(options, prompt, ends, block, text)
        self._said = AnswerText(text, ends, block)
        self._thoughts = list[str]()
        self._shown: list[str] | None = [] if options.stop or block is not None else None  # what streams show
        self._began = time.perf_counter()

    def take(self, row: Any, asked: Want) -> FinishReason | None:
        """Choose the next token by its logits [V], or by another result of the step (`asked`). Returns the reason if
        the answer ends."""
        timings = self._timings
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
        self._slots = self._fitting()
        self._growing: dict[KVCache, BatchAnswer] = {}

    def _fitting(self) -> Slots:
        """Memory for as many sequences as are wanted, or as there is room for."""
        while True:
            try:
                return self._engine.new_slots(self._capacity, self._width)
            except MemoryError as e:
                if self._width == 1:
                    raise InputError(f"There is no memory for a KV cache of {self._capacity} tokens.") from e
                self._width //= 2
                _log.warning("There is memory for %d prompts at a time.", self._width)

    def answers(self, prompts: Sequence[Asked], options: Sequence[GenerateOptions]) -> Iterator[tuple[int, Result]]:
        """Yield each prompt's index and answer, as they are finished; the longest prompts are begun first. Once the
        first one's options interrupt, all answers end where they are."""
        interrupted = options[0].interrupted
        waiting = deque(sorted(range(len(prompts)), key=lambda i: -len(prompts[i][0])))
        engine, growing, caches = self._engine, self._growing, self._slots.caches
        while waiting or caches:
            if interrupted():
                break
            if waiting and len(caches) < self._width and self._open:
                place = waiting[0]
                asked, own = prompts[place], options[place]
                cache = self._cache(asked, own)
                if self._alike(cache):
                    waiting.popleft()
                    self._slots.join(cache)
                    growing[cache] = BatchAnswer(place, asked, cache.capacity, own, engine, self._text)
                    tokens = np.array(asked[0], np.int64)
                    logits = prefill(engine, cache, tokens, chunk=self._chunk, interrupted=interrupted)
                    if logits is not None:
                        yield from self._taken([cache], logits, LOGITS)
                    continue
            wanted = self._asked()
            tokens = np.array([growing[cache].tokens[-1] for cache in caches], np.int64)
            yield from self._taken([*caches], engine.step_all(self._slots, tokens, want=wanted), wanted)
        yield from ((growing[cache].place, growing[cache].whole("interrupted")) for cache in caches)
        yield from ((i, result("", [], "interrupted", Timings(len(prompts[i][0])))) for i in waiting)

    def _cache(self, asked: Asked, options: GenerateOptions) -> KVCache:
        """A cache for a prompt, as large as when it is answered alone."""
        prompt, block = asked
        context = self._engine.context
        cache = self._engine.new_cache(self._capacity)
        cache.capacity = cache.ends = min(context, len(prompt) + ends_of(options, context, block).most)
        cache.prompt = len(prompt)
        return cache

    @property
    def _open(self) -> bool:
        """True if another answer may begin. Where layers depend on the length and are the same for all texts of a step,
        it may only begin together with the others."""
        caches = self._slots.caches
        return self._free or not caches or caches[0].length == caches[0].prompt

    def _alike(self, cache: KVCache) -> bool:
        """True if an answer in this cache runs through the same layers as those that grow, token by token."""
        routes, caches = self._routes, self._slots.caches
        if routes is None or routes.free or not caches:
            return True
        return routes.pace(caches[0]) == routes.pace(cache)

    @property
    def _free(self) -> bool:
        """True if an answer may run through other layers than those next to it, or all tokens run through the same."""
        return self._routes is None or self._routes.free

    def _asked(self) -> Want:
        """Return what a step is asked for: of logits in a device's memory only what the samplers need."""
        engine, samplers = self._engine, [each.sampler for each in self._growing.values()]
        if engine.remote and engine.chooses and all(map(_likeliest, samplers)):
            return TOKENS
        if engine.remote and all(isinstance(sampler, Categorical) for sampler in samplers):
            return CANDIDATES
        return LOGITS

    def _taken(self, caches: Sequence[KVCache], rows: Any, asked: Want) -> Iterator[tuple[int, Result]]:
        """Let each answer take a token from its row, of logits [B, V] or what else was asked for, and give out those
        that end with it."""
        finished = [self._growing[cache].take(row, asked) for cache, row in zip(caches, rows, strict=True)]
        for cache, finish in zip(caches, finished, strict=True):
            if finish is not None:
                self._slots.leave(cache)
                each = self._growing.pop(cache)
                yield each.place, each.whole(finish)


def _likeliest(sampler: Sampler) -> bool:
    """True if a sampler is certain to choose the likeliest token next."""
    return not sampler.unsure if isinstance(sampler, Uncircling) else sampler is greedy
