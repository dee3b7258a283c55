"""Tokenizers of strangers end soon and make little of a text, or are refused in one sentence."""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from fake_engine import byte_bundle
from tokenizer_corpus import KINDS

from edge.bundle import TOKENIZER, Bundle
from edge.errors import BundleError
from edge.runtime.text import bounds
from edge.runtime.text.tokenizer import Text

Spoil = Callable[..., Bundle]
FAMILIES = (
    *("gpt2", "smollm2", "llama3", "qwen2", "olmo2", "gpt-4o", "deepseek", "bloom", "falcon", "whisper", "llama2"),
    *("mistral", "gemma", "phi3"),
)
SLOW = [r"[a-z]*[a-y]*\d", r"(?:a|b)*(?:a|[ab])*\d", r"(?:[a-z]+\s?)+[0-9]"]


@pytest.fixture(autouse=True)
def given_up() -> Iterator[None]:
    """Waits in the end for what nobody waited for: it would take the next tests' time, and the library's threads."""
    before = threading.enumerate()
    yield
    for thread in threading.enumerate():
        if thread not in before:
            thread.join(60)


@pytest.fixture
def spoil(tmp_path: Path) -> Spoil:
    """A bundle whose tokenizer has other parts."""

    def make(**parts: Any) -> Bundle:
        bundle = byte_bundle(tmp_path / str(len(list(tmp_path.iterdir()))), template=None)
        path = bundle.path(TOKENIZER)
        path.write_text(json.dumps(json.loads(path.read_text()) | parts))
        return bundle

    return make


def replace(pattern: dict[str, str], content: str) -> dict[str, Any]:
    return {"type": "Replace", "pattern": pattern, "content": content}


def chain(parts: list[dict[str, Any]], name: str = "normalizers") -> dict[str, Any]:
    return {"type": "Sequence", name: parts}


def test_no_chain_of_parts_makes_more_of_a_text_than_there_is_room_for(spoil: Spoil) -> None:
    draw = random.Random(51)
    for _ in range(20):
        parts: list[dict[str, Any]] = []
        for _ in range(draw.randint(3, 9)):
            size = draw.choice([300, 1000, 5000])
            pattern = draw.choice([{"String": "a"}, {"String": ""}, {"Regex": "."}, {"Regex": ""}])
            parts.append(draw.choice([replace(pattern, "a" * size), {"type": "Prepend", "prepend": "a" * size}]))
        with pytest.raises(BundleError, match="may make more than 67,108,864 characters"):
            Text(spoil(normalizer=chain(parts))).encode("a" * 40)
        with pytest.raises(BundleError, match="may make more than 67,108,864 characters of 3 tokens"):
            decoders = [part for part in parts if part["type"] == "Replace"] * 4
            Text(spoil(decoder=chain(decoders, "decoders"))).decode([65, 66, 67])


@pytest.mark.parametrize("pattern", SLOW)
def test_an_expression_that_goes_back_for_ever_is_not_waited_for(
    spoil: Spoil, pattern: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bounds, "CALM_S", 0.1)
    split = {"type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated", "invert": False}
    begun = time.monotonic()
    with pytest.raises(BundleError, match="has not come to an end of 1,500 characters|cannot be read as a tokenizer"):
        Text(spoil(pre_tokenizer=split)).encode("a" * 1500)
    with pytest.raises(BundleError, match="has not come to an end of|cannot be read as a tokenizer"):
        Text(spoil(normalizer=replace({"Regex": pattern}, ""))).encode("a" * 1500)
    assert time.monotonic() - begun < 60


def test_the_command_ends_though_the_expression_does_not(spoil: Spoil) -> None:
    split = {"type": "Split", "pattern": {"Regex": SLOW[0]}, "behavior": "Isolated", "invert": False}
    bundle = spoil(pre_tokenizer=split)
    script = (
        "import sys; from pathlib import Path; from edge.runtime.text import bounds, tokenizer\n"
        "bounds.CALM_S = 0.3\n"
        "try: tokenizer._Library(Path(sys.argv[1])).encode('a' * 2000)\n"
        "except Exception as e: print(e)"
    )
    command = [sys.executable, "-c", script, str(bundle.path(TOKENIZER))]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=30, env=dict(os.environ))
    assert "has not come to an end" in ended.stdout, ended.stderr


