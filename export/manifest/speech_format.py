"""Whisper's special tokens in the manifest of a speech bundle, from a checkpoint's generation settings."""

from __future__ import annotations

from typing import Any

from tokenizers import Tokenizer

from edge.errors import ExportError
from edge.export.checkpoint.whisper_vocabulary import ENGLISH_ALONE
from edge.export.facts.checkpoint import Checkpoint
from edge.manifest import Speech

SAMPLE_RATE = 16_000
WINDOW_SAMPLES = 30 * SAMPLE_RATE
FRAMES = 1500  # that the encoder makes of a window


def speech(checkpoint: Checkpoint) -> Speech:
    """Return the speech format: ids of special tokens by their names. The generation settings say which tokens are
    suppressed, and whether there are languages.

    Raises:
        ExportError: the tokenizer lacks a token that transcribing needs.
    """
    tokenizer = Tokenizer.from_str(checkpoint.tokenizer.json)
    given: dict[str, Any] = {**checkpoint.config, **checkpoint.generation}

    def find(*names: str) -> int | None:
        found = (tokenizer.token_to_id(name) for name in names)
        return next((i for i in found if i is not None), None)

    def need(*names: str) -> int:
        i = find(*names)
        if i is None:
            raise ExportError(f"The tokenizer of {checkpoint.name} has no {names[0]}, which transcribing needs.")
        return i

    # The tokens do not tell: English vocabularies name all languages and tasks too, which the models never learned.
    multilingual = given.get("is_multilingual")
    if multilingual is None:
        multilingual = given.get("vocab_size") != ENGLISH_ALONE
    languages, tasks = {}, {}
    if multilingual:
        named = {str(token).strip("<|>"): int(i) for token, i in (given.get("lang_to_id") or {}).items()}
        languages = named or _languages(tokenizer, find("<|startoftranscript|>"), find("<|translate|>"))
        tasks = {task: i for task in ("transcribe", "translate") if (i := find(f"<|{task}|>")) is not None}
    no_timestamps = need("<|notimestamps|>")
    return Speech(
        sample_rate=SAMPLE_RATE,
        window_samples=WINDOW_SAMPLES,
        start=need("<|startoftranscript|>"),
        no_timestamps=no_timestamps,
        timestamp_begin=find("<|0.00|>") or no_timestamps + 1,
        languages=languages,
        tasks=tasks,
        no_speech=find("<|nospeech|>", "<|nocaptions|>"),
        previous=find("<|startofprev|>"),
        suppress=[i for i in given.get("suppress_tokens") or [] if i >= 0],
        begin_suppress=list(given.get("begin_suppress_tokens") or []),
        max_initial_timestamp_index=given.get("max_initial_timestamp_index", 50),
    )


def check_window(checkpoint: Checkpoint) -> None:
    """Raise ExportError if the encoder's windows have another length than those of the frontend, which is every
    Whisper's."""
    if (frames := checkpoint.config["max_source_positions"]) != FRAMES:
        raise ExportError(
            f"{checkpoint.name} hears windows of {frames} frames, and every Whisper that can be exported hears "
            f"{FRAMES}: 30 seconds."
        )


def _languages(tokenizer: Tokenizer, start: int | None, translate: int | None) -> dict[str, int]:
    """The language tokens stand between <|startoftranscript|> and <|translate|>."""
    if start is None or translate is None:
        return {}
    tokens = ((tokenizer.id_to_token(i), i) for i in range(start + 1, translate))
    return {token.strip("<|>"): i for token, i in tokens if token is not None}
