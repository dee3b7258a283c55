"""The facts that a family states, besides its graph."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

from edge.embedding_format import CLS
from edge.errors import ExportError
from edge.export.facts.experts import Experts
from edge.export.facts.mixers import GatedDelta, Mixer, Places

if TYPE_CHECKING:
    from edge.export.facts.gguf_changes import Change
    from edge.export.facts.gguf_metadata import Metadata


@dataclass(frozen=True)
class Norms:
    """The norms of a decoder's layer, by their names in the checkpoint.

    attention: what query, key and value read; gates: what gate and up read; None where that is the residual stream as
    it is, or what attention reads (`LlamaLike.parallel`). outputs: of what attention and the feed-forward block make,
    before it is added to the stream. final: of what the head reads. offset: what is added to the weights of all norms.
    eps: the configuration's name for what is added to the mean square. centred: layer norms, which subtract the mean,
    instead of root mean square norms; bias: these have one.
    """

    attention: str | None = "input_layernorm"
    gates: str | None = "post_attention_layernorm"
    outputs: tuple[str | None, str | None] = (None, None)
    final: str = "norm"
    offset: float = 0.0
    eps: str = "rms_norm_eps"
    centred: bool = False
    bias: bool = False

    @property
    def names(self) -> list[str]:
        return [norm for norm in (self.attention, self.gates, *self.outputs) if norm is not None]


PRE_NORM = Norms()  # Llama's


Biased = bool | Sequence[str]  # whether the projections of a block have a bias, or which of them
QKVO = ("q_proj", "k_proj", "v_proj", "o_proj")
SINKS = "sinks"  # of attention
BLOCKS = ("self_attn", "mlp")  # of a layer, unless the family calls the second one otherwise


def has_bias(bias: Biased, member: str) -> bool:
    return bias if isinstance(bias, bool) else member in bias


@dataclass(frozen=True)
class Heads:
    """The shape of an attention layer."""

    query: int
    key_value: int
    dim: int


def heads_of(config: Any) -> Heads:
    """The heads of a transformers configuration; their size is stated, or the hidden size's share."""
    dim = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    return Heads(config.num_attention_heads, config.num_key_value_heads, dim)


def widest_of(config: Any) -> int:
    """The size of the widest feed-forward block, which may differ by layer."""
    shared = (getattr(config, f"shared_{kind}intermediate_size", None) for kind in ("", "expert_"))
    sizes: int | Sequence[int] = next(filter(None, shared), None) or config.intermediate_size
    return sizes if isinstance(sizes, int) else max(sizes)


def window_of(config: Any, layer: int) -> int | None:
    """Return the number of tokens that the layer attends to; None for all of them.

    Raises:
        ExportError: the layer attends in another way.
    """
    kinds: Sequence[str] | None = getattr(config, "layer_types", None)
    window: int | None = getattr(config, "sliding_window", None)
    if kinds is not None and kinds[layer] not in ("full_attention", "sliding_attention"):
        raise ExportError(
            f"The model's layer {layer} is of the kind {kinds[layer]!r}, which no graph of its family has."
        )
    return window if kinds is None or kinds[layer] == "sliding_attention" else None


