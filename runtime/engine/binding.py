"""The buffers of the steps on one cache, bound once: running a step again allocates nothing."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from edge.runtime.engine.cache import KVCache
from edge.runtime.engine.states import written

if TYPE_CHECKING:
    from edge.runtime.engine.encoder import Cross
    from edge.runtime.engine.tree import Tree
    from edge.runtime.providers.provider import Buffer, Provider, Session

KEPT_STEP = 16  # steps up to this size are kept for the next of their size; larger ones (prompt chunks) are not


@lru_cache(KEPT_STEP)
def all_rows(size: int) -> NDArray[np.int64]:
    """The indices [S] of all rows of a step, which nobody can change."""
    return _fixed(np.arange(size, dtype=np.int64))


def _fixed(rows: NDArray[np.int64]) -> NDArray[np.int64]:
    rows.flags.writeable = False
    return rows


LAST_ROW = _fixed(np.array([-1], np.int64))


def pad_to_even(
    tokens: NDArray[np.int64], rows: NDArray[np.int64], room: int
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Pad the `tokens` [S] of a step and the `rows` [R] that are wanted to even numbers, by repeating the last one.

    Kernels compute rows in pairs. A last row that is alone differs in its last bits.

    room: tokens that the graph has positions for; where it has none for one more, the tokens are not padded.
    """
    size = tokens.shape[0]
    if rows.shape[0] % 2:
        rows = np.append(rows, rows[-1])
    if size % 2 and size < room:
        rows = np.where(rows < 0, rows + size, rows)
        tokens = np.append(tokens, tokens[-1])
    return tokens, rows


class StepBuffers:
    """The buffers of a step of S tokens that the host writes and reads, for any kind of graph.

    A step pushes what Python and numpy need out of the processor's caches, so that every call between two steps takes
    four times what it takes in a loop of its own: few are made.

    outputs: what the step writes for the R rows that are wanted, by the graph's names; `result` is the first of them.
    """

    def __init__(self, provider: Provider, size: int, rows: int, outputs: dict[str, Buffer]) -> None:
        self.inputs = {
            "input_ids": provider.allocate((1, size), np.int64),
            "position_ids": provider.allocate((1, size), np.int64),
            "logit_rows": provider.allocate((rows,), np.int64),
        }
        self.outputs = outputs  # what is not bound stays in the arena, among the step's activations
        self.result = next(iter(outputs.values()))
        self.size = size
        self._offsets = all_rows(size)
        self._tokens, self.positions = self.inputs["input_ids"].array[0], self.inputs["position_ids"].array[0]
        self._rows = self.inputs["logit_rows"].array
        self._asked: NDArray[np.int64] | None = None  # the rows that are set, where nobody can change those

    @property
    def made(self) -> NDArray[Any]:
        """The result as the host sees it."""
        return self.result.array

    def fill(self, tokens: NDArray[np.int64], start: int, rows: NDArray[np.int64], tree: Tree | None) -> None:
        """Write the `tokens` [S] of a step at the positions from `start` on or where `tree` puts them, and the indices
        `rows` [R] of those whose results are wanted."""
        size = self.size
        self._tokens[:] = tokens
        if tree is not None:
            self.positions[:] = tree.positions
        elif size == 1:
            self.positions[0] = start
        else:
            np.add(self._offsets, start, out=self.positions)
        if rows is not self._asked:
            np.remainder(rows, size, out=self._rows)  # -1 is the last one
            self._asked = None if rows.flags.writeable else rows


