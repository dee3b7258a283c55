"""RoBERTa and XLM-R: BERT's layers, whose positions begin after the padding token's number."""

from __future__ import annotations

from typing import Any

from edge.export.facts.family import Family, HeadLayer, ScoreHead
from edge.export.graph.bert_like import bert_like

NAMES = ("roberta", "xlm-roberta", "camembert")
TRAITS = {"embeds": True, "offset": True}


def build(config: Any, weights: Any, max_context: int) -> Any:
    return bert_like(config, weights, max_context, offset=config.pad_token_id + 1)


HEAD = ScoreHead([HeadLayer("classifier.dense", "tanh"), HeadLayer("classifier.out_proj")])
FAMILY = Family(build, scores=lambda config: HEAD)
