"""Qwen 3.5 with experts (text): Qwen3-Next's layers, whose projections of linear attention are apart."""

from __future__ import annotations

from typing import Any

from edge.export.facts.family import GGUF, LlamaLike
from edge.export.facts.gguf_changes import Change
from edge.export.graph.families import qwen3_5, qwen3_next
from edge.export.graph.families.qwen3_5 import NORMS, in_all_layers, mixer_of
from edge.export.graph.llama_like import llama_like

NAME = "qwen3_5_moe_text"
TRAITS = {"gguf": "qwen35moe"}


def layers(config: Any) -> LlamaLike:
    return qwen3_next.with_experts(config, mixer_of(config))


def changes(config: Any) -> dict[str, Change]:
    return qwen3_5.changes(config) | in_all_layers(config, qwen3_next.of_shared(config))


FAMILY = llama_like(
    layers,
    norms=NORMS,
    gguf=GGUF(
        qwen3_next.gguf,
        names={**qwen3_5.GGUF_NAMES, **qwen3_next.EXPERT_NAMES},
        bare=qwen3_5.DELTA_BARE,
        unread=lambda config: qwen3_5.unread(config, layers(config)),
        changes=changes,
        experts=True,
    ),
)
