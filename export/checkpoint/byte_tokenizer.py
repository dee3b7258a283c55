"""ByT5's tokenizer, which has no files: every byte of the UTF-8 text is a token."""

from __future__ import annotations

from typing import Any

from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, processors

from edge.errors import CheckpointError, brief

CLASS = "ByT5Tokenizer"  # what tokenizer_config.json or config.json calls it
SPECIAL = ["<pad>", "</s>", "<unk>"]  # the bytes come behind them
EXTRA = 125  # tokens for masked spans, which follow the bytes
MAX_EXTRA = 10_000


def tokenizer_json(settings: dict[str, Any]) -> str:
    """The text of a tokenizer.json. settings: tokenizer_config.json's content.

    Raises:
        CheckpointError: the settings ask for an impossible number of extra tokens.
    """
    first = len(SPECIAL)
    vocabulary = {token: i for i, token in enumerate(SPECIAL)}
    vocabulary |= {character: first + byte for byte, character in enumerate(_characters())}
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(t, lstrip=True, rstrip=True, normalized=False) for t in SPECIAL])
    extra = extra_ids(settings)
    tokenizer.add_special_tokens([AddedToken(f"<extra_id_{i}>", normalized=False) for i in range(extra)])
    tokenizer.post_processor = processors.TemplateProcessing(single="$A </s>", special_tokens=[("</s>", 1)])
    return str(tokenizer.to_str())


def extra_ids(settings: dict[str, Any]) -> int:
    """Return the number of tokens for masked spans that the settings ask for; CheckpointError if it is out of range."""
    extra = settings.get("extra_ids", EXTRA)
    if type(extra) is not int or not 0 <= extra <= MAX_EXTRA:
        raise CheckpointError(f"tokenizer_config.json gives extra_ids as {brief(extra)}, not as 0 to {MAX_EXTRA}.")
    return extra


def _characters() -> list[str]:
    """The characters that stand for the bytes 0 to 255 in byte-level vocabularies (GPT-2): those that can be printed
    for themselves, and for the others the first ones from 256 on."""
    printed = [*range(ord("!"), ord("~") + 1), *range(0xA1, 0xAC + 1), *range(0xAE, 0xFF + 1)]
    others = iter(range(256, 512))
    return [chr(byte) if byte in printed else chr(next(others)) for byte in range(256)]
