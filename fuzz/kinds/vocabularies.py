"""Tokenizers: tokenizer.json with its model, regular expressions and character maps."""

from __future__ import annotations

import base64
import json
import random
import struct
from dataclasses import replace
from pathlib import Path
from typing import Any

from edge.bundle import Bundle, open_bundle
from edge.manifest import TextFormat
from fuzz.bundles import linked, seal, write
from fuzz.damage import NUMBERS, damage_value, damaged_bytes, damaged_json, damaged_text, dumped

NAME = "tokenizers"
HELP = "tokenizer.json: models, regular expressions, character maps"
TRAITS = {"inputs": ("vocabularies", "decoder"), "share": 2}
PATTERNS = [
    *(r"(a+)+$", r"(?:a|aa)*b", r"(.*)*x", r"((((((((((a*)*)*)*)*)*)*)*)*)*)b", r"\p{L}+", "", "(", r"a{1000000}"),
    *(r"(?<=x)y", r"(a{1,1000}){1,1000}", "[", r"\1", r"(?=a*)*", "x" * 100_000, r"(\w+\s?)+$", r"(?i)(|a|b)*c"),
]
STEPS: list[Any] = [
    {"type": "NFC"}, {"type": "Lowercase"}, {"type": "Prepend", "prepend": "x" * 1000}, {"type": "StripAccents"},
    {"type": "Replace", "pattern": {"String": "a"}, "content": "a" * 10_000},
    {"type": "Replace", "pattern": {"String": ""}, "content": "x"},
    {"type": "Sequence", "normalizers": [{"type": "Replace", "pattern": {"Regex": "."}, "content": "aa"}] * 30},
]  # fmt: skip
LETTERS = {each: i for i, each in enumerate("abcdefghijklmnopqrstuvwxyz \n.")}
LONG_PIECES = [["a" * size, -1.0] for size in (1, 2, 9999)]
MODELS: list[Any] = [
    {"type": "WordPiece", "unk_token": "a", "continuing_subword_prefix": "", "vocab": LETTERS},
    {"type": "WordLevel", "unk_token": "a", "vocab": LETTERS},
    {"type": "Unigram", "unk_id": 0, "vocab": LONG_PIECES},
    {"type": "BPE", "vocab": LETTERS | {"aa": 40, "aaaa": 41}, "merges": [["a", "a"], ["aa", "aa"]]},
]
OPTIONS: list[tuple[str, list[Any]]] = [
    ("max_input_chars_per_word", [100, 10**12, 0, -1]),
    ("continuing_subword_prefix", ["", "##", "a" * 10_000]),
    ("end_of_word_suffix", ["", "a" * 10_000]),
    ("dropout", [0.5, 1.0, 2.0]),
    *((name, [True]) for name in ("ignore_merges", "byte_fallback", "fuse_unk")),
]
FLAGS = ("single_word", "lstrip", "rstrip", "normalized", "special")
SPLITS: list[Any] = [
    None,
    {"type": "FixedLength", "length": 0},
    {"type": "Sequence", "pretokenizers": [{"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": True}] * 30},
    {"type": "Metaspace", "replacement": "a", "prepend_scheme": "always", "split": True},
]
PIECE = {"Sequence": {"id": "A", "type_id": 0}}
PAGE = "the quick brown fox " * 300 + "a" * 6000 + " " * 3000
CALM_S = 1.0  # a tenth of the limit of time that the runtime has, so that many cases fit into a minute
TEXT = "Hello, wörld! 日本 \n  x  <|im_end|> aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa"
FILES = ("bytes.json", "unigram.json")


def make_case(choose: random.Random, whole: Path, place: Path) -> None:
    name = choose.choice(FILES)
    path = whole / "vocabularies" / name
    bundle = linked(whole / "decoder" / "model.edge", place / "model.edge")
    text = path.read_text(encoding="utf-8")
    kind = choose.random()
    if kind < 0.6:
        write(bundle / "tokenizer.json", damaged_json(text, choose))
    else:
        raw = json.loads(text)
        _steps(raw, choose)
        write(bundle / "tokenizer.json", dumped(raw))
    seal(bundle)
    (place / name).touch()


def try_one(place: Path) -> None:
    from edge.runtime.text import bounds
    from edge.runtime.text.tokenizer import Text

    bounds.CALM_S, bounds.MOST = CALM_S, 1 << 22
    bundle = open_bundle(place / "model.edge")
    form = TextFormat() if (place / "unigram.json").exists() else None
    text = Text(Bundle(bundle.root, replace(bundle.manifest, text=form)))
    ids = text.encode_prompt(TEXT)
    assert isinstance(text.decode(ids), str)
    stream = text.detokenizer()
    _ = [*map(stream.push, ids), stream.flush()]
    text.encode(PAGE)


def _steps(raw: dict[str, Any], choose: random.Random) -> None:
    """Steps that texts go through: expressions that take long, texts that grow, maps whose sizes are not so, models
    that take long, tokens that take the spaces around them, templates with many copies."""
    kind = choose.randrange(7)
    if kind == 4:
        raw["model"] = {**choose.choice(MODELS)} | {
            name: choose.choice(values) for name, values in OPTIONS if choose.random() < 0.5
        }
        for name in choose.sample(["normalizer", "pre_tokenizer", "post_processor", "decoder"], choose.randint(0, 4)):
            raw[name] = None
        raw["added_tokens"] = []
    elif kind == 5:
        flags = {name: choose.random() < 0.5 for name in FLAGS}
        raw["added_tokens"] = [{"id": 1, "content": choose.choice([" ", "a", "a" * 2000, "the", ""]), **flags}]
        raw["normalizer"] = choose.choice([None, *STEPS])
    elif kind == 6:
        raw["pre_tokenizer"] = choose.choice(SPLITS)
        pair = [PIECE, {"Sequence": {"id": "B", "type_id": 0}}]
        single = [PIECE] * choose.choice([0, 1, 30_000])
        raw["post_processor"] = {"type": "TemplateProcessing", "single": single, "pair": pair, "special_tokens": {}}
    elif kind == 0:
        split = {
            "type": "Split",
            "pattern": {"Regex": choose.choice(PATTERNS)},
            "behavior": "Isolated",
            "invert": False,
        }
        raw["pre_tokenizer"] = split
    elif kind == 1:
        raw["normalizer"] = choose.choice(
            [*STEPS, {"type": "Replace", "pattern": {"Regex": choose.choice(PATTERNS)}, "content": "aa"}]
        )
    elif kind == 2:
        normalizer = raw.get("normalizer") or {}
        characters = base64.b64decode(normalizer.get("precompiled_charsmap") or b"")
        if choose.random() < 0.5:
            characters = struct.pack("<I", choose.choice(NUMBERS) & 0xFFFFFFFF) + characters[4:]
        else:
            characters = damaged_bytes(characters or bytes(8), choose)
        raw["normalizer"] = {"type": "Precompiled", "precompiled_charsmap": base64.b64encode(characters).decode()}
    else:
        for token in raw.get("added_tokens", []):
            token["content"] = damaged_text(token["content"], choose)
    if choose.random() < 0.3:
        damage_value(raw["model"], choose)
