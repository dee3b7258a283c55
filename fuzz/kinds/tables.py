"""Other files of a bundle: tables to draft from, routers, what is said of graphs for a device."""

from __future__ import annotations

import json
import random
from pathlib import Path

from fuzz.bundles import answer, linked, seal, write
from fuzz.damage import damaged_bytes

NAME = "tables"
HELP = "draft tables and routers"
TRAITS = {"inputs": ("decoder", "segments")}


def prepare(whole: Path) -> None:
    """Import what runs it: libraries are no part of a case's memory."""
    answer(whole / "decoder" / "model.edge")


def make_case(choose: random.Random, whole: Path, place: Path) -> None:
    name, files, keywords = choose.choice(
        [
            ("decoder", "*.bin", {"speculate": "recycle"}),
            ("decoder", "*.bin", {"speculate": "auto"}),
            ("segments", "routers.npy", {"skip": "first"}),
        ]
    )
    bundle = linked(whole / name / "model.edge", place / "model.edge")
    found = sorted(path for path in bundle.glob(files) if path.name != "weights.bin")
    path = choose.choice(found)
    write(path, damaged_bytes(path.read_bytes(), choose, 200))
    seal(bundle)
    (place / "keywords.json").write_text(json.dumps(keywords), encoding="utf-8")


def try_one(place: Path) -> None:
    answer(place / "model.edge", **json.loads((place / "keywords.json").read_text(encoding="utf-8")))