@dataclass(frozen=True)
class LlamaLike:
    """The differences of a decoder from Llama's, for one configuration. The graph and the reference in numpy are built
    from it.

    attention: the projections' names, the output's last. gates: those of the gate and of the projection that it
    multiplies, or of the projection alone where not `gated`; down: of the last one; mlp: of their block; wide: how many
    channels they make, by default the configuration's `intermediate_size`. bias, mlp_bias: True, False, or the
    projections that have one. qk_norm: of queries and of keys, of each head by itself or of all together; qk_names:
    what they are called; qk_rotated: they come after the rotation. interleaved: pairs of rotated channels stand side by
    side, instead of in the two halves of a head. query_growth (b, n): queries at position p are multiplied by
    1 + b ln(1 + floor(p / n)). output_norms: of what attention's and the feed-forward block's last projection reads.
    output_gate: queries come with as many channels, next to them in each head, whose sigmoids multiply what is read.
    sinks: each head has a score that takes its share of the weights, and no value.
    mixer: what a layer has in place of attention, if anything. beside: it has that next to attention, which reads the
    same, and what attention and mixer make is multiplied by these two and added. experts: those of a layer that has
    some in place of its feed-forward block, in the block of its name. expert_block: where they stand instead, next to
    the feed-forward block: both read the same, and what both make is added. shared_gate: the name of a row there, whose
    product with what both read makes a sigmoid that multiplies what the feed-forward block makes. mlp_scales: what the
    gate and what the feed-forward block makes are multiplied by.
    parallel: both blocks read the same norm of the same stream. scale multiplies the scores, 1 / sqrt(head dim) where
    it is None, and attention_softcap bounds them as softcap does logits. windowed: the configuration's sliding window
    counts. rope: the table that a layer's positions are rotated by, if any: "rope", or the layer's type where types
    have separate tables. activation: by default the configuration's `hidden_act`. The other scales multiply embeddings,
    the terms that blocks add to the residual stream, and the input of the head. softcap: c * tanh(logit / c).
    """

    attention: Sequence[str] = QKVO
    gates: Sequence[str] = ("gate_proj", "up_proj")
    down: str = "down_proj"
    mlp: str = "mlp"
    wide: int | None = None
    gated: bool = True
    bias: Biased = False
    mlp_bias: Biased = False
    qk_norm: Literal["head", "all"] | None = None
    qk_names: tuple[str, str] = ("q_norm", "k_norm")
    qk_rotated: bool = False
    interleaved: bool = False
    query_growth: tuple[float, int] | None = None
    output_norms: tuple[str, str] | None = None
    output_gate: bool = False
    sinks: bool = False
    mixer: Callable[[int], Mixer | None] = lambda layer: None
    experts: Callable[[int], Experts | None] = lambda layer: None
    expert_block: str | None = None
    shared_gate: str | None = None
    beside: tuple[float, float] | None = None
    mlp_scales: tuple[float, float] = (1.0, 1.0)
    parallel: bool = False
    scale: float | None = None
    attention_softcap: float | None = None
    windowed: bool = True
    rope: Callable[[int], str | None] = lambda layer: "rope"
    activation: str | None = None
    embedding_scale: float | None = None
    residual_scale: float = 1.0
    head_scale: float = 1.0
    softcap: float | None = None
    both_ways: bool = False  # tokens attend to those after them too, as far as the window goes

    def attends(self, layer: int) -> bool:
        """True if a layer has attention."""
        return self.beside is not None or self.mixer(layer) is None

    def is_dense(self, layer: int) -> bool:
        """True if a layer has a feed-forward block that all tokens go through."""
        return self.expert_block is not None or self.experts(layer) is None

    def fused_rows(self, config: Any) -> dict[str, dict[str, Places]]:
        """transformers' parameters that are several tensors here, and the places of each one's rows in them, by their
        names within a layer."""
        mixers = dict.fromkeys(map(self.mixer, range(config.num_hidden_layers)))  # each once
        return {
            f"{mixer.name}.{fused}": {f"{mixer.name}.{name}": rows for name, rows in members.items()}
            for mixer in mixers
            if isinstance(mixer, GatedDelta)
            for fused, members in mixer.fused_rows.items()
        }

    def layer_shapes(self, config: Any, norms: Norms, i: int) -> dict[str, tuple[int, ...]]:
        """The tensors of layer i, by transformers' names within it."""
        hidden, wide, heads = config.hidden_size, self.wide or config.intermediate_size, heads_of(config)
        query, key_value = heads.query * heads.dim, heads.key_value * heads.dim
        *inputs, output = self.attention
        first = (1 + self.output_gate) * query
        projected = [first, key_value, key_value] if len(inputs) == 3 else [first + 2 * key_value]
        gated = [wide, wide] if len(self.gates) == 2 else [(1 + self.gated) * wide]
        sizes = {norm: hidden for norm in norms.names if not (self.parallel and norm == norms.gates)}
        layer: dict[str, tuple[int, ...]] = {f"{norm}.weight": (size,) for norm, size in sizes.items()}
        if norms.bias:
            layer |= {f"{norm}.bias": (size,) for norm, size in sizes.items()}
        mixer = self.mixer(i)
        if mixer is not None:
            layer |= {f"{mixer.name}.{name}": shape for name, shape in mixer.tensors.items()}
        if self.qk_norm is not None and self.attends(i):
            for name, rows in zip(self.qk_names, (query, key_value), strict=True):
                layer[f"self_attn.{name}.weight"] = (rows if self.qk_norm == "all" else heads.dim,)
        if self.sinks and self.attends(i):
            layer[f"self_attn.{SINKS}"] = (heads.query,)
        if self.output_norms is not None:
            for block, name, size in zip(BLOCKS, self.output_norms, (query, wide), strict=True):
                layer[f"{block}.{name}.weight"] = (size,)
        linears: list[tuple[str, str, int, int, Biased]] = []
        if self.attends(i):
            linears += [
                ("self_attn", name, rows, hidden, self.bias) for name, rows in zip(inputs, projected, strict=True)
            ]
            linears.append(("self_attn", output, hidden, query, self.bias))
        if (experts := self.experts(i)) is not None:
            block = self.expert_block or self.mlp
            layer |= {f"{block}.{name}": shape for name, shape in experts.tensors(hidden).items()}
            if self.shared_gate is not None:
                layer[f"{block}.{self.shared_gate}.weight"] = (1, hidden)
        if self.is_dense(i):
            linears += [
                (self.mlp, name, rows, hidden, self.mlp_bias) for name, rows in zip(self.gates, gated, strict=True)
            ]
            linears.append((self.mlp, self.down, hidden, wide, self.mlp_bias))
        for block, name, rows, columns, bias in linears:
            layer[f"{block}.{name}.weight"] = (rows, columns)
            if has_bias(bias, name):
                layer[f"{block}.{name}.bias"] = (rows,)
        return layer

    def shapes(self, config: Any, norms: Norms) -> dict[str, tuple[int, ...]]:
        """The tensors of the model, by transformers' names."""
        hidden = config.hidden_size
        shapes: dict[str, tuple[int, ...]] = {"model.embed_tokens.weight": (config.vocab_size, hidden)}
        for i in range(config.num_hidden_layers):
            layer = self.layer_shapes(config, norms, i)
            shapes |= {f"model.layers.{i}.{name}": shape for name, shape in layer.items()}
        shapes[f"model.{norms.final}.weight"] = (hidden,)
        if norms.bias:
            shapes[f"model.{norms.final}.bias"] = (hidden,)
        if not config.tie_word_embeddings:
            shapes["lm_head.weight"] = (config.vocab_size, hidden)
        return shapes


