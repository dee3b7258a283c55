"""CTranslate2's model.bin, its vocabulary and settings."""

from __future__ import annotations

import random
from pathlib import Path

from fuzz.bundles import linked, write
from fuzz.checkpoints import read_checkpoint
from fuzz.damage import damaged_bytes, damaged_json

NAME = "ctranslate2"
HELP = "CTranslate2's model.bin and vocabulary"
TRAITS = {"inputs": ("ctranslate2",)}


def prepare(whole: Path) -> None:
    """Import what reads it: libraries are no part of a case's memory."""
    read_checkpoint(whole / "ctranslate2")


def make_case(choose: random.Random, whole: Path, place: Path) -> None:
    model = linked(whole / "ctranslate2", place / "model")
    path = model / choose.choice(["model.bin", "model.bin", "model.bin", "vocabulary.json", "config.json"])
    if path.suffix == ".json":
        write(path, damaged_json(path.read_text(encoding="utf-8"), choose))
    else:
        write(path, damaged_bytes(path.read_bytes(), choose, choose.choice([60, 3000])))


def try_one(place: Path) -> None:
    read_checkpoint(place / "model")
