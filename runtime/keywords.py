"""The fields of options, as keywords for type checkers. Written by `make options`; do not edit."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypedDict

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from typing import Any

    from edge.runtime.decode.beam_options import EarlyStopping
    from edge.runtime.providers.provider import Provider


class LoadKeywords(TypedDict, total=False):
    """The fields of `LoadOptions`."""

    speculate: str
    exact: bool | None
    skip: str
    skip_anyway: bool
    threads: int | None
    context: int | None
    prefill_chunk: int | None
    provider: str | Provider
    strict: bool | None
    kv: str
    memory: int | str | None
    when_full: str
    beams: int | None
    date: str | None


class GenerateKeywords(TypedDict, total=False):
    """The fields of `GenerateOptions`."""

    max_tokens: int | None
    think: bool | None
    think_tokens: int | None
    effort: str | None
    stop: Sequence[str]
    json_schema: str | Mapping[str, Any] | type[Any] | None
    regex: str | None
    grammar: str | None
    grammar_sampling: str
    interrupted: Callable[[], bool]
    temperature: float | None
    top_k: int | None
    top_p: float | None
    min_p: float | None
    repetition_penalty: float | None
    seed: int | str | None
    circles: str


class Text2TextKeywords(TypedDict, total=False):
    """The fields of `Text2TextOptions`."""

    max_tokens: int | None
    stop: Sequence[str]
    source_language: str | None
    target_language: str | None
    beams: int | None
    n_best: int
    length_penalty: float | None
    early_stopping: EarlyStopping | None
    groups: int
    diversity: float
    no_repeat_ngram: int | None
    min_tokens: int | None
    whole: bool
    interrupted: Callable[[], bool]
    temperature: float | None
    top_k: int | None
    top_p: float | None
    min_p: float | None
    repetition_penalty: float | None
    seed: int | str | None
    circles: str


class TranscribeKeywords(TypedDict, total=False):
    """The fields of `TranscribeOptions`."""

    language: str | None
    task: str
    previous_text: bool
    skip_silence: bool
    progress: Callable[[float], None] | None
    temperatures: Sequence[float]
    beams: int
    compression_ratio_threshold: float | None
    logprob_threshold: float | None
    no_speech_threshold: float | None
    seed: int
    circles: str
    interrupted: Callable[[], bool]


class EmbedKeywords(TypedDict, total=False):
    """The fields of `EmbedOptions`."""

    prompt: str | None
    dimensions: int | None
    truncate: bool


class RerankKeywords(TypedDict, total=False):
    """The fields of `RerankOptions`."""

    top_n: int | None
    raw_scores: bool
    truncate: bool
