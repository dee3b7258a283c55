"""Damaged files by the thousand, read in a process of their own whose time and memory are limited.

`python mutations.py FOLDER KIND:FIRST:COUNT...` reads COUNT damaged files of a kind, beginning with case FIRST, and
prints a line of JSON for each kind. FOLDER holds whole files under the names in KINDS. Case n of a kind is always the
same file.
"""

from __future__ import annotations

import copy
import faulthandler
import json
import random
import re
import resource
import struct
import sys
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any
from unittest.mock import patch

from edge.bundle import Bundle, open_bundle
from edge.errors import EdgeError
from edge.manifest import TextFormat

SEED = 26
CASE_S = 20.0  # the longest that a case may take, on a busy machine too; the mean is some milliseconds
CASE_BYTES = 256 << 20  # what a case may take beyond what reading the whole file took
_MEMORY = re.compile(r"bad_alloc|MemoryError|\b(allocate|out of memory)\b")
CASE = "case.txt"  # in the folder: the case at hand, for the parent of a process that dies
MOST_TOLD = 5  # failures of a kind

NUMBERS = [0, 1, 2, 7, 127, 255, 256, 65535, 1 << 16, 1 << 24, (1 << 31) - 1, 1 << 31, (1 << 32) - 1, 1 << 40, 1 << 62,
           (1 << 63) - 1, 1 << 63, (1 << 64) - 1]  # fmt: skip
VALUES: list[Any] = [
    *(None, True, False, 0, 1, -1, 2, 3, 7, 100, 65536, 1 << 31, -(1 << 31), 1 << 32, 1 << 63, 1 << 64, 10**30),
    *(0.0, 0.5, -1.5, 1e308, float("nan"), float("inf"), float("-inf"), "", "x", "1", "é\0", "x" * 1000),
    *([], [0], [None], ["x"], [[]], [1, 2, 3], {}, {"x": 1}, [[["x"]]]),
]


def damaged_bytes(whole: bytes, header: int, choose: random.Random) -> bytes:
    """`whole` after one to four kinds of damage, most of it in the first `header` bytes, at small bytes above all: they
    belong to numbers, of which sizes and types are made."""
    data = bytearray(whole)
    for _ in range(choose.choice([1, 1, 1, 2, 4])):
        if not data:
            break
        size = len(data) if choose.random() < 0.1 else min(header, len(data))
        at = choose.randrange(size)
        while data[at] >= 32 and choose.random() < 0.6:
            at = choose.randrange(size)
        length = choose.choice([1, 2, 4, 8, 16, 64, 300])
        kind = choose.choice(["bit", "bit", "byte", "number", "number", "end", "zeros", "gap", "copy", "swap", "noise"])
        if kind == "bit":
            data[at] ^= 1 << choose.randrange(8)
        elif kind == "byte":
            data[at] = choose.randrange(256)
        elif kind == "number":
            form = choose.choice(["<H", "<I", "<Q", ">I"])
            number = choose.choice(NUMBERS) & ((1 << 8 * struct.calcsize(form)) - 1)
            data[at : at + struct.calcsize(form)] = struct.pack(form, number)
        elif kind == "end":
            del data[choose.randrange(len(data)) :]
        elif kind == "zeros":
            data[at : at + length] = bytes(length)
        elif kind == "gap":
            del data[at : at + length]
        elif kind == "copy":
            data[at:at] = data[at : at + length]
        elif kind == "swap":
            other = choose.randrange(size)
            first, second = data[at : at + length], data[other : other + length]
            data[at : at + length], data[other : other + length] = second, first
        else:
            data[at : at + length] = choose.randbytes(length)
    return bytes(data)