class CacheBinding:
    """A graph bound to one cache. Inputs that all steps share are bound once; a step's own buffers are bound when
    another step ran before it."""

    def __init__(self, session: Session) -> None:
        self.names = session.inputs | session.optional
        self._bound = session.bind()
        self._inputs: dict[str, Buffer] | None = None  # those of the step whose turn it is
        self._cross: Cross | None = None

    def share(self, buffers: dict[str, Buffer]) -> None:
        """Bind the buffers that all steps share, as far as the graph has an input for them."""
        for name, buffer in buffers.items():
            if name in self.names:
                self._bound.input(name, buffer)

    def keep(self, memory: Sequence[tuple[Buffer, Buffer]]) -> None:
        """Bind the keys and values of each layer, which the graph reads and writes in place."""
        for i, pair in enumerate(memory):
            for part, buffer in zip(("key", "value"), pair, strict=True):
                if f"past.{i}.{part}" in self.names:  # not those of a layer that never runs
                    self._bound.input(f"past.{i}.{part}", buffer)
                    self._bound.output(f"present.{i}.{part}", buffer)

    def keep_states(self, states: dict[str, Buffer]) -> None:
        """Bind states, which the graph reads and writes in place."""
        self.share(states)
        for name, buffer in written(states).items():
            self._bound.output(name, buffer)

    def take(self, inputs: dict[str, Buffer], outputs: dict[str, Buffer]) -> None:
        """Bind the inputs and outputs of the next step, unless they are bound already."""
        if inputs is self._inputs:
            return
        self._inputs = None  # should it be interrupted on the way
        self.share(inputs)
        for name, buffer in outputs.items():
            self._bound.output(name, buffer)
        self._inputs = inputs

    def read(self, cross: Cross | None) -> None:
        """Bind the encoder's output for the input, unless it is bound already."""
        if cross is self._cross:
            return
        assert cross is not None, "a cache is given another input's keys and values, never none"
        self._cross = None
        self.share(cross.named)
        self._cross = cross


class WholeBinding(CacheBinding):
    """A graph over all layers, bound to one cache. Keys and values are bound once, which takes a third of a millisecond
    for thirty layers; a step's own buffers are bound when another step ran before it.

    maximum: tokens of its largest step.
    """

    def __init__(self, session: Session, cache: KVCache, maximum: int) -> None:
        super().__init__(session)
        provider = cache.provider
        # What each token attends to, [1, 1, S, C]; None where the graph takes no trees. Steps of all sizes share rows.
        dtype = session.types.get("attention_bias")
        self.bias = None if dtype is None else provider.allocate((1, 1, maximum, cache.rows), dtype)
        self._least = None if dtype in (None, np.float32) else np.finfo(np.float16).min / 2  # which it can hold
        self._told = cache.total  # of the cache itself nothing is kept: it would never go
        self._masked = 0, 0  # tokens and rows for which a bias was written
        last, total = provider.allocate((1,), np.int32), provider.allocate((), np.int32)
        self._last, self._total = last.array, total.array
        self.share({"seqlens_k": last, "total_sequence_length": total})
        if "key_positions" in self.names:
            self.share({"key_positions": provider.adopt(cache.positions)})
        self.keep(cache.memory)

    def attend(self, tree: Tree | None, size: int, length: int) -> None:
        """Set the rows that each of `size` tokens attends to, out of the `length` rows after the step: all rows before
        the token where there is no tree."""
        if tree is not None:
            assert self.bias is not None, "this graph takes no trees"
            bias = tree.bias if self._least is None else np.maximum(tree.bias, self._least)
            self.bias.array[0, 0, :size, :length] = bias
            tokens, rows = self._masked
            self._masked = max(tokens, size), max(rows, length)
        elif self.bias is not None and self._masked[0]:
            tokens, rows = self._masked
            self.bias.array[0, 0, :tokens, :rows] = 0
            self._masked = 0, 0

    def run(self, length: int) -> None:
        """Run the bound step, after which the cache has `length` rows."""
        self._last[0] = length - 1
        self._total[...] = self._told or length
        self._bound.run()


class Step(StepBuffers):
    """A step of one graph over all layers. Steps with the same output share the binding `bound`."""

    def __init__(self, bound: WholeBinding, cache: KVCache, size: int, rows: int, outputs: dict[str, Buffer]) -> None:
        super().__init__(cache.provider, size, rows, outputs)
        self._shared = bound
        if bound.bias is not None:
            self.inputs["attention_bias"] = cache.provider.part(bound.bias, (1, 1, size, cache.rows))
        if cache.states is not None:
            states = cache.states.part()
            self.inputs |= states
            self.outputs = outputs | written(states)

    def run(self, cache: KVCache, tree: Tree | None) -> None:
        """Run what was filled in, after the cache's rows, and append its tokens to them."""
        shared, start = self._shared, cache.length
        end = start + self.size
        shared.take(self.inputs, self.outputs)
        shared.read(cache.cross)
        shared.attend(tree, self.size, end)
        if tree is not None:
            cache.contiguous = False
        if not cache.contiguous:
            cache.positions[start:end] = self.positions
        if cache.states is not None:
            cache.states.at += self.size if tree is None else 1
        cache.length = end
        shared.run(end)
