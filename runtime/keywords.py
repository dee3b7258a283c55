"""The fields of options, as keywords for type checkers: `generate("...", max_tokens=4)`."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypedDict, TypeVar

from edge.errors import InputError

if TYPE_CHECKING:
    from edge.runtime.decode.beam_options import EarlyStopping

T = TypeVar("T")


class _Sampling(TypedDict, total=False):
    temperature: float | None
    top_k: int | None
    top_p: float | None
    min_p: float | None
    repetition_penalty: float | None
    seed: int | str | None
    circles: str
    stop: Sequence[str]
    interrupted: Callable[[], bool]


class GenerateKeywords(_Sampling, total=False):
    """The fields of `GenerateOptions`."""

    max_tokens: int | None
    think: bool | None
    think_tokens: int | None


class Text2TextKeywords(_Sampling, total=False):
    """The fields of `Text2TextOptions`."""

    max_tokens: int | None
    min_tokens: int | None
    beams: int | None
    groups: int
    diversity: float
    length_penalty: float | None
    early_stopping: EarlyStopping | None
    n_best: int
    no_repeat_ngram: int | None
    source_language: str | None
    target_language: str | None
    whole: bool


class TranscribeKeywords(TypedDict, total=False):
    """The fields of `TranscribeOptions`."""

    temperatures: Sequence[float]
    beams: int
    compression_ratio_threshold: float | None
    logprob_threshold: float | None
    no_speech_threshold: float | None
    seed: int
    circles: str
    interrupted: Callable[[], bool]
    language: str | None
    task: str
    previous_text: bool
    skip_silence: bool
    progress: Callable[[float], None] | None


def with_keywords(options: T, keywords: Mapping[str, Any]) -> T:
    """The options with the fields that `keywords` name replaced.

    Raises:
        InputError: there is no such field, or a value out of its range.
    """
    if not keywords:
        return options
    names = [field.name for field in dataclasses.fields(options)]  # type: ignore[arg-type]
    for name in keywords:
        if name not in names:
            raise InputError(f"There is no option {name!r}; there are {', '.join(names)}.")
    return dataclasses.replace(options, **keywords)  # type: ignore[type-var]
