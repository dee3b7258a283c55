"""Experts in the files of a model directory: one by one, or those of a layer as one tensor."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterable, Mapping
from types import SimpleNamespace
from typing import Any

from edge.export.checkpoint.model_config import refuse_leftovers
from edge.export.checkpoint.quantized.mxfp4 import Stack
from edge.export.checkpoint.stored import Stored, Tensor
from edge.export.facts.experts import (
    DOWN,
    GATE,
    OF_EXPERT,
    STACKED,
    UP,
    WHOLE,
    Experts,
    expert_name,
    member_of,
)
from edge.export.graph.families import experts_of, find_family

# Mixtral's and LFM 2's names of an expert's matrices, and Granite's of those of all experts of a layer.
_MEMBERS = {"w1": GATE, "w2": DOWN, "w3": UP}
_MEMBER = re.compile(rf"(.+\.experts\.\d+)\.({'|'.join(_MEMBERS)})\.weight")
_PARAMETERS = {
    "input_linear": "experts.gate_up_proj",
    "output_linear": "experts.down_proj",
    "router.layer": "router.weight",
}
_PARAMETER = re.compile(rf"(.+\.block_sparse_moe)\.({'|'.join(_PARAMETERS)})\.weight")


def expert_shapes(config: Mapping[str, Any]) -> dict[str, tuple[int, ...]]:
    """The shapes of all experts' tensors by their names; of a model without experts none."""
    if experts_of(config) is None:
        return {}
    shapes = find_family(str(config["model_type"]))[1].tensors(SimpleNamespace(**config))
    return {name: shape for name, shape in shapes.items() if OF_EXPERT.fullmatch(name)}


def one_by_one(found: Mapping[str, Tensor], experts: Experts) -> dict[str, Tensor]:
    """The tensors of a directory under transformers' names, those of all experts of a layer taken apart; nothing is
    copied."""
    made: dict[str, Tensor] = {}
    for stored, tensor in found.items():
        name = _named(stored)
        match = WHOLE.fullmatch(name)
        if match is None or not isinstance(tensor, Stored | Stack) or len(tensor.shape) != (2 if match[3] else 3):
            made[name] = tensor
            continue
        part, members = "bias" if match[3] else "weight", STACKED[match[2]]
        for i in range(tensor.shape[0]):
            for place, member in enumerate(members):
                made[expert_name(match[1], i, member, part)] = (
                    tensor.member(i, place, len(members), turned=experts.turned)
                    if isinstance(tensor, Stack)
                    else dataclasses.replace(
                        tensor, tensor=member_of(tensor.tensor[i], place, len(members), turned=experts.turned)
                    )
                )
    return made


def _named(name: str) -> str:
    if match := _MEMBER.fullmatch(name):
        return f"{match[1]}.{_MEMBERS[match[2]]}.weight"
    return f"{match[1]}.{_PARAMETERS[match[2]]}" if (match := _PARAMETER.fullmatch(name)) else name


def refuse_more(names: Iterable[str], expected: Mapping[str, tuple[int, ...]], where: str) -> None:
    """Raise CheckpointError if there are experts that the configuration does not have."""
    refuse_leftovers([name for name in names if OF_EXPERT.fullmatch(name) and name not in expected], where)
