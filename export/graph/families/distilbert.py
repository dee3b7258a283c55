"""DistilBERT: BERT's layers by other names, without types of tokens."""

from __future__ import annotations

from typing import Any

from edge.export.facts.family import Family, HeadLayer, ScoreHead
from edge.export.graph.bert_like import Names, bert_like

NAME = "distilbert"
TRAITS = {"embeds": True}
EPSILON = 1e-12  # of its norms, which no configuration states


def build(config: Any, weights: Any, max_context: int) -> Any:
    names = Names(
        layer="transformer.layer",
        attention=("q_lin", "k_lin", "v_lin", "out_lin"),
        attention_norm="sa_layer_norm",
        feed_forward=("ffn.lin1", "ffn.lin2"),
        norm="output_layer_norm",
    )
    config.layer_norm_eps, config.hidden_act, config.intermediate_size = EPSILON, config.activation, config.hidden_dim
    return bert_like(config, weights, max_context, names=names)


HEAD = ScoreHead([HeadLayer("pre_classifier", "relu"), HeadLayer("classifier")])
FAMILY = Family(build, scores=lambda config: HEAD)
