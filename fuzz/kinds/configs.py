"""config.json of every family: sizes and settings that are not those of the weights."""

from __future__ import annotations

import json
import random
from pathlib import Path

from fuzz.bundles import linked, write
from fuzz.checkpoints import read_checkpoint
from fuzz.damage import NUMBERS, damage_value, dumped, place_in

NAME = "configs"
HELP = "config.json of every family"
TRAITS = {"inputs": ("families",)}


def prepare(whole: Path) -> None:
    """Import what reads it: libraries are no part of a case's memory."""
    for folder in sorted((whole / "families").iterdir()):
        read_checkpoint(folder)


def make_case(choose: random.Random, whole: Path, place: Path) -> None:
    model = linked(choose.choice(sorted((whole / "families").iterdir())), place / "model")
    path = model / "config.json"
    raw = json.loads(path.read_text(encoding="utf-8"))
    if choose.random() < 0.5:
        for _ in range(choose.choice([1, 1, 2])):
            holder, key = place_in(raw, choose)
            if isinstance(holder[key], int | float | None):
                holder[key] = choose.choice([*NUMBERS, -1, 3, 12, 1 << 20, 1e9, 1 << 33])
    else:
        damage_value(raw, choose)
    write(path, dumped(raw))


def try_one(place: Path) -> None:
    read_checkpoint(place / "model")
