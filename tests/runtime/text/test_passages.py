"""Texts are taken apart where models were trained on sentences, or read no line breaks, and joined as they stood."""

from __future__ import annotations

import dataclasses
import random
import time
from pathlib import Path

import pytest
from fake_engine import END
from fake_text2text import FakeText2TextEngine, fake_text2text

from edge.errors import InputError
from edge.runtime.text.framing import Framing
from edge.runtime.text.passages import Passages, _sentences, sentences, splitter
from edge.runtime.text2text import Text2Text

WHOLE = [
    "Mr. Smith met Dr. No at 3.30 p.m. on the 3. Oktober.",
    "J. K. Rowling lives in the U.K., e.g. in Edinburgh.",
    "It costs 3.50 EUR (see p. 5, fig. 2).",
    '"Stop!" he said... and left.',
    "Er kam am 12. Mai bzw. am 13. Juni.",
]
SENTENCES = [
    *("The sun rose.", "Who are you?", "Come here!", "It was in 1999.", '"Go away."', "He left (at last).", "Wait..."),
    *("Ça va ?", "¿Qué tal?", "यह एक वाक्य है।", "Это дом.", "هل أنت بخير؟", *WHOLE),
]
SPACES = [" ", "  ", "\t", "\u00a0"]


@pytest.mark.parametrize("text", WHOLE)
def test_abbreviations_numbers_and_quotes_end_no_sentence(text: str) -> None:
    assert sentences(text) == [text]


@pytest.mark.parametrize("seed", range(10))
def test_sentences_of_many_languages_are_found_in_any_order(seed: int) -> None:
    draw = random.Random(seed)
    made = [sentence + draw.choice(SPACES) for sentence in draw.choices(SENTENCES, k=6)]
    assert sentences("".join(made)) == made


def test_sentences_of_wide_scripts_need_no_space() -> None:
    made = ["今日は。", "元気\uff1f", "はい\uff01", "「そう。」", "終"]
    assert sentences("".join(made)) == made


def sentence_model(folder: Path, family: str = "m2m_100", **options: object) -> tuple[Text2Text, FakeText2TextEngine]:
    """A model whose outputs are its inputs in upper case, of 40 bytes at most."""
    model, engine = fake_text2text(folder, **options)  # type: ignore[arg-type]
    manifest = dataclasses.replace(model.bundle.manifest, family=family)
    model.bundle = engine.bundle = dataclasses.replace(model.bundle, manifest=manifest)
    model._framing = Framing(manifest, model.text, None)
    return model, engine


def inputs(engine: FakeText2TextEngine) -> list[str]:
    return [bytes(token for token in ids if token < 256).decode() for ids in engine.encoded]


@pytest.mark.parametrize("family", ["m2m_100", "marian"])
@pytest.mark.parametrize("seed", range(5))
def test_sentences_go_in_one_by_one_and_are_joined_as_they_stood(tmp_path: Path, family: str, seed: int) -> None:
    draw = random.Random(seed)
    model, engine = sentence_model(tmp_path, family)
    said = draw.choices(["One is here.", "Two, too?", "Three!", "Fourth."], k=5)
    gaps = [draw.choice(["", "  "]), *draw.choices([" ", "  ", "\n", "\r\n\n", " \n- ", "\n\n---\n\n"], k=4), "\n"]
    text = "".join(gap + sentence for gap, sentence in zip(gaps, [*said, ""], strict=True))
    expected = [sentence if "- " not in gap else f"- {sentence}" for gap, sentence in zip(gaps, said, strict=False)]
    result = model.generate(text)
    assert (result.text, result.finish_reason) == (text.upper(), "stop")
    assert inputs(engine) == expected
    assert result.generated_tokens == len(result.token_ids) == sum(len(each) + 1 for each in expected)
    pieces = list(model.stream(text))
    assert "".join(piece.text for piece in pieces) == text.upper()
    assert [piece.finish_reason for piece in pieces if piece.finish_reason] == ["stop"]
    assert pieces[-1].timings.prompt_tokens == result.prompt_tokens == len(model.prompt_ids(text))


def test_the_whole_is_taken_where_that_is_asked_for(tmp_path: Path) -> None:
    model, engine = sentence_model(tmp_path)
    text = "One is. Two is."
    assert model.generate(text, whole=True).text == text.upper()
    assert model.generate(text, min_tokens=2).text == text.upper()
    assert model.candidates(text)[0].text == text.upper()
    assert inputs(engine) == [text] * 3


def test_a_text_of_one_sentence_is_given_as_it_is(tmp_path: Path) -> None:
    model, engine = sentence_model(tmp_path)
    model.generate("  One is here.\n")
    assert inputs(engine) == ["  One is here.\n"]


