"""What Whisper may say next: processors that forbid tokens.

The rules are those of the reference implementation (openai/whisper, decoding.py: SuppressBlank, SuppressTokens,
ApplyTimestampRules), which transformers' WhisperTimeStampLogitsProcessor repeats.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from edge.manifest import Speech
from edge.runtime.decode.logits_processors import Processor, Suppress

FORBIDDEN = np.float32(-np.inf)


def speech_rules(speech: Speech, end: int, begin: int) -> list[Processor]:
    """All rules for texts whose first `begin` tokens are the prompt and that `end` ends, in the order they apply."""
    return [
        Suppress(speech.begin_suppress, length=begin),
        Suppress(speech.suppress),
        Timestamps(speech, end, begin),
    ]


class Timestamps:
    """Timestamps come in pairs, never go back, begin the text, and are taken where they are likelier in sum than any
    single word."""

    def __init__(self, speech: Speech, end: int, begin: int) -> None:
        self._zero, self._end, self._begin = speech.timestamp_begin, end, begin
        self._no_timestamps = speech.no_timestamps
        self._latest_first = speech.max_initial_timestamp_index

    def __call__(self, texts: NDArray[np.int64], scores: NDArray[np.float32]) -> None:
        scores[:, self._no_timestamps] = FORBIDDEN
        for text, row in zip(texts[:, self._begin :], scores, strict=True):
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
        if len(times):  # a segment may begin where the last one ended, but none has no length
            row[zero : times[-1] + (0 if last and not opens else 1)] = FORBIDDEN

    def _prefer(self, row: NDArray[np.float32]) -> None:
        times = row[self._zero :]
        largest = times.max()
        if largest == FORBIDDEN:
            return
        together = largest + np.log(np.exp(times - largest).sum())
        if together > row[: self._zero].max():
            row[: self._zero] = FORBIDDEN
