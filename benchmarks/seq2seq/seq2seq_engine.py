"""What the files of encoder-decoder engines offer, and what their measurements are.

An engine's file has PACKAGE, MODULES and IMPORT as `engines.decoding_engine.EngineFile` says, VARIANTS of settings to
be tried for each of its tasks, and `load(model, threads, capacity, task, **settings)`. What that returns offers some of
the methods of `Loaded`; a task needs one or two of them. Speech comes as .npy files, so that no peer needs a library
for sound.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

SPEECH, TEXT, RECORDING = "speech", "text", "recording"


@dataclass(frozen=True)
class Heard:
    """One window. `encode_s`: until the encoder is done. `decode_s`: from there until the last token, the prompt
    included. `tokens` are those behind the prompt."""

    encode_s: float
    decode_s: float
    tokens: list[int]


@dataclass(frozen=True)
class Transcribed:
    """A recording. `segments`: start and end in seconds, and the text."""

    seconds: float
    segments: list[tuple[float, float, str]]


@dataclass(frozen=True)
class Translated:
    """Texts, one after the other, from text to text."""

    seconds: float
    texts: list[str]


class Loaded(Protocol):
    """A model in memory."""

    def hear(self, pcm: str, features: str, prompt: list[int], suppress: list[int], beams: int, n: int) -> Heard:
        """Encode a window, then decode exactly `n` tokens behind `prompt`, the end token and `suppress` forbidden.

        pcm: a file of mono samples [N] at 16 kHz, for engines that compute features themselves, within `encode_s`;
        features: a file of log-mel features [1, M, 3000] for the others, whose figures leave out what those cost.
        """
        ...

    def transcribe(self, pcm: str, beams: int) -> Transcribed:
        """A recording of any length, English, at temperature 0, with timestamps."""
        ...

    def translate(self, texts: list[str], beams: int, n: int, batch: int) -> Translated:
        """Texts of up to `n` tokens each. `batch`: how many may be run at once."""
        ...


class EngineFile(Protocol):
    """An engine's file."""

    __name__: str
    PACKAGE: str
    MODULES: tuple[str, ...]
    IMPORT: str
    # By task: a name, and keyword arguments of `load`; `threads` among them takes the place of --threads.
    VARIANTS: Mapping[str, Mapping[str, Mapping[str, Any]]]

    def load(self, model: Path, threads: int, capacity: int, task: str, **settings: Any) -> Loaded:
        """Load a model for outputs of up to `capacity` tokens, prompt included."""
        ...
