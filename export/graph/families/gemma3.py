"""Gemma 3 text: sliding and full layers with rotary tables of their own, scaled embeddings, four norms, GeGLU."""

from __future__ import annotations

from onnxscript import OpBuilder, nn
from transformers import Gemma3TextConfig
from transformers.models.gemma3.modeling_gemma3 import Gemma3RotaryEmbedding

from edge.errors import ExportError
from edge.export.graph.blocks import (
    Attention,
    Decoder,
    GatedMLP,
    ResidualNorm,
    RMSNorm,
    Step,
    Stream,
    heads_of,
    take,
    window_of,
)
from edge.export.graph.linear import Embedding, Value
from edge.export.graph.rope import rotary_table
from edge.export.graph.weights import Weights

MODEL_TYPES = ("gemma3_text",)

NORM_OFFSET = 1.0  # the checkpoint's norm weights are stored less one


def decoder(config: Gemma3TextConfig, weights: Weights, max_context: int) -> Decoder:
    if config.use_bidirectional_attention:
        raise ExportError("Gemma 3 with bidirectional attention is an encoder; only decoders can be exported.")
    rotary = Gemma3RotaryEmbedding(config)
    return Decoder(
        weights,
        Embedding(weights, "model.embed_tokens", scale=config.hidden_size**0.5),
        {kind: rotary_table(weights, rotary, max_context, layer_type=kind) for kind in rotary.layer_types},
        [Layer(config, weights, i) for i in range(config.num_hidden_layers)],
        residual_norm(config, weights, "model.norm"),
        tied=config.tie_word_embeddings,
        softcap=config.final_logit_softcapping,
    )


def residual_norm(config: Gemma3TextConfig, weights: Weights, name: str) -> ResidualNorm:
    return ResidualNorm(weights, name, config.rms_norm_eps, offset=NORM_OFFSET)


def output_norm(config: Gemma3TextConfig, weights: Weights, name: str) -> RMSNorm:
    return RMSNorm(weights, name, config.rms_norm_eps, offset=NORM_OFFSET)


class Layer(nn.Module):
    """x + norm(attention(norm(x))), then x + norm(mlp(norm(x)))."""

    def __init__(self, config: Gemma3TextConfig, weights: Weights, i: int):
        super().__init__()
        name = f"model.layers.{i}"
        self.input_layernorm = residual_norm(config, weights, f"{name}.input_layernorm")
        self.self_attn = Attention(
            weights,
            f"{name}.self_attn",
            i,
            heads_of(config),
            rope=config.layer_types[i],
            bias=config.attention_bias,
            output_bias=config.attention_bias,
            window=window_of(config, i),
            qk_norm=config.rms_norm_eps,
            norm_offset=NORM_OFFSET,
            scale=config.query_pre_attn_scalar**-0.5,
        )
        self.post_attention_layernorm = output_norm(config, weights, f"{name}.post_attention_layernorm")
        self.pre_feedforward_layernorm = residual_norm(config, weights, f"{name}.pre_feedforward_layernorm")
        self.mlp = GatedMLP(weights, f"{name}.mlp", config.hidden_activation)
        self.post_feedforward_layernorm = output_norm(config, weights, f"{name}.post_feedforward_layernorm")

    def forward(self, op: OpBuilder, stream: Stream, step: Step, rows: Value | None = None) -> Stream:
        h, x = self.input_layernorm(op, stream)
        stream = Stream(take(op, x, rows), self.post_attention_layernorm(op, self.self_attn(op, h, step, rows)))
        step.cuts.append(stream)
        h, x = self.pre_feedforward_layernorm(op, stream)
        return Stream(x, self.post_feedforward_layernorm(op, self.mlp(op, h)))
