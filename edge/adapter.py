"""The folder of an adapter (LoRA), as peft writes it, and the model that it changes."""

from __future__ import annotations

import json
from pathlib import Path

CONFIG = "adapter_config.json"
WEIGHTS = ("adapter_model.safetensors", "adapter_model.bin")
MODEL = "config.json"  # of a whole model
BASE = "base_model_name_or_path"
_MOST = 1 << 20  # bytes of a configuration that is read


def is_adapter(folder: Path) -> bool:
    """True if the folder contains an adapter. A complete model next to the config of an adapter is not one."""
    has_weights = any((folder / name).is_file() for name in WEIGHTS)
    return (folder / CONFIG).is_file() and (has_weights or not (folder / MODEL).is_file())


def place_of_base(folder: Path, base: str) -> Path | None:
    """Return the local path of the base model that an adapter names, relative to the current folder or to the
    adapter's. The first path that looks like a model is preferred, then the first that exists; None if none exists, as
    for a name on a hub."""
    try:
        there = [place for place in (Path(base).expanduser(), folder / base) if place.exists()]
    except (OSError, ValueError, RuntimeError):  # no name that a file can have, or ~ of nobody
        return None
    models = (place for place in there if place.is_file() or any((place / mark).exists() for mark in (MODEL, CONFIG)))
    return next(models, there[0] if there else None)


def local_base(folder: Path) -> Path | None:
    """Return the local path of the base model that the folder's configuration names, as `place_of_base`; None if there
    is none."""
    path = folder / CONFIG
    try:
        if not is_adapter(folder) or path.stat().st_size > _MOST:
            return None
        base = json.loads(path.read_text(encoding="utf-8")).get(BASE)
    except (OSError, ValueError, AttributeError, RecursionError):  # whoever opens it says so
        return None
    return place_of_base(folder, base) if isinstance(base, str) and base else None
