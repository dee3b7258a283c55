"""golden.json, and `edge verify` with it."""

from __future__ import annotations

import random
from pathlib import Path

from edge.bundle import GOLDEN
from fuzz.bundles import answer, linked, seal, write
from fuzz.damage import damaged_json
from fuzz.oracle import command

NAME = "golden"
HELP = "recorded answers, as edge verify replays them"
TRAITS = {"inputs": ("decoder", "translator")}


def prepare(whole: Path) -> None:
    """Import what runs it: libraries are no part of a case's memory."""
    answer(whole / "decoder" / "model.edge")


def make_case(choose: random.Random, whole: Path, place: Path) -> None:
    bundle = linked(whole / choose.choice(["decoder", "translator"]) / "model.edge", place / "model.edge")
    write(bundle / GOLDEN, damaged_json((bundle / GOLDEN).read_text(encoding="utf-8"), choose))
    seal(bundle)


def try_one(place: Path) -> None:
    command(["verify", str(place / "model.edge"), "--threads", "1"])
