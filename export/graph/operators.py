"""The seam between a model's mathematics and a target's operators.

Modules say `op.rms_norm(x, weight, eps)` or `op.product(x, matrix)`, and a target says which operators that is. Each
folder of `edge.export.targets` has such a file, `lowering.py`; no others name fused operators or quantized products.

B is the number of sequences, S of new tokens, T of keys, H the hidden size. Values are floats of the target's type.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

import numpy as np
import onnx_ir as ir
from onnxscript import GraphBuilder, OpBuilder, nn

from edge.errors import ExportError

if TYPE_CHECKING:
    from edge.export.facts.experts import Experts
    from edge.export.facts.family import Heads
    from edge.export.graph.blocks import Step
    from edge.export.graph.experts import SomeExperts
    from edge.export.graph.linear import Embedding, Linear

Value = ir.Value
NO_EXPERTS = "The model has experts, which only graphs for the CPU compute yet; leave out --target."
NO_SINKS = "The model's attention has sinks, which only graphs for the CPU have yet; leave out --target."
NO_STATES = "The model has layers that keep a state, which only graphs for the CPU do yet; leave out --target."


def scalar(op: Lowering, name: str, value: float, dtype: ir.DataType | None = None) -> Value:
    """A constant, by default of the target's type; a number that it does not reach becomes its largest."""
    dtype = dtype or op.dtype
    if np.isfinite(value):
        value = float(np.clip(value, dtype.min, dtype.max))
    return op.initializer(ir.tensor(np.asarray(value, dtype.numpy()), name=name))


class HeadNorms(NamedTuple):
    """The weights [dim] of the root mean square norms of each query's and each key's head."""

    query: nn.Parameter
    key: nn.Parameter
    eps: float


