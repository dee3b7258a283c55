"""Answers to several prompts in parallel.

A step of 8 sequences costs 2.2 (8 bits) to 3.3 times (4 bits) a step of one (SmolLM2-135M, two cores): they share the
reading of the weights. Each has its own rows and positions, so that answers do not depend on each other: with kernels
for which a row of a step does not depend on the rows next to it, not in any bit.
"""

from __future__ import annotations

import dataclasses
import logging
import time
from collections import deque
from collections.abc import Generator, Iterator, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from edge.errors import InputError
from edge.runtime.batch.answer import BatchAnswer, wanted
from edge.runtime.batch.pieces import MixedPieces, Pieces
from edge.runtime.decode.answer import drafts_of, forced
from edge.runtime.decode.generate_options import never
from edge.runtime.decode.loop import decode_steps, prefill
from edge.runtime.engine.cache import KVCache
from edge.runtime.engine.engine import Engine
from edge.runtime.engine.prefixes import Known, Prefixes, shared
from edge.runtime.engine.slots import OneSlot, Slots
from edge.runtime.engine.want import LOGITS
from edge.runtime.text.tokenizer import Text

if TYPE_CHECKING:
    from edge.runtime.speculate.speculation import Speculation

_log = logging.getLogger(__name__)


@dataclasses.dataclass
class _Reading:
    """A prompt that is being read into a cache."""

    answer: BatchAnswer
    cache: KVCache


