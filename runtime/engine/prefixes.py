"""Keys and values of texts that were read before, for prompts that begin like one of them.

A row of a cache depends on the tokens up to its own alone, so that a prompt which begins like an earlier text needs
only its other tokens to be run. With kernels for which a row of a step never depends on the rows next to it, rows are
the same bits however a text was cut into steps. Elsewhere they are where both texts were cut at the same places.
"""

from __future__ import annotations

import mmap
import threading
import weakref
from collections.abc import Callable, Sequence
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from edge.errors import InputError
from edge.runtime.engine.cache import KVCache, Rows
from edge.runtime.engine.engine import Engine
from edge.runtime.memory.shares import Share

LEAST = 16  # tokens that are worth being copied
RECENT = 4  # texts that are kept for one program; one that begins each prompt alike needs the last one
NEARLY = 3 / 4  # of a text that a later one has, too: only the later one is kept for one program
MOST_BYTES = 1 << 30  # of keys and values that are kept, and at most so much of the memory:
PART = 16


class Known:
    """A text that was read. rows: its keys and values, and maybe more after them. bytes: that these take. share: of a
    memory limit, which takes them back where an answer needs the room."""

    share: Share | None = None

    def __init__(self, store: Prefixes, tokens: NDArray[np.int64], rows: Rows, size: int) -> None:
        self._store = weakref.ref(store)
        self.tokens, self.rows, self.bytes = tokens, rows, size

    def drop(self) -> None:
        """Forget the text."""
        if (store := self._store()) is not None:
            store.withdraw(self)


