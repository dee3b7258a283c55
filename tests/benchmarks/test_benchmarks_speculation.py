"""What measures drafts and skipped layers: arithmetic and command lines, on small bundles."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest
import rejected
import skipping
import speculation
from speculation import Answer, goals, summary

from edge.bundle import Bundle
from edge.runtime.decode.draft import Draft
from edge.runtime.speculate.drafter import DRAFTERS

DID = {"steps": 10, "drafted": 30, "accepted": 20, "draft_s": 0.001}


@pytest.fixture
def questions(tmp_path: Path) -> Path:
    path = tmp_path / "questions.jsonl"
    each = [{"category": c, "turns": ["The moon", "And the sun"]} for c in ("writing", "qa", "rag")]
    path.write_text("\n".join(json.dumps({"question_id": i, **question}) for i, question in enumerate(each)))
    return path


def run(monkeypatch: pytest.MonkeyPatch, bundle: Bundle, questions: Path, *arguments: object) -> int:
    given = ["--bundle", bundle.root, "--questions", questions, "--context", 120, *arguments]
    monkeypatch.setattr(sys, "argv", ["benchmark", *map(str, given)])
    return speculation.main()


def given(task: str, number: int, form: str, turns: list[float], tokens: int = 100) -> Answer:
    """An answer at these rates, turn by turn."""
    return Answer(task, number, form, tokens, tokens / max(turns), None if form == "off" else DID, turns)


def test_forms_are_compared_question_by_question() -> None:
    answers = [
        given("qa", 1, "off", [100.0]),
        given("qa", 1, "auto", [200.0]),
        given("rag", 2, "off", [150.0], 300),
        given("rag", 2, "auto", [100.0], 20),
    ]
    found = summary(answers, ["off", "auto"])
    rows = {(row["form"], row["task"]): row for row in found}
    assert rows["off", "overall"]["ratio"] == 1 and rows["auto", "qa"]["ratio"] == 2
    assert rows["auto", "overall"]["tokens_per_s"] == pytest.approx(120 / 0.7)
    overall = rows["auto", "overall"]
    assert overall["worst"] == pytest.approx(100 / 150) and overall["worst_question"] == 2
    assert overall["accepted_per_step"] == 2 and "steps" not in rows["off", "qa"]
    assert {goal.text: goal.met for goal in goals(found, "auto")} == {
        "auto, overall": False,
        "auto, least task (rag)": False,
        "auto, worst question (2)": False,
        "auto, drafting / a plain step": True,
    }
    plain_ms = 1e3 * 3 / 400
    assert goals(found, "auto")[-1].ratio == pytest.approx(overall["draft_ms_per_step"] / plain_ms)


def test_single_questions_are_compared_turn_by_turn() -> None:
    plain = given("qa", 1, "off", [100, 200, 90])  # one turn on a machine twice as fast
    overall = summary([plain, given("qa", 1, "auto", [110, 105, 99])], ["off", "auto"])[2]
    assert overall["worst"] == pytest.approx(1.1) and overall["ratio"] == pytest.approx(0.55)


def test_a_form_is_compared_over_the_questions_that_it_answered() -> None:
    answers = [given("qa", 1, "off", [100.0]), given("qa", 2, "off", [11.0]), given("qa", 1, "lookup:2", [200.0])]
    rows = summary(answers, ["off", "lookup:2"])
    assert [row["ratio"] for row in rows if row["form"] == "lookup:2"] == [2, 2]


def test_every_form_answers_every_question_in_turns(
    tiny_bundle: Bundle,
    questions: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    asked = ["--tokens", 20, "--forms", "auto lookup:3/2 cascade~", "--repeats", 2, "--out", tmp_path]
    assert run(monkeypatch, tiny_bundle, questions, *asked) == 0
    answers = json.loads((tmp_path / "speculation.json").read_text())["answers"]
    forms = ["off", "auto", "lookup:3/2", "cascade~"]
    assert [(a["question"], a["form"]) for a in answers] == [(number, form) for number in range(3) for form in forms]
    assert all(len(a["turns"]) == 2 and a["tokens"] > 0 for a in answers)
    assert all((a["speculation"] is None) == (a["form"] == "off") for a in answers)
    assert "temperature 0, up to 20 tokens" in (said := capsys.readouterr().out) and "least task" in said


def test_texts_are_checked_from_prompts_that_are_read_once(
    tiny_bundle: Bundle, questions: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(monkeypatch, tiny_bundle, questions, "--tokens", 20, "--check", "--forms", "lookup cascade") == 0
    assert "3 questions, 6 answers" in (out := capsys.readouterr().out) and "none differs" in out


def test_a_text_that_differs_is_found(
    tiny_bundle: Bundle, questions: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from edge.runtime.decode import loop

    def credulous(logits: Any, draft: Any, sampler: Any) -> list[int]:
        return [*draft.tokens, sampler(logits[len(draft.tokens)])]

    monkeypatch.setattr(loop, "accept", credulous)
    assert run(monkeypatch, tiny_bundle, questions, "--tokens", 40, "--check", "--forms", "lookup:3") == 1
    assert "differ: [('lookup:3', " in capsys.readouterr().out


@pytest.mark.parametrize("draft", [Draft([101, 102], [0, 0]), Draft((), ())])
def test_a_foe_says_nothing_that_was_drafted(draft: Draft) -> None:
    foe = rejected.Foe()
    for _ in range(30):
        foe.proposed = draft
        assert foe(None) not in draft.tokens[:1]


def test_every_drafter_is_timed_where_nothing_is_accepted(by_layer: Bundle, capsys: pytest.CaptureFixture[Any]) -> None:
    assert rejected.main(["--bundle", str(by_layer.root), "--tokens", "12", "--rounds", "1", "--threads", "1"]) == 0
    out = capsys.readouterr().out
    assert all(f"| {name} " in out for name in DRAFTERS if name != "model") and "wanted of each" in out


def test_the_cost_of_units_is_measured_next_to_the_whole_graph(
    by_half: Bundle, capsys: pytest.CaptureFixture[str]
) -> None:
    assert skipping.main(["--bundle", str(by_half.root), "--rounds", "1"]) == 0
    said = capsys.readouterr().out
    assert said.startswith("10 units, ") and all(f"{name}: " in said for name in skipping.WANTED)
