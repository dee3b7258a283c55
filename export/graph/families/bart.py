"""BART and mBART: learned positions; BART norms after its blocks, mBART before them and at the end."""

from __future__ import annotations

from transformers import BartConfig, MBartConfig

from edge.export.graph.cross import EncoderDecoder, Positions
from edge.export.graph.layers import text_model
from edge.export.graph.weights import Weights

MODEL_TYPES = ("bart", "mbart")
OFFSET = 2  # the first rows of the position tables are not used


def encoder_decoder(config: BartConfig | MBartConfig, weights: Weights, max_context: int) -> EncoderDecoder:
    pre = config.model_type == "mbart"
    encoder, decoder = (learned(weights, f"model.{half}") for half in ("encoder", "decoder"))
    return text_model(config, weights, (encoder, decoder), pre=pre, start_norm=True, final_norm=pre)


def learned(weights: Weights, half: str) -> Positions:
    table = weights.read(f"{half}.embed_positions.weight")
    return Positions(weights, f"{half}.positions", table[OFFSET:])
