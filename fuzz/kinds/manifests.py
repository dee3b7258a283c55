"""Manifests whose fields were changed and sealed again, and what reads them: loading, answering, three commands."""

from __future__ import annotations

import json
import random
from pathlib import Path

from edge.bundle import MANIFEST
from fuzz.bundles import answer, linked, resealed, write
from fuzz.damage import damage_value, damaged_bytes
from fuzz.oracle import command

NAME = "manifests"
HELP = "edge.json: fields, sizes, paths"
TRAITS = {"inputs": ("decoder", "segments", "translator", "whisper"), "share": 2}


def prepare(whole: Path) -> None:
    """Import what runs it: libraries are no part of a case's memory."""
    answer(whole / "decoder" / "model.edge")


def make_case(choose: random.Random, whole: Path, place: Path) -> None:
    bundle = linked(whole / choose.choice(TRAITS["inputs"]) / "model.edge", place / "model.edge")  # type: ignore[call-overload]
    path = bundle / MANIFEST
    if choose.random() < 0.1:
        write(path, damaged_bytes(path.read_bytes(), choose))
    else:
        raw = json.loads(path.read_text(encoding="utf-8"))
        damage_value(raw, choose)
        write(path, resealed(raw))
    if choose.random() < 0.25:
        (place / "commands").touch()


def try_one(place: Path) -> None:
    bundle = place / "model.edge"
    if not (place / "commands").exists():
        answer(bundle)
        return
    for arguments in (["inspect", bundle], ["plan", bundle, "--memory", "300MB"], ["verify", bundle]):
        command(list(map(str, arguments)))
