"""The buffers of the steps on one cache, bound once: running a step again allocates nothing."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import onnxruntime as ort
from numpy.typing import NDArray

from edge.runtime.cache import KVCache

if TYPE_CHECKING:
    from edge.runtime.encoder import Cross
    from edge.runtime.engine import Tree


KEPT_STEP = 16  # steps up to this size are kept for the next of their size; larger ones (prompt chunks) are not


def paired(
    tokens: NDArray[np.int64], rows: NDArray[np.int64], room: int
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """`tokens` [S] of a step and the `rows` [R] of them that are wanted, in even numbers: the last one twice where it
    would be odd. Kernels take rows by twos and a last one alone, which differs in its last bits.

    room: tokens that the graph has positions for; where there is none for one more, the tokens are left as they are.
    """
    size = tokens.shape[0]
    if rows.shape[0] % 2:
        rows = np.append(rows, rows[-1])
    if size % 2 and size < room:
        rows = np.where(rows < 0, rows + size, rows)
        tokens = np.append(tokens, tokens[-1])
    return tokens, rows


class StepBuffers:
    """What the host writes and reads of a step of S tokens, whatever runs it.

    made: what the step writes of each row that is wanted: logits [1, R, V], or the likeliest token [1, R] int64.
    """

    def __init__(self, size: int, made: NDArray[Any]) -> None:
        self.tokens = np.zeros((1, size), np.int64)
        self.positions = np.zeros((1, size), np.int64)
        self.made = made
        self.rows = np.zeros(made.shape[1], np.int64)
        self._offsets = np.arange(size, dtype=np.int64)

    def fill(self, tokens: NDArray[np.int64], start: int, rows: NDArray[np.int64], tree: Tree | None) -> None:
        """Take `tokens` [S], at the positions from `start` on or where `tree` puts them, and which `rows` [R] of them
        are wanted."""
        self.tokens[0] = tokens
        if tree is None:
            np.add(self._offsets, start, out=self.positions[0])
        else:
            self.positions[0] = tree.positions
        np.remainder(rows, tokens.shape[0], out=self.rows)  # -1 is the last one


class Bound:
    """A graph over all layers, bound to one cache: keys and values once, which takes a third of a millisecond for
    thirty layers, and what differs from step to step when another step takes its turn.

    names: of the graph's inputs, for those that not every graph has.
    """

    def __init__(self, session: ort.InferenceSession, names: set[str], cache: KVCache) -> None:
        self.session = session
        self.io = session.io_binding()
        self.inputs: dict[str, ort.OrtValue] | None = None  # those of the step whose turn it is
        self.cross: Cross | None = None
        self.seqlens_k = np.zeros(1, np.int32)
        self.total = np.zeros((), np.int32)
        # What each token attends to, [1, 1, S, C]: steps of up to so many tokens share the rows.
        self.bias = np.zeros((1, 1, KEPT_STEP, cache.rows), np.float32) if "attention_bias" in names else None
        self.masked = False  # whether a bias was written
        given: dict[str, NDArray[Any]] = {"seqlens_k": self.seqlens_k, "total_sequence_length": self.total}
        if "key_positions" in names:
            given["key_positions"] = cache.positions
        for name, value in _values(given).items():
            self.io.bind_ortvalue_input(name, value)
        for i, pair in enumerate(cache.values):
            for part, value in zip(("key", "value"), pair, strict=True):
                self.io.bind_ortvalue_input(f"past.{i}.{part}", value)
                self.io.bind_ortvalue_output(f"present.{i}.{part}", value)

    def read(self, cross: Cross | None) -> None:
        """Take what the encoder made of the input, where that is not bound yet."""
        if cross is not self.cross:
            assert cross is not None, "a cache is given another input's keys and values, never none"
            for name, value in cross.values.items():
                self.io.bind_ortvalue_input(name, value)
            self.cross = cross


class Step(StepBuffers):
    """A step of one graph over all layers: one of those that are `bound` to a cache, all with the same output."""

    def __init__(self, bound: Bound, size: int, made: NDArray[Any]) -> None:
        super().__init__(size, made)
        self._bound = bound
        given: dict[str, NDArray[Any]] = {
            "input_ids": self.tokens,
            "position_ids": self.positions,
            "logit_rows": self.rows,
        }
        self._bias: NDArray[np.float32] | None = None  # [1, 1, S, C]
        if bound.bias is not None:
            own = size > KEPT_STEP
            self._bias = np.zeros((1, 1, size, bound.bias.shape[3]), np.float32) if own else bound.bias[:, :, :size]
            given["attention_bias"] = self._bias
        self._inputs = _values(given)
        # What is not bound stays in the arena, among the step's activations.
        self._outputs = _values({"logits" if made.dtype == np.float32 else "tokens": made})

    def run(self, cache: KVCache, tree: Tree | None) -> None:
        """Run what was filled in, behind the cache's rows, and append its tokens to them."""
        bound, start = self._bound, cache.length
        end = start + self.tokens.shape[1]
        if bound.inputs is not self._inputs:
            for name, value in self._inputs.items():
                bound.io.bind_ortvalue_input(name, value)
            for name, value in self._outputs.items():
                bound.io.bind_ortvalue_output(name, value)
            bound.inputs = self._inputs
        bound.read(cache.cross)
        if tree is not None or bound.masked:
            self._attend(tree, end)
        cache.positions[start:end] = self.positions[0]
        cache.length = end
        bound.seqlens_k[0] = end - 1
        bound.total[...] = end
        bound.session.run_with_iobinding(bound.io)

    def _attend(self, tree: Tree | None, length: int) -> None:
        """Set what each token attends to of the `length` rows there will be: all before it where there is no tree."""
        assert self._bias is not None and self._bound.bias is not None, "this graph takes no trees"
        if tree is None:
            self._bound.bias[:] = 0
        else:
            self._bias[0, 0, :, :length] = tree.bias
        self._bound.masked = tree is not None


def _values(arrays: dict[str, NDArray[Any]]) -> dict[str, ort.OrtValue]:
    """Arrays as onnxruntime takes them. They share the arrays' memory and do not keep it alive: cache and step do."""
    return {name: ort.OrtValue.ortvalue_from_numpy(array) for name, array in arrays.items()}
