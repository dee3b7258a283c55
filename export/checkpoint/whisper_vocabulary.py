"""The tokenizer of a Whisper model in CTranslate2's form, built from its list of tokens."""

from __future__ import annotations

import json
import re
from itertools import pairwise
from pathlib import Path
from typing import Any

from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

from edge.errors import CheckpointError, on_one_line
from edge.export.checkpoint.base import TokenizerFiles
from edge.export.checkpoint.tokenizer_files import parse_tokenizer, read_text
from edge.manifest import Tokens

END = "<|endoftext|>"
START = "<|startoftranscript|>"
_LANGUAGE = re.compile(r"<\|[a-z]{2,3}\|>")
_ENGLISH_ALONE = 51864  # tokens in the vocabulary of OpenAI's English models; the multilingual ones have more


class WhisperVocabulary:
    """A Whisper tokenizer: the text's tokens, then the special ones, then the timestamps.

    Raises:
        CheckpointError: it lacks the tokens that every Whisper has.
    """

    def __init__(self, tokenizer: Tokenizer, where: Path) -> None:
        self._tokenizer = tokenizer
        self._where = where
        self.size = tokenizer.get_vocab_size(with_added_tokens=True)
        self.start, self.end = self._id(START), self._id(END)

    def token_ids(self) -> dict[str, int]:
        """The special tokens of transformers' configuration."""
        end = {key: self.end for key in ("bos_token_id", "eos_token_id", "pad_token_id")}
        return {**end, "decoder_start_token_id": self.start}

    def generation(self) -> dict[str, Any]:
        """The tokens that transformers' generation_config.json names."""
        known: dict[str, Any] = {
            **self.token_ids(),
            "no_timestamps_token_id": self._id("<|notimestamps|>"),
            "prev_sot_token_id": self._id("<|startofprev|>"),
            "is_multilingual": self.size != _ENGLISH_ALONE,
        }
        if known["is_multilingual"]:
            tokens = self._tokenizer.get_vocab(with_added_tokens=True)
            languages = {token: i for token, i in tokens.items() if i > self.start and _LANGUAGE.fullmatch(token)}
            known["lang_to_id"] = dict(sorted(languages.items(), key=lambda item: item[1]))
            known["task_to_id"] = {task: self._id(f"<|{task}|>") for task in ("transcribe", "translate")}
        return known

    def files(self) -> TokenizerFiles:
        tokens = Tokens(bos=self.end, eos=[self.end], pad=self.end, add_bos=False)
        return TokenizerFiles(json=self._tokenizer.to_str(), chat_template=None, tokens=tokens)

    def _id(self, token: str) -> int:
        found: int | None = self._tokenizer.token_to_id(token)
        if found is None:
            raise CheckpointError(f"{self._where} has no token {token}, so it is not a Whisper tokenizer.")
        return found


def read_vocabulary(root: Path, size: int) -> WhisperVocabulary:
    """The tokenizer of a model of `size` tokens in the directory `root`: vocabulary.json or .txt, else tokenizer.json.

    The list of tokens comes first because it is whole: it has the timestamps, and the tokenizer.json that goes about
    with these models lacks the merge of ``Ġ`` and ``t``, so that it cuts " the" in two.

    Raises:
        CheckpointError: there is none, it cannot be read, or it has more tokens than the model.
    """
    path = root / "tokenizer.json"
    if tokens := _token_list(root):
        path = root / "vocabulary"
        tokenizer = _built(tokens, path)
    elif path.is_file():
        tokenizer = parse_tokenizer(read_text(path), path)
    else:
        raise CheckpointError(f"{root} holds no tokenizer: neither vocabulary.json, vocabulary.txt nor tokenizer.json.")
    vocabulary = WhisperVocabulary(tokenizer, path)
    if vocabulary.size > size:
        raise CheckpointError(
            f"{path} has {vocabulary.size} tokens, and the model {size}; they do not belong together."
        )
    return vocabulary


def _token_list(root: Path) -> list[str]:
    """All tokens in the order of their ids, as CTranslate2's converter writes them; empty where no file has them."""
    listed, lines = root / "vocabulary.json", root / "vocabulary.txt"
    try:
        if listed.is_file():
            tokens = json.loads(listed.read_text(encoding="utf-8"))
            if not isinstance(tokens, list) or not all(isinstance(token, str) for token in tokens):
                raise ValueError("it is no list of strings")
            return tokens
        return lines.read_text(encoding="utf-8").removesuffix("\n").split("\n") if lines.is_file() else []
    except (OSError, ValueError, RecursionError) as e:
        raise CheckpointError(f"The vocabulary in {root} cannot be read: {on_one_line(e)}.") from None


def _built(tokens: list[str], where: Path) -> Tokenizer:
    """The byte-level BPE of a list of tokens: text up to `END`, then those that are matched whole."""
    if END not in tokens:
        raise CheckpointError(f"{where} has no token {END}, so it is not a Whisper tokenizer.")
    if len(set(tokens)) != len(tokens):
        raise CheckpointError(f"{where} names a token twice.")
    text, special = tokens[: tokens.index(END)], tokens[tokens.index(END) :]
    ids = {token: i for i, token in enumerate(text)}
    try:
        tokenizer = Tokenizer(models.BPE(vocab=ids, merges=_merges(ids)))
    except Exception as e:  # tokenizers raises bare Exceptions
        raise CheckpointError(f"{where} holds tokens that make no tokenizer ({on_one_line(e)}).") from None
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in special])
    if tokenizer.get_vocab_size(with_added_tokens=True) != len(tokens):
        raise CheckpointError(f"{where} names a token that no text has.")
    return tokenizer


def _merges(ids: dict[str, int]) -> list[tuple[str, str]]:
    """The merge that makes each token, in order: the vocabulary was trained, so that a token's id is its merge's rank.

    It is what is left of the token once all earlier merges were applied to its characters. Of OpenAI's multilingual
    vocabulary these are its 50,000 merges.
    """
    merges = []
    for token, limit in ids.items():
        parts = list(token)
        while len(parts) > 2:
            ranks = [ids.get(left + right, limit) for left, right in pairwise(parts)]
            i = ranks.index(min(ranks))
            if ranks[i] >= limit:
                break
            parts[i : i + 2] = [parts[i] + parts[i + 1]]
        if len(parts) == 2:
            merges.append((parts[0], parts[1]))
    return merges
