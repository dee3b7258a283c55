"""Unigram tokenizers read without the library give the library's ids and texts."""

from __future__ import annotations

import base64
import json
import random
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers
from unigram_tokenizers import LINES, trained_pieces

from edge.runtime.text.unigram import Unigram, read_unigram

JOINED = ["e\u0301te\u0301", "a\u200bb", "\ufb01ne \uff21 \u2460", "नमस्ते", "한국어", "\U0001f469\u200d\U0001f467"]
OTHERS = [*JOINED, "x</s>y", "<word> and <extra_id_0>", "a\r\nb", "\x1c", "", " "]
LETTERS = (
    [" "] * 60
    + list("abcdeinrst") * 8
    + [chr(i) for start, end in ((9, 11), (32, 127), (160, 768), (0x2010, 0x2028)) for i in range(start, end)]
    + list("Ελληνικά Русский язык ひらがな カタカナ 漢字 \u2581")
)
Made = tuple[Path, Tokenizer]


@pytest.fixture(scope="module", params=["t5", "mbart", "nfkc", "whole", "plain"])
def made(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Made:
    """A `tokenizer.json` as families write it, and the library's tokenizer of it."""
    pieces, characters = trained_pieces()
    space, apart = pre_tokenizers.Metaspace(), pre_tokenizers.WhitespaceSplit()
    compiled = normalizers.Precompiled(characters)
    once = normalizers.Replace(Regex(" {2,}"), "\u2581")
    before, split = {
        "t5": (compiled, pre_tokenizers.Sequence([apart, space])),
        "mbart": (normalizers.Sequence([compiled, normalizers.Strip(left=False), once]), space),
        "nfkc": (normalizers.NFKC(), space),
        "whole": (normalizers.NFC(), pre_tokenizers.Metaspace(split=False)),
        "plain": (None, space),
    }[request.param]
    tokenizer = Tokenizer(models.Unigram([*pieces, ("<extra_id_0>", 0.0)], 2, False))
    tokenizer.pre_tokenizer, tokenizer.decoder = split, decoders.Metaspace()
    if before is not None:
        tokenizer.normalizer = before
    special = [AddedToken(token, normalized=False) for token in ("<pad>", "</s>", "<unk>", "<extra_id_0>", "<last>")]
    tokenizer.add_special_tokens(special)
    tokenizer.add_tokens([AddedToken("<word>")])
    path = tmp_path_factory.mktemp(request.param) / "tokenizer.json"
    tokenizer.save(str(path))
    return path, tokenizer


class Library:
    """The library behind the interface that `read_unigram` asks for."""

    special: frozenset[int] = frozenset()
    size = 0

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer

    def encode(self, text: str) -> list[int]:
        return list(self._tokenizer.encode(text, add_special_tokens=False).ids)

    def decode(self, ids: Any) -> str:
        raise AssertionError

    def token(self, token_id: int) -> str | None:
        raise AssertionError


def read(path: Path, library: Callable[[], Library]) -> Unigram:
    found = read_unigram(path, library)
    assert found is not None
    return found


def texts() -> list[str]:
    """Lines of letters at random."""
    drawn = random.Random(0)
    return ["".join(drawn.choices(LETTERS, k=drawn.randint(1, 30))) for _ in range(1500)]


def test_ids_are_those_of_the_library_for_any_text(made: Made) -> None:
    path, tokenizer = made
    own, library = read(path, lambda: Library(tokenizer)), Library(tokenizer)
    for text in [*LINES, *OTHERS, *texts()]:
        assert own.encode(text) == library.encode(text), repr(text)


def test_texts_are_those_of_the_library_for_any_ids(made: Made) -> None:
    path, tokenizer = made
    own, drawn = read(path, lambda: Library(tokenizer)), random.Random(1)
    assert own.size == tokenizer.get_vocab_size()
    for _ in range(1500):
        ids = [drawn.randrange(own.size + 3) for _ in range(drawn.randint(0, 8))]
        assert own.decode(ids) == tokenizer.decode(ids, skip_special_tokens=True), ids
    assert [own.token(i) for i in range(own.size + 3)] == [tokenizer.id_to_token(i) for i in range(own.size + 3)]


def test_the_library_is_loaded_for_texts_that_need_it_alone(made: Made) -> None:
    path, tokenizer = made
    loaded: list[int] = []

    def library() -> Library:
        loaded.append(1)
        return Library(tokenizer)

    own = read(path, library)
    for line in LINES:
        own.encode(line)
    assert not loaded
    own.encode("e\u0301")
    own.encode("x</s>")
    assert len(loaded) == 1


def test_a_damaged_character_map_is_left_to_the_library(made: Made) -> None:
    content = json.loads(made[0].read_text())
    nowhere = struct.pack("<II", 4, 0xFFFFFC00)  # a trie whose one node has its children far beyond its end
    content["normalizer"] = {"type": "Precompiled", "precompiled_charsmap": base64.b64encode(nowhere).decode()}
    changed = made[0].parent / "changed.json"
    changed.write_text(json.dumps(content))
    own, library = read(changed, lambda: Library(made[1])), Library(made[1])
    assert own.encode("ein Mann") == library.encode("ein Mann")


@pytest.mark.parametrize(
    ("where", "value"),
    [
        (("model", "type"), "BPE"),
        (("model", "byte_fallback"), True),
        (("model", "unk_id"), None),
        (("model", "unk_id"), 2.0),
        (("model", "vocab"), [["a", 10**400]]),
        (("normalizer",), {"type": "Lowercase"}),
        (("normalizer",), {"type": "Replace", "pattern": {"Regex": " {2,}"}, "content": ["x"]}),
        (("pre_tokenizer",), None),
        (("pre_tokenizer",), {"type": "Metaspace", "replacement": "\u2581", "prepend_scheme": "first", "split": True}),
        (("decoder",), {"type": "Fuse"}),
    ],
)
def test_what_is_not_known_is_left_to_the_library(made: Made, where: tuple[str, ...], value: object) -> None:
    content = json.loads(made[0].read_text())
    inner = content
    for name in where[:-1]:
        inner = inner[name]
    inner[where[-1]] = value
    changed = made[0].parent / "changed.json"
    changed.write_text(json.dumps(content))
    assert read_unigram(changed, lambda: Library(made[1])) is None
