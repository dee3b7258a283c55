"""Noise: a text that the model would write for silence, too, is not said; what is said stays. And circles."""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from fake_speech import DE, EN, RATE, VOCABULARY, ZERO, Script, fake_transcriber, noise, said

from edge.runtime.speech.evidence import ENOUGH, LIKELIER, Evidence, said_before
from edge.runtime.speech.lengths import encoder_window
from edge.runtime.speech.transcribe import Transcript
from edge.runtime.speech.transcribe_options import TranscribeOptions

MAYBE = 6.0  # a chance of no speech of a half
RATHER = 6.0  # a mean log probability of some -0.5: neither sure nor to be tried again
THANKS = Script(said(0.0, " Thank you.", 2.0), sure=RATHER, no_speech=MAYBE)
HELLO = Script(said(0.0, " Hello.", 25.0, 25.0))


def heard(
    folder: Path,
    samples: np.ndarray,
    *scripts: Script,
    silent: Script = THANKS,
    any_length: bool = False,
    **options: Any,
) -> tuple[Transcript, Any]:
    model, engine = fake_transcriber(folder, *scripts)
    engine.silent, engine.any_length = silent, any_length
    return model.transcribe(samples, TranscribeOptions(**options)), engine


def test_what_is_said_of_silence_too_is_not_said_of_noise(tmp_path: Path) -> None:
    assert heard(tmp_path, noise(3), THANKS)[0] == Transcript("", [], None, 3.0, True)
    assert heard(tmp_path, noise(3), THANKS, silent=Script([]))[0].text == "Thank you."


@pytest.mark.parametrize("text", ["...", " -", "?!"])
def test_dots_and_dashes_are_no_words(tmp_path: Path, text: str) -> None:
    dots = Script(said(0.0, text, 2.0), sure=RATHER - 1, no_speech=MAYBE)
    assert heard(tmp_path, noise(3), dots, silent=Script([]))[0].segments == []
    sure = Script(dots.tokens, sure=20.0, no_speech=MAYBE)
    assert heard(tmp_path, noise(3), sure, silent=Script([]))[0].text == text.strip()


@pytest.mark.parametrize("seed", range(20))
def test_words_that_the_sound_makes_likelier_stay(tmp_path: Path, seed: int) -> None:
    random = np.random.default_rng(seed)
    words = "".join(f" {n}" for n in range(random.integers(1, 40)))
    with_sound, without = random.uniform(5.5, 6.5, 2)
    script = Script(said(0.0, words, 20.0), sure=with_sound, no_speech=MAYBE)
    silent = Script(script.tokens, sure=without)
    transcript, _ = heard(tmp_path, noise(25), script, silent=silent)

    def log_probability(logit: float) -> float:
        others = np.exp(np.where(np.arange(VOCABULARY) < ZERO, 0.0, -10.0)).sum() - 1
        return float(logit - np.log(np.exp(logit) + others))

    likelier = log_probability(with_sound) - log_probability(without)
    assert (transcript.text == "") == (likelier < LIKELIER and likelier * len(words) < ENOUGH)


def imagined(likelier: Sequence[float], repeated: Sequence[int] = ()) -> bool:
    """Whether a text is, of which these words repeat others."""
    return Evidence(np.array(likelier), np.isin(range(len(likelier)), repeated)).imagined


@pytest.mark.parametrize(
    ("likelier", "dropped"),
    [
        ([0.5, 0.5], True),
        ([0.7, 0.6], False),
        ([6.4, 0.2, 0.1, 0.5, 0.1], True),  # what a fan led to
        ([5.1, 0.5, 5.4, 2.1, 0.2], False),  # "Do you hear me?" next to a vacuum cleaner
        ([1.5], False),  # "you", said while somebody typed
        ([-3.8], True),  # "you", while somebody whistled
    ],
)
def test_one_word_of_several_tells_nothing(likelier: list[float], dropped: bool) -> None:
    assert imagined(likelier) == dropped


@pytest.mark.parametrize(
    ("text", "counted"),
    [
        ("the price of the price of the price", "the price of"),
        ("la la la la", "la"),
        ("one two , one three", "one two , one three"),
        ("one two , one two three", "one two , three"),
        ("hello", "hello"),
        ("", ""),
    ],
)
def test_words_that_repeat_what_was_said_do_not_count(text: str, counted: str) -> None:
    words = text.split()
    repeated = said_before([hash(word) for word in words])
    assert [word for word, again in zip(words, repeated, strict=True) if not again] == counted.split()


def test_a_circle_does_not_hide_the_words_that_it_begins_with() -> None:
    circle = [2.0, 7.0, 0.4, *[0.0] * 40]
    assert imagined(circle) and not imagined(circle, range(3, 43))
    assert imagined([0.1, 0.2, 0.3, *[0.0] * 40], range(3, 43))


def test_a_long_text_whose_words_follow_from_each_other_is_one_that_was_said() -> None:
    assert imagined([0.4] * 20) and not imagined([0.4] * 50)
    assert imagined([0.1]) and not imagined([2.0]), "a single word"


