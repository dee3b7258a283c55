"""When Whisper says a timestamp.

The rule is that of the reference implementation (openai/whisper, decoding.py: ApplyTimestampRules), which transformers'
WhisperTimeStampLogitsProcessor repeats.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from edge.manifest import Speech
from edge.runtime.decode.rules.rule import FORBIDDEN, Processor, RuleSettings

NAME = "timestamps"
HELP = "pairs the timestamps of a transcription, and keeps them from going back"
TRAITS = {"stage": "scores", "order": 80}

UNSAID_S = 0.1  # at the end of a sound, in which nothing begins to be said


def rule(settings: RuleSettings) -> Processor | None:
    """settings.last: the timestamp at which the sound ends, counted from 0.00; None: the model knows."""
    if settings.speech is None:
        return None
    (end,) = settings.ends
    return Timestamps(settings.speech, end, settings.begin, settings.last)


class Timestamps:
    """Timestamps come in pairs, never go back, begin the text, and are taken where they are likelier in sum than any
    single word. After the `last` there are none: what the model gives to later ones it gives to this, and the text
    ends there."""

    def __init__(self, speech: Speech, end: int, begin: int, last: int | None = None) -> None:
        self._zero, self._end, self._begin = speech.timestamp_begin, end, begin
        self._last = None if last is None else self._zero + last
        self._over = None if last is None else self._zero + max(1, last - round(UNSAID_S * speech.frames_per_second))
        self._no_timestamps = speech.no_timestamps
        self._latest_first = speech.max_initial_timestamp_index

    def __call__(self, texts: NDArray[np.int64], scores: NDArray[np.float32]) -> None:
        scores[:, self._no_timestamps] = FORBIDDEN
        for text, row in zip(texts[:, self._begin :], scores, strict=True):
            if self._last is not None:
                row[self._last] = together(row[self._last :])
                row[self._last + 1 :] = FORBIDDEN
            if len(text):
                self._continue(text, row)
            else:
                self._open(row)
            self._prefer(row)

    def _open(self, row: NDArray[np.float32]) -> None:
        row[: self._zero] = FORBIDDEN
        if self._latest_first is not None:
            row[self._zero + self._latest_first + 1 :] = FORBIDDEN

    def _continue(self, text: NDArray[np.int64], row: NDArray[np.float32]) -> None:
        zero = self._zero
        times = text[text >= zero]
        last = text[-1] >= zero
        opens = last and (len(text) < 2 or text[-2] >= zero)
        if opens:
            row[zero:] = FORBIDDEN  # words follow
        elif last:
            row[: self._end] = FORBIDDEN  # it closed a segment: the next one's beginning follows, or the end
            if self._over is not None:
                row[self._over :] = FORBIDDEN
        if len(times):  # a segment may begin where the last one ended, but none has no length
            row[zero : times[-1] + (0 if last and not opens else 1)] = FORBIDDEN

    def _prefer(self, row: NDArray[np.float32]) -> None:
        if together(row[self._zero :]) > row[: self._zero].max():
            row[: self._zero] = FORBIDDEN


def together(scores: NDArray[np.float32]) -> np.float32:
    """The score of all these tokens as if they were one."""
    largest: np.float32 = scores.max()
    return largest if largest == FORBIDDEN else largest + np.log(np.exp(scores - largest).sum())