class Lowering(OpBuilder, ABC):
    """The `op` argument of modules. ONNX's operators are its attributes, as of any OpBuilder."""

    domains: ClassVar[Mapping[str, int]]  # of operators that are not ONNX's own, with their versions
    caches: ClassVar[bool] = True  # whether what is computed in parts that fit into a cache is faster
    norms_heads: ClassVar[bool] = False  # whether `attention` norms the heads of queries and keys
    dtype: ir.DataType = ir.DataType.FLOAT  # of values

    def __init__(self, builder: GraphBuilder) -> None:
        super().__init__(builder, "", builder.graph.opset_imports[""])

    # Norms over the last axis

    @abstractmethod
    def rms_norm(self, x: Value, weight: nn.Parameter, eps: float) -> Value:
        """Return x, divided by its root mean square, times the weight."""

    @abstractmethod
    def add_rms_norm(self, x: Value, added: Value, weight: nn.Parameter, eps: float) -> tuple[Value, Value]:
        """Return the root mean square norm of x + added, and the sum."""

    @abstractmethod
    def layer_norm(self, x: Value, weight: nn.Parameter, bias: nn.Parameter, eps: float) -> Value:
        """x, centred and scaled, times the weight, plus the bias."""

    @abstractmethod
    def add_layer_norm(
        self, x: Value, added: Value, weight: nn.Parameter, bias: nn.Parameter, eps: float, *, many_rows: bool
    ) -> tuple[Value, Value]:
        """The layer norm of x + added, and the sum. many_rows: of an encoder's long input, not of a step."""

    # Products

    @abstractmethod
    def matmul(self, a: Value, b: Value, *, scale: float = 1.0, transposed: bool = False) -> Value:
        """a @ b, or a @ b^T where `transposed`, times the scale."""

    @abstractmethod
    def product(self, x: Any, matrix: Linear) -> Value:
        """Return x W^T + b for a stored matrix W [N, K]: from [B, S, K], or from the result of `shared`, to [B, S,
        N]."""

    def logits(self, x: Value, matrix: Linear) -> Value:
        """The product of the output head, in float32."""
        return self.product(x, matrix)

    @abstractmethod
    def shared(self, x: Value, matrices: Sequence[Linear]) -> Any:
        """Return the form of x that all of these products read, where they can share its preparation; else x itself."""

    @abstractmethod
    def rows(self, ids: Value, matrix: Embedding) -> Value:
        """The rows [B, S, H] of a stored embedding."""

    def table_rows(self, table: Value, positions: Value) -> Value:
        """The rows [B, S, W] of a table of positions [P, W]; positions: [B, S]."""
        return self.Gather(table, positions, axis=0)

    def first_rows(self, table: Value, x: Value) -> Value:
        """Return the first T rows of a table [P, W], for x [1, T, W]."""
        return self.Slice(table, [0], self.Shape(x, start=1, end=2), [0])

    @abstractmethod
    def convolution(self, x: Value, weight: Value, bias: Value, *, stride: int) -> Value:
        """The convolution of x [1, T, C] over each of its frames and the two next to it: [1, T / stride, H]. weight
        [3 C, H]: of the frame before, the frame itself and the one after; bias [H]."""

    # Attention

    @abstractmethod
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
        """Causal self-attention over a layer's cache, which grows in place: the result, and the cache's key and value.

        parts: query, key and value, each [B, S, heads * dim], or one value with all three packed. rope: tables
        of cosines and sines by which queries and keys are rotated; None: they are not. window: how many tokens, itself
        included, a token attends to. softcap: bounds the scores. norms: of the heads, before they are rotated, where
        `norms_heads`. sinks [heads]: scores that take their share of each head's weights, and have no value.
        """

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
        """Causal self-attention of queries [B, S, heads * dim] to another layer's keys and values: `there`, with those
        of the step. Arguments as of `attention`."""
        raise ExportError("The model's layers share keys and values, which no graph for this target does yet.")

    def attention_and_sums(
        self, parts: Sequence[Value], step: Step, layer: int, *, heads: Heads, scale: float
    ) -> tuple[Value, Value, Value, Value]:
        """`attention` without rotation, and the logarithms [1, S, heads] of the sums of the scores' exponentials."""
        raise ExportError(
            "The model attends to its own text and to the encoder's together, which no graph for this target does yet; "
            "leave out --target."
        )

    def first_columns(self, x: Value, length: Value, axis: int) -> Value:
        """Return x, cut along an axis to the length of the caches after the step, length [1] int32."""
        return self.Slice(x, [0], self.Reshape(self.Cast(length, to=ir.DataType.INT64), [1]), [axis])

    @abstractmethod
    def full_attention(
        self, query: Value, key: Value, value: Value, bias: Value | None, *, heads: int, scale: float
    ) -> Value:
        """Attention of all queries [1, S, heads * dim] to all keys and values, which are of the same form, or
        [1, heads, T, dim]. bias: [1, heads, S, T], added to the scores."""

    @abstractmethod
    def cross_keys_values(self, key: Value, value: Value, *, heads: int, long_input: bool) -> tuple[Value, Value]:
        """Keys and values [1, T, heads * dim] of an encoder's output, as `cross_attention` reads them."""

    @abstractmethod
    def cross_attention(
        self, query: Value, key: Value, value: Value, *, heads: int, scale: float, long_input: bool
    ) -> Value:
        """Attention of queries [1, S, heads * dim] to what `cross_keys_values` made. long_input: whether that may be of
        more than a few hundred tokens or frames."""

    @abstractmethod
    def rotate(self, x: Value, positions: Value, rope: tuple[Value, Value], *, heads: int) -> Value:
        """The heads of x [B, T, heads * dim] rotated by their positions [B, T]."""

    def rotates(self, rope: tuple[Value, Value]) -> bool:
        """Return whether `attention` can rotate by these tables."""
        return True

    # States: only where a target says how

    def causal_convolution(
        self, x: Value, weight: Value, bias: Value | None, state: Value, *, silu: bool
    ) -> tuple[Value, Value]:
        """The convolution of x [B, S, C] over the last k tokens, of each channel by itself, and the state after it: the
        last k - 1 tokens [B, k - 1, C]. weight [C, 1, k]; bias [C]; silu: of the result."""
        raise ExportError(NO_STATES)

    def delta_rule(
        self, query: Value, key: Value, value: Value, state: Value, decay: Value, rate: Value, *, heads: int
    ) -> tuple[Value, Value]:
        """Linear attention by the gated delta rule: what each value head reads, [B, S, values * V], and the states
        [B, values, K, V] after it.

        query and key [B, S, values * K] are of length 1 in each head; value [B, S, values * V]. decay and rate [B, S,
        values]: the logarithm of what a state keeps, and how much of its error it learns. heads: of values.
        """
        raise ExportError(NO_STATES)

    def gated_scan(
        self, query: Value, key: Value, value: Value, state: Value, decay: Value, *, groups: int, heads: int
    ) -> tuple[Value, Value]:
        """Linear attention whose states forget: what each head reads, [B, S, heads * V], and the states
        [B, heads, K, V] after it, of which a token keeps as much as its decay says, and adds its key times its value.

        query and key [B, S, groups * K], each of which is for as many heads; value [B, S, heads * V]. decay [B, S,
        heads]: the logarithm of what a state keeps.
        """
        raise ExportError(NO_STATES)

    # Experts: only where a target says how

    def experts(
        self,
        x: Value,
        scores: Value,
        weights: Value | None,
        sizes: Experts,
        parts: Sequence[SomeExperts],
    ) -> Value:
        """What the experts with the highest scores make of each token, added up with their weights: [B, S, H] to the
        same. scores [B, S, E]; weights: of the same shape; None: the softmax of the scores. parts: all experts, those
        of one format together."""
        raise ExportError(NO_EXPERTS)

    # Activations

    @abstractmethod
    def silu(self, x: Value) -> Value: ...

    @abstractmethod
    def gelu(self, x: Value) -> Value: ...

    @abstractmethod
    def gelu_tanh(self, x: Value) -> Value:
        """GELU by its approximation with tanh."""

    # Results

    @abstractmethod
    def likeliest(self, logits: Value, vocab_size: int) -> Value:
        """The token with the largest logit of each row, the first of equals: [B, R, V] to [B, R]."""

    @staticmethod
    @abstractmethod
    def keeps_scores(node: ir.Node) -> bool:
        """True if a node is attention with all its scores in memory at once."""
