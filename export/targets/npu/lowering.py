"""Qualcomm's NPU, through QNN: plain operators over fixed shapes, which the compiler fuses and quantizes.

What an NPU does not do stays on the host: the rows of the embedding and of tables of positions come in as floats, and
the new rows of keys and values go out, for the host to write into the cache. Scores of the cache and of the new tokens
are made apart and joined, so that the cache itself is read in place and never copied.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray
from onnxscript import GraphBuilder, nn

from edge.errors import ExportError
from edge.export.graph.operators import NO_SINKS, HeadNorms, Lowering, Value, scalar
from edge.export.graph.weights import StoredFloat

if TYPE_CHECKING:
    from edge.export.facts.family import Heads
    from edge.export.graph.blocks import Step
    from edge.export.graph.linear import Embedding, Linear


class NPU(Lowering):
    """The NPU's `Lowering`. size: the tokens of a step, or of an encoder's input. source_mask: a term in the scores of
    an encoder's attention [1, 1 or heads, T, T], None for audio, all of which is attended to; or of a decoder's
    attention to the encoder's output [1, 1, 1, T]. bias_apart: a product's bias is added after it. tables [P, W]: of
    positions, by the inputs through which the host gives their rows."""

    domains: ClassVar = {}
    caches = False

    def __init__(
        self, builder: GraphBuilder, size: int, source_mask: Value | None = None, *, bias_apart: bool = False
    ) -> None:
        super().__init__(builder)
        self.size, self.bias_apart = size, bias_apart
        self.source_mask = source_mask
        self.tables: dict[str, NDArray[np.float32]] = {}
        self._given: dict[str, Value] = {}

    def rms_norm(self, x: Value, weight: nn.Parameter, eps: float) -> Value:
        """Over three dimensions: of four Hexagon computes another result (onnxruntime-qnn 2.7)."""
        return self.RMSNormalization(self.Reshape(x, [1, -1, _size(weight, 0)]), weight, axis=-1, epsilon=eps)

    def add_rms_norm(self, x: Value, added: Value, weight: nn.Parameter, eps: float) -> tuple[Value, Value]:
        total = self.Add(x, added)
        return self.rms_norm(total, weight, eps), total

    def layer_norm(self, x: Value, weight: nn.Parameter, bias: nn.Parameter, eps: float) -> Value:
        return self.LayerNormalization(x, weight, bias, axis=-1, epsilon=eps)

    def add_layer_norm(
        self, x: Value, added: Value, weight: nn.Parameter, bias: nn.Parameter, eps: float, *, many_rows: bool
    ) -> tuple[Value, Value]:
        total = self.Add(x, added)
        return self.layer_norm(total, weight, bias, eps), total

    def matmul(self, a: Value, b: Value, *, scale: float = 1.0, transposed: bool = False) -> Value:
        if transposed:
            b = self.Transpose(b, perm=[0, 1, 3, 2])
        y = self.MatMul(a, b)
        return y if scale == 1 else self.Mul(y, scalar(self, "scale", scale))

    def product(self, x: Any, matrix: Linear) -> Value:
        """Gemm and not MatMul: of that one QNN takes one scale for the whole matrix (KL 0.15 where Gemm has 0.02)."""
        assert isinstance(matrix.stored, StoredFloat), "matrices are quantized once the graph is whole"
        flat = self.Reshape(x, [-1, matrix.stored.columns])
        bias = [] if matrix.bias is None else [matrix.bias]
        made = self.Gemm(flat, matrix.weight, *([] if self.bias_apart else bias), transB=1)
        made = self.Reshape(made, [1, -1, matrix.stored.rows])
        return self.Add(made, *bias) if bias and self.bias_apart else made

    def shared(self, x: Value, matrices: Sequence[Linear]) -> Any:
        return x

    def rows(self, ids: Value, matrix: Embedding) -> Value:
        """The host gives the rows instead of the tokens."""
        return ids

    def table_rows(self, table: Value, positions: Value) -> Value:
        """An input: to look up 512 rows of 32 the simulator finds no memory (onnxruntime-qnn 2.7)."""
        name = f"{table.name}.rows"
        if name not in self.tables:
            assert table.const_value is not None
            rows = self.tables[name] = table.const_value.numpy()
            self._given[name] = self.builder.input(name, ir.DataType.FLOAT, [1, self.size, rows.shape[1]])
        return self._given[name]

    def first_rows(self, table: Value, x: Value) -> Value:
        """All of them: the input has the length that the table was made for."""
        return table

    def convolution(self, x: Value, weight: Value, bias: Value, *, stride: int) -> Value:
        kernel = self._kernel(weight, _size(x, 2))
        made = self.Conv(self.Transpose(x, perm=[0, 2, 1]), kernel, bias, pads=[1, 1], strides=[stride])
        return self.Transpose(made, perm=[0, 2, 1])

    def _kernel(self, weight: Value, channels: int) -> Value:
        """A convolution's weight [3 C, H] as [H, C, 3]."""
        assert weight.const_value is not None
        taps = weight.const_value.numpy()
        kernel = np.ascontiguousarray(taps.reshape(3, channels, -1).transpose(2, 1, 0))
        return self.initializer(ir.tensor(kernel, name=f"{weight.name}.kernel"))

    def attention(
        self,
        parts: Sequence[Value],
        step: Step,
        layer: int,
        *,
        heads: Heads,
        scale: float,
        rope: tuple[Value, Value] | None,
        window: int | None,
        softcap: float | None,
        norms: HeadNorms | None,
        sinks: Value | None = None,
    ) -> tuple[Value, Value, Value]:
        """Instead of a cache's key and value these are the new rows alone, [1, S, heads, dim]."""
        assert step.attention_bias is not None
        past_key, past_value = step.past[layer]
        capacity = _size(past_key, 3)
        if sinks is not None:
            raise ExportError(NO_SINKS)
        if softcap is not None:
            raise ExportError("The model bounds its attention scores, which no graph for NPUs does yet.")
        if window is not None and window < capacity:
            raise ExportError(
                f"The model attends to the last {window} tokens alone, and a graph for NPUs has one mask for all "
                f"layers; choose a --target-context of {window} or less, or leave out --target."
            )
        query, new_key, new_value = self._apart(parts, heads)
        query, new_key = self._rotated(query, step, rope, scale), self._rotated(new_key, step, rope, 1.0)
        query, value = (self.Transpose(x, perm=[0, 2, 1, 3]) for x in (query, new_value))
        key = self.Transpose(new_key, perm=[0, 2, 3, 1])
        shared = heads.query // heads.key_value  # queries that read the same keys stand below each other
        query = self.Reshape(query, [1, heads.key_value, shared * self.size, heads.dim])
        scores = self.Concat(self.MatMul(query, past_key), self.MatMul(query, key), axis=3)
        weights = self.Softmax(self.Add(scores, step.layer_biases.get(layer, step.attention_bias)), axis=-1)
        seen, new = self.Split(weights, [capacity, self.size], axis=3, _outputs=2)
        made = self.Add(self.MatMul(seen, past_value), self.MatMul(new, value))
        made = self.Transpose(self.Reshape(made, [1, heads.query, self.size, heads.dim]), perm=[0, 2, 1, 3])
        return self.Reshape(made, [1, self.size, heads.query * heads.dim]), new_key, new_value

    def _apart(self, parts: Sequence[Value], heads: Heads) -> list[Value]:
        """Query, key and value by heads, each [1, S, heads, dim]."""
        counts = [heads.query, heads.key_value, heads.key_value]
        if len(parts) == 1:
            parts = self.Split(parts[0], [count * heads.dim for count in counts], axis=-1, _outputs=3)
        return [self.Reshape(part, [1, self.size, n, heads.dim]) for part, n in zip(parts, counts, strict=True)]

    def _rotated(self, x: Value, step: Step, rope: tuple[Value, Value] | None, scale: float) -> Value:
        """The heads [1, S, heads, dim] rotated by their positions, and scaled."""
        if rope is not None:
            cos, sin = (self._rows_for_heads(table, step.position_ids) for table in rope)
            half = _size(rope[0], 1)
            rest = _size(x, 3) - 2 * half  # channels that are not rotated
            sizes = [half, half, rest] if rest else [half, half]
            first, second, *others = self.Split(x, sizes, axis=-1, _outputs=len(sizes))
            x = self.Concat(
                self.Sub(self.Mul(first, cos), self.Mul(second, sin)),
                self.Add(self.Mul(second, cos), self.Mul(first, sin)),
                *others,
                axis=3,
            )
        return x if scale == 1 else self.Mul(x, scalar(self, "scale", scale))

    def _rows_for_heads(self, table: Value, positions: Value) -> Value:
        """Return the rows of `table_rows` as [1, S, 1, W], computed once in a graph."""
        name = f"{table.name}.heads"
        if name not in self._given:
            self._given[name] = self.Reshape(self.table_rows(table, positions), [1, self.size, 1, _size(table, 1)])
        return self._given[name]

    def full_attention(
        self, query: Value, key: Value, value: Value, bias: Value | None, *, heads: int, scale: float
    ) -> Value:
        """Compute an encoder's attention, whose bias is part of the mask."""
        assert bias is None
        query, key, value = (self.Reshape(part, [1, self.size, heads, -1]) for part in (query, key, value))
        key, value = self.Transpose(key, perm=[0, 2, 3, 1]), self.Transpose(value, perm=[0, 2, 1, 3])
        return self._attend(query, key, value, scale)

    def cross_keys_values(self, key: Value, value: Value, *, heads: int, long_input: bool) -> tuple[Value, Value]:
        """Return keys and values, both [1, T, heads, dim], which the host transposes."""
        key, value = (self.Reshape(part, [1, self.size, heads, -1]) for part in (key, value))
        return key, value

    def cross_attention(
        self, query: Value, key: Value, value: Value, *, heads: int, scale: float, long_input: bool
    ) -> Value:
        """The key is [1, heads, dim, T], the value [1, heads, T, dim]."""
        return self._attend(self.Reshape(query, [1, -1, heads, _size(key, 2)]), key, value, scale)

    def _attend(self, query: Value, key: Value, value: Value, scale: float) -> Value:
        """Attend from queries [1, S, heads, dim] to all keys that the source's mask lets through: [1, S, heads *
        dim]."""
        if scale != 1:
            query = self.Mul(query, scalar(self, "scale", scale))
        scores = self.MatMul(self.Transpose(query, perm=[0, 2, 1, 3]), key)
        if self.source_mask is not None:
            scores = self.Add(scores, self.source_mask)
        made = self.Transpose(self.MatMul(self.Softmax(scores, axis=-1), value), perm=[0, 2, 1, 3])
        return self.Reshape(made, [1, _size(made, 1), -1])

    def rotate(self, x: Value, positions: Value, rope: tuple[Value, Value], *, heads: int) -> Value:
        raise ExportError("The model rotates positions outside of its attention, which no graph for NPUs does yet.")

    def silu(self, x: Value) -> Value:
        return self.Mul(x, self.Sigmoid(x))

    def gelu(self, x: Value) -> Value:
        return self.Gelu(x)

    def gelu_tanh(self, x: Value) -> Value:
        return self.Gelu(x, approximate="tanh")

    def likeliest(self, logits: Value, vocab_size: int) -> Value:
        raise NotImplementedError("tokens are chosen on the host")

    @staticmethod
    def keeps_scores(node: ir.Node) -> bool:
        return node.op_type == "Softmax"


def _size(value: Value, axis: int) -> int:
    assert value.shape is not None
    size = value.shape[axis]
    assert isinstance(size, int), "no dimension of these graphs is symbolic"
    return size
