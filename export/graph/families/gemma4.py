"""Gemma 4 text: layers whose heads differ by kind, normed values, keys that are values, layers that share both,
per-layer embeddings, and a scalar for each layer."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from onnxscript import nn

from edge.errors import ExportError
from edge.export.facts.family import GGUF, Family, Heads
from edge.export.facts.gguf_metadata import Metadata
from edge.export.graph import per_layer, sharing
from edge.export.graph.blocks import GatedMLP, ResidualNorm, RMSNorm, Step, Stream
from edge.export.graph.linear import Embedding
from edge.export.graph.operators import Lowering, Value
from edge.export.graph.per_layer import PerLayerBlock, PerLayerInputs
from edge.export.graph.rope import RotaryTable, cos_sin
from edge.export.graph.sharing import SharingAttention, sources
from edge.export.graph.stacks import Decoder, Residual, TextStart
from edge.export.graph.weights import Weights

NAME = "gemma4_text"
TRAITS = {"gguf": "gemma4"}
BY_LAYER = {"head_dim", "num_key_value_heads"}  # what the configuration may say of single layers
FULL, SLIDING = "full_attention", "sliding_attention"
NORMS = ("input_layernorm", "post_attention_layernorm", "pre_feedforward_layernorm", "post_feedforward_layernorm")
SCALAR = "layer_scalar"


def decoder(config: Any, weights: Weights, max_context: int) -> Decoder:
    check(config)
    embedding = "model.embed_tokens"
    heads = {kind: heads_of(config, i) for i, kind in enumerate(config.layer_types)}
    tables = {
        kind: cos_sin(
            SimpleNamespace(head_dim=each.dim, max_position_embeddings=config.max_position_embeddings),
            config.rope_parameters[kind],
            max_context,
        )
        for kind, each in heads.items()
    }
    return Decoder(
        weights,
        TextStart(Embedding(weights, embedding, scale=config.hidden_size**0.5)),
        [layer(config, weights, i) for i in range(config.num_hidden_layers)],
        embedding if config.tie_word_embeddings else "lm_head",
        norm=ResidualNorm(weights, "model.norm", config.rms_norm_eps),
        softcap=config.final_logit_softcapping,
        rope={kind: RotaryTable(weights, f"{kind}.rope", *table) for kind, table in tables.items()},
        per_layer=PerLayerInputs(weights, config) if config.hidden_size_per_layer_input else None,
    )


def check(config: Any) -> None:
    """Refuse what changes the mathematics and is not computed here."""
    if config.use_bidirectional_attention == "all":
        raise ExportError("Gemma 4 with bidirectional attention is an encoder; only decoders can be exported.")
    if config.enable_moe_block:
        raise ExportError("The model has experts (enable_moe_block), and Gemma 4's experts have no graph here.")
    for values in config.per_layer_config.values():
        if unknown := sorted(values.keys() - BY_LAYER):
            raise ExportError(f"The model has layers with another {unknown[0]!r}, which no graph of Gemma 4 has.")
    of_kinds: dict[str, set[Heads]] = {}
    for i, kind in enumerate(config.layer_types):
        of_kinds.setdefault(kind, set()).add(heads_of(config, i))
    if unknown := sorted(of_kinds.keys() - {FULL, SLIDING}):
        raise ExportError(f"The model has layers of the type {unknown[0]!r}; Gemma 4 has {FULL} and {SLIDING}.")
    if several := sorted(kind for kind, found in of_kinds.items() if len(found) > 1):
        raise ExportError(f"The model's layers of the type {several[0]!r} differ in their heads, which have one table.")


def heads_of(config: Any, i: int) -> Heads:
    """The heads of a layer, of which the configuration may say other sizes."""
    own = {int(layer): values for layer, values in config.per_layer_config.items()}.get(i, {})
    key_value = own.get("num_key_value_heads", config.num_key_value_heads)
    return Heads(config.num_attention_heads, key_value, own.get("head_dim", config.head_dim))


def values_are_keys(config: Any, i: int) -> bool:
    return bool(config.attention_k_eq_v) and config.layer_types[i] != SLIDING


class Layer(nn.Module):
    """Attention, feed-forward and what the layer reads of the tokens, each with its norms; then times a scalar."""

    def __init__(self, attention: Residual, mlp: Residual, tokens: Residual | None, scalar: nn.Parameter):
        super().__init__()
        self.attention = attention
        self.mlp = mlp
        self.tokens = tokens
        self.scalar = scalar

    def forward(self, op: Lowering, stream: Stream, step: Step, rows: Value | None = None) -> Stream:
        stream = self.attention(op, stream, step, rows, rows=rows)
        step.cuts.append(stream)
        stream = self.mlp(op, stream)
        if self.tokens is not None:
            stream = self.tokens(op, stream, step, rows)
        return Stream(op.Mul(stream.sum(op), self.scalar))


def layer(config: Any, weights: Weights, i: int) -> Layer:
    name, eps = f"model.layers.{i}", config.rms_norm_eps
    before, after_attention, gates, after_mlp = (f"{name}.{norm}" for norm in NORMS)
    kind = config.layer_types[i]
    attention = SharingAttention(
        weights,
        f"{name}.self_attn",
        i,
        heads_of(config, i),
        eps,
        bias=config.attention_bias,
        rope=kind,
        window=config.sliding_window if kind == SLIDING else None,
        source=sources(config.layer_types, config.num_kv_shared_layers)[i],
        values=not values_are_keys(config, i),
    )
    tokens = None
    if config.hidden_size_per_layer_input:
        block = PerLayerBlock(weights, name, i, config.hidden_activation)
        tokens = Residual(None, block, RMSNorm(weights, f"{name}.{per_layer.OUTPUT_NORM}", eps))
    return Layer(
        Residual(ResidualNorm(weights, before, eps), attention, RMSNorm(weights, after_attention, eps)),
        Residual(
            ResidualNorm(weights, gates, eps),
            GatedMLP(weights, f"{name}.mlp", config.hidden_activation),
            RMSNorm(weights, after_mlp, eps),
        ),
        tokens,
        weights.vector([f"{name}.{SCALAR}"], f"{name}.{SCALAR}", "norm"),
    )


def shapes(config: Any) -> dict[str, tuple[int, ...]]:
    """The tensors of the model, by transformers' names."""
    hidden, read = config.hidden_size, sources(config.layer_types, config.num_kv_shared_layers)
    found: dict[str, tuple[int, ...]] = {"model.embed_tokens.weight": (config.vocab_size, hidden)}
    for i, source in enumerate(read):
        name, heads = f"model.layers.{i}", heads_of(config, i)
        wide = config.intermediate_size * (2 if config.use_double_wide_mlp and source is not None else 1)
        rows = {"q_proj": heads.query, "k_proj": heads.key_value, "v_proj": heads.key_value}
        if source is not None:
            del rows["k_proj"], rows["v_proj"]
        elif values_are_keys(config, i):
            del rows["v_proj"]
        found |= sharing.shapes(name, config, heads, rows, wide)
        found |= {f"{name}.{norm}.weight": (hidden,) for norm in NORMS} | {f"{name}.{SCALAR}": (1,)}
    if config.hidden_size_per_layer_input:
        found |= per_layer.shapes(config)
    found["model.norm.weight"] = (hidden,)
    if not config.tie_word_embeddings:
        found["lm_head.weight"] = (config.vocab_size, hidden)
    return found


