"""onnxruntime's CPU provider: its own fused operators, chosen by what was measured on it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import onnx_ir as ir
from onnxscript import GraphBuilder, nn

from edge.errors import ExportError
from edge.export.graph.operators import HeadNorms, Lowering, Value, scalar
from edge.export.targets.cpu import experts, products
from edge.runtime.kernels.library import GGUF_DOMAIN

if TYPE_CHECKING:
    from edge.export.facts.family import Heads
    from edge.export.graph.blocks import Step

DOMAIN, VERSION = "com.microsoft", 1  # of onnxruntime's own operators
BLOCK = 256  # logits that the search for the largest one looks at together
END = np.iinfo(np.int64).max  # of a slice
SCORES = 1  # what attention is asked for besides: its scores, before their softmax
BIAS = 5  # which input of MultiHeadAttention is added to its scores


class CPU(Lowering):
    """The CPU's `Lowering`. Docstrings here say why it uses an operator."""

    domains: ClassVar = {DOMAIN: VERSION}

    def __init__(self, builder: GraphBuilder) -> None:
        super().__init__(builder)
        self.fused = builder.opset(DOMAIN, VERSION)

    @property
    def of_gguf(self) -> Any:
        """Operators over matrices of GGUF files, which the graph imports where it has some."""
        self.builder.graph.opset_imports[GGUF_DOMAIN] = VERSION
        return self.builder.opset(GGUF_DOMAIN, VERSION)

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

    # These have files of their own.
    product, shared, rows = products.product, products.shared, products.rows
    experts = experts.experts

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
        """Use one operator, which splits query, key and value at no cost. It has inputs for norms of queries and keys,
        but not on the CPU."""
        attributes: dict[str, Any] = {"do_rotary": int(rope is not None), "scale": scale}
        if window is not None:
            attributes["local_window_size"] = window
        if softcap is not None:
            attributes["softcap"] = softcap
        y, key, value = self._grouped_attention(parts, step, layer, heads, 3, rope, sinks, **attributes)
        return y, key, value

    def _grouped_attention(
        self,
        parts: Sequence[Value],
        step: Step,
        layer: int,
        heads: Heads,
        outputs: int,
        rope: tuple[Value, Value] | None = None,
        sinks: Value | None = None,
        **attributes: Any,
    ) -> Sequence[Value]:
        """The operator's first outputs."""
        if heads.dim % 8:
            raise ExportError(f"The model's heads are {heads.dim} wide; onnxruntime's attention takes multiples of 8.")
        query, key, value = parts if len(parts) == 3 else [*parts, None, None]
        cos, sin = rope or (None, None)
        made: Sequence[Value] = self.fused.GroupQueryAttention(
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
            sinks,
            _outputs=outputs,
            num_heads=heads.query,
            kv_num_heads=heads.key_value,
            **attributes,
        )
        return made

    def attention_and_sums(
        self, parts: Sequence[Value], step: Step, layer: int, *, heads: Heads, scale: float
    ) -> tuple[Value, Value, Value, Value]:
        """The operator gives its scores, too, where it is asked; those of later rows of the cache it leaves at 0."""
        y, key, value, scores = self._grouped_attention(parts, step, layer, heads, 4, scale=scale, qk_output=SCORES)
        sums = self.ReduceLogSumExp(self.Where(self._later(step), scalar(self, "never", -np.inf), scores), [3])
        return y, key, value, self.Transpose(self.Squeeze(sums, [3]), perm=[0, 2, 1])

    def _later(self, step: Step) -> Value:
        if step.later is None:
            total = self.Cast(step.total_sequence_length, to=ir.DataType.INT64)
            new = self.Squeeze(self.Shape(step.position_ids, start=1, end=2), [0])
            rows = self.Range(self.Constant(value_int=0), total, self.Constant(value_int=1))
            own = self.Slice(rows, self.Reshape(self.Sub(total, new), [1]), self.Reshape(total, [1]))
            step.later = self.Greater(self.Unsqueeze(rows, [0]), self.Unsqueeze(own, [1]))
        return step.later

    def shared_attention(
        self,
        query: Value,
        there: tuple[Value, Value],
        step: Step,
        *,
        heads: Heads,
        scale: float,
        rope: tuple[Value, Value] | None,
        window: int | None,
    ) -> Value:
        """The operator that appends keys and values, given none: it then attends to those that are there, and copies
        nothing where nobody asks for the cache after it."""
        nothing = self._no_keys(step, heads.key_value * heads.dim)
        attributes: dict[str, Any] = {} if window is None else {"local_window_size": window}
        if rope is not None and not self.rotates(rope):
            raise ExportError(
                f"The model rotates {2 * _half(rope)} dimensions of heads whose keys are another layer's, and "
                "onnxruntime's attention only multiples of 16; this model cannot be exported."
            )
        cos, sin = rope or (None, None)
        return self.fused.GroupQueryAttention(
            query,
            nothing,
            nothing,
            *there,
            step.seqlens_k,
            step.total_sequence_length,
            cos,
            sin,
            None if rope is None else step.position_ids,
            num_heads=heads.query,
            kv_num_heads=heads.key_value,
            do_rotary=int(rope is not None),
            scale=scale,
            **attributes,
        )

    def _no_keys(self, step: Step, width: int) -> Value:
        """Keys, or values, of no tokens, for as many sequences as the step has."""
        if width not in step.no_keys:
            one = self.initializer(ir.tensor(np.zeros((1, 0, width), np.float32), name=f"no_keys.{width}"))
            sizes = self.initializer(ir.tensor(np.array([0, width]), name=f"no_keys.{width}.sizes"))
            sequences = self.Shape(step.position_ids, start=0, end=1)
            step.no_keys[width] = self.Expand(one, self.Concat(sequences, sizes, axis=0))
        return step.no_keys[width]

    def convolution(self, x: Value, weight: Value, bias: Value, *, stride: int) -> Value:
        """A product with the three frames next to each other."""
        padded = self.Pad(x, self.Constant(value_ints=[0, 1, 0, 0, 1, 0]))
        taps = [self.Slice(padded, [i], [end], [1], [stride]) for i, end in enumerate((-2, -1, END))]
        return self.Add(self.MatMul(self.Concat(*taps, axis=2), weight), bias)

    def causal_convolution(
        self, x: Value, weight: Value, bias: Value | None, state: Value, *, silu: bool
    ) -> tuple[Value, Value]:
        """Rows have the same bits however a text is cut into steps, as those of `delta_rule` have."""
        return self.fused.CausalConvWithState(
            x, weight, bias, state, channels_last=1, activation="silu" if silu else "none", _outputs=2
        )

    def delta_rule(
        self, query: Value, key: Value, value: Value, state: Value, decay: Value, rate: Value, *, heads: int
    ) -> tuple[Value, Value]:
        return self._linear_attention(query, key, value, state, decay, rate, rule="gated_delta", sizes=(heads, heads))

    def gated_scan(
        self, query: Value, key: Value, value: Value, state: Value, decay: Value, *, groups: int, heads: int
    ) -> tuple[Value, Value]:
        """The operator lets several heads of values share a query and a key, so that these are not repeated."""
        return self._linear_attention(query, key, value, state, decay, rule="gated", sizes=(groups, heads), scale=1.0)

    def _linear_attention(self, *x: Value, rule: str, sizes: tuple[int, int], **more: float) -> tuple[Value, Value]:
        """The rows and the next state. sizes: the numbers of heads of queries and keys, and of values."""
        return self.fused.LinearAttention(
            *x, q_num_heads=sizes[0], kv_num_heads=sizes[1], update_rule=rule, _outputs=2, **more
        )

    def full_attention(
        self, query: Value, key: Value, value: Value, bias: Value | None, *, heads: int, scale: float
    ) -> Value:
        more = [] if bias is None else [None, None, bias]
        return self.fused.MultiHeadAttention(query, key, value, *more, num_heads=heads, scale=scale)

    def cross_keys_values(self, key: Value, value: Value, *, heads: int, long_input: bool) -> tuple[Value, Value]:
        """A key [1, heads, T, dim] and a value [1, heads, T, dim], or [1, heads, dim, T] of a long input."""
        key, value = (self.Reshape(part, [1, 0, heads, -1]) for part in (key, value))
        order = [0, 2, 3, 1] if long_input else [0, 2, 1, 3]
        return self.Transpose(key, perm=[0, 2, 1, 3]), self.Transpose(value, perm=order)

    def cross_attention(
        self, query: Value, key: Value, value: Value, *, heads: int, scale: float, long_input: bool
    ) -> Value:
        """For short inputs one operator. For long ones the operands stand the other way round than on paper: key [T, D]
        times query [D, S], and value [D, T] times the weights [T, S]. onnxruntime repacks a product's second operand in
        every call, and keys and values of a long input are many times larger than the query: for 2 to 8 rows this takes
        a quarter of the one operator's time (T = 1500, 2 threads), for one row as long. But it is nine operators, which
        would cost a model of 5M parameters a third of its step.
        """
        if not long_input:
            return self.full_attention(query, key, value, None, heads=heads, scale=scale)
        query = self.Transpose(self.Reshape(query, [1, 0, heads, -1]), perm=[0, 2, 3, 1])  # [1, H, D, S]
        scores = self.matmul(key, query, scale=scale)  # [1, H, T, S]
        chances = self.Softmax(self.Transpose(scores, perm=[0, 1, 3, 2]), axis=-1)
        y = self.MatMul(value, self.Transpose(chances, perm=[0, 1, 3, 2]))  # [1, H, D, S]
        return self.Reshape(self.Transpose(y, perm=[0, 3, 1, 2]), [1, 0, -1])

    def rotate(self, x: Value, positions: Value, rope: tuple[Value, Value], *, heads: int) -> Value:
        channels = 2 * _half(rope)
        return self.fused.RotaryEmbedding(x, positions, *rope, num_heads=heads, rotary_embedding_dim=channels)

    def rotates(self, rope: tuple[Value, Value]) -> bool:
        """True for multiples of 16 channels."""
        return _half(rope) % 8 == 0

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
            logits = self.Pad(logits, padding, scalar(self, "never", -np.inf, ir.DataType.FLOAT))
        blocks = self.Reshape(logits, [0, -1, (vocab_size + missing) // block, block])  # [B, R, blocks, block]
        tops = self.ReduceMax(blocks, [3], keepdims=0)
        best = self.ArgMax(tops, axis=-1, keepdims=1)  # [B, R, 1]
        place = self.ArgMax(self.GatherND(blocks, best, batch_dims=2), axis=-1, keepdims=1)
        width = self.initializer(ir.tensor(np.int64(block), name="block"))
        return self.Reshape(self.Add(self.Mul(best, width), place), [0, -1])

    @staticmethod
    def keeps_scores(node: ir.Node) -> bool:
        """True for attention with a bias, or a Softmax node. Without a bias onnxruntime computes attention in
        blocks."""
        biased = node.op_type == "MultiHeadAttention" and len(node.inputs) > BIAS and node.inputs[BIAS] is not None
        return biased or node.op_type == "Softmax"


def _sum_and_norm() -> list[str | ir.Value]:
    """The outputs of an operator that adds and norms, of which mean and variance are not used."""
    return ["normed", ir.Value(name=""), ir.Value(name=""), "x"]


def _half(rope: tuple[Value, Value]) -> int:
    """Return half of the channels of a head that tables rotate."""
    assert rope[0].shape is not None
    half = rope[0].shape[-1]
    assert isinstance(half, int), "tables have sizes"
    return half


def block_size(vocab_size: int) -> int:
    """Logits of a block that `likeliest` looks at together: the size next to `BLOCK` that divides the vocabulary, or
    `BLOCK` itself where there is none."""
    sizes = [size for size in range(BLOCK // 4, 4 * BLOCK + 1) if vocab_size % size == 0]
    return min(sizes, key=lambda size: abs(size - BLOCK), default=BLOCK)
