"""Sound files: headers above all, with the libraries and without them."""

from __future__ import annotations

import random
import sys
from pathlib import Path
from unittest.mock import patch

from fuzz.damage import damaged_bytes

NAME = "audio"
HELP = "sound files: WAV, FLAC, OGG, MP3 and others"
TRAITS = {"inputs": ("sounds",), "share": 2}
HEADERS = {".wav": 60, ".flac": 300, ".ogg": 5000, ".mp3": 300, ".sound": 200}


def prepare(whole: Path) -> None:
    """Import both libraries: a second import, after a first that was undone, ends the process."""
    import soundfile  # noqa: F401
    import soxr  # noqa: F401


def make_case(choose: random.Random, whole: Path, place: Path) -> None:
    path = choose.choice(sorted((whole / "sounds").iterdir()))
    plain = path.name == "plain.wav"
    name = f"{'plain' if plain else 'sound'}{path.suffix}"
    (place / name).write_bytes(damaged_bytes(path.read_bytes(), choose, HEADERS[path.suffix]))


def try_one(place: Path) -> None:
    from edge.runtime.speech.audio import open_audio

    (path,) = place.iterdir()
    without = {"soundfile": None, "soxr": None} if path.stem == "plain" else {}
    with patch.dict(sys.modules, without):
        for block in open_audio(path, 16_000).blocks:
            assert block.ndim == 1
