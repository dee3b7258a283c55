"""SentencePiece models and the vocab.json next to them."""

from __future__ import annotations

import json
import random
import struct
from pathlib import Path

from fuzz.bundles import linked, write
from fuzz.damage import NUMBERS, TEXTS, a_few, damaged_bytes, damaged_json, number
from fuzz.inputs import SENTENCEPIECE

NAME = "sentencepiece"
HELP = "SentencePiece models and vocab.json"
TRAITS = {"inputs": ("sentencepiece",)}
TYPES = {"t5": "t5", "marian": "marian", "m2m100": "m2m_100", "nllb": "m2m_100"}


def prepare(whole: Path) -> None:
    """Import what converts them: libraries are no part of a case's memory."""
    from edge.export.checkpoint.tokenizer_files import read_tokenizer

    for name, kind in TYPES.items():
        read_tokenizer(whole / "sentencepiece" / name, {"model_type": kind})


def make_case(choose: random.Random, whole: Path, place: Path) -> None:
    name = choose.choice(sorted(TYPES))
    model = linked(whole / "sentencepiece" / name, place / name)
    path = choose.choice(sorted(model.iterdir()))
    if choose.random() < 0.5:
        path = model / SENTENCEPIECE[name]
    if path.suffix == ".json":
        vocabulary = json.loads(path.read_text(encoding="utf-8"))
        if path.name == "vocab.json" and choose.random() < 0.3:
            vocabulary[choose.choice(list(vocabulary))] = number(choose, 10)
            write(path, json.dumps(vocabulary).encode())
        else:
            write(path, damaged_json(path.read_text(encoding="utf-8"), choose))
    elif choose.random() < 0.4:
        write(path, damaged_bytes(path.read_bytes(), choose))
    else:
        write(path, _changed(path.read_bytes(), choose))


def try_one(place: Path) -> None:
    from edge.export.checkpoint.tokenizer_files import read_tokenizer

    (model,) = place.iterdir()
    assert read_tokenizer(model, {"model_type": TYPES[model.name]}).json


def _changed(data: bytes, choose: random.Random) -> bytes:
    """Pieces that are missing, long, or there twice; a character map of another size; another kind of model."""
    from sentencepiece import sentencepiece_model_pb2

    model = sentencepiece_model_pb2.ModelProto()
    model.ParseFromString(data)
    for _ in range(a_few(choose)):
        kind = choose.randrange(6)
        piece = choose.choice(model.pieces) if model.pieces else model.pieces.add()
        if kind == 0:
            piece.piece = choose.choice([text for text in TEXTS if text.isprintable()] + ["x" * 3000])
        elif kind == 1:
            piece.score = choose.choice([0.0, -1e38, float("nan"), float("inf")])
        elif kind == 2:
            piece.type = choose.choice([1, 2, 3, 4, 5, 6])
        elif kind == 3:
            del model.pieces[choose.randrange(len(model.pieces)) :]
        elif kind == 4:
            characters = model.normalizer_spec.precompiled_charsmap
            size = struct.pack("<I", choose.choice(NUMBERS) & 0xFFFFFFFF)
            model.normalizer_spec.precompiled_charsmap = choose.choice([size, size + characters[4:], b"", b"\xff"])
        else:
            model.trainer_spec.model_type = choose.choice([1, 2, 3, 4])
    return bytes(model.SerializeToString())
