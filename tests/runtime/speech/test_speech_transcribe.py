"""Windows, previous text, silence, language and fallback: what a transcriber does with what a model says."""

from __future__ import annotations

import dataclasses
import tracemalloc
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from fake_speech import (
    DE,
    EN,
    NO_SPEECH,
    PREVIOUS,
    RATE,
    SPEECH,
    START,
    TRANSCRIBE,
    TRANSLATE,
    ZERO,
    Script,
    fake_transcriber,
    noise,
    said,
)

from edge.errors import InputError
from edge.runtime.speech.audio import Audio
from edge.runtime.speech.transcribe import Transcriber, Transcript
from edge.runtime.speech.transcribe_options import TranscribeOptions

HELLO = Script(said(0.0, " Hello.", 2.0))
LOOP = said(0.0, " la" * 60, 20.0)


def heard(
    folder: Path, samples: np.ndarray, *scripts: Script, speech: Any = SPEECH, **options: Any
) -> tuple[Transcript, Any]:
    model, engine = fake_transcriber(folder, *scripts, speech=speech)
    return model.transcribe(samples, TranscribeOptions(**options)), engine


def times(transcript: Transcript) -> list[tuple[float, float, str]]:
    return [(round(s.start, 3), round(s.end, 3), s.text) for s in transcript.segments]


def test_a_short_sound_is_one_window(tmp_path: Path) -> None:
    transcript, engine = heard(tmp_path, noise(3), HELLO)
    assert times(transcript) == [(0.0, 2.0, " Hello.")]
    assert (transcript.text, transcript.language, transcript.duration, transcript.complete) == ("Hello.", "en", 3, True)
    assert [len(window) for window in engine.windows] == [3 * RATE]


def test_the_next_window_begins_where_the_last_whole_segment_ended(tmp_path: Path) -> None:
    first = Script(said(0.0, " One.", 10.0, 10.0, " Two.", 25.5, 26.0, " cut o"))
    transcript, engine = heard(tmp_path, noise(40), first, Script(said(0.0, " Three.", 14.0)))
    assert times(transcript) == [(0.0, 10.0, " One."), (10.0, 25.5, " Two."), (25.5, 39.5, " Three.")]
    assert np.array_equal(engine.windows[1], noise(40)[round(25.5 * RATE) :])


def test_what_was_said_leads_the_next_window(tmp_path: Path) -> None:
    first = Script(said(0.0, " One.", 25.0, 25.0))
    _, engine = heard(tmp_path, noise(40), first, HELLO)
    assert engine.prompts == [
        [START, EN, TRANSCRIBE],
        [PREVIOUS, *said(0.0, " One.", 25.0), START, EN, TRANSCRIBE],
    ]
    _, engine = heard(tmp_path, noise(40), first, HELLO, previous_text=False)
    assert engine.prompts[1] == [START, EN, TRANSCRIBE]
    _, engine = heard(tmp_path, noise(40), first, HELLO, speech=dataclasses.replace(SPEECH, previous=None))
    assert engine.prompts[1] == [START, EN, TRANSCRIBE]


def test_as_much_of_what_was_said_leads_as_has_room(tmp_path: Path) -> None:
    long = said(0.0, "".join(f" {n}" for n in range(60)), 29.0, 29.0)
    _, engine = heard(tmp_path, noise(100), Script(long), Script(long), Script(long), HELLO)
    assert engine.prompts[3] == [PREVIOUS, *(long[:-1] * 3)[-223:], START, EN, TRANSCRIBE]


def test_a_text_as_long_as_its_room_is_cut_there(tmp_path: Path) -> None:
    endless = Script(said(0.0, *(f" {n}" for n in range(300))))
    transcript, _ = heard(tmp_path, noise(20), endless, temperatures=(0.0,))
    assert len(transcript.segments[0].tokens) == 224
    first = Script(said(0.0, "".join(f" {n}" for n in range(58)), 1.0, 1.0))
    transcript, engine = heard(tmp_path, noise(20), first, first, endless, temperatures=(0.0,))
    assert len(engine.prompts[2]) == 1 + 223 + 3
    assert len(transcript.segments[2].tokens) == 448 - 227 + 1


def test_the_language_is_heard_once_unless_it_is_named(tmp_path: Path) -> None:
    german = Script(said(0.0, " Hallo.", 25.0, 25.0), language=DE)
    transcript, engine = heard(tmp_path, noise(40), german, HELLO)
    assert transcript.language == "de" and [prompt[-2] for prompt in engine.prompts] == [DE, DE]
    transcript, engine = heard(tmp_path, noise(3), german, language="en")
    assert transcript.language == "en" and engine.prompts == [[START, EN, TRANSCRIBE]]


