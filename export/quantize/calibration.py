"""Inputs that calibrated methods run a model on: windows of text for a decoder, texts or sound for an encoder."""

from __future__ import annotations

import itertools
import re
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from edge.errors import ExportError

if TYPE_CHECKING:
    from edge.export.facts.checkpoint import Checkpoint
    from edge.manifest import Speech, TextFormat

WINDOW = 512
MAX_WINDOWS = 24  # windows: bounds the time of an export
MIN_TOKENS = 128  # tokens: with fewer the second moments say nothing
MAX_LINES = 256  # of a text, each an encoder's input: bounds the time of an export
MAX_ANSWER = 64  # tokens of the answer to a line
MAX_RECORDING = 12  # windows of a recording
MAX_TRANSCRIPT = 160  # tokens of a window's transcript
LANGUAGES = 8  # that a multilingual model answers in

Start = tuple[int, ...]  # an answer's first tokens


def calibration_windows(checkpoint: Checkpoint, text: str | None) -> NDArray[np.int64]:
    """Windows [W, S] of the calibration text, default the built-in one (prose, dialogue, code, chats).

    Raises:
        ExportError: the text holds fewer than MIN_TOKENS tokens.
    """
    tokenizer = checkpoint.tokenizer.parsed
    if text is None:
        text = _built_in()
        if tokenizer.token_to_id("<|im_start|>") is None:  # the built-in chats are in ChatML
            text = re.sub(r"<\|im_(start|end)\|>", "", text)
    ids = tokenizer.encode(text, add_special_tokens=False).ids
    _check_length(len(ids), "a longer one")
    begin = checkpoint.tokenizer.tokens.lead
    size = min(WINDOW, len(ids) + len(begin), int(checkpoint.config.get("max_position_embeddings") or WINDOW))
    body = size - len(begin)
    count = max(1, min(MAX_WINDOWS, len(ids) // body))
    return np.array([begin + ids[i * body : (i + 1) * body] for i in range(count)], dtype=np.int64)


@dataclass(frozen=True)
class TextInputs:
    """Texts, each of which a model answers. inputs: what the encoder reads, and what the answer begins with; those that
    are answered in one batch follow each other."""

    inputs: Sequence[tuple[list[int], Start]]
    max_tokens: int  # of an answer
    eos: list[int]

    @property
    def key(self) -> object:
        return self.max_tokens, self.inputs


def text_inputs(checkpoint: Checkpoint, form: TextFormat, context: int, text: str | None) -> TextInputs:
    """The lines of a text, default the sentences of the built-in one, for a model of this format.

    A model that has no target language of its own answers in several of its languages.

    Raises:
        ExportError: the text is too short.
    """
    tokenizer = checkpoint.tokenizer.parsed
    known = list(form.languages.values())
    targets = [form.languages[form.target]] if form.target else known[:: max(1, len(known) // LANGUAGES)][:LANGUAGES]
    source = [form.languages[form.source]] if form.source_at and form.source else known[:1] if form.source_at else []
    longest = min(context, checkpoint.config.get("max_position_embeddings") or context)
    room = longest - len(form.prefix) - len(form.suffix) - len(source) - form.target_in_source
    inputs: list[tuple[list[int], Start]] = []
    given = _sentences() if text is None else [line for line in text.splitlines() if line.strip()]
    for i, line in enumerate(given[:MAX_LINES]):
        target = targets[i % len(targets) :][:1] if targets else []
        ids = [*form.prefix, *tokenizer.encode(line, add_special_tokens=False).ids[:room], *form.suffix]
        if form.target_in_source:
            ids = [*target, *ids]
        ids = [*source, *ids] if form.source_at == "prefix" else [*ids, *source]
        inputs.append((ids, (*form.decoder_start, *(target if form.target_at_start else []))))
    _check_length(sum(len(ids) for ids, _ in inputs), "more lines, each of them an input")
    inputs.sort(key=lambda each: (each[1], len(each[0])))
    return TextInputs(inputs, min(MAX_ANSWER, context - 2), checkpoint.tokenizer.tokens.eos)


def _sentences() -> list[str]:
    """The prose of the built-in calibration text."""
    found = re.split(r"(?<=[.!?])\s+|\n+", _built_in())
    prose = [each for each in found if re.fullmatch(r"[A-Z][^{}<>=|_]{20,}[.!?]", each)]
    return prose[:: max(1, len(prose) // MAX_LINES)]


def _built_in() -> str:
    return (files(__package__) / "calibration.txt").read_text(encoding="utf-8")


def _check_length(tokens: int, wanted: str) -> None:
    """Raise ExportError if a calibration text has too few tokens."""
    if tokens < MIN_TOKENS:
        raise ExportError(
            f"The calibration text holds {tokens} tokens, fewer than the {MIN_TOKENS} that are needed; give {wanted}."
        )


@dataclass(frozen=True)
class SpeechInputs:
    """Sound, window by window [N], that a speech model transcribes."""

    windows: list[NDArray[np.float32]]
    speech: Speech
    mels: int
    max_tokens: int  # of a transcript
    eos: list[int]

    @property
    def key(self) -> object:
        return self.max_tokens, [zlib.crc32(window.tobytes()) for window in self.windows]


def speech_inputs(checkpoint: Checkpoint, speech: Speech, context: int, recording: Path | None) -> SpeechInputs:
    """The windows of a recording; default: the built-in sentences, read by the built-in voice.

    Raises:
        EdgeError: the recording cannot be read.
    """
    from edge.export.quantize import voice
    from edge.runtime.speech.audio import open_audio

    rate, size = speech.sample_rate, speech.window_samples
    if recording is None:
        heard = [voice.read(text, speaker, i) for i, (text, speaker) in enumerate(voice.passages())]
    else:
        samples = np.concatenate(
            list(itertools.islice(open_audio(recording, rate).blocks, MAX_RECORDING * size // rate))
        )
        heard = [samples[at : at + size] for at in range(0, len(samples), size)]
    mels = int(checkpoint.config["num_mel_bins"])
    return SpeechInputs(heard, speech, mels, min(context // 2 - 1, MAX_TRANSCRIPT), checkpoint.tokenizer.tokens.eos)
