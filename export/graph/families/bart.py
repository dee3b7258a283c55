"""BART: norms after its blocks, learned positions."""

from __future__ import annotations

from transformers import BartConfig, MBartConfig, PLBartConfig

from edge.export.facts.family import Family
from edge.export.graph.bart_like import text_model
from edge.export.graph.stacks import EncoderDecoder, Positions
from edge.export.graph.weights import Weights

NAME = "bart"
OFFSET = 2  # the first rows of the position tables are not used


def encoder_decoder(config: BartConfig, weights: Weights, max_context: int) -> EncoderDecoder:
    return learned(config, weights, pre=False)


def learned(config: BartConfig | MBartConfig | PLBartConfig, weights: Weights, *, pre: bool) -> EncoderDecoder:
    """BART's layers over learned positions. pre: norms stand before the blocks and at the end, and not after them."""

    def positions(half: str) -> Positions:
        table = weights.read(f"model.{half}.embed_positions.weight")
        return Positions(weights, f"model.{half}.positions", table[OFFSET:])

    return text_model(
        config, weights, (positions("encoder"), positions("decoder")), pre=pre, start_norm=True, final_norm=pre
    )


FAMILY = Family(encoder_decoder)
