"""Marian (Opus-MT): norms after the blocks, sinusoidal positions, a bias of the logits."""

from __future__ import annotations

from transformers import MarianConfig

from edge.export.facts.family import Family, Languages
from edge.export.graph.bart_like import sines, text_model
from edge.export.graph.stacks import EncoderDecoder
from edge.export.graph.weights import Weights

NAME = "marian"


def encoder_decoder(config: MarianConfig, weights: Weights, max_context: int) -> EncoderDecoder:
    names = None
    if not config.share_encoder_decoder_embeddings:
        source, target = "model.encoder.embed_tokens", "model.decoder.embed_tokens"
        names = (source, target, target if config.tie_word_embeddings else "lm_head")
    return text_model(config, weights, sines(weights), pre=False, names=names)


FAMILY = Family(encoder_decoder, languages=Languages(r">>(.+)<<", in_source=True))
