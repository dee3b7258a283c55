"""PLBart: BART over source code, with tokens that name programming languages."""

from __future__ import annotations

from transformers import PLBartConfig

from edge.export.facts.family import Family, Languages
from edge.export.graph.families.bart import learned
from edge.export.graph.stacks import EncoderDecoder
from edge.export.graph.weights import Weights

NAME = "plbart"
TRAITS = {"tokenizer": "PLBartTokenizer"}
LANGUAGE = r"__(java|python|en_XX|javascript|php|ruby|go)__"  # by name: code has pieces such as __init__


def encoder_decoder(config: PLBartConfig, weights: Weights, max_context: int) -> EncoderDecoder:
    return learned(config, weights, pre=False)


FAMILY = Family(encoder_decoder, languages=Languages(LANGUAGE))
