"""Text format of a checkpoint: the tokens that its tokenizer puts around a text, and its generation settings."""

from __future__ import annotations

import re
from typing import Any

from tokenizers import Tokenizer

from edge.embedding_format import PairFormat
from edge.errors import CheckpointError
from edge.export.facts.checkpoint import Checkpoint
from edge.export.facts.family import Family
from edge.export.graph.families import find_family
from edge.manifest import Generation, TextFormat

SAMPLE = "a text"  # that a tokenizer is shown
PAIR = ("a text", "words")
# Settings of transformers that a bundle has no place for, with the values that change nothing.
UNKNOWN: dict[str, Any] = {
    "do_sample": False,
    "num_beam_groups": 1,
    "num_return_sequences": 1,
    "encoder_no_repeat_ngram_size": 0,
    "encoder_repetition_penalty": 1.0,
    "exponential_decay_length_penalty": None,
    "sequence_bias": None,
    "guidance_scale": 1.0,
}


def text_format(checkpoint: Checkpoint) -> TextFormat:
    """Return the tokens around the text in the encoder's input, and those that the decoder begins with.

    Raises:
        CheckpointError: the checkpoint has no tokenizer, or does not say what its decoder begins with.
    """
    tokenizer = Tokenizer.from_str(checkpoint.tokenizer.json)
    prefix, suffix = around(tokenizer)
    languages = _languages(checkpoint, tokenizer)
    start = _setting(checkpoint, "decoder_start_token_id")
    named = _family(checkpoint).languages
    if languages and named is not None and named.in_source:
        return TextFormat(prefix, suffix, [] if start is None else [start], languages, target_in_source=True)
    if languages:
        return _multilingual(prefix, suffix, start, checkpoint.generation.get("forced_bos_token_id"), languages)
    if start is None:
        start = _setting(checkpoint, "bos_token_id")
    if start is None:
        raise CheckpointError(
            f"{checkpoint.name} does not say what its decoder begins with: neither config.json nor "
            "generation_config.json has a decoder_start_token_id."
        )
    return TextFormat(prefix, suffix, [start])


def _multilingual(
    prefix: list[int], suffix: list[int], start: int | None, forced: int | None, languages: dict[str, int]
) -> TextFormat:
    """The format of a model that is told both languages by tokens.

    start: the decoder's first token, or None; where it names a language it is the target's. forced: the token that
    follows it, where the checkpoint has the answer's language as a default.
    """
    codes = {token: code for code, token in languages.items()}
    source, at = None, ""
    if prefix and prefix[0] in codes:
        source, at, prefix = codes[prefix[0]], "prefix", prefix[1:]
    elif suffix and suffix[-1] in codes:
        source, at, suffix = codes[suffix[-1]], "suffix", suffix[:-1]
    targets = [codes[token] for token in (start, forced) if token in codes]
    return TextFormat(
        prefix=prefix,
        suffix=suffix,
        decoder_start=[] if start is None or start in codes else [start],
        languages=languages,
        source_at=at,
        target_at_start=True,
        source=source,
        target=targets[0] if targets else None,
    )


def generation(checkpoint: Checkpoint) -> Generation:
    """The checkpoint's own defaults for generating.

    A forced first token that names a language is no part of them: the text's format has it.
    """
    settings = _given(checkpoint)
    forced = settings.get("forced_bos_token_id")
    if forced is not None:
        languages = _languages(checkpoint, Tokenizer.from_str(checkpoint.tokenizer.json))
        forced = None if forced in languages.values() else forced
    end = settings.get("forced_eos_token_id")
    words = settings.get("bad_words_ids", [])
    if words:  # transformers does not forbid the end
        words = [word for word in words if word not in [[end] for end in checkpoint.tokenizer.tokens.eos]]
    return Generation(
        max_length=_length(settings, "max"),
        num_beams=settings.get("num_beams", 1),
        length_penalty=float(settings.get("length_penalty", 1)),
        early_stopping=settings.get("early_stopping", False),
        no_repeat_ngram_size=settings.get("no_repeat_ngram_size", 0),
        forced_bos=forced,
        forced_eos=end[0] if isinstance(end, list) else end,
        suppress=[token for token in settings.get("suppress_tokens", []) if token >= 0],  # -1: none
        begin_suppress=[token for token in settings.get("begin_suppress_tokens", []) if token >= 0],
        bad_words=words,
        repetition_penalty=float(settings.get("repetition_penalty", 1)),
        min_length=_length(settings, "min") or 0,
    )


