"""onnxruntime's CPU provider: its own fused operators, chosen by what was measured on it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import onnx_ir as ir
from onnxscript import GraphBuilder, nn

from edge.errors import ExportError
from edge.export.lower.base import Lowering, Value, scalar
from edge.export.lower.cpu import products

if TYPE_CHECKING:
    from edge.export.graph.blocks import Step
    from edge.export.graph.families.base import Heads

DOMAIN, VERSION = "com.microsoft", 1  # of onnxruntime's own operators
BLOCK = 256  # logits that the search for the largest one looks at together
BIAS = 5  # which input of MultiHeadAttention is added to its scores


class CPU(Lowering):
    """See `Lowering`; where a docstring stands here it says why it is this operator."""

    domains: ClassVar = {DOMAIN: VERSION}

    def __init__(self, builder: GraphBuilder) -> None:
        super().__init__(builder)
        self.fused = builder.opset(DOMAIN, VERSION)

    def rms_norm(self, x: Value, weight: nn.Parameter, eps: float) -> Value:
        return self.SimplifiedLayerNormalization(x, weight, axis=-1, epsilon=eps)

    def add_rms_norm(self, x: Value, added: Value, weight: nn.Parameter, eps: float) -> tuple[Value, Value]:
        """Adding and norming in one operator makes a decode step 2 to 5% faster and is as fast for a prompt (2 threads,
        576 wide, onnxruntime 1.31): between two products, which stream weights through the caches, every operator runs
        cold.
        """
        normed, _, _, total = self.fused.SkipSimplifiedLayerNormalization(
            x, added, weight, epsilon=eps, _outputs=_sum_and_norm()
        )
        return normed, total

    def layer_norm(self, x: Value, weight: nn.Parameter, bias: nn.Parameter, eps: float) -> Value:
        return self.LayerNormalization(x, weight, bias, axis=-1, epsilon=eps)

    def add_layer_norm(
        self, x: Value, added: Value, weight: nn.Parameter, bias: nn.Parameter, eps: float, *, many_rows: bool
    ) -> tuple[Value, Value]:
        """The one operator is faster for the row of a decode step, and ten times slower for 1,500 (1.6 ms against 0.16
        at a width of 512, onnxruntime 1.31)."""
        if many_rows:
            total = self.Add(x, added)
            return self.layer_norm(total, weight, bias, eps), total
        normed, _, _, total = self.fused.SkipLayerNormalization(
            x, added, weight, bias, epsilon=eps, _outputs=_sum_and_norm()
        )
        return normed, total

    def matmul(self, a: Value, b: Value, *, scale: float = 1.0, transposed: bool = False) -> Value:
        attributes: dict[str, Any] = {} if scale == 1 else {"alpha": scale}
        return self.fused.FusedMatMul(a, b, **attributes, **({"transB": 1} if transposed else {}))

    product, shared, rows = products.product, products.shared, products.rows  # which have a file of their own

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
    ) -> tuple[Value, Value, Value]:
        """It takes query, key and value apart itself, which costs nothing. It has inputs for norms of queries and keys,
        but not on the CPU."""
        if heads.dim % 8:
            raise ExportError(f"The model's heads are {heads.dim} wide; onnxruntime's attention takes multiples of 8.")
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
        query, key, value = parts if len(parts) == 3 else [*parts, None, None]
        cos, sin = (None, None) if rope is None else _rotatable(rope)
        return self.fused.GroupQueryAttention(
            query,
            key,
            value,
            *step.past[layer],
            step.seqlens_k,
            step.total_sequence_length,
            cos,
            sin,
            None if rope is None else step.position_ids,
            step.layer_biases.get(layer, step.attention_bias),
            _outputs=3,
            **attributes,
        )

    def full_attention(
        self, query: Value, key: Value, value: Value, bias: Value | None, *, heads: int, scale: float
    ) -> Value:
        more = [] if bias is None else [None, None, bias]
        return self.fused.MultiHeadAttention(query, key, value, *more, num_heads=heads, scale=scale)

    def rotate(self, x: Value, positions: Value, rope: tuple[Value, Value]) -> Value:
        return self.fused.RotaryEmbedding(x, positions, *_rotatable(rope))

    def silu(self, x: Value) -> Value:
        return self.fused.QuickGelu(x, alpha=1.0)

    def gelu(self, x: Value) -> Value:
        return self.Gelu(x)

    def gelu_tanh(self, x: Value) -> Value:
        return self.fused.FastGelu(x)

    def likeliest(self, logits: Value, vocab_size: int) -> Value:
        """First the block with the largest logit, then the place in it. ArgMax over a whole row takes 33 us for 49,152
        logits and 167 for 262,144 (onnxruntime 1.31, two threads), this 8 and 14, because the search for the largest
        value alone is vectorized and runs in all threads. Where blocks do not divide a vocabulary its logits are filled
        up, which copies them, whoever reads them.
        """
        block = block_size(vocab_size)
        missing = -vocab_size % block
        if missing:
            padding = self.initializer(ir.tensor(np.array([0, 0, 0, 0, 0, missing]), name="missing"))
            logits = self.Pad(logits, padding, scalar(self, "never", -np.inf))
        blocks = self.Reshape(logits, [0, -1, (vocab_size + missing) // block, block])  # [B, R, blocks, block]
        tops = self.ReduceMax(blocks, [3], keepdims=0)
        best = self.ArgMax(tops, axis=-1, keepdims=1)  # [B, R, 1]
        place = self.ArgMax(self.GatherND(blocks, best, batch_dims=2), axis=-1, keepdims=1)
        width = self.initializer(ir.tensor(np.int64(block), name="block"))
        return self.Reshape(self.Add(self.Mul(best, width), place), [0, -1])

    @staticmethod
    def keeps_scores(node: ir.Node) -> bool:
        """onnxruntime works in blocks where nothing is added to the scores."""
        biased = node.op_type == "MultiHeadAttention" and len(node.inputs) > BIAS and node.inputs[BIAS] is not None
        return biased or node.op_type == "Softmax"


def _sum_and_norm() -> list[str | ir.Value]:
    """The outputs of an operator that adds and norms, of which mean and variance are not used."""
    return ["normed", ir.Value(name=""), ir.Value(name=""), "x"]


def _rotatable(rope: tuple[Value, Value]) -> tuple[Value, Value]:
    assert rope[0].shape is not None
    half = rope[0].shape[-1]
    if half % 8:
        raise ExportError(
            f"The model rotates {2 * half} dimensions of each head, and onnxruntime's attention only multiples of 16; "
            "this model cannot be exported."
        )
    return rope


def block_size(vocab_size: int) -> int:
    """Logits of a block that `likeliest` looks at together: the size next to `BLOCK` that divides the vocabulary, or
    `BLOCK` itself where there is none."""
    sizes = [size for size in range(BLOCK // 4, 4 * BLOCK + 1) if vocab_size % size == 0]
    return min(sizes, key=lambda size: abs(size - BLOCK), default=BLOCK)