class Batch:
    """Grows answers in one engine, whose steps take several sequences: `add` them, and call `step` until it is `idle`.

    The prompt that waits longest is read first. Where `fair`, it is read piece by piece beside those that grow: each
    piece in a step with their next tokens, where the engine `mixes`; else between their steps, in about the time of
    such a step, and in memory of its own. Otherwise it is read at once.

    Args:
        engine: what runs the steps.
        text: the tokenizer.
        capacity: maximum tokens of a prompt with its answer.
        width: maximum answers that grow at a time; one, where steps take no more.
        chunk: maximum prompt tokens of one step.
        fair: as above.
        speculation: what drafts for an answer that grows alone, where drafts change no bit of it.
        prefixes: texts that prompts may begin like. Where `fair`, all that is read and said is kept there; otherwise
            what a prompt shares with the next one, so that prompts are best `grouped`.
    """

    def __init__(
        self,
        engine: Engine,
        text: Text,
        *,
        capacity: int,
        width: int,
        chunk: int,
        fair: bool = False,
        speculation: Speculation | None = None,
        prefixes: Prefixes | None = None,
    ) -> None:
        self._engine, self._text, self._chunk, self._width, self._fair = engine, text, chunk, width, fair
        self._routes, self._prefixes = engine.routes, prefixes
        # Whether what a cache holds is all that belongs to a text.
        plain = engine.routes is None and engine.long_rope is None and engine.target is None
        self._copies = plain and not engine.remote
        self._steady = engine.independent and engine.routes is None
        self._speculation = speculation if self._steady else None
        self._capacity = capacity
        self._slots = self._fitting() if engine.supports_batching else OneSlot()
        self._mixes = fair and engine.mixes and engine.prefill is None and not isinstance(self._slots, OneSlot)
        if isinstance(self._slots, OneSlot):
            self._width = 1
        self._waiting = deque[BatchAnswer]()
        self._reading: _Reading | None = None
        self._growing: dict[KVCache, BatchAnswer] = {}
        self._left: dict[KVCache, Known | None] = {}  # their prompts, as other texts may begin like them
        self._refused: list[BatchAnswer] = []  # before they began
        self._alone: Generator[list[int], None, None] | None = None  # steps of an answer that has drafts
        self._pieces = MixedPieces(chunk) if self._mixes else Pieces(chunk)

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

    def add(self, answer: BatchAnswer) -> None:
        """Let an answer wait for its turn."""
        self._waiting.append(answer)

    @property
    def idle(self) -> bool:
        """True if there is nothing to do."""
        return not (self._waiting or self._reading or self._growing)

    @property
    def waiting(self) -> int:
        """The number of answers that wait, or whose prompt is being read."""
        return len(self._waiting) + (self._reading is not None)

    def close(self) -> None:
        """Give the drafter back."""
        if self._alone is not None:
            self._alone.close()
            self._alone = None

    def interrupt(self) -> Iterator[BatchAnswer]:
        """End all answers where they are."""
        self.close()
        reading = [] if self._reading is None else [self._reading.answer]
        for answer in (*self._growing.values(), *reading, *self._waiting):
            answer.interrupt()
            yield answer

    def step(self) -> list[BatchAnswer]:
        """Read a part of a prompt, or all of it, and let all answers grow by a token, or one that is alone by several.
        Returns those that ended; one may have ended by an error that concerns it alone."""
        ended = self._cancelled()
        self._admit()
        ended += self._refused
        self._refused = []
        if self._reading is not None:
            if not isinstance(self._slots, OneSlot):
                self.close()
            if self._mixes and self._growing:
                return ended + self._mix(self._reading)
            ended += self._read(self._reading)
            if not self._fair:  # the next prompt may go with this one
                return ended
        if self._growing:
            ended += self._grow()
        return ended

    def _cancelled(self) -> list[BatchAnswer]:
        """Leave out the answers that nobody wants any more."""
        gone = [answer for answer in self._waiting if answer.cancelled]
        self._waiting = deque(answer for answer in self._waiting if not answer.cancelled)
        if self._reading is not None and self._reading.answer.cancelled:
            gone.append(self._reading.answer)
            self._forget(self._reading.cache)
        for cache, answer in [*self._growing.items()]:
            if answer.cancelled:
                gone.append(answer)
                self._leave(cache)
        for answer in gone:
            answer.finish = "interrupted"
        return gone

    def _admit(self) -> None:
        """Begin to read the prompt that waits longest, where there is a place for its answer."""
        if self._reading is not None or not self._waiting or len(self._growing) >= self._width or not self._open:
            return
        answer = self._waiting[0]
        try:
            cache = self._cache_of(answer)
        except InputError as e:  # there is no memory for it at present
            self._waiting.popleft()
            answer.error = e
            self._refused.append(answer)
            return
        if not self._alike(cache):
            return
        self._waiting.popleft()
        answer.begin()
        if self._mixes or not self._fair:
            self._slots.join(cache)
        if self._prefixes is not None:
            answer.timings.cached_tokens = self._prefixes.begin(answer.prompt, cache)
        self._reading = _Reading(answer, cache)

    def _cache_of(self, answer: BatchAnswer) -> KVCache:
        """An empty cache for an answer's text; InputError where there is no memory for it."""
        cache = self._engine.new_cache(self._capacity)
        cache.capacity = cache.ends = answer.capacity
        cache.prompt = len(answer.prompt)
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

    def _read(self, reading: _Reading) -> list[BatchAnswer]:
        """Read a prompt, or where answers grow that shall not wait for it, a part of it."""
        answer, cache = reading.answer, reading.cache
        rest = np.array(answer.prompt[cache.length :], np.int64)
        # The int8 prefill graph is for prompts of some length, and takes them whole.
        size = self._piece() if self._fair and self._engine.prefill is None else len(rest)
        began = time.perf_counter()
        try:
            logits = prefill(
                self._engine,
                cache,
                rest[:size],
                chunk=self._chunk,
                interrupted=answer.options.interrupted,
                prompt=len(answer.prompt),
            )
        except Exception as e:  # of this text alone
            answer.error = e
            self._forget(cache)
            return [answer]
        if self._growing and size <= len(rest):
            self._pieces.read(len(self._growing), size, time.perf_counter() - began)
        if logits is None:  # it was interrupted
            answer.interrupt()
            self._forget(cache)
            return [answer]
        return [] if size < len(rest) else self._was_read(reading, logits[0])

    def _mix(self, reading: _Reading) -> list[BatchAnswer]:
        """Run a step of all answers that grow with a piece of a prompt, whose slot is the last one."""
        assert isinstance(self._slots, Slots), "one at a time mixes nothing"
        answer, cache = reading.answer, reading.cache
        if answer.options.interrupted():
            answer.interrupt()
            self._forget(cache)
            return [answer, *self._grow()]
        caches = self._slots.caches[:-1]
        answers, size = [self._growing[each] for each in caches], self._pieces.beside(len(caches))
        if not size:
            return self._grow()
        piece = np.array(answer.prompt[cache.length : cache.length + size], np.int64)
        began, tokens = time.perf_counter(), np.array([each.last for each in answers], np.int64)
        try:
            *rows, last = self._engine.step_all(self._slots, tokens, piece=piece)
        except Exception as e:  # of this text alone: where it is not, the others have it, too
            answer.error = e
            self._forget(cache)
            return [answer, *self._grow()]
        for each, row in zip(answers, rows, strict=True):
            each.try_take(row, LOGITS)
        self._pieces.read(len(caches), len(piece), time.perf_counter() - began)
        ended = self._ended(caches, answers)
        return ended if cache.length < len(answer.prompt) else ended + self._was_read(reading, last)

    def _was_read(self, reading: _Reading, logits: NDArray[np.float32]) -> list[BatchAnswer]:
        """Let the answer to a prompt grow that was read, and those to the same prompt: all choose from the same logits
        [V]. Returns those that end at once."""
        answer, cache, joined = reading.answer, reading.cache, dict[KVCache, BatchAnswer]()
        self._reading = None
        try:
            self._join_alike(answer.prompt, cache, joined)
            self._join(answer, cache)
            for each in (answer, *joined.values()):
                each.try_take(logits, LOGITS)
        except Exception as e:  # of this text alone, and of those that were to be copies of it
            for each in (answer, *joined.values()):
                each.error = e
        caches = [each for each in (cache, *joined) if each in self._slots.caches]
        return self._ended(caches, [answer, *joined.values()])

    def _forget(self, cache: KVCache) -> None:
        """Read no more of a prompt."""
        self._reading = None
        if cache in self._slots.caches:
            self._slots.leave(cache)

    def _join_alike(self, prompt: list[int], cache: KVCache, joined: dict[KVCache, BatchAnswer]) -> None:
        """Let the answers grow that wait next and have the same prompt, which a cache holds: it is read once for all.
        Enters them in `joined` with their caches."""
        while self._copies and self._waiting and self._waiting[0].prompt == prompt:
            if len(self._growing) + 1 >= self._width:  # beside the one whose prompt was read
                break
            try:
                copy = self._cache_of(self._waiting[0])
            except InputError:  # it is refused when its turn comes
                break
            answer = joined[copy] = self._waiting.popleft()
            answer.begin()
            answer.timings.cached_tokens = len(prompt)
            self._slots.join(copy)
            copy.copy(cache)
            if self._fair:
                self._left[copy] = None
            self._growing[copy] = answer

    def _piece(self) -> int:
        """Tokens of a prompt that are read at a time: all that a step takes where nothing grows, else what was found to
        take little time. Without kernels to which that makes no difference, always the same."""
        growing = len(self._growing)
        return self._pieces.beside(growing) if growing and self._engine.independent else self._chunk

    def _join(self, answer: BatchAnswer, cache: KVCache) -> None:
        """Let an answer grow, whose prompt was read."""
        prompt, prefixes = answer.prompt, self._prefixes
        if self._fair:
            if prefixes is not None:
                self._left[cache] = self._leave_behind(prompt, cache, prefixes)
            if not self._mixes:
                self._slots.join(cache)
        elif prefixes is not None:  # for the next prompt, or for one that anybody asks later
            prefixes.keep(prompt[: shared(prompt, self._waiting[0].prompt)] if self._waiting else prompt, cache)
        self._growing[cache] = answer

    def _leave_behind(self, prompt: list[int], cache: KVCache, prefixes: Prefixes) -> Known | None:
        """Let others begin with a prompt that was read: with the memory in which it was, before the slot is its memory,
        or with a copy where it was read there."""

        def copied() -> KVCache:
            found = self._engine.new_cache(self._capacity)
            found.copy(cache)
            return found

        return prefixes.leave(prompt, cache, prefixes.whole(len(prompt)), copied=copied if self._mixes else None)

    def _grow(self) -> list[BatchAnswer]:
        """Run a step of all answers that grow."""
        caches = [each for each in self._slots.caches if each in self._growing]
        answers = [self._growing[cache] for cache in caches]
        began = time.perf_counter()
        alone = self._steady and len(answers) == 1 and not self.waiting
        alone = alone and (self._speculation is not None or answers[0].options.form is not None)
        if alone or isinstance(self._slots, OneSlot):
            self._grow_alone(answers[0], caches[0])
        else:
            self.close()
            want = wanted(self._engine, [each.sampler for each in answers])
            tokens = np.array([answer.last for answer in answers], np.int64)
            rows = self._engine.step_all(self._slots, tokens, want=want)
            for answer, row in zip(answers, rows, strict=True):
                answer.try_take(row, want)
            self._pieces.grew(len(answers), time.perf_counter() - began)
        return self._ended(caches, answers)

    def _grow_alone(self, answer: BatchAnswer, cache: KVCache) -> None:
        """Run a step of one answer, with drafts where these change no bit of it."""
        if self._alone is None:
            before, left = [*answer.prompt, *answer.tokens[:-1]], answer.ends.max_tokens - len(answer.tokens)
            ends = dataclasses.replace(answer.ends, max_tokens=max(1, left))
            drafts = drafts_of(self._speculation, before, ends, self._text, answer.options, answer.timings)
            drafts = forced(drafts, answer.options, self._chunk, answer.timings)
            self._alone = decode_steps(self._engine, cache, answer.last, answer.sampler, drafts, never)
        try:
            for token in next(self._alone):
                answer.push(token)
                if answer.finish is not None:
                    return
        except Exception as e:
            answer.error = e

    def _ended(self, caches: Sequence[KVCache], answers: Sequence[BatchAnswer]) -> list[BatchAnswer]:
        """Let the answers that have ended leave their slots."""
        ended = [answer for answer in answers if answer.finish is not None or answer.error is not None]
        for cache in caches:
            answer: Any = self._growing.get(cache)
            if answer is None or answer in ended:
                if answer is not None and answer.error is None and cache in self._left and self._prefixes is not None:
                    text = [*answer.prompt, *answer.tokens[:-1]]
                    self._prefixes.extend(self._left[cache], text[: cache.length], cache)
                self._leave(cache)
        return ended

    def _leave(self, cache: KVCache) -> None:
        if len(self._growing) == 1:
            self.close()
        read = None if self._reading is None or not self._mixes else self._reading.cache
        self._slots.leave(cache, last=read)
        self._growing.pop(cache, None)
        self._left.pop(cache, None)
