"""What Whisper may say next: the rules against transformers' processors, and one by one."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
from fake_speech import END, NO_TIMESTAMPS, SPEECH, VOCABULARY, ZERO, at, said

from edge.runtime.decode.rules.timestamps import Timestamps
from edge.runtime.speech.rules import speech_rules

PROMPT = [259, 260, 263]


def allowed(*generated: float | str, scores: dict[int, float] | None = None, **changes: object) -> set[int]:
    """The tokens that may follow what was generated; all are equally likely but for `scores`."""
    row = np.zeros((1, VOCABULARY), np.float32)
    row[0, ZERO:] = -20  # so that timestamps are not preferred for their number
    for token, score in (scores or {}).items():
        row[0, token] = score
    speech = dataclasses.replace(SPEECH, **changes)  # type: ignore[arg-type]
    for rule in speech_rules(speech, END, len(PROMPT)):
        rule(np.array([[*PROMPT, *said(*generated)]], np.int64), row)
    return set(np.flatnonzero(row[0] > -np.inf).tolist())


def test_the_rules_are_those_of_transformers() -> None:
    torch = pytest.importorskip("torch")
    generation = pytest.importorskip("transformers.generation")
    config = generation.GenerationConfig(eos_token_id=END)
    config.no_timestamps_token_id, config.max_initial_timestamp_index = NO_TIMESTAMPS, 50
    random = np.random.default_rng(5)
    for length in (0, 1, 2, 3, 4, 9):
        for _ in range(40):
            # Words and timestamps in any order, more orders than the rules let a model say.
            texts = np.where(
                random.random((4, length)) < 0.5,
                random.integers(0, 256, (4, length)),
                ZERO + np.sort(random.integers(0, 1400, (4, length)), axis=1),
            )
            texts = np.concatenate([np.tile(PROMPT, (4, 1)), texts], axis=1).astype(np.int64)
            scores = random.standard_normal((4, VOCABULARY)).astype(np.float32) * 4
            theirs = generation.WhisperTimeStampLogitsProcessor(config, begin_index=len(PROMPT))(
                torch.tensor(texts), torch.tensor(scores)
            ).numpy()
            Timestamps(SPEECH, END, len(PROMPT))(texts, scores)
            assert np.array_equal(scores, theirs)


def test_a_text_begins_with_a_timestamp_of_the_first_second() -> None:
    assert allowed() == set(range(ZERO, at(1.0) + 1))
    assert allowed(max_initial_timestamp_index=None) == set(range(ZERO, VOCABULARY))


def test_words_follow_the_timestamp_that_opens_a_segment() -> None:
    after = allowed(0.5)
    assert ord("a") in after and END in after and not after & set(range(ZERO, VOCABULARY))


def test_a_later_timestamp_or_the_end_follows_the_one_that_closes_a_segment() -> None:
    after = allowed(0.5, "word", 2.0)
    assert {at(2.0), at(2.02), END} <= after
    assert not after & {*range(256), at(1.98)}


def test_a_segment_has_a_length() -> None:
    after = allowed(0.5, "word")
    assert at(0.5) not in after and at(0.52) in after


def test_timestamps_that_are_likelier_together_than_any_word_are_taken() -> None:
    assert ord("a") in allowed(0.0, "word", scores={at(1.0): 0.0, at(2.0): -9.0, ord("a"): 0.5})
    assert ord("a") not in allowed(0.0, "word", scores={at(1.0): 0.0, at(2.0): 0.0, ord("a"): 0.5})


def test_some_tokens_are_never_said_and_some_not_at_the_beginning() -> None:
    later = allowed(0.0, "word", suppress=[ord("x")])
    assert ord("x") not in later and ord(" ") in later and END in later and NO_TIMESTAMPS not in later
    assert END not in allowed(max_initial_timestamp_index=None)