def left_out(checkpoint: Checkpoint) -> list[str]:
    """The settings that shape what transformers generates, and that a bundle does not carry."""
    return [name for name, value in _given(checkpoint).items() if name in UNKNOWN and value != UNKNOWN[name]]


def _given(checkpoint: Checkpoint) -> dict[str, Any]:
    return {key: value for key, value in checkpoint.generation.items() if value is not None}


def _length(settings: dict[str, Any], which: str) -> int | None:
    """The maximum or minimum of tokens, the decoder's first one included; transformers prefers to count without it."""
    new: int | None = settings.get(f"{which}_new_tokens")
    return settings.get(f"{which}_length") if new is None else new + 1


def _setting(checkpoint: Checkpoint, name: str) -> Any:
    """Return a token id that generation_config.json names, else config.json."""
    value = checkpoint.generation.get(name)
    return checkpoint.config.get(name) if value is None else value


def around(tokenizer: Tokenizer) -> tuple[list[int], list[int]]:
    """The tokens that the tokenizer's own post-processor puts before and after a text."""
    bare = tokenizer.encode(SAMPLE, add_special_tokens=False).ids
    full = tokenizer.encode(SAMPLE, add_special_tokens=True).ids
    for start in range(len(full) - len(bare) + 1):
        if full[start : start + len(bare)] == bare:
            return full[:start], full[start + len(bare) :]
    raise CheckpointError("The tokenizer changes a text when it adds special tokens to it; this is not supported.")


def around_pair(tokenizer: Tokenizer) -> tuple[list[int], PairFormat, list[int]]:
    """The tokens that the tokenizer's own post-processor puts before, between and after the texts of a pair.

    Raises:
        CheckpointError: it puts nothing between them, or gives types to tokens that no bundle has.
    """
    first, second = (tokenizer.encode(text, add_special_tokens=False).ids for text in PAIR)
    whole = tokenizer.encode(*PAIR, add_special_tokens=True)
    ids, types = whole.ids, whole.type_ids
    for start in range(len(ids) - len(first) - len(second) + 1):
        if ids[start : start + len(first)] != first:
            continue
        end = start + len(first)
        for at in range(end + 1, len(ids) - len(second) + 1):
            if ids[at : at + len(second)] == second:
                if types not in ([0] * len(ids), [0] * at + [1] * (len(ids) - at)):
                    raise CheckpointError("The tokenizer gives types to a pair's tokens that this project does not.")
                return ids[:start], PairFormat(ids[end:at], any(types)), ids[at + len(second) :]
    raise CheckpointError(
        "The tokenizer puts no token between the texts of a pair, so a model that ranks has no input."
    )


def _languages(checkpoint: Checkpoint, tokenizer: Tokenizer) -> dict[str, int]:
    """The ids of tokens that name languages, by the code that a person writes."""
    named = _family(checkpoint).languages
    if named is None:  # in other vocabularies a token that looks like a language is a piece of text
        return {}
    tokens = tokenizer.get_vocab(with_added_tokens=True)
    found = {
        match[match.lastindex or 0]: i for token, i in tokens.items() if (match := re.fullmatch(named.token, token))
    }
    return dict(sorted(found.items(), key=lambda item: item[1]))


def _family(checkpoint: Checkpoint) -> Family:
    return find_family(str(checkpoint.config.get("model_type")))[1]
