"""Pegasus: norms before the blocks and at the end, sinusoidal positions."""

from __future__ import annotations

from transformers import PegasusConfig

from edge.export.facts.family import Family
from edge.export.graph.bart_like import sines, text_model
from edge.export.graph.stacks import EncoderDecoder
from edge.export.graph.weights import Weights

NAME = "pegasus"


def encoder_decoder(config: PegasusConfig, weights: Weights, max_context: int) -> EncoderDecoder:
    return text_model(config, weights, sines(weights), pre=True, final_norm=True)


FAMILY = Family(encoder_decoder)
