"""The bundle's tokenizer is the checkpoint's, in the form that loads fastest."""

from __future__ import annotations

import json

from tokenizers import Tokenizer, models, pre_tokenizers

from edge.bundle import Bundle
from edge.export.manifest.tokenizer import compact


def bpe(merges: list[tuple[str, str]]) -> str:
    parts = {part for pair in merges for part in pair} | {a + b for a, b in merges}
    tokenizer = Tokenizer(models.BPE(vocab={t: i for i, t in enumerate(sorted(parts))}, merges=merges))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    return tokenizer.to_str(pretty=True)


def test_merges_become_strings_and_the_tokenizer_stays_the_same() -> None:
    text = bpe([("a", "b"), ("ab", "é"), ("é", "é")])
    small = compact(text)
    assert json.loads(small)["model"]["merges"] == ["a b", "ab é", "é é"]
    assert Tokenizer.from_str(small).to_str() == Tokenizer.from_str(text).to_str()
    assert len(small) < len(text) and "\n" not in small


def test_merges_that_a_string_cannot_hold_stay_pairs() -> None:
    for merges in ([("a", " b")], [("#version", "x"), ("a", "b")]):
        small = compact(bpe(merges))
        assert Tokenizer.from_str(small).to_str() == Tokenizer.from_str(bpe(merges)).to_str()
        assert json.loads(small)["model"]["merges"] == [list(m) for m in merges]


def test_compacting_twice_changes_nothing() -> None:
    once = compact(bpe([("a", "b")]))
    assert compact(once) == once


def test_a_tokenizer_without_merges_is_only_written_shorter() -> None:
    text = Tokenizer(models.WordLevel({"a": 0, "[UNK]": 1}, unk_token="[UNK]")).to_str(pretty=True)
    assert json.loads(compact(text)) == json.loads(text)


def test_an_exported_bundle_carries_the_short_form(tiny_bundle: Bundle) -> None:
    text = tiny_bundle.path("tokenizer.json").read_text(encoding="utf-8")
    assert compact(text) == text
    assert all(isinstance(merge, str) for merge in json.loads(text)["model"]["merges"])
