"""The rules by which byte-level vocabularies in GGUF files split text. Their ids over one vocabulary were compared with
llama.cpp's on 1,691 texts (docs/guide/models.md); here each splits what tells it from the others."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gguf
import pytest
from tokenizers.pre_tokenizers import ByteLevel

from edge.errors import CheckpointError
from edge.export.checkpoint.gguf_splits import SPLITS, guessed
from edge.export.checkpoint.gguf_tokenizer import guesses, tokenizer_of
from edge.export.facts.gguf_header import GGUFHeader

PIECES = {
    "gpt-2": ["I", "'m", "Ġ12345", "ĠHTTPServer", "Ġ", "Ġok", "?!"],
    "smollm": ["I", "'m", "Ġ", "1", "2", "3", "4", "5", "ĠHTTPServer", "Ġ", "Ġok", "?!"],
    "llama-bpe": ["I", "'m", "Ġ", "123", "45", "ĠHTTPServer", "Ġ", "Ġok", "?!"],
    "qwen2": ["I", "'m", "Ġ", "1", "2", "3", "4", "5", "ĠHTTPServer", "Ġ", "Ġok", "?!"],
    "gpt-4o": ["I'm", "Ġ", "123", "45", "ĠHTTPServer", "Ġ", "Ġok", "?!"],
    "tekken": ["I", "'m", "Ġ", "1", "2", "3", "4", "5", "ĠHTTPServer", "Ġ", "Ġok", "?!"],
    "deepseek-llm": ["I", "'", "m", "Ġ", "12345", "ĠHTTPServer", "Ġ", "Ġok", "?!"],
    "deepseek-coder": ["I", "'", "m", "Ġ", "1", "2", "3", "4", "5", "ĠHTTPServer", "Ġ", "Ġok", "?!"],
    "deepseek-v3": ["I", "'m", "Ġ", "123", "45", "ĠHTTPServer", "Ġ", "Ġok", "?!"],
    "falcon": ["I", "'", "m", "Ġ", "123", "45", "ĠHTTPServer", "Ġ", "Ġok", "?!"],
}


def pieces(name: str, text: str) -> list[str]:
    return [piece for piece, _ in SPLITS[name].pre_tokenizer().pre_tokenize_str(text)]


@pytest.mark.parametrize("name", PIECES)
def test_a_rule_splits_as_its_model_does(name: str) -> None:
    assert pieces(name, "I'm 12345 HTTPServer  ok?!") == PIECES[name]


def test_words_are_cut_where_their_case_changes() -> None:
    assert pieces("gpt-4o", "CamelCase iPhone") == ["Camel", "Case", "Ġi", "Phone"]
    assert pieces("tekken", "CamelCase") == ["Camel", "Case"]
    assert pieces("llama-bpe", "CamelCase") == ["CamelCase"]


@pytest.mark.parametrize("name", SPLITS)
def test_no_rule_loses_a_character(name: str) -> None:
    text = "def f(x):\r\n\treturn x**2  # 1,234,567 don't\n\n 你好。 café हिन्दी 한국어 😀 (a|b) \u3000end  "
    assert ByteLevel(add_prefix_space=False, use_regex=False).pre_tokenize_str(text)[0][0] == "".join(
        pieces(name, text)
    )


def vocabulary(path: Path, architecture: str, **fields: Any) -> GGUFHeader:
    writer = gguf.GGUFWriter(path, architecture)
    writer.add_tokenizer_model("gpt2")
    letters = sorted(ByteLevel.alphabet())
    writer.add_token_list(letters)
    writer.add_token_types([1] * len(letters))
    writer.add_token_merges([])
    for key, value in fields.items():
        writer.add_string(f"tokenizer.ggml.{key}", value)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return GGUFHeader(path)


@pytest.mark.parametrize("said", [{}, {"pre": "default"}, {"pre": ""}])
@pytest.mark.parametrize(("architecture", "rule"), [("qwen2", "by the rule qwen2"), ("llama", "as GPT-2 does")])
def test_a_file_that_names_no_rule_is_read_by_its_architecture_or_with_a_warning(
    tmp_path: Path, architecture: str, rule: str, said: dict[str, str]
) -> None:
    header = vocabulary(tmp_path / "v.gguf", architecture, **said)
    (sentence,) = guesses(header)
    assert "does not say how it splits text" in sentence and rule in sentence
    split = tokenizer_of(header).parsed.pre_tokenizer.pre_tokenize_str("a 12")
    assert len(split) == (4 if architecture == "qwen2" else 2)


def test_llama_3_is_known_by_its_vocabulary() -> None:
    assert guessed("llama", 128_256) == "llama-bpe" and guessed("llama", 49_152) is None and guessed(None, 1) is None


def test_a_file_that_names_its_rule_says_nothing(tmp_path: Path) -> None:
    assert guesses(vocabulary(tmp_path / "v.gguf", "qwen2", pre="qwen2")) == []


def test_a_rule_that_nobody_knows_is_named(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"the rule 'x{60}', which is not known here; known are: .*tekken"):
        tokenizer_of(vocabulary(tmp_path / "v.gguf", "qwen2", pre="x" * 99))