LETTERS = {each: i for i, each in enumerate("abcdefghijklmnopqrstuvwxyz \n.")} | {"[U]": 40}
SPACES = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized", "special"), False) | {"id": 50}
LONG_WORDS = {"unk_token": "[U]", "continuing_subword_prefix": "", "vocab": LETTERS}
ENDLESS: dict[str, dict[str, Any]] = {
    "words without an end": {"model": {"type": "WordPiece", "max_input_chars_per_word": 10**12, **LONG_WORDS}},
    "pieces as long as the text": {
        "model": {"type": "Unigram", "unk_id": 0, "vocab": [["a", -1.0], [" ", -2.0], ["a" * 9999, -1.0]]},
    },
    "spaces that take spaces": {"added_tokens": [SPACES | {"content": " ", "rstrip": True}]},
    "spaces made of other characters": {
        "normalizer": replace({"String": "a"}, " "),
        "added_tokens": [SPACES | {"content": "a", "rstrip": True, "normalized": True}],
    },
}  # fmt: skip


@pytest.mark.parametrize("name", ENDLESS)
def test_a_tokenizer_that_takes_more_than_time_for_its_text_is_not_waited_for(
    spoil: Spoil, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bounds, "CALM_S", 0.02)
    monkeypatch.setattr(bounds, "CHARACTER_S", 0.0)
    parts = dict.fromkeys(("normalizer", "pre_tokenizer", "decoder"))
    text = Text(spoil(**{**parts, **ENDLESS[name]}))
    letter = " " if "spaces that" in name else "a"
    length = 4000 if name.startswith("words") else 12_000  # about a second
    with pytest.raises(BundleError, match=f"has not come to an end of {length:,} characters"):
        text.encode(letter * length)


def test_parts_that_no_checkpoint_has_are_not_known() -> None:
    from tokenizers import models

    known = [{"type": "NFC"}, {"type": "Split", "pattern": {"String": " "}}, {"type": None}]
    assert bounds.is_known(known)
    draw = random.Random(51)
    for _ in range(50):
        odd = draw.choice(
            [
                {"type": f"New{draw.random()}"},
                {"type": "Split", "pattern": {"Regex": f"(a+){draw.random()}"}},
                chain([{"type": "NFC"}] * draw.randint(bounds.MOST_PARTS, 99)),
                {"type": "FixedLength", "length": 3},
            ]
        )
        assert not bounds.is_known([*known, draw.choice([odd, chain([{"type": "NFC"}, odd])])])
    assert bounds.is_known_model(models.BPE({}, [])) and bounds.is_known_model(
        models.WordPiece({"a": 0}, unk_token="a")
    )
    assert not bounds.is_known_model(models.BPE({}, [], dropout=0.1))
    assert not bounds.is_known_model(models.BPE({}, [], end_of_word_suffix="x" * 1000))
    assert not bounds.is_known_model(models.WordPiece({"a": 0}, unk_token="a", max_input_chars_per_word=1000))
    assert not bounds.is_known_model(models.Unigram([("a", 0.0)], 0))


@pytest.mark.parametrize("times", [2, 30, 3000])
def test_a_template_of_special_tokens_makes_no_copies_of_a_text(spoil: Spoil, times: int) -> None:
    usual, one = Text(spoil()).encode("hello"), {"Sequence": {"id": "A", "type_id": 0}}
    pair = [one, {"Sequence": {"id": "B", "type_id": 0}}]
    template = {"type": "TemplateProcessing", "single": [one] * times, "pair": pair, "special_tokens": {}}
    assert Text(spoil(post_processor=template)).encode("hello") == usual


def test_added_tokens_are_not_normalized_into_more_than_there_is_room_for(spoil: Spoil) -> None:
    draw = random.Random(51)
    for _ in range(10):
        token = SPACES | {"content": "a" * draw.randint(1, 50), "normalized": True}
        parts = [replace({"String": "a"}, "a" * draw.choice([300, 5000])) for _ in range(draw.randint(4, 9))]
        with pytest.raises(BundleError, match="may make more than 67,108,864 characters of its added tokens"):
            Text(spoil(added_tokens=[token], normalizer=chain(parts)))