@dataclass(frozen=True)
class GGUF:
    """The form of the family's models in GGUF files.

    config: more of transformers' configuration, from the file's metadata. names: of a layer's tensors, where they
    differ from Llama's. bare: of those of them that are no module's weight. stacked: of the model's, where they differ;
    those of three dimensions are the weights of several modules. joined: modules of a layer whose rows are those of
    several that files name, one after another. unread: tensors of a configuration that files have and
    nothing reads. permuted: llama.cpp's converter interleaves the rows of q and k. changes: makes, of a configuration,
    those of other tensors by their names in transformers. experts: files may have some.
    """

    config: Callable[[Metadata], dict[str, Any]]
    names: Mapping[str, str] = field(default_factory=dict)
    bare: Mapping[str, str] = field(default_factory=dict)
    stacked: Mapping[str, str] = field(default_factory=dict)
    joined: Mapping[str, Sequence[str]] = field(default_factory=dict)
    unread: Callable[[Any], Iterable[str]] = lambda config: ()
    permuted: bool = False
    changes: Callable[[Any], Mapping[str, Change]] = lambda config: {}
    experts: bool = False


@dataclass(frozen=True)
class Languages:
    """The language tokens of a vocabulary. token: a pattern with the code in one of its groups. in_source: such a token
    stands in the source text and names the target."""

    token: str
    in_source: bool = False


@dataclass(frozen=True)
class HeadLayer:
    """A linear layer of the head by which a pair of texts is scored: its name in the checkpoint, transformers' name of
    what follows it, and the name and the epsilon of a layer norm after that."""

    name: str
    activation: str = "identity"
    norm: str | None = None
    eps: float = 0.0


@dataclass(frozen=True)
class ScoreHead:
    """The head of transformers' model for sequence classification. pooling: over the last hidden states, one of
    `edge.embedding_format.POOLINGS`."""

    layers: Sequence[HeadLayer]
    pooling: str = CLS


@dataclass(frozen=True)
class Family:
    """build: makes the graph's modules, a `Decoder` or an `EncoderDecoder`, of transformers' configuration, the weights
    and the context.

    layers: of a decoder like Llama, how they differ from Llama's. norms: of those layers. shapes: of the tensors of
    another decoder, by transformers' names. precise: a pattern of the
    matrices that read rows in 16 bits where an encoder's weights are int8. cross: a pattern of the decoder's matrices
    that make keys and values of the encoder's output, and stand in the encoder's graph. scores: of an encoder, the head
    that makes a pair's score; prompts: that stand before texts where a checkpoint's files have none, by name.
    """

    build: Callable[[Any, Any, int], Any]  # the weights are those of `edge.export.graph.weights`
    layers: Callable[[Any], LlamaLike] | None = None
    norms: Norms | None = None
    shapes: Callable[[Any], dict[str, tuple[int, ...]]] | None = None
    gguf: GGUF | None = None
    languages: Languages | None = None
    precise: str | None = None
    cross: str = r"\.encoder_attn\.[kv]_proj\."
    scores: Callable[[Any], ScoreHead] | None = None
    prompts: Mapping[str, str] = field(default_factory=dict)

    def tensors(self, config: Any) -> dict[str, tuple[int, ...]]:
        """The tensors of a decoder, by transformers' names."""
        if self.shapes is not None:
            return self.shapes(config)
        assert self.layers is not None and self.norms is not None
        return self.layers(config).shapes(config, self.norms)
