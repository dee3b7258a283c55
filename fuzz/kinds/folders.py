"""Model directories: the header of model.safetensors, config.json, shards, other JSON files."""

from __future__ import annotations

import json
import random
from pathlib import Path

from fuzz.bundles import linked, write
from fuzz.checkpoints import export_checkpoint, read_checkpoint
from fuzz.damage import damage_value, damaged_bytes, damaged_json, dumped, number

NAME = "safetensors"
HELP = "model directories: safetensors, config.json, shards"
TRAITS = {"inputs": ("directory", "whisper_directory", "translator_directory"), "share": 2}
WEIGHTS = "model.safetensors"


def prepare(whole: Path) -> None:
    """Import what reads it: libraries are no part of a case's memory."""
    read_checkpoint(whole / "directory")


def make_case(choose: random.Random, whole: Path, place: Path) -> None:
    model = linked(whole / choose.choice(TRAITS["inputs"]), place / "model")  # type: ignore[call-overload]
    kind = choose.random()
    if kind < 0.45:
        write(model / WEIGHTS, damaged_safetensors((model / WEIGHTS).read_bytes(), choose))
    elif kind < 0.9:
        path = model / choose.choice(["config.json", "config.json", *_others(model)])
        write(path, damaged_json(path.read_text(encoding="utf-8"), choose))
    else:
        _shards(model, choose)
    if choose.random() < 0.03:
        (place / "export").touch()


def try_one(place: Path) -> None:
    read_checkpoint(place / "model")
    if (place / "export").exists():
        export_checkpoint(place / "model", place)


def _others(model: Path) -> list[str]:
    return [path.name for path in sorted(model.glob("*.json"))]


def damaged_safetensors(whole: bytes, choose: random.Random) -> bytes:
    """A safetensors file with another header, or other bytes."""
    length = int.from_bytes(whole[:8], "little")
    if choose.random() < 0.3:
        return damaged_bytes(whole, choose, length + 8)
    header = json.loads(whole[8 : 8 + length])
    if choose.random() < 0.4:
        damage_value(header, choose)
    else:
        tensor = choose.choice([each for name, each in header.items() if name != "__metadata__"])
        kind = choose.randrange(4)
        if kind == 0 and tensor["shape"]:
            i = choose.randrange(len(tensor["shape"]))
            tensor["shape"][i] = number(choose, tensor["shape"][i])
        elif kind == 1:
            tensor["data_offsets"][choose.randrange(2)] = number(choose, tensor["data_offsets"][0])
        elif kind == 2:
            tensor["dtype"] = choose.choice(["F64", "F16", "BF16", "I64", "I8", "BOOL", "F8_E4M3", "F4", "X", ""])
        else:
            tensor["data_offsets"] = list(choose.choice(list(header.values())).get("data_offsets", [0, 0]))
    text = dumped(header)
    size = len(text) if choose.random() < 0.9 else number(choose, len(text)) % (1 << 64)
    return size.to_bytes(8, "little") + text + whole[8 + length :]


def _shards(model: Path, choose: random.Random) -> None:
    """An index of shards instead of one file."""
    content = (model / WEIGHTS).read_bytes()
    (model / WEIGHTS).unlink()
    names = ["a.safetensors", "b.safetensors", "../x.safetensors", "config.json", "/etc/passwd", "", "x" * 300, "a\0"]
    (model / "a.safetensors").write_bytes(content)
    index = {"weight_map": {f"model.{i}": choose.choice(names) for i in range(choose.randint(0, 3))}}
    if choose.random() < 0.3:
        damage_value(index, choose)
    (model / f"{WEIGHTS}.index.json").write_bytes(dumped(index))
