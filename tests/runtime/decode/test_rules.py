"""Rules about the next token: each does to the scores what transformers' processor of that name does."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from transformers.generation import logits_process as theirs

from edge.runtime.decode.rules.bad_words import BadWords
from edge.runtime.decode.rules.begin_suppress import BeginSuppress
from edge.runtime.decode.rules.forced_end import ForcedEnd
from edge.runtime.decode.rules.min_length import MinLength
from edge.runtime.decode.rules.no_repeat_ngram import NoRepeatNgrams
from edge.runtime.decode.rules.repetition_penalty import RepetitionPenalty
from edge.runtime.decode.rules.rule import Processor
from edge.runtime.decode.rules.suppress import Suppress
from edge.runtime.decode.sampling import ProcessedSampler, greedy

VOCAB = 12


def both(length: int, our: Processor, their: object, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    texts = rng.integers(0, 4, (3, length))  # few different tokens, so that n-grams repeat
    scores = rng.standard_normal((3, VOCAB)).astype(np.float32)
    expected = their(torch.from_numpy(texts), torch.from_numpy(scores.copy()))  # type: ignore[operator]
    our(texts, scores)
    return scores, expected.numpy()


@pytest.mark.parametrize("length", [1, 2, 3, 9, 10])
@pytest.mark.parametrize(
    ("our", "their"),
    [
        (RepetitionPenalty(1.3), theirs.RepetitionPenaltyLogitsProcessor(1.3)),
        (NoRepeatNgrams(1), theirs.NoRepeatNGramLogitsProcessor(1)),
        (NoRepeatNgrams(2), theirs.NoRepeatNGramLogitsProcessor(2)),
        (NoRepeatNgrams(3), theirs.NoRepeatNGramLogitsProcessor(3)),
        (MinLength(3, {5, 7}), theirs.MinLengthLogitsProcessor(3, [5, 7])),
        (ForcedEnd(10, 5), theirs.ForcedEOSTokenLogitsProcessor(10, 5)),
        (
            BadWords([[3], [1, 2], [0, 1], [2, 2, 7]]),
            theirs.NoBadWordsLogitsProcessor([[3], [1, 2], [0, 1], [2, 2, 7]]),
        ),
        (Suppress({1, 9}), theirs.SuppressTokensLogitsProcessor([1, 9])),
        (BeginSuppress({1, 9}, 2), theirs.SuppressTokensAtBeginLogitsProcessor([1, 9], 2)),
    ],
    ids=lambda value: type(value).__name__,
)
def test_scores_change_as_in_transformers(length: int, our: Processor, their: object) -> None:
    changed, expected = both(length, our, their)
    np.testing.assert_allclose(changed, expected, rtol=1e-6)


def test_the_sampler_shows_processors_the_text_so_far_and_leaves_the_logits_alone() -> None:
    seen: list[list[int]] = []

    def watch(texts: np.ndarray, scores: np.ndarray) -> None:
        seen.append(texts[0].tolist())
        scores[:, 3] = -np.inf

    sampler = ProcessedSampler([watch], greedy, [7, 8])
    logits = np.zeros(5, np.float32)
    logits[3], logits[4] = 2, 1
    assert [sampler(logits) for _ in range(40)] == [4] * 40, "the best token is forbidden"
    assert logits[3] == 2
    assert seen[0] == [7, 8] and seen[-1] == [7, 8] + [4] * 39
