"""Rules that change the scores of the next token: repeated n-grams, forced and forbidden tokens.

Each follows the logits processor of transformers that its docstring names, for greedy decoding, sampling and beams.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Sequence
from typing import TYPE_CHECKING

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view
from numpy.typing import NDArray

from edge.errors import BundleError, InputError
from edge.manifest import Generation

if TYPE_CHECKING:
    from edge.runtime.decode.sampling import Sampler

SMALLEST, LARGEST = float(np.finfo(np.float32).tiny), float(np.finfo(np.float32).max)

Processor = Callable[[NDArray[np.int64], NDArray[np.float32]], None]
"""Is given B texts so far as token ids [B, L], the decoder's first tokens included, and the scores of what may follow
[B, V] float32, which it changes in place: logits where one token is chosen, log probabilities in a beam search."""


class RepetitionPenalty:
    """Makes tokens that occurred less likely (Keskar et al. 2019, section 4.1; RepetitionPenaltyLogitsProcessor)."""

    def __init__(self, penalty: float) -> None:
        self._penalty = np.float32(min(max(penalty, SMALLEST), LARGEST))

    def __call__(self, texts: NDArray[np.int64], scores: NDArray[np.float32]) -> None:
        said = np.take_along_axis(scores, texts, axis=1)  # [B, L]
        with np.errstate(over="ignore"):
            scaled = np.where(said < 0, said * self._penalty, said / self._penalty)
        np.clip(scaled, -LARGEST, LARGEST, out=scaled, where=np.isfinite(said))  # what was finite stays so
        np.put_along_axis(scores, texts, scaled, axis=1)


class NoRepeatNgrams:
    """Forbids every token that would complete an n-gram which the text has already (NoRepeatNGramLogitsProcessor)."""

    def __init__(self, size: int) -> None:
        self._size = size

    def __call__(self, texts: NDArray[np.int64], scores: NDArray[np.float32]) -> None:
        length = texts.shape[1]
        if length < self._size:
            return
        ngrams = sliding_window_view(texts, self._size, axis=1)  # [B, L - n + 1, n]
        begun = texts[:, None, length + 1 - self._size :]  # the n - 1 tokens that a next one would complete
        rows, places = np.nonzero((ngrams[:, :, :-1] == begun).all(axis=2))
        scores[rows, ngrams[rows, places, -1]] = -np.inf


class MinLength:
    """Forbids the end tokens before a text has `length` tokens with the decoder's first (MinLengthLogitsProcessor)."""

    def __init__(self, length: int, ends: Collection[int]) -> None:
        self._length = length
        self._ends = sorted(ends)

    def __call__(self, texts: NDArray[np.int64], scores: NDArray[np.float32]) -> None:
        if texts.shape[1] < self._length:
            scores[:, self._ends] = -np.inf


class ForcedEnd:
    """Makes `token` the last of `length` tokens with the decoder's first (ForcedEOSTokenLogitsProcessor)."""

    def __init__(self, length: int, token: int) -> None:
        self._length = length
        self._token = token

    def __call__(self, texts: NDArray[np.int64], scores: NDArray[np.float32]) -> None:
        if texts.shape[1] == self._length - 1:
            scores[:] = -np.inf
            scores[:, self._token] = 0


class Suppress:
    """Forbids some tokens (SuppressTokensLogitsProcessor); with `length` only as the token that follows `length`
    tokens (SuppressTokensAtBeginLogitsProcessor)."""

    def __init__(self, tokens: Collection[int], length: int | None = None) -> None:
        self._tokens = sorted(tokens)
        self._length = length

    def __call__(self, texts: NDArray[np.int64], scores: NDArray[np.float32]) -> None:
        if self._length is None or texts.shape[1] == self._length:
            scores[:, self._tokens] = -np.inf


class BadWords:
    """Forbids every token that would complete one of some runs of tokens (NoBadWordsLogitsProcessor)."""

    def __init__(self, words: Sequence[Sequence[int]]) -> None:
        self._words: list[tuple[NDArray[np.int64], NDArray[np.int64]]] = []  # of each length: beginnings, last tokens
        for length in sorted({len(word) for word in words}):
            runs = np.array([word for word in words if len(word) == length], np.int64)
            self._words.append((runs[:, :-1], runs[:, -1]))

    def __call__(self, texts: NDArray[np.int64], scores: NDArray[np.float32]) -> None:
        for begun, last in self._words:
            before = begun.shape[1]
            if before <= texts.shape[1]:
                ends = texts[:, None, texts.shape[1] - before :]  # [B, 1, tokens]
                rows, words = np.nonzero((ends == begun).all(axis=2))
                scores[rows, last[words]] = -np.inf


def make_processors(
    settings: Generation, ends: Collection[int], *, begin: int, least: int, most: int
) -> list[Processor]:
    """The rules that settings ask for, in the order in which transformers applies them.

    ends: the end tokens. begin: tokens that the decoder begins with. least, most: tokens of a text, with these.
    """
    processors: list[Processor] = []
    if settings.repetition_penalty != 1:
        processors.append(RepetitionPenalty(settings.repetition_penalty))
    if settings.no_repeat_ngram_size:
        processors.append(NoRepeatNgrams(settings.no_repeat_ngram_size))
    if settings.bad_words:
        processors.append(BadWords(settings.bad_words))
    if least > begin:
        processors.append(MinLength(least, ends))
    if settings.forced_eos is not None:
        processors.append(ForcedEnd(most, settings.forced_eos))
    if settings.suppress:
        processors.append(Suppress(settings.suppress))
    if settings.begin_suppress:
        processors.append(Suppress(settings.begin_suppress, begin))
    return processors


class ProcessedSampler:
    """Lets processors change the logits, in their order, then asks a sampler; keeps the text for them, which begins
    with the tokens of `prompt`."""

    def __init__(self, processors: Sequence[Processor], sampler: Sampler, prompt: Sequence[int]) -> None:
        self._processors = processors
        self._sampler = sampler
        self._text = np.array([prompt], np.int64)
        self._length = len(prompt)
        self._scores = np.empty((1, 0), np.float32)

    def __call__(self, logits: NDArray[np.float32]) -> int:
        if self._scores.shape[1] != logits.shape[0]:
            self._scores = np.empty((1, logits.shape[0]), np.float32)
        scores = self._scores
        scores[0] = logits
        for process in self._processors:
            process(self._text[:, : self._length], scores)
        try:
            token = self._sampler(scores[0])
        except BundleError:
            if math.isfinite(logits.max()):
                raise InputError(
                    "The rules of this answer forbid every token: those that were said, that repeat words or are "
                    "suppressed, and an end too early; leave out one of these options."
                ) from None
            raise
        if self._length == self._text.shape[1]:
            self._text = np.pad(self._text, ((0, 0), (0, self._length + 16)))
        self._text[0, self._length] = token
        self._length += 1
        return token
