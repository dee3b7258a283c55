"""onnxruntime's CUDA provider: the operators of its CPU provider, over float16 or bfloat16.

Nothing in a step may run on the host, for CUDA graphs take none of that: no shapes are computed, and all that depends
on how long a text is stands in memory of the device. Steps are told as their total length what the caches have room
for; how many rows count, `seqlens_k` says.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import onnx_ir as ir
from onnxscript import GraphBuilder, nn

from edge.errors import ExportError
from edge.export.graph.operators import NO_SINKS, HeadNorms, Value
from edge.export.graph.weights import StoredBlocks, StoredFloat, StoredGguf
from edge.export.targets.cpu.lowering import CPU, END

if TYPE_CHECKING:
    from edge.export.facts.family import Heads
    from edge.export.graph.blocks import Step
    from edge.export.graph.linear import Embedding, Linear

FLOAT = ir.DataType.FLOAT
HEAD_MULTIPLE = 8  # that flash attention takes heads of


class CUDA(CPU):
    """CUDA's `Lowering`. dtype: of activations, keys and values: float16 or bfloat16.

    substitutes: write forms that the CPU's provider also runs, where CUDA has a faster one: for checks without a GPU,
    for which `dtype` may be float32.
    """

    caches = False

    def __init__(self, builder: GraphBuilder, dtype: ir.DataType, *, substitutes: bool = False) -> None:
        super().__init__(builder)
        self.dtype = dtype
        self._substitutes = substitutes

    @property
    def norms_heads(self) -> bool:
        return not self._substitutes

    def add_layer_norm(
        self, x: Value, added: Value, weight: nn.Parameter, bias: nn.Parameter, eps: float, *, many_rows: bool
    ) -> tuple[Value, Value]:
        return super().add_layer_norm(x, added, weight, bias, eps, many_rows=False)

    def product(self, x: Any, matrix: Linear) -> Value:
        """The bias is added by itself: MatMulNBits with one takes neither of its fast ways, the product fused with
        unpacking for up to 16 rows, and, where it is switched on, the one that packs weights for tensor cores."""
        y = self._product(x, matrix)
        return y if matrix.bias is None else self.Add(y, matrix.bias)

    def _product(self, x: Value, matrix: Linear) -> Value:
        stored = matrix.stored
        if isinstance(stored, StoredFloat):
            return self.matmul(x, matrix.weight, transposed=True)
        assert isinstance(stored, StoredBlocks), "int8 by rows is the CPU's"
        return self.fused.MatMulNBits(
            x,
            matrix.weight,
            matrix.scales,
            *([] if matrix.zero_points is None else [matrix.zero_points]),
            N=stored.rows,
            K=stored.columns,
            bits=stored.bits,
            block_size=stored.block_size,
        )

    def logits(self, x: Value, matrix: Linear) -> Value:
        """The head's weights are in float16 whatever activations are: bfloat16 would leave logits 8 bits."""
        y = self.Cast(self._product(self._as(x, self._dtype_of(matrix)), matrix), to=FLOAT)
        return y if matrix.bias is None else self.Add(y, self.Cast(matrix.bias, to=FLOAT))

    def rows(self, ids: Value, matrix: Embedding) -> Value:
        stored = matrix.stored
        x = self.Gather(matrix.weight, ids, axis=0) if isinstance(stored, StoredFloat) else super().rows(ids, matrix)
        dtype = self._dtype_of(matrix)
        return x if dtype == self.dtype else self.Cast(x, to=self.dtype)

    def _as(self, x: Value, dtype: ir.DataType) -> Value:
        return x if dtype == self.dtype else self.Cast(x, to=dtype)

    def _dtype_of(self, matrix: Linear | Embedding) -> ir.DataType:
        """The type that a stored matrix meets."""
        stored = matrix.stored
        if self.dtype == FLOAT:  # all that is stored is read as that
            return FLOAT
        assert not isinstance(stored, StoredGguf), "a file's blocks are the CPU's"
        return stored.weight.dtype if isinstance(stored, StoredFloat) else stored.scales.dtype

    def first_columns(self, x: Value, length: Value, axis: int) -> Value:
        """Return x itself: for CUDA's operators the total length is the capacity of the caches."""
        return x

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
        """Query, key and value packed, rotated and normed inside. Without positions it counts them from how many rows
        there are, which is right unless tokens are a tree; a bias, which trees need, leaves flash attention."""
        if heads.dim % HEAD_MULTIPLE:
            raise ExportError(f"The model's heads are {heads.dim} wide; CUDA's attention takes multiples of 8.")
        if sinks is not None:
            raise ExportError(NO_SINKS)
        attributes: dict[str, Any] = {
            "num_heads": heads.query,
            "kv_num_heads": heads.key_value,
            "do_rotary": int(rope is not None),
            "scale": scale,
        }
        if window is not None:
            attributes["local_window_size"] = window
        if softcap is not None:
            attributes["softcap"] = softcap
        bias = step.layer_biases.get(layer, step.attention_bias)
        if bias is None and len(parts) == 3:
            parts = [self.Concat(*parts, axis=-1)]
        query, key, value = parts if len(parts) == 3 else [*parts, None, None]
        cos, sin = rope or (None, None)
        inputs: list[Value | None] = [
            *(query, key, value, *step.past[layer], step.seqlens_k, step.total_sequence_length, cos, sin),
            None if rope is None or bias is None else step.position_ids,
            bias,
        ]
        if norms is not None:
            inputs += [None, None, None, norms.query, norms.key]
            attributes["qk_norm_epsilon"] = norms.eps
        return self.fused.GroupQueryAttention(*inputs, _outputs=3, **attributes)

    def convolution(self, x: Value, weight: Value, bias: Value, *, stride: int) -> Value:
        """Convolve as the CPU's `convolution` does, without Pad, which does not support bfloat16."""
        assert weight.shape is not None
        rows = weight.shape[0]
        assert isinstance(rows, int), "weights have sizes"
        edge = self.initializer(ir.tensor(np.zeros((1, 1, rows // 3), self.dtype.numpy()), name="edge"))
        padded = self.Concat(edge, x, edge, axis=1)
        taps = [self.Slice(padded, [i], [end], [1], [stride]) for i, end in enumerate((-2, -1, END))]
        return self.Add(self.MatMul(self.Concat(*taps, axis=2), weight), bias)

    def cross_keys_values(self, key: Value, value: Value, *, heads: int, long_input: bool) -> tuple[Value, Value]:
        """Return keys and values, both [1, heads, T, dim]."""
        return super().cross_keys_values(key, value, heads=heads, long_input=False)

    def cross_attention(
        self, query: Value, key: Value, value: Value, *, heads: int, scale: float, long_input: bool
    ) -> Value:
        return self.full_attention(query, key, value, None, heads=heads, scale=scale)
