"""Folders that others have quantized, and LoRA adapters: the tensors that mean a weight together, and what is said of
them."""

from __future__ import annotations

import random
from pathlib import Path

from fuzz.bundles import linked, write
from fuzz.checkpoints import read_checkpoint
from fuzz.damage import damaged_bytes, damaged_json
from fuzz.kinds.folders import damaged_safetensors

NAME = "quantized"
HELP = "folders of GPTQ, AWQ, compressed-tensors, FP8 and bitsandbytes, and LoRA adapters"
TRAITS = {"inputs": ("quantized",)}
BASE = "base"


def prepare(whole: Path) -> None:
    """Import what reads it: libraries are no part of a case's memory."""
    read_checkpoint(whole / "quantized" / "gptq")


def make_case(choose: random.Random, whole: Path, place: Path) -> None:
    folders = sorted(path for path in (whole / "quantized").iterdir() if path.name != BASE)
    linked(whole / "quantized" / BASE, place / BASE)  # an adapter's, next to it
    model = linked(choose.choice(folders), place / "model")
    weights = next(model.glob("*model.safetensors"))
    content, kind = weights.read_bytes(), choose.random()
    if kind < 0.4:
        write(weights, damaged_safetensors(content, choose))
    elif kind < 0.6:
        start = int.from_bytes(content[:8], "little") + 8
        write(weights, content[:start] + damaged_bytes(content[start:], choose))
    else:
        config = model / choose.choice([path.name for path in sorted(model.glob("*config.json"))])
        write(config, damaged_json(config.read_text(encoding="utf-8"), choose))


def try_one(place: Path) -> None:
    read_checkpoint(place / "model")
