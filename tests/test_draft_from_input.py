"""Drafts from the input: the same output in fewer steps where it resembles the input, and little lost where not."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest
from fake_text2text import END, START, fake_text2text

from edge.runtime.draft_from_input import Experience, InputDraft
from edge.runtime.memory_model import Demand
from edge.runtime.profile.curve import CostCurve
from edge.runtime.profile.record import CurvePoint
from edge.runtime.text2text import Text2Text, Text2TextOptions

TEXT = "he have two cat and a dog, he say"
FIXED = "he has two cats and a dog, he says"
DRAFTED = Text2TextOptions(draft_from_input=True)


class FixedCosts(Experience):
    """Steps that cost a fifth more for each further token, whatever the clock says."""

    def took(self, size: int, seconds: float) -> None:
        pass


@pytest.fixture(autouse=True)
def fixed_costs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("edge.runtime.text2text.Experience", FixedCosts)


def cost(steps: list[int]) -> float:
    return sum(1 + 0.2 * (size - 1) for size in steps)


@pytest.mark.parametrize("output", [lambda text: text, lambda text: FIXED, str.upper, lambda text: text[::-1] * 2])
@pytest.mark.parametrize("options", [{}, {"temperature": 0.9, "seed": 3}, {"no_repeat_ngram": 5}, {"max_tokens": 9}])
def test_the_output_is_the_same(tmp_path: Path, output: object, options: dict[str, object]) -> None:
    model, _ = fake_text2text(tmp_path, output)  # type: ignore[arg-type]
    plain = model.generate(TEXT, Text2TextOptions(**options))  # type: ignore[arg-type]
    for _ in range(3):
        drafted = model.generate(TEXT, Text2TextOptions(draft_from_input=True, **options))  # type: ignore[arg-type]
        assert (drafted.text, drafted.token_ids) == (plain.text, plain.token_ids)
        assert drafted.finish_reason == plain.finish_reason


def test_a_copied_text_takes_few_steps(tmp_path: Path) -> None:
    model, engine = fake_text2text(tmp_path, lambda text: text)
    model.generate(TEXT, DRAFTED)
    assert len(engine.steps) <= 6


def test_after_a_mismatch_the_draft_goes_on_behind_it(tmp_path: Path) -> None:
    model, engine = fake_text2text(tmp_path, lambda text: FIXED)
    for _ in range(3):
        engine.steps.clear()
        assert model.generate(TEXT, DRAFTED).text == FIXED
    assert len(engine.steps) < len(FIXED) / 2 and cost(engine.steps) < 0.75 * len(FIXED)


def test_little_is_lost_where_output_and_input_do_not_resemble(tmp_path: Path) -> None:
    model, engine = fake_text2text(tmp_path, lambda text: "Zwölf Boxkämpfer jagen Viktor")
    for _ in range(5):
        model.generate(TEXT, DRAFTED)
    engine.steps.clear()
    tokens = model.generate(TEXT, DRAFTED).generated_tokens
    assert cost(engine.steps) < 1.05 * tokens


def test_the_draft_stays_within_the_cache(tmp_path: Path) -> None:
    model, engine = fake_text2text(tmp_path, lambda text: text, context=12)
    result = model.generate(TEXT, DRAFTED)
    assert (result.finish_reason, result.text) == ("context", TEXT[:12])
    assert engine.longest <= 13


@pytest.mark.parametrize("width", [1, 4])
def test_a_step_is_as_wide_as_memory_was_planned_for(tmp_path: Path, width: int) -> None:
    model, engine = fake_text2text(tmp_path, lambda text: text)
    engine.plan = SimpleNamespace(demand=Demand(context=1000, chunk=4, width=width))
    assert model.generate(TEXT, DRAFTED).text == TEXT
    assert max(engine.steps) == width


def test_an_interruption_ends_the_output(tmp_path: Path) -> None:
    model, engine = fake_text2text(tmp_path, lambda text: text)
    options = Text2TextOptions(draft_from_input=True, interrupted=lambda: len(engine.steps) == 2)
    result = model.generate(TEXT, options)
    assert result.finish_reason == "interrupted" and TEXT.startswith(result.text) and result.text


def follow(source: str, output: str) -> InputDraft:
    draft = InputDraft(list(source.encode()), FixedCosts())
    for token in output.encode():
        draft.saw(token)
    return draft


@pytest.mark.parametrize(
    ("source", "output", "expected"),
    [
        ("abcdef", "", "abcdef"),
        ("abcdef", "abc", "def"),
        ("abcdefgh", "abXd", "efgh"),
        ("abcdefgh", "abd", "efgh"),
        ("abcdefgh", "abXXXcd", "efgh"),
        ("one two, one six", "one two, Xone ", "six"),
        ("one two, one", "one two, one two", ", one"),
    ],
    ids=["start", "copy", "replaced", "left out", "put in", "nearest place", "back"],
)
def test_the_draft_is_what_follows_in_the_input(source: str, output: str, expected: str) -> None:
    draft = follow(source, output).propose(100)
    assert draft and bytes(draft) == expected.encode()[: len(draft)]


def test_nothing_is_drafted_behind_the_end_of_the_input() -> None:
    assert follow("abc", "abc").propose(10) == []
    assert follow("abc", "abcx").propose(10) == []
    assert follow("", "x").propose(10) == []


def test_drafts_are_as_long_as_pays() -> None:
    experience = FixedCosts()
    for _ in range(100):
        experience.observe(4, True)
        experience.observe(1, False)
    assert experience.best_length(run=1, most=15) == 0
    assert experience.best_length(run=4, most=15) == 15
    assert experience.best_length(run=4, most=5) == 5


def test_measured_costs_decide() -> None:
    experience = Experience()
    before = experience.best_length(run=4, most=15)
    for _ in range(30):
        for size in (1, 2, 4, 8, 16):
            experience.took(size, float(size))  # as if nothing was gained by verifying together
    assert before > 0 == experience.best_length(run=4, most=15)


def test_what_the_device_was_measured_at_comes_before_a_guess() -> None:
    free = CostCurve([CurvePoint(size, 0, 2.0, 2.0, 2.0, 1) for size in (1, 8)])
    dear = CostCurve([CurvePoint(size, 0, 2.0 * size, 2.0 * size, 2.0 * size, 1) for size in (1, 8)])
    assert Experience(free).best_length(run=1, most=15) > Experience().best_length(run=1, most=15)
    assert Experience(dear).best_length(run=4, most=15) == 0


def test_a_single_slow_step_changes_little() -> None:
    experience = Experience()
    experience.took(1, 1.0)
    for size in (1, 4):
        experience.took(size, 100.0)
    assert 0.15 < experience.cost < 0.25


def test_the_prompt_and_the_first_draft_are_one_step(tmp_path: Path) -> None:
    model, engine = fake_text2text(tmp_path, lambda text: text)
    model.generate(TEXT, DRAFTED)
    assert engine.prompts[0][0] == START and len(engine.prompts[0]) > 1
    assert isinstance(model, Text2Text) and END not in engine.prompts[0]
