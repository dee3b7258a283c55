"""Steps that ran, stored for the next one of the same shape, which then allocates nothing."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, Generic, TypeVar
from weakref import WeakKeyDictionary

import numpy as np
from numpy.typing import NDArray

from edge.runtime.engine.binding import KEPT_STEP, StepBuffers
from edge.runtime.engine.cache import KVCache, MemoryKey
from edge.runtime.engine.want import TOKENS, Likeliest, Ranked, Want
from edge.runtime.kernels.nodes import LIKELIEST_COUNT, LIKELIEST_LOGARITHMS, LIKELIEST_TOKENS
from edge.runtime.providers.provider import Buffer, Provider

S = TypeVar("S", bound=StepBuffers)
B = TypeVar("B")


class KeptSteps(Generic[S, B]):
    """Stores the steps on each cache by size, number of wanted rows and what is wanted of them, and the binding that
    all steps with the same outputs share.

    vocab: tokens of the model. remote: whether logits stay in a device's memory.
    """

    def __init__(self, provider: Provider, vocab: int, *, remote: bool = False) -> None:
        self._provider, self._vocab, self._remote = provider, vocab, remote
        self._steps: WeakKeyDictionary[MemoryKey, dict[tuple[int, int, Want], S]] = WeakKeyDictionary()
        self._bound: WeakKeyDictionary[MemoryKey, dict[tuple[str, ...], B]] = WeakKeyDictionary()  # by outputs
        self._logits = SharedLogits(provider, vocab)

    def known(self, cache: KVCache, size: int, rows: int, want: Want) -> S | None:
        """The step of this shape on a cache, where there was one."""
        steps = self._steps.get(cache.memory_key)
        return None if steps is None else steps.get((size, rows, want))

    def keep(self, cache: KVCache, step: S, rows: int, want: Want) -> S:
        """Store a new step, unless it is as large as a prompt's chunks are."""
        if isinstance(want, Likeliest):
            step.inputs[LIKELIEST_COUNT] = self._provider.adopt(np.array([want.top], np.int64))
        if step.size <= KEPT_STEP:
            self._steps.setdefault(cache.memory_key, {})[step.size, rows, want] = step
        return step

    def binding(self, cache: KVCache, size: int, outputs: dict[str, Buffer], bind: Callable[[KVCache, int], B]) -> B:
        """The binding for a step of this size, shared by all stored steps that write the same outputs. A larger step,
        such as a prompt's chunk, has a binding of its own, which is freed after it ran.

        bind: makes a binding for a cache and a maximum size.
        """
        if size > KEPT_STEP:
            return bind(cache, size)
        kept, written = self._bound.setdefault(cache.memory_key, {}), tuple(outputs)
        if written not in kept:
            kept[written] = bind(cache, KEPT_STEP)
        return kept[written]

    def outputs(self, cache: KVCache, rows: int, want: Want) -> dict[str, Buffer]:
        """Memory for what a step writes, by the graph's names."""
        allocate = self._provider.allocate
        if isinstance(want, Likeliest):
            return {
                LIKELIEST_TOKENS: allocate((rows, want.top), np.int64),
                LIKELIEST_LOGARITHMS: allocate((rows, want.top), np.float32),
            }
        if want == TOKENS:
            tokens = {"tokens": allocate((1, rows), np.int64)}
            return tokens if self._remote else {**tokens, "logits": self._logits.of(cache, rows)}
        if self._remote:  # each step's own: what the host reads of several would be the largest of them
            return {"logits": allocate((1, rows, self._vocab), np.float32)}
        return {"logits": self._logits.of(cache, rows)}

    def found(self, step: S, want: Want, first: bool) -> Any:
        """Return the result of a step that ran, as `want` asks for it where that is not logits. first: the step is an
        answer's first."""
        if isinstance(want, Likeliest):
            return Ranked(step.outputs[LIKELIEST_LOGARITHMS].array, step.outputs[LIKELIEST_TOKENS].array)
        rows: NDArray[np.int64] = step.result.array[0]
        logits = None if self._remote else step.outputs["logits"].array[0]
        check_tokens(rows, logits, self._vocab, first)
        return rows


class SharedLogits:
    """Memory for logits. That of several rows is shared by all such steps on a cache, so that drafts of many lengths
    take no more than the longest."""

    def __init__(self, provider: Provider, vocab: int) -> None:
        self._provider, self._vocab = provider, vocab
        self._shared: WeakKeyDictionary[MemoryKey, Buffer] = WeakKeyDictionary()

    def of(self, cache: KVCache, rows: int) -> Buffer:
        """A buffer [1, R, V]."""
        provider = self._provider
        if rows == 1 or rows > KEPT_STEP:
            return provider.allocate((1, rows, self._vocab), np.float32)
        shared = self._shared.get(cache.memory_key)
        if shared is None:
            shared = self._shared[cache.memory_key] = provider.allocate((KEPT_STEP, self._vocab), np.float32)
        return provider.part(shared, (1, rows, self._vocab))


def check_tokens(tokens: NDArray[np.int64], logits: NDArray[np.float32] | None, vocab: int, whole: bool) -> None:
    """Put -1 in place of tokens [R] that a model does not have, or that have no finite logit in `logits` [R, V]: a
    graph passes over what is no number. whole: whether to look at all logits: one token may have none in every step."""
    if tokens.size == 1 and logits is not None and not whole:  # nearly every step
        token = tokens.item(0)
        if 0 <= token < vocab and math.isfinite(logits.item(token)):
            return
    for row, token in enumerate(tokens.tolist()):
        if not 0 <= token < vocab or (
            logits is not None and not math.isfinite(logits[row].max() if whole else logits.item(row, token))
        ):
            tokens[row] = -1