@pytest.mark.parametrize("pattern", SLOW)
def test_added_tokens_are_not_normalized_for_ever(spoil: Spoil, pattern: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bounds, "CALM_S", 0.1)
    token = SPACES | {"content": "a" * 1500, "normalized": True}
    with pytest.raises(BundleError, match="has not come to an end of|cannot be read as a tokenizer"):
        Text(spoil(added_tokens=[token], normalizer=replace({"Regex": pattern}, "")))


def test_added_tokens_are_found_however_the_file_is_written(spoil: Spoil) -> None:
    token = SPACES | {"content": "a" * 50, "normalized": True}
    bundle = spoil(added_tokens=[token], normalizer=chain([replace({"String": "a"}, "a" * 5000)] * 4))
    path = bundle.path(TOKENIZER)
    whole = path.read_text()
    for key in ("normalizer", "normalized", "added_tokens"):
        path.write_text(whole.replace(f'"{key}"', '"' + "".join(f"\\u{ord(each):04x}" for each in key) + '"'))
        with pytest.raises(BundleError, match="may make more than"):
            Text(bundle)
    path.write_text(whole.replace('"normalizer": ', '"normalizer"\n:\t').replace(": true", " :true"))
    with pytest.raises(BundleError, match="may make more than"):
        Text(bundle)


def test_no_chain_of_splits_makes_more_of_a_text_than_there_is_room_for(spoil: Spoil) -> None:
    step = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False}
    with pytest.raises(BundleError, match="may make more than 67,108,864 characters"):
        Text(spoil(pre_tokenizer=chain([step] * 30, "pretokenizers"))).encode("ä" * 40)


@pytest.mark.parametrize("deep", [False, True])
def test_parts_of_no_length_are_refused_without_a_note_of_rust_s(
    spoil: Spoil, deep: bool, capfd: pytest.CaptureFixture[str]
) -> None:
    part: dict[str, Any] = {"type": "FixedLength", "length": 0}
    with pytest.raises(BundleError, match="splits texts into parts of no length"):
        Text(spoil(pre_tokenizer=chain([part], "pretokenizers") if deep else part))
    notes = capfd.readouterr().err.split("thread '")  # one of Onig is of a search that an earlier test gave up
    assert not [note for note in notes if "panicked" in note and "Onig" not in note]


def test_tokens_of_a_book_s_length_are_refused(spoil: Spoil) -> None:
    bundle = spoil()
    content = json.loads(bundle.path(TOKENIZER).read_text())
    last = max(content["model"]["vocab"].values(), default=0)
    content["added_tokens"].append(
        {"id": last + 50, "content": "x" * 100_000, "special": False}
        | dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False)
    )
    bundle.path(TOKENIZER).write_text(json.dumps(content))
    with pytest.raises(BundleError, match="tokens of more than 65,536 characters"):
        text = Text(bundle)
        text.decode(text.encode("x" * 100_000))


def test_a_tokenizer_larger_than_any_is_refused_unread(spoil: Spoil) -> None:
    bundle = spoil()
    with bundle.path(TOKENIZER).open("r+b") as file:
        file.truncate(bounds.LARGEST + 1)  # a hole
    with pytest.raises(BundleError, match="no tokenizer may have more than"):
        Text(bundle)


def test_known_families_are_known_and_unknown_expressions_give_the_same_ids(
    spoil: Spoil, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in FAMILIES:
        parts = bounds.parts_of(KINDS[name]())
        assert bounds.is_known(parts) and bounds.growth(parts[0]) * bounds.growth(parts[2]) < 100, name
        made = KINDS[name]()
        assert bounds.is_known_model(made.model), name
        assert bounds.are_known_tokens(made.get_added_tokens_decoder().values(), parts[0]), name
    bundle = spoil()
    texts = ["Grüße, 日本語 and  two   spaces\n", "", "a" * 300, "\x00\x1b"]
    usual = [Text(bundle).encode(text) for text in texts]
    monkeypatch.setattr("edge.runtime.text.tokenizer.is_known", lambda parts: False)
    guarded = Text(bundle)
    assert [guarded.encode(text) for text in texts] == usual
    assert [guarded.decode(ids) for ids in usual] == [Text(bundle).decode(ids) for ids in usual]