def test_the_task_is_told_to_the_model(tmp_path: Path) -> None:
    assert heard(tmp_path, noise(3), HELLO, task="translate")[1].prompts == [[START, EN, TRANSLATE]]


def test_an_english_model_gets_neither_language_nor_task(tmp_path: Path) -> None:
    english = dataclasses.replace(SPEECH, languages={}, tasks={})
    model, engine = fake_transcriber(tmp_path, HELLO, speech=english)
    engine.prompt_length = 1
    running = model.transcribe_stream(noise(3))
    assert running.language == "en" and [s.text for s in running] == [" Hello."]
    assert engine.prompts == [[START]]


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"language": "xx"}, "'xx' is not the code of a language that this model knows; it knows en, de."),
        ({"task": "sing"}, "The task must be one of translate, transcribe for this model, not 'sing'."),
    ],
)
def test_an_unknown_language_or_task_is_refused(tmp_path: Path, options: dict[str, str], sentence: str) -> None:
    with pytest.raises(InputError, match=sentence):
        heard(tmp_path, noise(3), HELLO, **options)


def test_an_english_model_refuses_another_language(tmp_path: Path) -> None:
    english = dataclasses.replace(SPEECH, languages={}, tasks={})
    with pytest.raises(InputError, match="English alone, not 'de'"):
        heard(tmp_path, noise(3), HELLO, speech=english, language="de")
    with pytest.raises(InputError, match="not trained to translate: it knows no language but English"):
        heard(tmp_path, noise(3), HELLO, speech=english, task="translate")


def test_many_languages_are_named_in_part(tmp_path: Path) -> None:
    many = dataclasses.replace(SPEECH, languages={f"l{n}": n for n in range(99)})
    with pytest.raises(InputError, match="it knows l0, l1, .*, l11 and 87 more"):
        heard(tmp_path, noise(3), HELLO, speech=many, language="xx")


def test_a_text_that_repeats_itself_is_tried_again_at_the_next_temperature(tmp_path: Path) -> None:
    transcript, _ = heard(tmp_path, noise(25), Script(LOOP, again=[LOOP, HELLO.tokens]))
    assert times(transcript) == [(0.0, 2.0, " Hello.")] and transcript.segments[0].temperature == 0.4


def test_an_unsure_text_is_tried_again_and_the_last_try_stands(tmp_path: Path) -> None:
    unsure = Script(HELLO.tokens, sure=3.0)
    transcript, _ = heard(tmp_path, noise(3), unsure, temperatures=(0.0, 0.01))
    (segment,) = transcript.segments
    assert segment.temperature == 0.01 and segment.avg_logprob < -1
    assert heard(tmp_path, noise(3), unsure, logprob_threshold=None)[0].segments[0].temperature == 0.0


def test_the_measures_of_a_text_are_those_of_the_reference(tmp_path: Path) -> None:
    transcript, _ = heard(tmp_path, noise(3), Script(said(0.0, " ab", 2.0), sure=9.0, no_speech=4.0))
    (segment,) = transcript.segments
    word = 9 - np.log(np.exp(9) + ZERO - 6 - 1)  # all but the five suppressed tokens and the one for no timestamps
    end = 9 - np.log(np.exp(9) + 2)  # behind a segment, beside timestamps: the end and the languages
    assert segment.avg_logprob == pytest.approx((3 * word + end) / 6, abs=1e-5)
    assert segment.no_speech_prob == pytest.approx(np.exp(4) / (np.exp(4) + np.exp(5) + ZERO - 2), rel=1e-3)
    assert segment.compression_ratio == pytest.approx(2 / 10)


def test_a_segment_without_words_is_neither_given_out_nor_shown_to_the_next_window(tmp_path: Path) -> None:
    first = Script(said(0.0, " One.", 5.0, 5.0, "  ", 9.0, 9.0, " Two.", 25.0, 25.0))
    transcript, engine = heard(tmp_path, noise(40), first, HELLO)
    assert [segment.text for segment in transcript.segments] == [" One.", " Two.", " Hello."]
    assert engine.prompts[1][1:-3] == said(0.0, " One.", 5.0, 9.0, " Two.", 25.0)