@pytest.mark.parametrize(
    ("script", "options"),
    [
        (Script(THANKS.tokens, sure=RATHER, no_speech=4.0), {}),
        (Script(THANKS.tokens, sure=20.0, no_speech=MAYBE), {}),
        (THANKS, {"no_speech_threshold": None}),
        (THANKS, {"no_speech_threshold": 1.0}),
    ],
    ids=["speech is likely", "the text is sure", "no window is skipped", "hardly any window is skipped"],
)
def test_silence_is_heard_only_where_noise_is_likely(tmp_path: Path, script: Script, options: dict[str, Any]) -> None:
    transcript, engine = heard(tmp_path, noise(3), script, **options)
    assert transcript.text == "Thank you." and len(engine.lengths) == 1


def test_a_short_window_is_compared_with_silence_as_long(tmp_path: Path) -> None:
    short = encoder_window(3 * RATE, fake_transcriber(tmp_path, HELLO)[0].speech)
    whole = 30 * RATE
    transcript, engine = heard(tmp_path, noise(3), THANKS, any_length=True)
    assert transcript.text == "" and engine.lengths == [short, short, whole, whole]
    hello = Script(said(0.0, " Hello.", 2.0))
    transcript, engine = heard(tmp_path, noise(3), THANKS, hello, any_length=True)
    assert transcript.text == "Hello." and engine.lengths == [short, short, whole]


def test_a_short_window_whose_words_gain_little_is_heard_again_in_a_whole_one(tmp_path: Path) -> None:
    less = Script(THANKS.tokens, sure=RATHER - 1.2)  # of silence: words gain 0.7, which is enough in a whole window
    transcript, engine = heard(tmp_path, noise(3), THANKS, silent=less, any_length=True)
    assert transcript.text == "Thank you." and engine.lengths[2:] == [30 * RATE] * 2
    fewer = Script(THANKS.tokens, sure=RATHER - 2.5)
    transcript, engine = heard(tmp_path, noise(3), THANKS, silent=fewer, any_length=True)
    assert transcript.text == "Thank you." and len(engine.lengths) == 2


def test_a_window_is_noise_only_where_its_first_text_is_imagined_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    loop = said(0.0, " la" * 60, 20.0)
    tried = Script(loop, again=[THANKS.tokens], sure=RATHER, no_speech=MAYBE)
    judged = list[int]()

    def imagined(evidence: Evidence) -> bool:
        judged.append(len(evidence.likelier))
        return len(evidence.likelier) == len(" Thank you.")

    monkeypatch.setattr(Evidence, "imagined", property(imagined))
    assert heard(tmp_path, noise(25), tried)[0].text == "Thank you." and judged == [11, 180]
    monkeypatch.setattr(Evidence, "imagined", True)
    assert heard(tmp_path, noise(25), tried)[0].text == ""


def test_words_before_a_window_do_not_make_its_own_likely(tmp_path: Path) -> None:
    """The same again, by the text alone as likely in silence: it is compared without the earlier text."""
    _, engine = heard(tmp_path, noise(40), HELLO, THANKS)
    asked = [prompt[:1] for prompt in engine.prompts]
    assert engine.lengths == [30 * RATE] * 3 and asked == [[259], [264]]


def test_the_language_is_that_of_the_first_window_with_speech(tmp_path: Path) -> None:
    thanks = Script(THANKS.tokens, sure=RATHER, no_speech=MAYBE, language=EN)
    hello = Script(HELLO.tokens, language=DE)
    transcript, engine = heard(tmp_path, noise(60), thanks, hello, HELLO)
    assert transcript.language == "de" and [prompt[-2] for prompt in engine.prompts] == [EN, DE, DE]
    assert heard(tmp_path, noise(60), thanks, hello, language="en")[0].language == "en"


@pytest.mark.parametrize("phrase", [" la", " Thank you.", " one two three four five six seven"])
@pytest.mark.parametrize("any_length", [False, True])
def test_a_phrase_without_end_is_left_where_no_other_temperature_is_tried(
    tmp_path: Path, phrase: str, any_length: bool
) -> None:
    endless = Script(said(0.0, phrase * 80))
    raw, _ = heard(tmp_path, noise(20), endless, any_length=any_length, temperatures=(0.0,), circles="allow")
    assert raw.segments[0].tokens == [*endless.tokens[:224]]
    led, _ = heard(tmp_path, noise(20), endless, any_length=any_length, temperatures=(0.0,))
    assert led.segments[0].tokens != raw.segments[0].tokens
    assert len(zlib.compress(led.text.encode())) > 1.5 * len(zlib.compress(raw.text.encode()))
    tried, _ = heard(tmp_path, noise(20), Script(endless.tokens, again=[said(0.0, " Hello.", 2.0)]), circles="allow")
    assert tried.text == "Hello." and tried.segments[0].temperature == 0.2
