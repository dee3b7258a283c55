"""Drafts from the input: the same output in fewer steps where it resembles the input, and little lost where not."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from types import SimpleNamespace

import pytest
from fake_text2text import START, FakeText2TextEngine, fake_text2text

from edge.errors import InputError
from edge.manifest import Generation
from edge.runtime.decode.draft import NOTHING
from edge.runtime.decode.text2text_options import Text2TextOptions
from edge.runtime.memory.footprint import Demand
from edge.runtime.speculate.drafter import Budget
from edge.runtime.speculate.input import Input
from edge.runtime.speculate.planner import GUESSED_SLOPE, StepCosts
from edge.runtime.text2text import Text2Text

TEXT = "he have two cat and a dog, he say"
FIXED = "he has two cats and a dog, he says"


@pytest.fixture(autouse=True)
def fixed_costs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(StepCosts, "took", lambda *_: None)  # a fake engine's times mean nothing


def drafting(folder: Path, output: object, **options: object) -> tuple[Text2Text, FakeText2TextEngine]:
    return fake_text2text(folder, output, speculate="input", **options)  # type: ignore[arg-type]


def cost(steps: list[int]) -> float:
    return sum(1 + GUESSED_SLOPE * (size - 1) for size in steps)


@pytest.mark.parametrize("speculate", ["input", "lookup", "blend", "trigram"])
@pytest.mark.parametrize("output", [lambda text: text, lambda text: FIXED, str.upper, lambda text: text[::-1] * 2])
@pytest.mark.parametrize("options", [{}, {"temperature": 0.9, "seed": 3}, {"no_repeat_ngram": 5}, {"max_tokens": 9}])
def test_speculation_of_an_encoder_decoder_changes_no_text(
    tmp_path: Path, output: object, options: dict[str, object], speculate: str
) -> None:
    plain, _ = fake_text2text(tmp_path, output)  # type: ignore[arg-type]
    model, _ = fake_text2text(tmp_path, output, speculate=speculate)  # type: ignore[arg-type]
    wanted = plain.generate(TEXT, Text2TextOptions(**options))  # type: ignore[arg-type]
    assert wanted.speculation is None
    for _ in range(3):
        drafted = model.generate(TEXT, Text2TextOptions(**options))  # type: ignore[arg-type]
        assert (drafted.text, drafted.token_ids) == (wanted.text, wanted.token_ids)
        assert drafted.finish_reason == wanted.finish_reason
        assert drafted.speculation is not None and drafted.speculation["drafter"] == speculate


def test_a_copied_text_takes_few_steps(tmp_path: Path) -> None:
    model, engine = drafting(tmp_path, lambda text: text)
    model.generate(TEXT)
    assert len(engine.steps) <= 7
    engine.steps.clear()
    assert model.generate(TEXT).speculation["accepted"] == len(TEXT) + 1 - len(engine.steps)  # type: ignore[index]
    assert len(engine.steps) <= 6


def test_after_a_mismatch_the_draft_goes_on_behind_it(tmp_path: Path) -> None:
    model, engine = drafting(tmp_path, lambda text: FIXED)
    for _ in range(3):
        engine.steps.clear()
        assert model.generate(TEXT).text == FIXED
    assert len(engine.steps) < 0.6 * len(FIXED) and cost(engine.steps) < 0.85 * len(FIXED)


def test_little_is_lost_where_output_and_input_do_not_resemble(tmp_path: Path) -> None:
    model, engine = drafting(tmp_path, lambda text: "Zwölf Boxkämpfer jagen Viktor")
    for _ in range(5):
        model.generate(TEXT)
    engine.steps.clear()
    tokens = model.generate(TEXT).generated_tokens
    assert cost(engine.steps) < 1.05 * tokens


def test_the_draft_stays_within_the_cache(tmp_path: Path) -> None:
    model, engine = drafting(tmp_path, lambda text: text, context=12)
    result = model.generate(TEXT)
    assert (result.finish_reason, result.text) == ("context", TEXT[:12])
    assert engine.longest <= 13


@pytest.mark.parametrize("width", [1, 4])
def test_a_step_is_as_wide_as_memory_was_planned_for(tmp_path: Path, width: int) -> None:
    model, engine = drafting(tmp_path, lambda text: text)
    engine.plan = SimpleNamespace(demand=Demand(context=1000, chunk=4, width=width))  # type: ignore[assignment]
    assert model.generate(TEXT).text == TEXT
    assert max(engine.steps) == width


def test_an_interruption_ends_the_output(tmp_path: Path) -> None:
    model, engine = drafting(tmp_path, lambda text: text)
    result = model.generate(TEXT, Text2TextOptions(interrupted=lambda: len(engine.steps) == 3))
    assert result.finish_reason == "interrupted" and TEXT.startswith(result.text) and result.text


def test_the_decoders_start_and_the_first_draft_are_one_step(tmp_path: Path) -> None:
    model, engine = drafting(tmp_path, lambda text: text)
    model.generate(TEXT)
    assert engine.prompts == [[START]] and engine.steps[0] > 1


def test_beams_are_refused_and_those_of_the_bundle_are_not_taken(tmp_path: Path) -> None:
    model, engine = drafting(tmp_path, str.upper, generation=Generation(num_beams=4))
    assert model.generate(TEXT).text == TEXT.upper() and engine.steps.count(1) > 9
    for call in (model.check, lambda options: model.generate(TEXT, options)):
        with pytest.raises(InputError, match="The drafter input drafts one text at a time; leave it out, or ask for"):
            call(Text2TextOptions(beams=2))


@pytest.mark.parametrize("name", ["recycle", "cascade", "model=x.edge", "self", "self=2,3"])
def test_a_drafter_of_decoders_is_refused(tmp_path: Path, name: str) -> None:
    word = name.partition("=")[0]
    sentence = f"The drafter {word} does not serve fake, which turns one text into another; choose off or one of"
    with pytest.raises(InputError, match=f"{sentence} blend, input, lookup, trigram"):
        fake_text2text(tmp_path, speculate=name)
    with pytest.raises(InputError, match="The drafter input does not serve bytes, which has no encoder; choose off or"):
        bundle = fake_text2text(tmp_path)[0].bundle
        decoder = dataclasses.replace(bundle.manifest, encoder=None, text=None, name="bytes")
        from edge.runtime.speculate.drafter import chosen

        chosen("input", dataclasses.replace(bundle, manifest=decoder))


def follow(source: str, output: str) -> Input:
    drafter = Input()
    drafter.begin([START], list(source.encode()))
    drafter.accept(list(output.encode()))
    return drafter


@pytest.mark.parametrize(
    ("source", "output", "expected", "run"),
    [
        ("abcdef", "", "abcdef", 0),
        ("abcdef", "abc", "def", 3),
        ("abcdefgh", "abXd", "efgh", 1),
        ("abcdefgh", "abd", "efgh", 1),
        ("abcdefgh", "abXXXcd", "efgh", 2),
        ("one two, one six", "one two, Xone ", "six", 4),
        ("one two, one", "one two, one two", ", one", 4),
    ],
    ids=["start", "copy", "replaced", "left out", "put in", "nearest place", "back"],
)
def test_the_draft_is_what_follows_in_the_input(source: str, output: str, expected: str, run: int) -> None:
    draft = follow(source, output).propose([], Budget(100))
    assert bytes(draft.tokens) == expected.encode()
    assert list(draft.grades) == [min(run + i, 4) for i in range(len(expected))], "by how much agreed before"


def test_nothing_is_drafted_behind_the_end_of_the_input() -> None:
    assert follow("abc", "abc").propose([], Budget(10)) == NOTHING
    assert follow("abc", "abcx").propose([], Budget(10)) == NOTHING
    assert follow("", "x").propose([], Budget(10)) == NOTHING