def test_a_hot_text_does_not_lead_the_next_window(tmp_path: Path) -> None:
    good = said(0.0, " One.", 25.0, 25.0)
    loop = said(0.0, " la" * 60, 25.0, 25.0)
    for attempts, leads in ((2, True), (3, False)):  # temperatures 0.4 and 0.6
        first = Script(loop, again=[*[loop] * (attempts - 1), good])
        _, engine = heard(tmp_path, noise(40), first, HELLO)
        assert (PREVIOUS in engine.prompts[1]) == leads


def test_a_window_without_speech_is_skipped_where_the_text_is_unsure(tmp_path: Path) -> None:
    nothing = Script(said(0.0, " you", 2.0), sure=3.0, no_speech=20.0)
    transcript, engine = heard(tmp_path, noise(40), nothing, HELLO)
    assert times(transcript) == [(30.0, 32.0, " Hello.")]
    once = heard(tmp_path, noise(40), nothing, HELLO, temperatures=(0.0,))[1]
    assert engine.steps == once.steps, "no other temperature is tried where nothing was said"
    sure = dataclasses.replace(nothing, sure=20.0)
    assert times(heard(tmp_path, noise(3), sure)[0]) == [(0.0, 2.0, " you")]
    assert heard(tmp_path, noise(3), sure, logprob_threshold=None)[0].segments == []
    assert heard(tmp_path, noise(3), nothing, no_speech_threshold=None)[0].segments != []


def test_a_model_without_a_token_for_no_speech_hears_speech(tmp_path: Path) -> None:
    speech = dataclasses.replace(SPEECH, no_speech=None, suppress=[NO_SPEECH])
    (segment,) = heard(tmp_path, noise(3), HELLO, speech=speech)[0].segments
    assert segment.no_speech_prob is None


def test_where_nothing_was_recorded_the_model_is_not_asked(tmp_path: Path) -> None:
    silence = np.zeros(70 * RATE, np.float32)
    transcript, engine = heard(tmp_path, silence, HELLO)
    assert transcript == Transcript("", [], None, 70.0, True) and engine.windows == []
    transcript, engine = heard(tmp_path, np.concatenate([silence, noise(3)]), HELLO)
    assert times(transcript) == [(69.8, 71.8, " Hello.")] and len(engine.windows) == 1
    assert len(heard(tmp_path, silence, HELLO, skip_silence=False)[1].windows) == 3


def test_a_long_gap_ends_a_window_and_what_follows_gets_its_right_time(tmp_path: Path) -> None:
    gap = np.zeros(12 * RATE, np.float32)
    sound = np.concatenate([noise(6), gap, noise(3)])
    scripts = Script(said(0.0, " Hello.", 8.0)), Script(said(0.0, " Again.", 3.2))  # the first ends where nothing is
    transcript, engine = heard(tmp_path, sound, *scripts)
    assert times(transcript) == [(0.0, 6.2, " Hello."), (17.8, 21.0, " Again.")]
    assert len(engine.windows) == 2 and transcript.duration == 21.0
    assert len(heard(tmp_path, sound, HELLO, skip_silence=False)[1].windows) == 1
    pause = np.concatenate([noise(6), gap[: 4 * RATE], noise(3)])
    assert len(heard(tmp_path, pause, HELLO)[1].windows) == 1, "a pause is left to the model"


@pytest.mark.parametrize("seconds", [0.05, 0.001])
def test_nothing_can_be_said_in_the_shortest_sounds(tmp_path: Path, seconds: float) -> None:
    for sound in (noise(seconds), Audio(iter([noise(seconds)]), None)):
        with pytest.raises(InputError, match=f"There is {seconds} s of sound"):
            heard(tmp_path, sound, Script([]))
    assert heard(tmp_path, noise(0.11), Script([]))[0].complete


def test_segments_come_while_the_sound_is_read(tmp_path: Path) -> None:
    read = []

    def blocks() -> Iterator[np.ndarray]:
        for second in range(90):
            read.append(second)
            yield noise(1)

    model, _ = fake_transcriber(tmp_path, Script(said(0.0, " One.", 30.0, 30.0)))
    running = model.transcribe_stream(Audio(blocks(), None))
    next(running)
    assert len(read) == 30 and running.position == 30.0 and not running.complete
    assert len(list(running)) == 2 and running.complete


def test_progress_is_told_of_every_window(tmp_path: Path) -> None:
    told: list[float] = []
    heard(tmp_path, noise(70), Script(said(0.0, " One.", 28.0, 28.0)), progress=told.append)
    assert told == [28.0, 56.0, 70.0]


