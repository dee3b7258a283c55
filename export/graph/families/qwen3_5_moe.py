"""Qwen 3.5 with experts (text): Qwen3-Next's layers, whose projections of linear attention are apart."""

from __future__ import annotations

from typing import Any

from edge.export.facts.family import LlamaLike
from edge.export.facts.gguf_changes import Change
from edge.export.graph.families import qwen3_5, qwen3_next
from edge.export.graph.families.qwen3_5 import in_all_layers, mixer_of

NAME = "qwen3_5_moe_text"
TRAITS = {"gguf": "qwen35moe"}


def layers(config: Any) -> LlamaLike:
    return qwen3_next.with_experts(config, mixer_of(config))


def changes(config: Any) -> dict[str, Change]:
    return qwen3_5.changes(config) | in_all_layers(config, qwen3_next.of_shared(config))


GGUF_NAMES = {**qwen3_5.GGUF_NAMES, **qwen3_next.EXPERT_NAMES}
FAMILY = qwen3_5.family(layers, qwen3_next.gguf, GGUF_NAMES, changes, experts=True)
