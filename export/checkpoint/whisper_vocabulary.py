"""The tokenizer of a Whisper model in CTranslate2's form, built from its list of tokens."""

from __future__ import annotations

import json
from itertools import pairwise
from pathlib import Path

from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

from edge.errors import CheckpointError, on_one_line
from edge.export.checkpoint.tokenizer_files import parse_tokenizer, read_text
from edge.export.checkpoint.vocabulary_sizes import check_lengths

END = "<|endoftext|>"
START = "<|startoftranscript|>"
ENGLISH_ALONE = 51_864  # tokens of OpenAI's English models; multilingual ones have more, the smallest 51,865


def read_vocabulary(root: Path, size: int) -> Tokenizer:
    """The tokenizer of a model of `size` tokens in the directory `root`: vocabulary.json or .txt, else tokenizer.json.

    The list of tokens comes first because it is whole: it has the timestamps, and the tokenizer.json that goes about
    with these models lacks the merge of ``Ġ`` and ``t``, so that it cuts " the" in two.

    Raises:
        CheckpointError: there is none, it cannot be read, lacks the tokens that every Whisper has, or has more tokens
            than the model.
    """
    path = root / "tokenizer.json"
    if tokens := _token_list(root):
        path = root / "vocabulary"
        tokenizer = _built(tokens, path)
    elif path.is_file():
        tokenizer = parse_tokenizer(read_text(path), path)
    else:
        raise CheckpointError(f"{root} holds no tokenizer: neither vocabulary.json, vocabulary.txt nor tokenizer.json.")
    for token in (START, END):
        if tokenizer.token_to_id(token) is None:
            raise CheckpointError(f"{path} has no token {token}, so it is not a Whisper tokenizer.")
    if (known := tokenizer.get_vocab_size(with_added_tokens=True)) > size:
        raise CheckpointError(f"{path} has {known} tokens, and the model {size}; they do not belong together.")
    return tokenizer


def _token_list(root: Path) -> list[str]:
    """All tokens in the order of their ids, as CTranslate2's converter writes them; empty where no file has them."""
    listed, lines = root / "vocabulary.json", root / "vocabulary.txt"
    try:
        if listed.is_file():
            tokens = json.loads(listed.read_text(encoding="utf-8"))
            if not isinstance(tokens, list) or not all(isinstance(token, str) for token in tokens):
                raise ValueError("it is no list of strings")
            check_lengths(tokens, listed)
            "".join(tokens).encode()  # a JSON text may have halves of characters, which no text has
            return tokens
        if not lines.is_file():
            return []
        tokens = lines.read_text(encoding="utf-8").removesuffix("\n").split("\n")
        check_lengths(tokens, lines)
        return tokens
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
