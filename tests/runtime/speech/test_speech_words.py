"""Decoding a transcription without its tokenizer."""

from __future__ import annotations

import json
import random
from pathlib import Path

import pytest
from fake_speech import speech_bundle
from tokenizers import AddedToken, Tokenizer, decoders, models
from tokenizers.pre_tokenizers import ByteLevel
from whisper_files import MERGES

from edge.bundle import Bundle
from edge.errors import BundleError
from edge.runtime.speech.words import Words, spoken
from edge.runtime.text.tokenizer import Text


def whisper_like(folder: Path) -> Bundle:
    """A bundle whose tokenizer is of Whisper's kind: bytes, merges, special tokens and added ones that are text."""
    bundle = speech_bundle(folder)
    text = [*sorted(ByteLevel.alphabet()), *(merge.replace(" ", "") for merge in MERGES)]
    merges = [tuple(merge.split()) for merge in MERGES]
    tokenizer = Tokenizer(models.BPE(vocab={token: i for i, token in enumerate(text)}, merges=merges))
    tokenizer.pre_tokenizer = ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(["<|endoftext|>", "<|0.00|>"])
    tokenizer.add_tokens([AddedToken("(noise)", special=False), AddedToken("→ later", special=False)])
    tokenizer.save(str(bundle.path("tokenizer.json")))
    return bundle


def test_words_are_those_of_the_tokenizer(tmp_path: Path) -> None:
    bundle = whisper_like(tmp_path)
    words, text = spoken(bundle), Text(bundle)
    assert isinstance(words, Words) and words.eos == text.eos
    chance = random.Random(0)
    for _ in range(2000):  # random bytes: valid and broken UTF-8, special and unknown tokens among them
        ids = [chance.randrange(280) for _ in range(chance.randrange(12))]
        assert words.decode(ids) == text.decode(ids), ids
    for said in ("Ein Käuzchen «ruft»!", "東京に行く 🎙️", "naïve\r\n\ttab"):
        assert words.decode(text.encode(said)) == said


def test_a_tokenizer_of_another_kind_decodes_by_itself(tmp_path: Path) -> None:
    bundle = whisper_like(tmp_path)
    content = json.loads(bundle.path("tokenizer.json").read_text())
    content["decoder"] = {"type": "Fuse"}
    bundle.path("tokenizer.json").write_text(json.dumps(content))
    assert isinstance(spoken(bundle), Text)


@pytest.mark.parametrize("content", ["", "[]", "{}", '{"decoder": {"type": "ByteLevel"}, "model": {"type": "BPE"}}'])
def test_a_damaged_tokenizer_is_named(tmp_path: Path, content: str) -> None:
    bundle = whisper_like(tmp_path)
    bundle.path("tokenizer.json").write_text(content)
    with pytest.raises(BundleError, match=r"tokenizer\.json cannot be read as a tokenizer"):
        spoken(bundle)
