"""The facts that a family states, besides its graph."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    from edge.export.facts.gguf_metadata import Metadata


@dataclass(frozen=True)
class Norms:
    """The root mean square norms of a decoder's layer, by their names in the checkpoint.

    attention: what query, key and value read; gates: what gate and up read; None where that is the residual stream as
    it is. outputs: of what attention and the feed-forward block make, before it is added to the stream. offset: what
    is added to the weights of all norms.
    """

    attention: str | None = "input_layernorm"
    gates: str | None = "post_attention_layernorm"
    outputs: tuple[str | None, str | None] = (None, None)
    offset: float = 0.0

    @property
    def names(self) -> list[str]:
        return [norm for norm in (self.attention, self.gates, *self.outputs) if norm is not None]


PRE_NORM = Norms()  # Llama's


Biased = bool | Sequence[str]  # whether the projections of a block have a bias, or which of them
QKVO = ("q_proj", "k_proj", "v_proj", "o_proj")


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
    sizes: int | Sequence[int] = config.intermediate_size
    return sizes if isinstance(sizes, int) else max(sizes)


def window_of(config: Any, layer: int) -> int | None:
    """Return the number of tokens that the layer attends to; None for all of them."""
    kinds: Sequence[str] | None = getattr(config, "layer_types", None)
    window: int | None = getattr(config, "sliding_window", None)
    return window if kinds is None or kinds[layer] == "sliding_attention" else None


@dataclass(frozen=True)
class LlamaLike:
    """The differences of a decoder from Llama's, for one configuration. The graph and the reference in numpy are built
    from it.

    attention: the projections' names, the output's last. gates: those of the gate and of the projection that it
    multiplies. bias, mlp_bias: True, False, or the projections that have one. qk_norm: of queries and of keys, of each
    head by itself or of all together. scale multiplies the scores, 1 / sqrt(head dim) where it is None, and
    attention_softcap bounds them as softcap does logits. windowed: the configuration's sliding window counts. rope: the
    table that a layer's positions are rotated by, if any: "rope", or the layer's type where types have separate tables.
    activation: by default the configuration's `hidden_act`. The other scales multiply embeddings, the terms that blocks
    add to the residual stream, and the input of the head. softcap: c * tanh(logit / c).
    """

    attention: Sequence[str] = QKVO
    gates: Sequence[str] = ("gate_proj", "up_proj")
    bias: Biased = False
    mlp_bias: bool = False
    qk_norm: Literal["head", "all"] | None = None
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

    def shapes(self, config: Any, norms: Norms) -> dict[str, tuple[int, ...]]:
        """The tensors of the model, by transformers' names."""
        hidden, wide, heads = config.hidden_size, config.intermediate_size, heads_of(config)
        query, key_value = heads.query * heads.dim, heads.key_value * heads.dim
        *inputs, output = self.attention
        projected = [query, key_value, key_value] if len(inputs) == 3 else [query + 2 * key_value]
        gated = [wide, wide] if len(self.gates) == 2 else [2 * wide]
        layer: dict[str, tuple[int, ...]] = {f"{norm}.weight": (hidden,) for norm in norms.names}
        if self.qk_norm is not None:
            for name, rows in (("q_norm", query), ("k_norm", key_value)):
                layer[f"self_attn.{name}.weight"] = (rows if self.qk_norm == "all" else heads.dim,)
        linears = [("self_attn", name, rows, hidden, self.bias) for name, rows in zip(inputs, projected, strict=True)]
        linears.append(("self_attn", output, hidden, query, self.bias))
        linears += [("mlp", name, rows, hidden, self.mlp_bias) for name, rows in zip(self.gates, gated, strict=True)]
        linears.append(("mlp", "down_proj", hidden, wide, self.mlp_bias))
        for block, name, rows, columns, bias in linears:
            layer[f"{block}.{name}.weight"] = (rows, columns)
            if has_bias(bias, name):
                layer[f"{block}.{name}.bias"] = (rows,)
        shapes: dict[str, tuple[int, ...]] = {"model.embed_tokens.weight": (config.vocab_size, hidden)}
        for i in range(config.num_hidden_layers):
            shapes |= {f"model.layers.{i}.{name}": shape for name, shape in layer.items()}
        shapes["model.norm.weight"] = (hidden,)
        if not config.tie_word_embeddings:
            shapes["lm_head.weight"] = (config.vocab_size, hidden)
        return shapes


@dataclass(frozen=True)
class GGUF:
    """The form of the family's models in GGUF files.

    config: more of transformers' configuration, from the file's metadata. names: of a layer's tensors, where they
    differ from Llama's. bare: of those of them that are no module's weight. stacked: of the model's, those that are the
    weights of several modules. unread: tensors of a configuration that files have and nothing reads. permuted:
    llama.cpp's converter interleaves the rows of q and k.
    """

    config: Callable[[Metadata], dict[str, Any]]
    names: Mapping[str, str] = field(default_factory=dict)
    bare: Mapping[str, str] = field(default_factory=dict)
    stacked: Mapping[str, str] = field(default_factory=dict)
    unread: Callable[[Any], Iterable[str]] = lambda config: ()
    permuted: bool = False


@dataclass(frozen=True)
class Languages:
    """The language tokens of a vocabulary. token: a pattern with the code in one of its groups. in_source: such a token
    stands in the source text and names the target."""

    token: str
    in_source: bool = False


@dataclass(frozen=True)
class Family:
    """build: makes the graph's modules, a `Decoder` or an `EncoderDecoder`, of transformers' configuration, the weights
    and the context.

    layers: of a decoder like Llama, how they differ from Llama's. norms: of those layers. shapes: of the tensors of
    another decoder, by transformers' names. precise: a pattern of the
    matrices that read rows in 16 bits where an encoder's weights are int8. cross: a pattern of the decoder's matrices
    that make keys and values of the encoder's output, and stand in the encoder's graph.
    """

    build: Callable[[Any, Any, int], Any]  # the weights are those of `edge.export.graph.weights`
    layers: Callable[[Any], LlamaLike] | None = None
    norms: Norms | None = None
    shapes: Callable[[Any], dict[str, tuple[int, ...]]] | None = None
    gguf: GGUF | None = None
    languages: Languages | None = None
    precise: str | None = None
    cross: str = r"\.encoder_attn\.[kv]_proj\."

    def tensors(self, config: Any) -> dict[str, tuple[int, ...]]:
        """The tensors of a decoder, by transformers' names."""
        if self.shapes is not None:
            return self.shapes(config)
        assert self.layers is not None and self.norms is not None
        return self.layers(config).shapes(config, self.norms)