def damaged_json(whole: str, choose: random.Random) -> bytes:
    """A JSON text after damage: to its values in three cases of four, else to its bytes."""
    kind = choose.random()
    if kind < 0.23:
        return damaged_bytes(whole.encode(), len(whole), choose)
    if kind < 0.25:
        deep = choose.choice(["[", '{"a":', "9"]) * choose.choice([200, 5000, 50_000])
        at = choose.randrange(len(whole))
        return (whole[:at] + deep + whole[at:]).encode()
    content = json.loads(whole)
    for _ in range(choose.choice([1, 1, 1, 2, 4])):
        holder, key = _place(content, choose)
        kind = choose.random()
        if kind < 0.6:
            holder[key] = copy.deepcopy(choose.choice(VALUES))
        elif kind < 0.75:
            del holder[key]
        elif kind < 0.85:
            other, there = _place(content, choose)
            holder[key], other[there] = copy.deepcopy(other[there]), copy.deepcopy(holder[key])
        elif isinstance(holder[key], int | float) and not isinstance(holder[key], bool):
            holder[key] = holder[key] * choose.choice([-1, 2, 0.5, 1000, 1 << 20]) + choose.choice([0, 1, -1])
        elif isinstance(holder[key], list):
            holder[key] = holder[key] * choose.choice([2, 100])
        elif isinstance(holder[key], str):
            holder[key] += choose.choice(["x", "\0", "é", "\\"])
        else:
            holder[key] = [holder[key]]
        if not content:
            break
    return json.dumps(content).encode()


def _place(content: Any, choose: random.Random) -> tuple[Any, Any]:
    """A place in a JSON value: what holds it, and its key or index there."""
    holder, key = content, choose.choice(_keys(content))
    while (keys := _keys(holder[key])) and choose.random() < 0.8:
        holder, key = holder[key], choose.choice(keys)
    return holder, key


def _keys(value: Any) -> Any:
    if isinstance(value, dict):
        return list(value)
    return range(len(value)) if isinstance(value, list) else ()


# What reads each kind of file, as far as sizes are checked


def read_checkpoint(path: Path) -> None:
    from edge.export.checkpoint import open_checkpoint

    checkpoint = open_checkpoint(str(path))
    assert checkpoint.tokenizer.json
    for name in checkpoint.names():
        assert checkpoint.read(name).shape == checkpoint.shape(name)
        checkpoint.blocks(name)


def read_directory(path: Path) -> None:
    read_checkpoint(path.parent)


def read_text(path: Path, text_format: TextFormat | None = None) -> None:
    from edge.runtime.text import Text

    manifest = open_bundle(path.parents[1] / "bundle").manifest
    text = Text(Bundle(path.parent, replace(manifest, text=text_format)))
    ids = text.encode_prompt("Hello, wörld! 日本 \n  x  <|im_end|>")
    assert isinstance(text.decode(ids), str)
    stream = text.detokenizer()
    _ = [*map(stream.push, ids), stream.flush()]


def read_translators_text(path: Path) -> None:
    read_text(path, TextFormat())


def read_graph(path: Path) -> None:
    from edge.runtime.engine import Engine

    Engine(open_bundle(path.parents[1]))


def read_graph_for_several(path: Path) -> None:
    from edge.runtime.engine import Engine

    Engine(open_bundle(path.parents[1])).open_for_several()


def read_segment(path: Path) -> None:
    from edge.runtime.loading import open_engine

    open_engine(open_bundle(path.parents[2]), "unified:0.3")


def read_sound(path: Path) -> None:
    from edge.runtime.speech.audio import open_audio

    for block in open_audio(path, 16_000).blocks:
        assert block.ndim == 1


def read_sound_without_libraries(path: Path) -> None:
    with patch.dict(sys.modules, {"soundfile": None, "soxr": None}):
        read_sound(path)


@dataclass(frozen=True)
class Kind:
    """file: in the folder; read: what reads it; header: bytes in which its sizes stand, None for a JSON text; cases:
    how many are read by default, in about half a second of a quiet machine."""

    file: str
    read: Callable[[Path], None]
    header: int | None
    cases: int

    def damaged(self, whole: bytes, choose: random.Random) -> bytes:
        if self.header is None:
            return damaged_json(whole.decode(), choose)
        return damaged_bytes(whole, self.header, choose)


