"""mBART: BART with norms before its blocks and at the end, and tokens that name languages."""

from __future__ import annotations

from transformers import MBartConfig

from edge.export.facts.family import Family, Languages
from edge.export.graph.families.bart import learned
from edge.export.graph.stacks import EncoderDecoder
from edge.export.graph.weights import Weights

NAME = "mbart"
TRAITS = {"tokenizer": "MBartTokenizer"}


def encoder_decoder(config: MBartConfig, weights: Weights, max_context: int) -> EncoderDecoder:
    return learned(config, weights, pre=True)


FAMILY = Family(encoder_decoder, languages=Languages(r"([a-z]{2}_[A-Z]{2})"))  # en_XX
