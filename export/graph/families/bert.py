"""BERT: norms after its blocks, learned positions; of a text alone, all tokens are of the first type."""

from __future__ import annotations

from typing import Any

from edge.export.facts.family import Family, HeadLayer, ScoreHead
from edge.export.graph.bert_like import bert_like

NAME = "bert"
TRAITS = {"embeds": True}


def build(config: Any, weights: Any, max_context: int) -> Any:
    return bert_like(config, weights, max_context)


HEAD = ScoreHead([HeadLayer("pooler.dense", "tanh"), HeadLayer("classifier")])
FAMILY = Family(build, scores=lambda config: HEAD)
