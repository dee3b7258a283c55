"""ByT5's bytes, as transformers' ByT5Tokenizer numbers them."""

from __future__ import annotations

import json

import pytest
from tokenizers import Tokenizer
from transformers import ByT5Tokenizer

from edge.export.checkpoint.tokenizer_files import read_tokenizer


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    root = tmp_path_factory.mktemp("byt5")
    (root / "tokenizer_config.json").write_text(json.dumps({"eos_token": "</s>", "pad_token": "<pad>"}))
    files = read_tokenizer(root, {"tokenizer_class": "ByT5Tokenizer", "eos_token_id": 1})
    assert (files.tokens.bos, files.tokens.eos, files.tokens.pad) == (None, [1], 0)
    return Tokenizer.from_str(files.json)


TEXTS = ["A dog.", "  two\tspaces\n", "Über 日本 ☃", "a <extra_id_3> b", "a <pad> b", "\x00\x7f", ""]


@pytest.mark.parametrize("text", TEXTS)
def test_the_tokens_are_transformers(tokenizer: Tokenizer, text: str) -> None:
    slow = ByT5Tokenizer()
    ids = slow(text).input_ids
    assert tokenizer.encode(text).ids == ids
    assert tokenizer.decode(ids) == slow.decode(ids, skip_special_tokens=True)


def test_every_token_has_the_same_id(tokenizer: Tokenizer) -> None:
    slow = ByT5Tokenizer()
    assert tokenizer.get_vocab_size() == len(slow) == 384
    assert tokenizer.token_to_id("<extra_id_0>") == slow.convert_tokens_to_ids("<extra_id_0>")
