"""The buffers of the steps on one cache, bound once: running a step again allocates nothing."""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING, Any

import numpy as np
import onnxruntime as ort
from numpy.typing import NDArray

from edge.runtime.cache import KVCache

if TYPE_CHECKING:
    from edge.runtime.encoder import Cross
    from edge.runtime.engine import Tree


KEPT_STEP = 16  # steps up to this size are kept for the next of their size; larger ones (prompt chunks) are not


@lru_cache(KEPT_STEP)
def all_rows(size: int) -> NDArray[np.int64]:
    """The indices [S] of all rows of a step, which nobody can change."""
    return _fixed(np.arange(size, dtype=np.int64))


def _fixed(rows: NDArray[np.int64]) -> NDArray[np.int64]:
    rows.flags.writeable = False
    return rows


LAST_ROW = _fixed(np.array([-1], np.int64))


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

    A step pushes what Python and numpy need out of the processor's caches, so that every call between two steps takes
    four times what it takes in a loop of its own: few are made.

    made: what the step writes of each row that is wanted: logits [1, R, V], or the likeliest token [1, R] int64.
    """

    def __init__(self, size: int, made: NDArray[Any]) -> None:
        self.tokens = np.zeros((1, size), np.int64)
        self.positions = np.zeros((1, size), np.int64)
        self.made = made
        self.rows = np.zeros(made.shape[1], np.int64)
        self._offsets = all_rows(size)
        self._tokens, self._places = self.tokens[0], self.positions[0]
        self._asked: NDArray[np.int64] | None = None  # the rows that stand in `rows`, where nobody can change those

    @property
    def given(self) -> dict[str, NDArray[Any]]:
        """What the graph reads of the step, by its names."""
        return {"input_ids": self.tokens, "position_ids": self.positions, "logit_rows": self.rows}

    @property
    def results(self) -> dict[str, NDArray[Any]]:
        """What the graph writes, by its name; what is not bound stays in the arena, among the step's activations."""
        return {"logits" if self.made.dtype == np.float32 else "tokens": self.made}

    def fill(self, tokens: NDArray[np.int64], start: int, rows: NDArray[np.int64], tree: Tree | None) -> None:
        """Take `tokens` [S], at the positions from `start` on or where `tree` puts them, and which `rows` [R] of them
        are wanted."""
        size = tokens.shape[0]
        self._tokens[:] = tokens
        if tree is not None:
            self._places[:] = tree.positions
        elif size == 1:
            self._places[0] = start
        else:
            np.add(self._offsets, start, out=self._places)
        if rows is not self._asked:
            np.remainder(rows, size, out=self.rows)  # -1 is the last one
            self._asked = None if rows.flags.writeable else rows


class Binding:
    """A graph bound to one cache: what every step shares once, and what differs from step to step when another step
    takes its turn.

    names: of the graph's inputs.
    """

    def __init__(self, session: ort.InferenceSession, names: set[str]) -> None:
        self._session = session
        self._names = names
        self._binding = session.io_binding()
        self._inputs: dict[str, ort.OrtValue] | None = None  # those of the step whose turn it is
        self._cross: Cross | None = None

    def keep(self, cache: KVCache) -> None:
        """Read and write the cache's keys and values in place."""
        for i, pair in enumerate(cache.values):
            for part, value in zip(("key", "value"), pair, strict=True):
                if f"past.{i}.{part}" in self._names:  # not those of a layer that never runs
                    self._binding.bind_ortvalue_input(f"past.{i}.{part}", value)
                    self._binding.bind_ortvalue_output(f"present.{i}.{part}", value)

    def take(self, inputs: dict[str, ort.OrtValue], outputs: dict[str, ort.OrtValue]) -> None:
        """It is the turn of the step with these."""
        if inputs is self._inputs:
            return
        self._inputs = None  # should it be interrupted on the way
        for name, value in inputs.items():
            self._binding.bind_ortvalue_input(name, value)
        for name, value in outputs.items():
            self._binding.bind_ortvalue_output(name, value)
        self._inputs = inputs

    def read(self, cross: Cross | None) -> None:
        """Take what the encoder made of the input, where that is not bound yet."""
        if cross is self._cross:
            return
        assert cross is not None, "a cache is given another input's keys and values, never none"
        self._cross = None
        for name, value in cross.values.items():
            if name in self._names:
                self._binding.bind_ortvalue_input(name, value)
        self._cross = cross


class Bound(Binding):
    """A graph over all layers, bound to one cache: keys and values once, which takes a third of a millisecond for
    thirty layers, and what differs from step to step when another step takes its turn.

    names: of the graph's inputs. most: tokens of its largest step.
    """

    def __init__(self, session: ort.InferenceSession, names: set[str], cache: KVCache, most: int) -> None:
        super().__init__(session, names)
        # What each token attends to, [1, 1, S, C]; None where the graph takes no trees. Steps of all sizes share rows.
        self.bias = np.zeros((1, 1, most, cache.rows), np.float32) if "attention_bias" in names else None
        self._masked = 0, 0  # tokens and rows for which a bias was written
        self._seqlens_k = np.zeros(1, np.int32)
        self._total = np.zeros((), np.int32)
        given: dict[str, NDArray[Any]] = {"seqlens_k": self._seqlens_k, "total_sequence_length": self._total}
        if "key_positions" in names:
            given["key_positions"] = cache.positions
        for name, value in values_of(given).items():
            self._binding.bind_ortvalue_input(name, value)
        self.keep(cache)

    def attend(self, tree: Tree | None, size: int, length: int) -> None:
        """Set what each of `size` tokens attends to of the `length` rows there will be: all before it where there is no
        tree."""
        if tree is not None:
            assert self.bias is not None, "this graph takes no trees"
            self.bias[0, 0, :size, :length] = tree.bias
            tokens, rows = self._masked
            self._masked = max(tokens, size), max(rows, length)
        elif self.bias is not None and self._masked[0]:
            tokens, rows = self._masked
            self.bias[0, 0, :tokens, :rows] = 0
            self._masked = 0, 0

    def run(self, length: int) -> None:
        """Run the step whose turn it is, behind which the cache has so many rows."""
        self._seqlens_k[0] = length - 1
        self._total[...] = length
        self._session.run_with_iobinding(self._binding)


class Step(StepBuffers):
    """A step of one graph over all layers: one of those that share what is `bound`, all with the same output."""

    def __init__(self, bound: Bound, size: int, made: NDArray[Any]) -> None:
        super().__init__(size, made)
        self._shared = bound
        self._size = size
        own = {} if bound.bias is None else {"attention_bias": bound.bias[:, :, :size]}
        self._inputs, self._outputs = values_of(self.given | own), values_of(self.results)

    def run(self, cache: KVCache, tree: Tree | None) -> None:
        """Run what was filled in, behind the cache's rows, and append its tokens to them."""
        shared, start, size = self._shared, cache.length, self._size
        end = start + size
        shared.take(self._inputs, self._outputs)
        shared.read(cache.cross)
        shared.attend(tree, size, end)
        if tree is not None:
            cache.straight = False
        if not cache.straight:
            cache.positions[start:end] = self._places
        cache.length = end
        shared.run(end)


def values_of(arrays: dict[str, NDArray[Any]]) -> dict[str, ort.OrtValue]:
    """Arrays as onnxruntime takes them: they share the arrays' memory."""
    return {name: ort.OrtValue.ortvalue_from_numpy(array) for name, array in arrays.items()}
