"""The cache: packed weights, stamps of checked bundles, names. Whatever lies there, the answer is the honest one."""

from __future__ import annotations

import json
import os
import random
import shutil
from pathlib import Path
from unittest.mock import patch

from fuzz.bundles import answer, linked, seal, write
from fuzz.damage import damaged_bytes, damaged_json, number
from fuzz.oracle import Fault

NAME = "packed"
HELP = "the cache: packed weights, stamps, names"
TRAITS = {"inputs": ("decoder",), "share": 2}
END = 28  # bytes of the file's end: the length of its index, and the mark


def prepare(whole: Path) -> None:
    """An honest cache, and the answer over it; another bundle over the same weights, whose scales differ."""
    home = whole / "packed-home"
    home.mkdir(exist_ok=True)
    with patch.dict(os.environ, EDGE_HOME=str(home)):
        honest = answer(whole / "decoder" / "model.edge")
    (whole / "packed-answer.json").write_text(json.dumps(honest), encoding="utf-8")


def make_case(choose: random.Random, whole: Path, place: Path) -> None:
    home, bundle = place / "home", place / "model.edge"
    linked(whole / "decoder" / "model.edge", bundle)
    shutil.copytree(whole / "packed-home", home)
    shutil.copy(whole / "packed-answer.json", place / "answer.json")
    found = sorted(file for file in home.rglob("*") if file.is_file())
    packed = [file for file in found if file.parent.name == "packed"]
    if not found:  # without our kernels nothing is packed
        return
    path = choose.choice(packed if packed and choose.random() < 0.8 else found)
    kind = choose.random()
    if path.suffix == ".json":
        write(path, damaged_json(path.read_text(encoding="utf-8"), choose))
    elif kind < 0.35:
        write(path, damaged_bytes(path.read_bytes(), choose))
    elif kind < 0.7:
        write(path, _damaged_index(path.read_bytes(), choose))
    elif kind < 0.8:
        _in_its_place(path, choose)
    elif kind < 0.9:
        for other in path.parent.iterdir():
            other.rename(other.with_name(f"{choose.randbytes(8).hex()}-1{other.suffix}"))
    else:
        _poison(bundle, place, choose)


def try_one(place: Path) -> None:
    honest = json.loads((place / "answer.json").read_text(encoding="utf-8"))
    with patch.dict(os.environ, EDGE_HOME=str(place / "home")):
        if (place / "other.edge").exists():
            answer(place / "other.edge")
        said = answer(place / "model.edge")
    if said != honest:
        raise Fault(f"the answer over this cache is {said}, and the honest one {honest}")


def _damaged_index(whole: bytes, choose: random.Random) -> bytes:
    """The index behind the matrices, as JSON, and how long that is."""
    length = int.from_bytes(whole[-END : -END + 8], "little")
    if not 0 < length < len(whole) - END or choose.random() < 0.2:
        return whole[:-END] + damaged_bytes(whole[-END:], choose)
    before, index, end = whole[: -END - length], whole[-END - length : -END], whole[-END:]
    try:
        content = json.loads(index)
    except ValueError:
        return before + damaged_bytes(index, choose) + end
    if choose.random() < 0.6 and isinstance(content, dict) and content:
        key = choose.choice(list(content))
        place = content[key]
        if isinstance(place, list) and place and all(isinstance(each, int) for each in place):
            i = choose.randrange(len(place))
            place[i] = number(choose, place[i])
        else:
            content[key] = number(choose)
        index = json.dumps(content).encode()
    else:
        index = damaged_json(index.decode(), choose)
    return before + index + len(index).to_bytes(8, "little") + end[8:]


def _in_its_place(path: Path, choose: random.Random) -> None:
    """Something else by the file's name."""
    path.unlink()
    kind = choose.randrange(5)
    if kind == 0:
        path.mkdir()
    elif kind == 1:
        path.touch()
    elif kind == 2:
        path.symlink_to("/dev/zero")
    elif kind == 3:
        path.symlink_to(path.name)
    else:
        os.mkfifo(path)


def _poison(bundle: Path, place: Path, choose: random.Random) -> None:
    """Another bundle with the same weights file, whose graphs find scales elsewhere in it."""
    import onnx

    other = linked(bundle, place / "other.edge")
    for path in other.glob("graphs/*.onnx"):
        model = onnx.load(str(path), load_external_data=False)
        scales = [t for t in model.graph.initializer if t.external_data and t.data_type == onnx.TensorProto.FLOAT]
        for tensor in choose.sample(scales, choose.randint(1, len(scales))) if scales else ():
            for entry in tensor.external_data:
                if entry.key == "offset":
                    entry.value = str(4096 * choose.randrange(8))
        write(path, model.SerializeToString())
    seal(other)
    shutil.rmtree(place / "home" / "packed", ignore_errors=True)
