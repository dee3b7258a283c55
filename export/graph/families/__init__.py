"""One file per model family, which says all that other rooms know of it.

A family's file has as its `NAME` (or `NAMES`) the `model_type` of transformers' configurations that it builds, and
`FAMILY`, its facts (`facts.family`). What must be known before a file is chosen stands in its TRAITS: `gguf`, what
GGUF files call it, and `tokenizer`, transformers' name for the tokenizer of a checkpoint that names none.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Iterable, Mapping
from types import SimpleNamespace
from typing import Any

from edge.errors import ExportError
from edge.export.facts.experts import Experts, parameter_of
from edge.export.facts.family import Family, Norms
from edge.export.facts.mixers import Places
from edge.registry import Registry

FAMILIES = Registry(__name__, "family")


def known_families() -> list[str]:
    """The names of all families, which are those of their files."""
    return sorted({entry.module.rpartition(".")[2] for entry in FAMILIES.values()})


def traced_types() -> set[str]:
    """The types of decoders that transformers knows and no family's file describes, which its exporter traces; none
    where it is not installed."""
    if importlib.util.find_spec("transformers") is None:
        return set()
    from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

    # A checkpoint that reads images, too, is one of its text part's type.
    return {kind for kind in MODEL_FOR_CAUSAL_LM_MAPPING_NAMES if FAMILIES.keys().isdisjoint({kind, f"{kind}_text"})}


def find_family(model_type: str) -> tuple[str, Family]:
    """The family that builds models of `model_type`: its name and its facts.

    Raises:
        ExportError: there is none.
    """
    if model_type not in FAMILIES:
        raise ExportError(
            f"Models of the type {model_type!r} cannot be exported; `edge models families` lists the types that can. "
            "Code that comes with a checkpoint is never run."
        )
    entry = FAMILIES[model_type]
    family: Family = entry.load().FAMILY
    return entry.module.rpartition(".")[2], family


def is_like_llama(model_type: str) -> bool:
    """False for the models of a family that says no more of a decoder's layers than their tensors: what their matrices
    read is not known outside of the graph.

    Raises:
        ExportError: there is no such family.
    """
    return find_family(model_type)[1].shapes is None


def experts_of(config: Mapping[str, Any]) -> Experts | None:
    """The experts of the first layer that has some; None of a model without.

    Raises:
        ExportError: there is no such family.
    """
    family, given = find_family(str(config.get("model_type")))[1], SimpleNamespace(**config)
    if family.layers is None or config.get("is_encoder_decoder"):
        return None
    return next(filter(None, map(family.layers(given).experts, range(given.num_hidden_layers))), None)


def fused_rows(config: Mapping[str, Any]) -> dict[str, dict[str, Places]]:
    """transformers' parameters that are several tensors here; see `LlamaLike.fused_rows`.

    Raises:
        ExportError: there is no such family.
    """
    family, given = find_family(str(config.get("model_type")))[1], SimpleNamespace(**config)
    if family.layers is None or config.get("is_encoder_decoder"):
        return {}
    return family.layers(given).fused_rows(given)


def parameter_names(config: Mapping[str, Any], names: Iterable[str]) -> dict[str, str]:
    """The parameter of transformers' that each tensor is, or is a part of, by the tensors' names.

    Raises:
        ExportError: there is no such family.
    """
    whole = {member: end for end, members in fused_rows(config).items() for member in members}
    found = {name: parameter_of(name) for name in names}
    for member, end in whole.items():
        found |= {name: name.removesuffix(member) + end for name in found if name.endswith(f".{member}")}
    return found


def may_calibrate(config: Mapping[str, Any]) -> bool:
    """True if what each matrix of a decoder reads can be measured: its layers are like Llama's, and none has experts,
    of which a text chooses some too seldom.

    Raises:
        ExportError: there is no such family.
    """
    return is_like_llama(str(config.get("model_type"))) and experts_of(config) is None


def norms_of(model_type: str, reader: str) -> Norms:
    """The norms of a decoder's layers. reader: what needs to know them, for the error's sentence.

    Raises:
        ExportError: there is no such family, or it does not say.
    """
    name, family = find_family(model_type)
    if family.norms is None:
        raise ExportError(f"{reader} needs to know which norms a layer has, and the family {name} does not say.")
    return family.norms