def gguf(m: Metadata) -> dict[str, Any]:
    layers, shared = m.size("block_count"), m.size("attention.shared_kv_layers", 0, least=0)
    sliding = m.each("attention.sliding_window_pattern", bool, layers)
    kinds = [SLIDING if each else FULL for each in sliding]
    heads, wide = m.sizes("attention.head_count_kv", layers), m.sizes("feed_forward_length", layers)
    dims = [m.size("attention.key_length_swa") if each else m.head_dim for each in sliding]
    twice = shared > 0 and wide[-1] == 2 * wide[0]
    if wide != [wide[0] * (2 if twice and i >= layers - shared else 1) for i in range(layers)]:
        raise m.wrong("feed_forward_length", wide[-1], "layers that share keys and values are twice as wide, or none")
    own = [i for i in range(layers - shared) if kinds[i] == FULL]
    normal = kinds.index(SLIDING) if SLIDING in kinds else 0
    width = m.size("embedding_length_per_layer_input", 0, least=0)
    return {
        "head_dim": dims[normal],
        "num_key_value_heads": heads[normal],
        "per_layer_config": {
            i: {"head_dim": dims[i], "num_key_value_heads": heads[i]} for i in range(layers) if kinds[i] == FULL
        },
        "intermediate_size": wide[0],
        "use_double_wide_mlp": twice,
        "hidden_activation": "gelu_pytorch_tanh",
        "final_logit_softcapping": m.get("final_logit_softcapping", float),
        "use_bidirectional_attention": None,
        "enable_moe_block": False,
        "attention_k_eq_v": bool(own) and not m.has(f"blk.{own[0]}.attn_v.weight"),
        "num_kv_shared_layers": shared,
        "hidden_size_per_layer_input": width,
        "vocab_size_per_layer_input": m.rows("per_layer_token_embd.weight") if width else 0,
        "sliding_window": m.size("attention.sliding_window"),
        "layer_types": kinds,
        "rope_parameters": {
            FULL: {
                "rope_type": "proportional",
                "rope_theta": m.number("rope.freq_base", 1_000_000.0),
                "partial_rotary_factor": turned(m),
            },
            SLIDING: {"rope_type": "default", "rope_theta": m.number("rope.freq_base_swa", 10_000.0)},
        },
    }


def turned(m: Metadata) -> float:
    """The part of a head's channels that full layers turn: others are divided by a number beyond all positions."""
    factors = m.vector("rope_freqs.weight")
    if not factors.size:
        return 1.0
    count = int((factors == 1).sum())
    if factors.size != m.head_dim // 2 or not (factors[:count] == 1).all() or (factors[count:] < 1e20).any():
        raise m.wrong("rope.dimension_count", factors.size, "its factors (rope_freqs.weight) are not Gemma 4's")
    return count / factors.size


FAMILY = Family(
    decoder,
    shapes=shapes,
    gguf=GGUF(
        gguf,
        names={
            "ffn_norm": "pre_feedforward_layernorm",
            "inp_gate": per_layer.GATE,
            "proj": per_layer.OUTPUT,
            "post_norm": per_layer.OUTPUT_NORM,
        },
        bare={"layer_output_scale": SCALAR},
        unread=sharing.unread,
    ),
)
