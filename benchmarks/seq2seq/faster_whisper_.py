"""faster-whisper: CTranslate2's int8 Whisper with features, windows and timestamps around it, as its users run it."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

from seq2seq.seq2seq_engine import RECORDING, Loaded, Transcribed

PACKAGE = "faster-whisper"
MODULES = ("faster_whisper",)
IMPORT = "import faster_whisper"
VARIANTS: dict[str, dict[str, dict[str, Any]]] = {RECORDING: {"int8": {}}}


class _FasterWhisper:
    def __init__(self, model: Path, threads: int) -> None:
        from faster_whisper import WhisperModel

        self._model = WhisperModel(str(model), device="cpu", compute_type="int8", cpu_threads=threads)

    def transcribe(self, pcm: str, beams: int) -> Transcribed:
        import numpy as np

        samples = np.load(pcm)
        start = time.perf_counter()
        segments, _ = self._model.transcribe(
            samples,
            language="en",
            beam_size=beams,
            temperature=0.0,
            compression_ratio_threshold=None,
            log_prob_threshold=None,
            no_speech_threshold=None,
        )
        found = [(s.start, s.end, s.text) for s in segments]  # it works while they are taken
        return Transcribed(time.perf_counter() - start, found)


def load(model: Path, threads: int, capacity: int, task: str) -> Loaded:
    return _FasterWhisper(model, threads)  # type: ignore[return-value]
