"""Names of tensors as wrappers and trainers leave them -> those that transformers' model gives them."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TypeVar

from edge.errors import CheckpointError

# What wraps a module names it so, wherever in the model that module is: torch.compile, FSDP (Torch's and FairScale's),
# activation checkpointing.
WRAPPERS = {"_orig_mod", "_fsdp_wrapped_module", "_fpw_module", "_checkpoint_wrapped_module"}

VISION = "vision_tower", "multi_modal_projector"  # modules of models that see

T = TypeVar("T")


# Names of published checkpoints, by the model's type, where transformers' own differ.
_RENAMED = {"t5gemma2": (re.compile(r"(?<=\bencoder\.)(?=(embed_tokens|layers|norm)\.)"), "text_model.")}


def text_name(name: str, model_type: object = None) -> str:
    """The name in the text model, without wrappers; empty for the vision part of a multimodal checkpoint, whose text
    tensors carry ``language_model.`` before or after ``model.``, or, of T5Gemma 2, lack ``text_model.``."""
    if any(f"{part}." in name for part in VISION):
        return ""
    parts = [part for part in name.split(".") if part not in WRAPPERS]
    pattern, inserted = _RENAMED.get(str(model_type), (None, ""))
    text = ".".join(parts).replace("language_model.", "", 1)
    return text if pattern is None else pattern.sub(inserted, text)


def places(parameters: Iterable[str], base: str, tied: Mapping[str, str]) -> dict[str, list[str]]:
    """The names under which each parameter may be stored, its own first: transformers also looks for those of a base
    model, without the prefix `base`, and for those of parameters that are the same one (`tied`)."""
    others = defaultdict[str, list[str]](list)
    for other, own in tied.items():
        others[own].append(other)
    found = {}
    for name in parameters:
        names = [name, name.removeprefix(f"{base}."), *others[name]]
        found[name] = list(dict.fromkeys([*names, *(other.removeprefix(f"{base}.") for other in others[name])]))
    return found


def without_prefix(found: dict[str, T], stored_as: Mapping[str, list[str]], where: Path) -> dict[str, T]:
    """`found` without the prefix that a wrapper put before the model's names (``module.``, ``base_model.model.``): the
    one under which most parameters are, more than without any.

    stored_as: the names of each parameter (`places`).

    Raises:
        CheckpointError: the same model stands there under several prefixes.
    """
    parameter_of = {name: parameter for parameter, names in stored_as.items() for name in names}
    under = defaultdict[str, set[str]](set)
    for name in found:
        start = 0
        while True:
            if (parameter := parameter_of.get(name[start:])) is not None:
                under[name[:start]].add(parameter)
            if not (start := name.find(".", start) + 1):
                break
    most = max(map(len, under.values()), default=0)
    if len(under[""]) == most or 2 * most < len(stored_as):
        return found
    first, *others = sorted((prefix for prefix, names in under.items() if len(names) == most), key=len)
    if other := next((prefix for prefix in others if not prefix.startswith(first)), None):
        raise CheckpointError(
            f"{where} holds the model twice, under {first!r} and under {other!r}; save the one that is meant alone."
        )
    inside = {name.removeprefix(first): tensor for name, tensor in found.items() if name.startswith(first)}
    return {**{name: tensor for name, tensor in found.items() if not name.startswith(first)}, **inside}
