"""Generation settings of a checkpoint, checked to have the types that a bundle needs."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from edge.errors import CheckpointError
from edge.typed_json import typed

if TYPE_CHECKING:
    from edge.export.facts.gguf_header import GGUFHeader

# What llama.cpp samples with where nobody asks for anything else: its key, transformers' name.
_GGUF = {
    "temp": ("temperature", float),
    "top_k": ("top_k", int),
    "top_p": ("top_p", float),
    "min_p": ("min_p", float),
    "penalty_repeat": ("repetition_penalty", float),
    "xtc_probability": ("xtc_probability", float),
    "mirostat": ("mirostat", int),
}


@dataclass(frozen=True)
class _Settings:
    """The generation settings that are read here, by transformers' names."""

    decoder_start_token_id: int | None = None
    bos_token_id: int | None = None
    max_length: int | None = None
    max_new_tokens: int | None = None
    min_length: int | None = None
    min_new_tokens: int | None = None
    num_beams: int | None = None
    length_penalty: float | None = None
    early_stopping: bool | str | None = None
    no_repeat_ngram_size: int | None = None
    repetition_penalty: float | None = None
    forced_bos_token_id: int | None = None
    forced_eos_token_id: list[int] | int | None = None
    suppress_tokens: list[int] | None = None
    begin_suppress_tokens: list[int] | None = None
    bad_words_ids: list[list[int]] | None = None
    is_multilingual: bool | None = None
    lang_to_id: dict[str, int] | None = None
    max_initial_timestamp_index: int | None = None
    do_sample: bool | None = None
    temperature: float | None = None
    top_k: int | None = None
    top_p: float | None = None
    min_p: float | None = None


_SAMPLING = "general.sampling."


def gguf_settings(header: GGUFHeader) -> dict[str, Any]:
    """A GGUF file's `general.sampling` keys under transformers' names. A file that has some asks for draws by that.

    Raises:
        CheckpointError: a value is of another kind.
    """
    found: dict[str, Any] = {}
    for key, (name, kind) in _GGUF.items():
        if (value := header.value(_SAMPLING + key, kind)) is not None:
            found[name] = value
    return {"do_sample": True, **found} if found.keys() - {"repetition_penalty"} else found


def unread_gguf_settings(header: GGUFHeader) -> dict[str, Any]:
    """A GGUF file's `general.sampling` keys that nothing here reads, under their own names: finite numbers as they are,
    others as text."""
    return {
        key.removeprefix(_SAMPLING): value if isinstance(value, int | float) and math.isfinite(value) else str(value)
        for key, value in header.metadata.items()
        if key.startswith(_SAMPLING) and key.removeprefix(_SAMPLING) not in _GGUF
    }


def check_settings(raw: Mapping[str, Any], where: str) -> None:
    """Raise CheckpointError if a setting that shapes the generated text is of another type than transformers'."""
    known = {name: raw[name] for name in (field.name for field in dataclasses.fields(_Settings)) if name in raw}
    typed(known, _Settings, where, advice="fetch the checkpoint again", error=CheckpointError)
