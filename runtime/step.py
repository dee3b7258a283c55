"""The buffers of a step of one shape on one cache, bound once: running it again allocates nothing."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import onnxruntime as ort
from numpy.typing import NDArray

from edge.runtime.cache import KVCache

if TYPE_CHECKING:
    from edge.runtime.encoder import Cross
    from edge.runtime.engine import Tree


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
        self.cross: Cross | None = None
        self.masked = False  # whether a bias was written
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

    def read(self, cross: Cross | None) -> None:
        """Take what the encoder made of another input."""
        assert cross is not None, "a cache is given another input's keys and values, never none"
        self.cross = cross


class Step(StepBuffers):
    """A step of one graph over all layers. names: of the graph's inputs, for those that not every graph has."""

    def __init__(
        self, session: ort.InferenceSession, names: set[str], cache: KVCache, size: int, made: NDArray[Any]
    ) -> None:
        super().__init__(size, made)
        self._session = session
        self._seqlens_k = np.zeros(1, np.int32)
        self._total = np.zeros((), np.int32)
        self._binding = session.io_binding()
        inputs: dict[str, NDArray[Any]] = {
            "input_ids": self.tokens,
            "position_ids": self.positions,
            "seqlens_k": self._seqlens_k,
            "total_sequence_length": self._total,
            "logit_rows": self.rows,
        }
        self._bias: NDArray[np.float32] | None = None  # [1, 1, S, C]
        if "attention_bias" in names:
            self._bias = inputs["attention_bias"] = np.zeros((1, 1, size, cache.rows), np.float32)
        if "key_positions" in names:
            inputs["key_positions"] = cache.positions
        # What is not bound stays in the arena, among the step's activations.
        outputs: dict[str, NDArray[Any]] = {"logits" if made.dtype == np.float32 else "tokens": made}
        # An OrtValue made from an array shares its memory and does not keep it alive: cache and step do.
        for name, array in inputs.items():
            self._binding.bind_ortvalue_input(name, ort.OrtValue.ortvalue_from_numpy(array))
        for name, array in outputs.items():
            self._binding.bind_ortvalue_output(name, ort.OrtValue.ortvalue_from_numpy(array))
        for i, pair in enumerate(cache.values):
            for part, value in zip(("key", "value"), pair, strict=True):
                self._binding.bind_ortvalue_input(f"past.{i}.{part}", value)
                self._binding.bind_ortvalue_output(f"present.{i}.{part}", value)

    def read(self, cross: Cross | None) -> None:
        super().read(cross)
        assert cross is not None
        for name, value in cross.values.items():
            self._binding.bind_ortvalue_input(name, value)

    def run(self, cache: KVCache, tree: Tree | None) -> None:
        """Run what was filled in, behind the cache's rows, and append its tokens to them."""
        start, end = cache.length, cache.length + self.tokens.shape[1]
        if tree is not None or self.masked:
            self._attend(tree, end)
        cache.positions[start:end] = self.positions[0]
        cache.length = end
        self._seqlens_k[0] = end - 1
        self._total[...] = end
        self._session.run_with_iobinding(self._binding)

    def _attend(self, tree: Tree | None, length: int) -> None:
        """Set what each token attends to of the `length` rows there will be: all before it where there is no tree."""
        assert self._bias is not None, "this graph takes no trees"
        if tree is None:
            self._bias[:] = 0
        else:
            self._bias[0, 0, :, :length] = tree.bias
        self.masked = tree is not None
