"""MPNet: BERT's layers with learned positions, and a bias of the scores by distance, which all layers share."""

from __future__ import annotations

from typing import Any

import numpy as np
from onnxscript import nn

from edge.export.facts.family import Family, HeadLayer, ScoreHead
from edge.export.graph.bert_like import Names, bert_like
from edge.export.graph.operators import Lowering, Value
from edge.export.graph.stacks import arange
from edge.export.graph.t5_distances import buckets
from edge.export.graph.weights import Weights

NAME = "mpnet"
TRAITS = {"embeds": True, "offset": True}
MOST_DISTANCE = 128  # from which on all have one bias


class DistanceBias(nn.Module):
    """The bias [1, heads, T, T] of the scores, by how far a key is from a query.

    table: [heads, 2 C - 1], by key minus query, plus C - 1, for texts of up to C tokens.
    """

    def __init__(self, config: Any, weights: Weights, max_context: int):
        super().__init__()
        self.most = max_context - 1
        config.relative_attention_max_distance = MOST_DISTANCE
        learned = weights.read("encoder.relative_attention_bias.weight")  # [buckets, heads]
        places = buckets(config, np.arange(-self.most, self.most + 1), bidirectional=True)
        self.table = weights.table("distances", np.ascontiguousarray(learned[places].T))

    def forward(self, op: Lowering, ids: Value) -> Value:
        at = arange(op, ids)
        far = op.Sub(op.Unsqueeze(at, [0]), op.Unsqueeze(at, [1]))  # [T, T]
        return op.Unsqueeze(op.Gather(self.table, op.Add(far, op.Constant(value_int=self.most)), axis=1), [0])


def build(config: Any, weights: Weights, max_context: int) -> Any:
    names = Names(
        attention=("attn.q", "attn.k", "attn.v", "attn.o"),
        attention_norm="attention.LayerNorm",
    )
    bias = DistanceBias(config, weights, max_context)
    return bert_like(config, weights, max_context, offset=config.pad_token_id + 1, names=names, bias=bias)


HEAD = ScoreHead([HeadLayer("classifier.dense", "tanh"), HeadLayer("classifier.out_proj")])
FAMILY = Family(build, scores=lambda config: HEAD)
