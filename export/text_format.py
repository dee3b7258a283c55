"""How a checkpoint for text wants to be used: what its tokenizer puts around a text, and its generation settings."""

from __future__ import annotations

import re
from typing import Any

from tokenizers import Tokenizer

from edge.errors import CheckpointError
from edge.export.checkpoint.base import Checkpoint
from edge.manifest import Generation, TextFormat

# A text that no tokenizer takes for nothing at all.
SAMPLE = "a text"
# Tokens that name a language, and the code in them: en_XX of mBART, eng_Latn of NLLB, __en__ of M2M100.
_LANGUAGE = re.compile(r"([a-z]{2}_[A-Z]{2}|[a-z]{3}_[A-Z][a-z]{3})|__([a-z]{2,3})__")


def text_format(checkpoint: Checkpoint) -> TextFormat:
    """What stands around the text in the encoder's input, and what the decoder begins with.

    Raises:
        CheckpointError: the checkpoint has no tokenizer, or does not say what its decoder begins with.
    """
    tokenizer = Tokenizer.from_str(checkpoint.tokenizer.json)
    prefix, suffix = _around(tokenizer)
    languages = _languages(tokenizer)
    start = _setting(checkpoint, "decoder_start_token_id")
    if start is None:
        start = _setting(checkpoint, "bos_token_id")
    forced = _setting(checkpoint, "forced_bos_token_id")
    codes = {token: code for code, token in languages.items()}
    if not languages:
        if start is None:
            raise CheckpointError(
                f"{checkpoint.name} does not say what its decoder begins with: neither config.json nor "
                "generation_config.json has a decoder_start_token_id."
            )
        return TextFormat(prefix, suffix, [start])
    # A model with languages is told the target's by the first token, or by the one that follows the start.
    target = codes.get(start if start in codes else forced)
    source, at = None, ""
    if prefix and prefix[0] in codes:
        source, at, prefix = codes[prefix[0]], "prefix", prefix[1:]
    elif suffix and suffix[-1] in codes:
        source, at, suffix = codes[suffix[-1]], "suffix", suffix[:-1]
    return TextFormat(
        prefix=prefix,
        suffix=suffix,
        decoder_start=[] if start is None or start in codes else [start],
        languages=languages,
        source_at=at,
        target_at_start=True,
        source=source,
        target=target,
    )


def generation(checkpoint: Checkpoint) -> Generation:
    """The checkpoint's own defaults for generating.

    A forced first token that names a language is no part of them: the text's format has it. Of the forbidden words
    those of one token are kept.
    """
    defaults = Generation()
    forced = _setting(checkpoint, "forced_bos_token_id")
    languages = _languages(Tokenizer.from_str(checkpoint.tokenizer.json)).values()
    words = _setting(checkpoint, "bad_words_ids") or []
    suppress = [word[0] for word in words if len(word) == 1] + list(_setting(checkpoint, "suppress_tokens") or [])
    penalty = _setting(checkpoint, "length_penalty")
    return Generation(
        max_length=_setting(checkpoint, "max_length"),
        num_beams=_setting(checkpoint, "num_beams") or defaults.num_beams,
        length_penalty=defaults.length_penalty if penalty is None else float(penalty),
        early_stopping=_setting(checkpoint, "early_stopping") is True,
        no_repeat_ngram_size=_setting(checkpoint, "no_repeat_ngram_size") or 0,
        forced_bos=None if forced in languages else forced,
        forced_eos=_setting(checkpoint, "forced_eos_token_id"),
        suppress=list(dict.fromkeys(suppress)),
    )


def _setting(checkpoint: Checkpoint, name: str) -> Any:
    """A setting of generation_config.json or, in older checkpoints, of config.json."""
    value = checkpoint.generation.get(name)
    return checkpoint.config.get(name) if value is None else value


def _around(tokenizer: Tokenizer) -> tuple[list[int], list[int]]:
    """The tokens that the tokenizer's own post-processor puts before and behind a text."""
    bare = tokenizer.encode(SAMPLE, add_special_tokens=False).ids
    full = tokenizer.encode(SAMPLE, add_special_tokens=True).ids
    for start in range(len(full) - len(bare) + 1):
        if full[start : start + len(bare)] == bare:
            return full[:start], full[start + len(bare) :]
    raise CheckpointError("The tokenizer changes a text when it adds special tokens to it; this is not supported.")


def _languages(tokenizer: Tokenizer) -> dict[str, int]:
    """The ids of tokens that name languages, by the code that a person writes."""
    found = {}
    for token, added in sorted(tokenizer.get_added_tokens_decoder().items()):
        if match := _LANGUAGE.fullmatch(added.content):
            found[match[1] or match[2]] = token
    return found