class Prefixes:
    """The texts that one model read last, whoever asked: the last `RECENT` of them, and no more than one text of the
    whole context takes; of texts that are alike for the most part the last one. Several threads may use it.

    Args:
        engine: whose caches they are of.
        chunk: tokens of a prompt's steps.
    """

    def __init__(self, engine: Engine, chunk: int) -> None:
        # Of other models more than keys and values belongs to a text, or they are not in this process's memory.
        plain = engine.routes is None and engine.long_rope is None and engine.prefill is None and engine.encoder is None
        here = not engine.remote and engine.target is None
        self._known = plain and here and not engine.bundle.manifest.states
        self._ref, self._chunk = weakref.ref(engine), chunk  # a closed model lets its engine go
        # Whether rows are the same however they were run, those of answers too.
        self.exact = self._known and engine.independent
        self._most: int | None = RECENT
        self._limit: int | None = None
        self._texts = list[Known]()  # the one that was used last is at the end
        # Taken again where the collector ends a stream of the thread that has it, which leaves its text here.
        self._lock = threading.RLock()

    @property
    def _engine(self) -> Engine:
        engine = self._ref()
        assert engine is not None, "nothing is asked of a model that was closed"
        return engine

    @property
    def limit(self) -> int:
        """Maximum bytes of keys and values; of texts beyond it those that were not used for longest are dropped."""
        if self._limit is None:
            from edge.runtime.memory.limit import memory_limit  # which runs of one short prompt do without

            limit = min(MOST_BYTES, (memory_limit() or 0) // PART) if self._known else 0
            if self._most is not None:
                limit = min(limit, self._engine.kv.bytes_per_token * self._engine.context)
            self._limit = limit
        return self._limit

    @property
    def bytes(self) -> int:
        """Bytes of keys and values at present."""
        return sum(text.bytes for text in self._texts)

    def serve(self) -> None:
        """Keep as many texts as memory has room for: those who ask a server are many, each with texts of their own."""
        self._most = self._limit = None

    def whole(self, length: int) -> int:
        """The number of a text's first `length` tokens that may begin a prompt which is read as if nothing were known:
        all, or those of whole steps, which must be of the same size in answers that are drawn anew every time."""
        if not self._known or (self._engine.pads and self._chunk % 2):
            return 0
        return length if self.exact else length - length % self._chunk

    def begin(self, prompt: Sequence[int], cache: KVCache, least: int = 0) -> int:
        """Begin an empty cache with what is known of a prompt, where that is more than `least` tokens. Returns the
        number of tokens; the last one is never among them, because its logits are needed."""
        if not self._texts:
            return 0
        tokens = np.asarray(prompt[:-1], np.int64)
        with self._lock:
            best, length = None, 0
            for text in self._texts:
                if (shared := _shared(text.tokens, tokens)) > length:
                    best, length = text, shared
            length = self.whole(length)
            if best is None or length < LEAST or length <= least:
                return 0
            if cache.length:
                cache.truncate(0)
            cache.begin(best.rows, length)
            self._texts = [*(each for each in self._texts if each is not best), best]
            return length

    def keep(self, tokens: Sequence[int], cache: KVCache) -> None:
        """Keep a copy of a cache's rows, whose text is `tokens` or begins with them, all read as a prompt's are."""
        text = self._new(tokens, self.whole(len(tokens)), cache)
        if text is not None and self._room(text):
            text.rows = cache.first_rows(len(text.tokens))
            self._enter(text)

    def leave(
        self,
        tokens: Sequence[int],
        cache: KVCache,
        alike: int,
        written: int = 0,
        copied: Callable[[], KVCache] | None = None,
    ) -> Known | None:
        """Keep the memory of a cache, which holds a text that begins with `tokens`, until it is withdrawn.

        alike: of its tokens those that were read as a prompt's are that begins there. written: rows that were ever
        written, where these are more. copied: gives a copy of the cache, whose memory is kept instead; InputError where
        there is none.

        Returns:
            What is kept, before whose rows are written again it must be withdrawn; None where nothing is.
        """
        text = self._new(tokens, len(tokens) if self.exact else min(alike, len(tokens)), cache, written)
        if text is None or not self._room(text):
            return None
        try:
            text.rows = cache.buffers if copied is None else copied().buffers
        except InputError:
            self.withdraw(text)
            return None
        self._enter(text)
        return text

    def extend(self, text: Known | None, tokens: Sequence[int], cache: KVCache) -> None:
        """Let a text that was left, or None, go on as the text of a cache does, where answers' rows may begin prompts.
        Its other rows are copied; all are where it is not known any more, or has a share of a memory limit."""
        if not self.exact:
            return
        longer = np.asarray(tokens, np.int64)
        with self._lock:
            left = text if text in self._texts else None
            # None where another answer to it was extended, or the limit would have to know.
            if left is not None and (left.share is not None or _shared(left.tokens, longer) < len(left.tokens)):
                left = None
            if left is not None:
                start, size = len(left.tokens), sum(_taken(part, len(longer)) for pair in left.rows for part in pair)
                if size > self.limit:
                    return
                for kept, rows in zip(left.rows, cache.buffers, strict=True):
                    for target, source in zip(kept, rows, strict=True):
                        target[:, :, start : len(longer)] = source[:, :, start : len(longer)]
                left.tokens, left.bytes = longer, size
                self._enter(left)
        if left is None:
            self.keep(tokens, cache)

    def withdraw(self, text: Known | None) -> None:
        """Forget a text, whose memory is not read any more after this."""
        if text is None:
            return
        with self._lock:
            self._texts = [each for each in self._texts if each is not text]
        if text.share is not None:
            text.share.close()
        text.rows = []

    def forget(self) -> None:
        """Forget all texts."""
        for text in self._texts:
            self.withdraw(text)

    def close(self) -> None:
        """Forget all texts, and keep no more."""
        with self._lock:
            self._known, self._limit = False, 0
        self.forget()

    def _new(self, tokens: Sequence[int], count: int, cache: KVCache, written: int = 0) -> Known | None:
        """The first `count` tokens as a text that is worth being kept; None where they are not, or are known."""
        if not self._known or count < LEAST or cache.states is not None:
            return None
        text = np.asarray(tokens[:count], np.int64)
        size = sum(_taken(part, max(count, written)) for pair in cache.buffers for part in pair)
        if size > self.limit:
            return None
        with self._lock:
            for each in self._texts:
                if _shared(each.tokens, text) == len(text):
                    self._texts = [*(other for other in self._texts if other is not each), each]
                    return None
        return Known(self, text, [], size)

    def _room(self, text: Known) -> bool:
        """True if a memory limit has room for a text, which takes its share of it then."""
        shares = None if self._engine.plan is None else self._engine.shares
        if shares is None:
            return True
        text.share = shares.spare(text.bytes, weakref.WeakMethod(text.drop))
        return text.share is not None

    def _enter(self, text: Known) -> None:
        """Have a text among those that are known, instead of what it nearly has and of what there is no room for."""
        alike = NEARLY if self._most is not None else 1
        with self._lock:
            others = [each for each in self._texts if each is not text]
            gone = [each for each in others if _shared(each.tokens, text.tokens) >= alike * len(each.tokens)]
            left = [each for each in others if each not in gone]
            while left and (self._most == len(left) or sum(each.bytes for each in left) + text.bytes > self.limit):
                gone.append(left.pop(0))
            self._texts = [*left, text] if self._known else []
        for each in gone:
            self.withdraw(each)


def grouped(prompts: Sequence[list[int]]) -> list[int]:
    """The order in which prompts are read: those that begin alike after each other (BatchLLM, Zheng et al. 2024), the
    groups with the longest first."""
    order = sorted(range(len(prompts)), key=lambda i: prompts[i])
    groups = [order[:1]]
    for before, i in pairwise(order):
        if shared(prompts[before], prompts[i]) < LEAST:
            groups.append([])
        groups[-1].append(i)
    groups.sort(key=lambda group: -max((len(prompts[i]) for i in group), default=0))
    return [i for group in groups for i in group]


def shared(a: Sequence[int], b: Sequence[int]) -> int:
    """The length of the longest common beginning."""
    return _shared(np.asarray(a, np.int64), np.asarray(b, np.int64))


def _shared(a: NDArray[np.int64], b: NDArray[np.int64]) -> int:
    size = min(len(a), len(b))
    differs = np.flatnonzero(a[:size] != b[:size])
    return int(differs[0]) if differs.size else size


def _taken(part: NDArray[np.generic], rows: int) -> int:
    """Bytes of memory that the first rows of keys or values [1, heads, rows, head_dim] take, in pages for each head."""
    _, heads, _, size = part.shape
    pages = -(-rows * size * part.itemsize // mmap.PAGESIZE)
    return int(min(part.nbytes, heads * pages * mmap.PAGESIZE))
