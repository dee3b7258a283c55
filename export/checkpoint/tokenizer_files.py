"""Tokenizer, chat template and special tokens of a model directory."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer

from edge import typed_json
from edge.errors import CheckpointError, on_one_line
from edge.export.checkpoint import byte_tokenizer, sentencepiece_vocabulary
from edge.export.facts.checkpoint import TokenizerFiles
from edge.manifest import Tokens
from edge.runtime.text.tokenizer_file import check_character_maps

SAMPLE = "x"  # a text that every tokenizer encodes
_HALF = re.compile(r"\\u[dD][89a-fA-F]")  # a half of a character as an escape: two of them are one, and one is none
_SLOW_FILES = ("tokenizer.model", "spiece.model", "sentencepiece.bpe.model", "vocab.json", "vocab.txt")


def read_tokenizer(root: Path, config: dict[str, Any]) -> TokenizerFiles:
    """Read the tokenizer, chat template and special tokens in the directory `root`. `config` is config.json's content,
    of the text model if there are several parts.

    Raises:
        CheckpointError: no tokenizer, or one that `tokenizers` cannot read.
    """
    text = _tokenizer_json(root, config)
    tokenizer = parse_tokenizer(text, root / "tokenizer.json")
    settings = _settings(root)
    return TokenizerFiles(
        json=text, chat_template=_chat_template(root, settings), tokens=_tokens(root, tokenizer, settings, config)
    )


def parse_tokenizer(text: str, path: Path) -> Tokenizer:
    """The tokenizer of a tokenizer.json's text, which stood at `path`.

    Raises:
        CheckpointError: it cannot be read, or encodes nothing.
    """
    try:
        check_character_maps(text.encode())
        tokenizer = Tokenizer.from_str(text)
        tokenizer.encode(SAMPLE, add_special_tokens=True)
        return tokenizer
    except (KeyboardInterrupt, SystemExit):
        raise
    except BaseException as e:  # tokenizers raises bare Exceptions, and Rust's panics, which are none
        raise CheckpointError(f"{path} is not a tokenizer that can be read: {on_one_line(e)}.") from None


def read_json(path: Path) -> dict[str, Any]:
    """A JSON object from a file of the checkpoint, with a sentence for anything else."""
    text = read_text(path)
    advice = "fetch the checkpoint again"
    raw = typed_json.read_json(text, str(path), advice=advice, error=CheckpointError, lenient=True)
    if _HALF.search(text):
        try:
            json.dumps(raw, ensure_ascii=False).encode()
        except UnicodeEncodeError:
            raise CheckpointError(
                f"{path} holds half of a character, which no text has; fetch the checkpoint again."
            ) from None
    return raw


def _settings(root: Path) -> dict[str, Any]:
    path = root / "tokenizer_config.json"
    return read_json(path) if path.is_file() else {}


def _tokenizer_json(root: Path, config: dict[str, Any]) -> str:
    path = root / "tokenizer.json"
    if path.is_file():
        return read_text(path)
    settings = _settings(root)
    if byte_tokenizer.CLASS in (settings.get("tokenizer_class"), config.get("tokenizer_class")):
        return byte_tokenizer.tokenizer_json(settings)
    if model := sentencepiece_vocabulary.find(root):
        vocabulary = read_json(root / sentencepiece_vocabulary.VOCABULARY)
        return sentencepiece_vocabulary.convert(model, vocabulary, settings)
    if fairseq := sentencepiece_vocabulary.find_fairseq(root, settings, config.get("model_type")):
        return sentencepiece_vocabulary.convert_fairseq(*fairseq, settings)
    if not any((root / name).is_file() for name in _SLOW_FILES):
        raise CheckpointError(f"{root} holds no tokenizer: neither tokenizer.json nor any of {', '.join(_SLOW_FILES)}.")
    byte_tokenizer.extra_ids(settings)
    for name in _SLOW_FILES:
        if name.endswith(".model") and (root / name).is_file():
            sentencepiece_vocabulary.check_model(root / name)
    from transformers import AutoTokenizer

    try:
        slow = AutoTokenizer.from_pretrained(str(root), local_files_only=True, trust_remote_code=False)
        return str(slow.backend_tokenizer.to_str())
    except Exception as e:  # conversion fails in as many ways as there are tokenizers
        raise CheckpointError(
            f"The tokenizer of {root} cannot be converted to tokenizer.json: {on_one_line(e)}."
        ) from None


def read_text(path: Path) -> str:
    """A file of the checkpoint in UTF-8, with a sentence where it is none."""
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as e:
        raise CheckpointError(f"{path} cannot be read: {on_one_line(e)}.") from None


def _chat_template(root: Path, settings: dict[str, Any]) -> str | None:
    """chat_template.jinja, else tokenizer_config.json's, which may be a list of named ones."""
    path = root / "chat_template.jinja"
    if path.is_file():
        return read_text(path)
    template = settings.get("chat_template")
    if isinstance(template, list):
        default = (t.get("template") for t in template if isinstance(t, dict) and t.get("name") == "default")
        template = next(default, None)
    return template if isinstance(template, str) else None


def _tokens(root: Path, tokenizer: Tokenizer, settings: dict[str, Any], config: dict[str, Any]) -> Tokens:
    path = root / "generation_config.json"
    generation = read_json(path) if path.is_file() else {}

    def named(key: str) -> int | None:
        value = settings.get(key)
        text = value.get("content") if isinstance(value, dict) else value
        return tokenizer.token_to_id(text) if isinstance(text, str) else None

    eos = [*_ids(generation, "eos_token_id"), *_ids(config, "eos_token_id")]
    if (own := named("eos_token")) is not None:
        eos.append(own)
    bos = named("bos_token")
    if bos is None and "bos_token" not in settings:
        bos = next(iter([*_ids(generation, "bos_token_id"), *_ids(config, "bos_token_id")]), None)
    pad = named("pad_token")
    if pad is None:
        pad = next(iter([*_ids(generation, "pad_token_id"), *_ids(config, "pad_token_id")]), None)
    encoded = tokenizer.encode(SAMPLE, add_special_tokens=True).ids
    adds = bool(encoded) and encoded[0] == bos
    if isinstance(flag := settings.get("add_bos_token"), bool):  # transformers lets it rule over tokenizer.json
        adds = flag and bos is not None
    return Tokens(bos=bos, eos=list(dict.fromkeys(eos)), pad=pad, add_bos=adds)


def _ids(source: dict[str, Any], key: str) -> list[int]:
    value = source.get(key)
    values = value if isinstance(value, list) else [value]
    return [v for v in values if isinstance(v, int) and not isinstance(v, bool) and v >= 0]
