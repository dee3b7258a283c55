"""How much a window's sound has to do with its text: without words to hear, a model writes what it would for silence.

Whisper learned from subtitles, and ends silent films with "Thank you." It writes such a text for hums and fans too, and
often surely. What tells it from speech is the same text's probability where nothing can be heard: words that were said
are many times as likely with their sound as without it.
"""

from __future__ import annotations

from collections.abc import Sequence

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
    """The log probability of each token of `text` [N] after `prompt` and those before it, by the model alone: without
    what rules forbid. `cache`, whose encoder's output is what was heard, is written over."""
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


def imagined(likelier: NDArray[np.float64]) -> bool:
    """Whether a text has nothing to do with its sound, by how much likelier that made the log probability of each of
    its words [N]."""
    return _gained(likelier) < LIKELIER and float(likelier.sum()) < ENOUGH


def weak(likelier: NDArray[np.float64]) -> bool:
    """Whether a text may have nothing to do with its sound: another window may say better."""
    return _gained(likelier) < 1.5 * LIKELIER


def _gained(likelier: NDArray[np.float64]) -> float:
    """The mean; of several words that which gained most does not count: noise may lead to another sentence than silence
    does, whose first word the rest follows from."""
    counted = likelier if len(likelier) < FEW else np.sort(likelier)[:-1]
    return float(counted.mean())
