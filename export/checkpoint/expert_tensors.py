"""Experts in the files of a model directory: one by one, or those of a layer as one tensor."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping
from types import SimpleNamespace
from typing import Any

from edge.export.checkpoint.model_config import refuse_leftovers
from edge.export.checkpoint.stored import Stored, Tensor
from edge.export.facts.experts import OF_EXPERT, STACKED, WHOLE, expert_name
from edge.export.graph.families import find_family


def expert_shapes(config: Mapping[str, Any]) -> dict[str, tuple[int, ...]]:
    """The shapes of all experts' matrices by their names; of a model without experts none."""
    family = find_family(str(config["model_type"]))[1]
    given = SimpleNamespace(**config)
    if family.layers is None or config.get("is_encoder_decoder") or not family.layers(given).has_experts(given):
        return {}
    return {name: shape for name, shape in family.tensors(given).items() if OF_EXPERT.fullmatch(name)}


def one_by_one(found: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The tensors of a directory, those of all experts of a layer taken apart; nothing is copied."""
    made: dict[str, Tensor] = {}
    for name, tensor in found.items():
        match = WHOLE.fullmatch(name)
        if match is None or not isinstance(tensor, Stored) or len(tensor.shape) != 3:
            made[name] = tensor
            continue
        members = STACKED[match[2]]
        for i, expert in enumerate(tensor.tensor):
            for member, part in zip(members, expert.tensor_split(len(members)), strict=True):
                made[expert_name(match[1], i, member)] = dataclasses.replace(tensor, tensor=part)
    return made


def refuse_more(names: Iterable[str], expected: Mapping[str, tuple[int, ...]], where: str) -> None:
    """Raise CheckpointError if there are experts that the configuration does not have."""
    refuse_leftovers([name for name in names if OF_EXPERT.fullmatch(name) and name not in expected], where)
