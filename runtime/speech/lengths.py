"""The part of a window that the encoder reads for a short sound, and a test whether its text can be trusted.

Whisper was trained on windows of 30 s, most of them full or filled up with silence, and goes on after the end of a
sound that has too little silence behind it: it says the text again. docs/lab/benchmarks.md has what was measured.
"""

from __future__ import annotations

import re

from edge.manifest import Speech

SILENCE_S = 3.0  # after a sound
STEP_S = 1.0  # of lengths, so that there are few
SAID_TWICE = re.compile(r"(.{6,})\1")


def encoder_window(samples: int, speech: Speech) -> int:
    """Samples that the encoder reads for a sound of `samples`: with silence after it, a multiple of `STEP_S`, at most a
    window."""
    step = round(STEP_S * speech.sample_rate)
    wanted = samples + round(SILENCE_S * speech.sample_rate)
    return min(-(-wanted // step) * step, speech.window_samples)


def repeats(text: str) -> bool:
    """True if a text says something twice in a row that is longer than a word or two. Punctuation and case do not
    count."""
    return SAID_TWICE.search("".join(filter(str.isalnum, text.casefold()))) is not None
