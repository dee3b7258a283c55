"""Short sounds in short windows: how long they are, what ends there, and what is heard again in a whole one."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from fake_speech import END, RATE, SPEECH, START, ZERO, Script, fake_transcriber, noise, said

from edge.runtime.decode.rules.timestamps import Timestamps
from edge.runtime.speech.lengths import encoder_window, repeats
from edge.runtime.speech.transcribe import Transcript
from edge.runtime.speech.transcribe_options import TranscribeOptions

WHOLE = SPEECH.window_samples
HELLO = Script(said(0.0, " Hello.", 2.0))


def heard(
    folder: Path, samples: np.ndarray, *scripts: Script, any_length: bool = True, **options: Any
) -> tuple[Transcript, Any]:
    model, engine = fake_transcriber(folder, *scripts)
    engine.any_length = any_length
    return model.transcribe(samples, TranscribeOptions(**options)), engine


def test_a_window_has_silence_after_the_sound_and_whole_seconds() -> None:
    windows = [encoder_window(round(seconds * RATE), SPEECH) for seconds in (0.1, 2.0, 2.01, 10.0, 26.5, 28.0, 30.0)]
    assert windows == [n * RATE for n in (4, 5, 6, 13, 30, 30, 30)]


def test_the_length_of_the_sound_alone_decides(tmp_path: Path) -> None:
    for level in (0.01, 0.5):
        _, engine = heard(tmp_path, noise(3, level), HELLO, language="en")
        assert engine.lengths == [encoder_window(3 * RATE, SPEECH)]


def test_a_bundle_whose_encoder_takes_whole_windows_gets_them(tmp_path: Path) -> None:
    _, engine = heard(tmp_path, noise(3), HELLO, any_length=False)
    assert engine.lengths == [WHOLE]


@pytest.mark.parametrize("accepting", [False, True], ids=["by default", "whatever the options accept"])
@pytest.mark.parametrize(
    "doubtful",
    [
        Script(said(0.0, " la" * 60, 2.0)),
        Script(said(0.0, " Go home.", 1.0, 1.0, " Go home.", 2.0)),
        Script(said(0.0, " Hello.", 2.0), sure=0.5),
    ],
    ids=["it repeats itself", "a segment says the same as the one before it", "it is unsure"],
)
def test_a_text_in_doubt_is_heard_again_in_a_whole_window(tmp_path: Path, doubtful: Script, accepting: bool) -> None:
    accept: dict[str, Any] = {"compression_ratio_threshold": None, "logprob_threshold": None}
    transcript, engine = heard(tmp_path, noise(3), doubtful, HELLO, **(accept if accepting else {}))
    assert transcript.text == "Hello." and transcript.segments[0].temperature == 0
    assert engine.lengths == [encoder_window(3 * RATE, SPEECH), WHOLE]


def test_only_a_whole_window_is_silence(tmp_path: Path) -> None:
    silent = Script(said(0.0, " you", 2.0), no_speech=20.0)
    transcript, engine = heard(tmp_path, noise(3), silent, logprob_threshold=None)
    assert not transcript.segments and engine.lengths == [encoder_window(3 * RATE, SPEECH), WHOLE]
    transcript, engine = heard(tmp_path, noise(3), silent, HELLO, logprob_threshold=None)
    assert transcript.text == "Hello."


def test_other_temperatures_are_for_whole_windows(tmp_path: Path) -> None:
    loop = said(0.0, " la" * 60, 2.0)
    transcript, engine = heard(tmp_path, noise(3), Script(loop), Script(loop, again=[said(0.0, " Hello.", 2.0)]))
    assert transcript.text == "Hello." and transcript.segments[0].temperature == 0.2
    assert engine.lengths == [encoder_window(3 * RATE, SPEECH), WHOLE]


def test_nothing_begins_to_be_said_after_the_sound(tmp_path: Path) -> None:
    """Whisper says the text again there, where a window has too little silence."""
    again = Script(said(0.0, " Hello.", 2.0, 2.0, " Hello again.", 3.0))
    for seconds, text in ((2.0, "Hello."), (3.0, "Hello. Hello again.")):
        transcript, engine = heard(tmp_path, noise(seconds), again)
        assert transcript.text == text and engine.lengths == [encoder_window(round(seconds * RATE), SPEECH)]
    transcript, _ = heard(tmp_path, noise(2.0), again, any_length=False)
    assert transcript.text == "Hello. Hello again.", "in a whole window the model says itself when nothing follows"


def test_a_segment_ends_with_the_sound_at_the_latest(tmp_path: Path) -> None:
    late = Script(said(0.0, " Hello.", 3.0))
    transcript, _ = heard(tmp_path, noise(2.01), late)
    assert [(s.start, s.end) for s in transcript.segments] == [(0.0, 2.02)]
    transcript, _ = heard(tmp_path, noise(2.01), late, any_length=False)
    assert transcript.segments[0].end == 3.0, "as the reference has it"


def test_what_is_given_to_later_times_is_given_to_the_end() -> None:
    rules, scores = Timestamps(SPEECH, END, 1, 100), np.full((1, ZERO + 1501), -9, np.float32)
    scores[0, [ord("a"), ZERO + 98, ZERO + 150, ZERO + 151]] = 1.0, 0.5, 0.75, 0.75
    rules(np.array([[START, *said(0.0, " Hello.")]]), scores)
    assert scores[0].argmax() == ZERO + 100, "the end is likelier than the word and any other time"
    assert not np.isfinite(scores[0, ZERO + 101 :]).any()
    rules(np.array([[START, *said(0.0, " Hello.", 2.0)]]), scores := np.zeros_like(scores))
    assert not np.isfinite(scores[0, ZERO:]).any() and np.isfinite(scores[0, END])


@pytest.mark.parametrize("text", ["Go home. Go home!", "and it is a tale It is a tale", "我们现在回家 我们现在回家"])
def test_a_text_that_says_something_twice_in_a_row_repeats(text: str) -> None:
    assert repeats(text)


@pytest.mark.parametrize("text", ["", "No. No. No.", "I know that that is very, very good.", "Good times, bad times."])
def test_a_word_may_be_said_twice(text: str) -> None:
    assert not repeats(text)