EXPORTED = {
    "gguf": Kind("model.gguf", read_checkpoint, 8000, 60),
    "gguf-sizes": Kind("model.gguf", read_checkpoint, 900, 300),
    "ctranslate2": Kind("ctranslate2/model.bin", read_directory, 3000, 30),
    "ctranslate2-vocabulary": Kind("ctranslate2/vocabulary.json", read_directory, None, 30),
    "safetensors": Kind("directory/model.safetensors", read_directory, 2600, 100),
    "torch": Kind("torch/pytorch_model.bin", read_directory, 4000, 40),
    "config": Kind("directory/config.json", read_directory, None, 170),
    "whisper-config": Kind("whisper/config.json", read_directory, None, 30),
    "checkpoint-tokenizer": Kind("directory/tokenizer.json", read_directory, None, 30),
    "tokenizer-config": Kind("directory/tokenizer_config.json", read_directory, None, 15),
}
RUN = {
    "tokenizer": Kind("bundle/tokenizer.json", read_text, None, 150),
    "unigram": Kind("unigram/tokenizer.json", read_translators_text, None, 50),
    "graph": Kind("bundle/graphs/decoder.onnx", read_graph, 20_000, 100),
    "graph-for-several": Kind("bundle/graphs/decoder.onnx", read_graph_for_several, 20_000, 60),
    "segment": Kind("segments/graphs/segments/001.onnx", read_segment, 20_000, 20),
    "wave": Kind("sound.wav", read_sound, 60, 1000),
    "wave-without-libraries": Kind("sound16.wav", read_sound_without_libraries, 60, 1000),
    "flac": Kind("sound.flac", read_sound, 300, 800),
    "ogg": Kind("sound.ogg", read_sound, 5000, 1000),
    "mp3": Kind("sound.mp3", read_sound, 300, 400),
}
KINDS = EXPORTED | RUN


def run(folder: Path, name: str, first: int, count: int) -> dict[str, Any]:
    """Read cases of a kind: how many were read and refused, and a few of those that failed."""
    kind = KINDS[name]
    path = folder / kind.file
    whole = path.read_bytes()
    kind.read(path)
    unlimited = resource.getrlimit(resource.RLIMIT_DATA)
    resource.setrlimit(resource.RLIMIT_DATA, (data_bytes() + CASE_BYTES, unlimited[1]))
    refused, failed, slowest, start = 0, list[str](), 0.0, time.monotonic()
    with (folder / CASE).open("wb", buffering=0) as at_hand:
        for case in range(first, first + count):
            at_hand.seek(0)
            at_hand.write(f"{name}:{case:<8}".encode())
            path.write_bytes(kind.damaged(whole, random.Random(f"{SEED} {name} {case}")))
            began = time.monotonic()
            faulthandler.dump_traceback_later(CASE_S, exit=True)  # in native code too
            try:
                kind.read(path)
            except EdgeError as e:
                refused += 1
                if not is_sentence(str(e)):
                    failed.append(f"{name}:{case}: no sentence: {e}")
            except BaseException as e:  # a panic of Rust's is no Exception
                failed.append(f"{name}:{case}: " + "".join(traceback.format_exception(e)[-4:]))
            faulthandler.cancel_dump_traceback_later()
            slowest = max(slowest, time.monotonic() - began)
    path.write_bytes(whole)
    resource.setrlimit(resource.RLIMIT_DATA, unlimited)
    seconds = time.monotonic() - start
    return dict(
        kind=name, cases=count, refused=refused, failures=len(failed), told=failed[:MOST_TOLD], seconds=seconds,
        slowest=slowest,
    )  # fmt: skip


def is_sentence(message: str) -> bool:
    """Whether this is one line, and not about memory that a damaged size has asked for."""
    return bool(message) and "\n" not in message and not _MEMORY.search(message)


def data_bytes() -> int:
    """This process's private writable memory, which RLIMIT_DATA limits."""
    status = Path("/proc/self/status").read_text()
    return int(status.partition("VmData:")[2].split()[0]) << 10


if __name__ == "__main__":
    for asked in sys.argv[2:]:
        kind, first, count = asked.split(":")
        print(json.dumps(run(Path(sys.argv[1]), kind, int(first), int(count))), flush=True)
