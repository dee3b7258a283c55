"""Evidence that a window's text comes from its sound: without words to hear, a model writes what it would for silence.

Whisper learned from subtitles, and ends silent films with "Thank you." It writes such a text for hums and fans too, and
often surely. What tells it from speech is the same text's probability where nothing can be heard: words that were said
are many times as likely with their sound as without it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from edge.runtime.decode.log_softmax import log_softmax
from edge.runtime.engine.cache import KVCache
from edge.runtime.engine.engine import Engine

LIKELIER = 0.6  # by which words that were said are likelier in the mean: 1.8 times
ENOUGH = 15.0  # by which they are in all: what is said again and again follows from the words before it
FEW = 4  # words of which even one tells something
ROWS = 8  # of logits at once: 2 MB


def log_probabilities(
    engine: Engine, cache: KVCache, prompt: Sequence[int], text: Sequence[int]
) -> NDArray[np.float64]:
    """Return the log probability of each token of `text` [N] after `prompt` and the tokens before it, by the model
    alone: without what rules forbid. `cache`, which has the encoder's output for the sound, is overwritten."""
    cache.reset()
    tokens = np.array([*prompt, *text[:-1]], np.int64)
    if len(prompt) > 1:
        engine.step(cache, tokens[: len(prompt) - 1])
    found = np.empty(len(text))
    for begin in range(0, len(text), ROWS):
        wanted = np.array(text[begin : begin + ROWS], np.int64)
        at = len(prompt) - 1 + begin
        rows = np.arange(len(wanted), dtype=np.int64)
        logits = engine.step(cache, tokens[at : at + len(wanted)], rows)  # [len(wanted), V]
        found[begin : begin + ROWS] = log_softmax(logits)[rows, wanted]
    return found


def said_before(text: Sequence[int]) -> NDArray[np.bool_]:
    """Mark the tokens of a text [N] that repeat an earlier part of it, together with the one before or after them. A
    model that goes in circles predicts these from its text alone, whatever the sound is."""
    repeated, pairs = np.zeros(len(text), bool), set[tuple[int, int]]()
    for i, pair in enumerate(pairwise(text)):
        if pair in pairs:
            repeated[i : i + 2] = True
        pairs.add(pair)
    return repeated


@dataclass(frozen=True)
class Evidence:
    """For each word of a text [N]: by how much the sound raised its log probability, and whether it repeats others."""

    likelier: NDArray[np.float64]
    repeated: NDArray[np.bool_]

    @property
    def imagined(self) -> bool:
        """True if the text has nothing to do with the sound."""
        return self.gained < LIKELIER and float(self.likelier.sum()) < ENOUGH

    @property
    def weak(self) -> bool:
        """True if the text may have nothing to do with the sound: another window may give a better one."""
        return self.gained < 1.5 * LIKELIER

    @property
    def gained(self) -> float:
        """Mean gain of words that do not repeat others. Of several words the one with the largest gain does not count:
        noise may lead to another sentence than silence does, whose first word the rest follows from."""
        counted = self.likelier[~self.repeated]
        return float((counted if len(counted) < FEW else np.sort(counted)[:-1]).mean())