def test_three_hours_take_the_memory_of_a_window(tmp_path: Path) -> None:
    block = noise(1)
    model, engine = fake_transcriber(tmp_path, Script(said(0.0, " One.", 30.0, 30.0)))
    engine.keep_windows = False
    tracemalloc.start()
    segments = sum(1 for _ in model.transcribe_stream(Audio((block for _ in range(3 * 3600)), None)))
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert segments == 360
    assert peak < 12 * 2**20, "a window of 30 s is 2 MB, three hours are 690"


def test_damage_in_the_middle_is_told_after_everything_before_it_was_transcribed(tmp_path: Path) -> None:
    samples = noise(40)
    samples[35 * RATE + 7] = np.nan
    model, _ = fake_transcriber(tmp_path, Script(said(0.0, " One.", 30.0, 30.0)), HELLO)
    running = model.transcribe_stream(samples)
    assert [next(running).text, next(running).text] == [" One.", " Hello."]
    with pytest.raises(InputError, match=r"sample 560,007, at 35.00 s, is nan"):
        next(running)
    assert not running.complete and running.position == 35.0


def test_an_interruption_keeps_what_was_finished(tmp_path: Path) -> None:
    model, engine = fake_transcriber(tmp_path, Script(said(0.0, " One.", 30.0, 30.0)))
    options = TranscribeOptions(interrupted=lambda: len(engine.windows) == 2 and engine.steps > 15)
    transcript = model.transcribe(noise(90), options)
    assert transcript.text == "One." and not transcript.complete and transcript.duration == 90.0


def test_draws_repeat_with_the_seed(tmp_path: Path) -> None:
    def drawn(seed: int) -> str:
        return heard(tmp_path, noise(3), Script(HELLO.tokens, sure=2.0), temperatures=(1.0,), seed=seed)[0].text

    assert drawn(1) == drawn(1) != drawn(2)


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"temperatures": ()}, "There is no temperature"),
        ({"temperatures": (0.0, -1.0)}, "temperature must be a number of 0 or more, not -1.0"),
        ({"beams": 0}, "number of beams must be 1 or more, not 0"),
        ({"seed": -1}, "seed must be a whole number"),
    ],
)
def test_options_out_of_their_range_are_refused(options: dict[str, Any], sentence: str) -> None:
    with pytest.raises(InputError, match=sentence):
        TranscribeOptions(**options)


def test_samples_must_be_floats_of_one_channel(tmp_path: Path) -> None:
    model: Transcriber = fake_transcriber(tmp_path, HELLO)[0]
    with pytest.raises(InputError, match=r"one channel of floats at 16,000 Hz between -1 and 1, not int16"):
        model.transcribe(np.zeros(100, np.int16))
    with pytest.raises(InputError, match=r"not float32 of shape \[100, 2\]"):
        model.transcribe(np.zeros((100, 2), np.float32))
    with pytest.raises(InputError, match="There are no samples"):
        model.transcribe(np.zeros(0, np.float32))


@pytest.mark.parametrize(
    ("languages", "tasks", "why"),
    [
        ({}, {}, "it knows no language but English"),
        ({"en": EN}, {"transcribe": TRANSCRIBE}, "it has no token for the task 'translate'"),
        ({"de": DE}, {}, "it has no token for the task 'translate'"),
    ],
)
def test_a_model_that_was_not_trained_to_translate_says_so(
    tmp_path: Path, languages: dict[str, int], tasks: dict[str, int], why: str
) -> None:
    speech = dataclasses.replace(SPEECH, languages=languages, tasks=tasks)
    model, _ = fake_transcriber(tmp_path / "x.edge", Script(said(0.0, " One.", 1.0)), speech=speech)
    with pytest.raises(InputError, match=f"was not trained to translate: {why}; leave the task out"):
        model.transcribe(noise(1), task="translate")


@pytest.mark.parametrize(("layers", "warns"), [(2, True), (4, True), (32, False)])
def test_a_model_with_a_shortened_decoder_warns_of_translating(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, layers: int, warns: bool
) -> None:
    model, _ = fake_transcriber(tmp_path / "x.edge", Script(said(0.0, " One.", 1.0)))
    manifest = model.bundle.manifest
    assert manifest.encoder is not None
    changes = {
        "dims": dataclasses.replace(manifest.dims, num_layers=layers),
        "encoder": dataclasses.replace(manifest.encoder, num_layers=32),
    }
    model.bundle = dataclasses.replace(model.bundle, manifest=dataclasses.replace(manifest, **changes))
    model.transcribe(noise(1), language="de")
    assert not caplog.text
    model.transcribe(noise(1), language="de", task="translate")
    assert (f"shortened to {layers} of 32 layers" in caplog.text) == warns
