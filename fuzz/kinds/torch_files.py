"""pytorch_model.bin: an archive with a pickle and the bytes of tensors, of which only tensors are taken."""

from __future__ import annotations

import io
import pickle
import random
import zipfile
from pathlib import Path

from fuzz.bundles import linked, write
from fuzz.checkpoints import read_checkpoint
from fuzz.damage import damaged_bytes

NAME = "torch"
HELP = "pytorch_model.bin: its archive and its pickle"
TRAITS = {"inputs": ("pickled",)}
FILE = "pytorch_model.bin"
OBJECTS = [1, "x", [], {}, {"a": 1}, {1: 2}, [[]], {"lm_head.weight": "x"}, complex(1, 2), b"x" * 1000]


def prepare(whole: Path) -> None:
    """Import what reads it: libraries are no part of a case's memory."""
    read_checkpoint(whole / "pickled")


def make_case(choose: random.Random, whole: Path, place: Path) -> None:
    model = linked(whole / "pickled", place / "model")
    data = (model / FILE).read_bytes()
    kind = choose.random()
    if kind < 0.3:
        data = damaged_bytes(data, choose, 4000)
    elif kind < 0.85:
        data = _archive(data, choose)
    else:
        data = pickle.dumps(choose.choice(OBJECTS), protocol=choose.randrange(6))
    write(model / FILE, data)


def try_one(place: Path) -> None:
    read_checkpoint(place / "model")


def _archive(data: bytes, choose: random.Random) -> bytes:
    """The archive with a member changed, missing, there twice, or packed into a thousandth of its size."""
    out = io.BytesIO()
    with zipfile.ZipFile(io.BytesIO(data)) as archive, zipfile.ZipFile(out, "w") as other:
        names = archive.namelist()
        changed = choose.choice([*names, *(name for name in names if name.endswith("data.pkl"))])
        kind = choose.randrange(5)
        for name in names:
            content, packing = archive.read(name), zipfile.ZIP_STORED
            if name == changed:
                if kind == 0:
                    continue
                if kind == 1:
                    content = bytes(choose.choice([0, 1 << 20, 1 << 26]))
                    packing = zipfile.ZIP_DEFLATED
                elif kind == 2:
                    name = choose.choice(["../x", "x" * 300, "a/data.pkl", "/x"])
                else:
                    content = damaged_bytes(content, choose)
            other.writestr(name, content, packing)
    return out.getvalue()