def test_maximum_tokens_are_those_of_all_sentences(tmp_path: Path) -> None:
    model, _ = sentence_model(tmp_path)
    text = "One. Two. Three."  # of 5, 5 and 7 tokens with their ends
    for most, expected, reason in [
        *((3, "ONE", "length"), (5, "ONE.", "length"), (7, "ONE. TW", "length"), (10, "ONE. TWO.", "length")),
        (17, "ONE. TWO. THREE.", "stop"),
    ]:
        result = model.generate(text, max_tokens=most)
        assert (result.text, result.finish_reason) == (expected, reason), most


def test_a_stop_string_and_an_interruption_end_all(tmp_path: Path) -> None:
    model, engine = sentence_model(tmp_path)
    assert model.generate("One. Two. Three.", stop="W").text == "ONE. T"
    seen: list[str] = []
    for piece in model.stream("One. Two. Three.", interrupted=lambda: "".join(seen) == "ONE. T"):
        seen.append(piece.text)
    assert ("".join(seen), piece.finish_reason) == ("ONE. T", "interrupted")
    assert inputs(engine) == ["One.", "Two.", "One.", "Two."]


def test_a_long_text_of_short_sentences_fits_and_a_long_sentence_is_refused_before_the_first(tmp_path: Path) -> None:
    model, engine = sentence_model(tmp_path)
    assert model.generate("One is. " * 20).text == "ONE IS. " * 19 + "ONE IS. "
    engine.encoded.clear()
    with pytest.raises(InputError, match="encoder takes up to 40"):
        model.stream("One is. " + "word " * 12)
    assert not engine.encoded


def test_a_target_written_before_the_text_is_that_of_each_sentence(tmp_path: Path) -> None:
    model, engine = sentence_model(tmp_path, "marian")
    model.generate(">>deu<< One. Two.")
    assert inputs(engine) == [">>deu<< One.", ">>deu<< Two."]


def test_a_target_as_madlad_has_it_is_that_of_each_sentence_too(tmp_path: Path) -> None:
    model, _ = sentence_model(tmp_path, "t5")
    form = dataclasses.replace(model.bundle.manifest.text, languages={"de": 5}, target_in_source=True)
    split = splitter(dataclasses.replace(model.bundle.manifest, text=form), model.text)
    assert split is not None and split("<2de> One. Two.") == Passages(["<2de> One.", "<2de> Two."], ["", " ", ""])


def line_model(folder: Path, name: str = "fake") -> tuple[Text2Text, FakeText2TextEngine]:
    model, engine = sentence_model(folder, "t5")
    manifest = dataclasses.replace(model.bundle.manifest, name=name)
    model._framing = Framing(manifest, model.text, None)
    plain = model.text.decode
    model.text.decode = lambda ids: plain(ids).replace("\n", " ")  # type: ignore[method-assign]
    return model, engine


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("One. Two.\n\nThree.", ["One. Two.", "Three."]),
        ("Note: one.\nTwo.", ["Note: one.", "Two."]),
        ("translate English to X: One.\n\nTwo.\n", ["translate English to X: One.", "translate English to X: Two."]),
        ("grammar: One.\nTwo.", ["grammar: One.", "grammar: Two."]),
        ("summarize: One.\nTwo.", ["summarize: One.\nTwo."]),
        ("question: One?\ncontext: Two.", ["question: One?\ncontext: Two."]),
    ],
)
def test_t5_takes_line_by_line_where_its_task_is_a_text(tmp_path: Path, text: str, expected: list[str]) -> None:
    model, engine = line_model(tmp_path)
    model.generate(text)
    assert inputs(engine) == expected


@pytest.mark.parametrize("name", ["flan-t5-small", "t5-xsum-summarizer", "t5-base-qa-squad"])
def test_t5_that_was_trained_on_tasks_about_texts_takes_them_as_a_whole(tmp_path: Path, name: str) -> None:
    model, engine = line_model(tmp_path, name)
    model.generate("One.\n\nTwo.")
    assert inputs(engine) == ["One.\n\nTwo."]


def test_a_vocabulary_with_line_breaks_keeps_them_itself(tmp_path: Path) -> None:
    model, engine = sentence_model(tmp_path, "t5")
    assert model.generate("One.\n\nTwo.").text == "ONE.\n\nTWO."
    assert inputs(engine) == ["One.\n\nTwo."]
    assert model.text.encode("\n") != [END]


@pytest.mark.parametrize(
    "text",
    [
        *("." * 100_000, "Fig. 1. " * 20_000, "\n" * 300_000, "It is one. And it is two. " * 10_000, ".)" * 50_000),
        *("a. " + "(" * 100_000, "?!" * 50_000 + " x", "\u3002" * 100_000, "x. " + "'" * 100_000 + " Y."),
    ],
    ids=lambda text: repr(text[:12]),
)
def test_a_long_text_is_taken_apart_in_a_time_that_grows_as_it_does(text: str) -> None:
    began = time.thread_time()
    found = _sentences(text)
    assert time.thread_time() - began < 5, "as often as there are characters, it would be minutes"
    if found is not None:
        parts = [*found.gaps]
        for i, part in enumerate(found.texts):
            parts.insert(2 * i + 1, part)
        assert "".join(parts) == text
