"""What a vocabulary lacks is said once, with the characters."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path

import pytest
from fake_engine import byte_bundle
from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers

from edge.bundle import TOKENIZER
from edge.manifest import TextFormat
from edge.runtime.text.tokenizer import Text

LETTERS = "abcdefghijklmnopqrstuvwxyz\u2581"


def unigram() -> Tokenizer:
    pieces = [("<unk>", 0.0), *((letter, -1.0 - i) for i, letter in enumerate(LETTERS))]
    tokenizer = Tokenizer(models.Unigram(pieces, unk_id=0, byte_fallback=False))
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(replacement="\u2581", prepend_scheme="always")
    tokenizer.decoder = decoders.Metaspace(replacement="\u2581", prepend_scheme="always")
    tokenizer.add_special_tokens(["<unk>"])
    return tokenizer


def spelled(fallback: bool) -> Tokenizer:
    pieces = ["<unk>", *(f"<0x{byte:02X}>" for byte in range(256 if fallback else 0)), *LETTERS]
    vocabulary = {piece: i for i, piece in enumerate(pieces)}
    tokenizer = Tokenizer(models.BPE(vocabulary, [], unk_token="<unk>", fuse_unk=True, byte_fallback=fallback))
    tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend("\u2581"), normalizers.Replace(" ", "\u2581")])
    return tokenizer


def text_of(folder: Path, tokenizer: Tokenizer, form: TextFormat | None) -> Text:
    bundle = byte_bundle(folder, None, add_bos=False)
    tokenizer.save(str(bundle.path(TOKENIZER)))
    return Text(dataclasses.replace(bundle, manifest=dataclasses.replace(bundle.manifest, text=form)))


@pytest.mark.parametrize("form", [None, TextFormat()], ids=["decoder", "text to text"])
@pytest.mark.parametrize("make", [unigram, lambda: spelled(False)], ids=["unigram", "spelled"])
def test_a_character_that_the_vocabulary_lacks_is_named_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, make: Callable[[], Tokenizer], form: TextFormat | None
) -> None:
    text = text_of(tmp_path, make(), form)
    for said in ("abc", "a{漢}b é", "é", "a\n{", "xyz"):
        text.encode_content(said)
    assert [message.partition(": ")[0] for message in caplog.messages] == [
        "The vocabulary of bytes lacks { } é 漢",
        r"The vocabulary of bytes lacks \n",
    ]


@pytest.mark.parametrize("name", ["bytes", "byte fallback"])
def test_a_vocabulary_of_bytes_lacks_nothing(tmp_path: Path, caplog: pytest.LogCaptureFixture, name: str) -> None:
    text = Text(byte_bundle(tmp_path)) if name == "bytes" else text_of(tmp_path, spelled(True), None)
    text.encode_content("a{漢}b é\n")
    assert not caplog.messages


def test_the_unknown_token_itself_is_no_missing_character(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    text = text_of(tmp_path, unigram(), TextFormat())
    assert 0 in text.encode("a <unk> b")
    assert not caplog.messages
