"""M2M100 and NLLB: norms before the blocks and at the end, sinusoidal positions that begin after the padding token."""

from __future__ import annotations

from transformers import M2M100Config
from transformers.models.m2m_100.modeling_m2m_100 import M2M100SinusoidalPositionalEmbedding

from edge.export.facts.family import Family, Languages
from edge.export.graph.bart_like import text_model
from edge.export.graph.stacks import EncoderDecoder, Positions
from edge.export.graph.weights import Weights

NAME = "m2m_100"
TRAITS = {"tokenizer": "NllbTokenizer"}
LANGUAGE = r"([a-z]{3}_[A-Z][a-z]{3})|__([a-z]{2,3})__"  # eng_Latn of NLLB, __en__ of M2M100


def encoder_decoder(config: M2M100Config, weights: Weights, max_context: int) -> EncoderDecoder:
    first = config.pad_token_id + 1
    size = first + config.max_position_embeddings
    table = M2M100SinusoidalPositionalEmbedding.get_embedding(size, config.d_model)[first:].numpy()
    encoder, decoder = (Positions(weights, "model.positions", table) for _ in range(2))
    return text_model(config, weights, (encoder, decoder), pre=True, final_norm=True, bias=False)


FAMILY = Family(encoder_decoder, languages=Languages(LANGUAGE))
