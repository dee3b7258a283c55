"""The arithmetic and the command lines of what measures drafts, on a small bundle; no peer is needed."""

from __future__ import annotations

import json
import math
import sys
from pathlib import Path
from typing import Any

import choosing
import pytest
import speculation
from drafting.answers import Answer, against, form_goals, peer_goals, rate, summary
from drafting.replay import Line, Recorded, Setting, replay

from edge.bundle import Bundle

DID = {"steps": 10, "drafted": 30, "accepted": 20, "draft_s": 0.001, "verify_s": 0.1}


@pytest.fixture
def questions(tmp_path: Path) -> Path:
    path = tmp_path / "questions.jsonl"
    each = [{"category": c, "turns": ["The moon", "And the sun"]} for c in ("writing", "qa", "rag")]
    path.write_text("\n".join(json.dumps({"question_id": i, **question}) for i, question in enumerate(each)))
    return path


def run(main: Any, monkeypatch: pytest.MonkeyPatch, *arguments: object) -> int:
    monkeypatch.setattr(sys, "argv", ["benchmark", *map(str, arguments)])
    return int(main())


def test_forms_are_compared_question_by_question() -> None:
    answers = [
        Answer("qa", 1, "off", 100, 1.0, 50.0),
        Answer("qa", 1, "auto", 100, 0.5, 52.0, DID),
        Answer("rag", 2, "off", 300, 2.0, 70.0),
        Answer("rag", 2, "auto", 20, 0.2, 70.0, DID),
    ]
    found = summary(answers, ["off", "auto"])
    rows = {(row["form"], row["task"]): row for row in found}
    assert rows["off", "overall"]["ratio"] == 1 and rows["auto", "qa"]["ratio"] == 2
    assert rows["auto", "overall"]["tokens_per_s"] == pytest.approx(120 / 0.7)
    overall = rows["auto", "overall"]
    assert overall["worst"] == pytest.approx(100 / 150) and overall["worst_question"] == 2
    assert overall["accepted_per_step"] == 2 and "steps" not in rows["off", "qa"]
    goals = {goal.text: goal.met for goal in form_goals(found, "auto")}
    assert goals == {
        "auto, overall": False,
        "auto, least task (rag)": False,
        "auto, worst question (2)": False,
        "auto, drafting / a plain step": True,
    }
    drafting = form_goals(found, "auto")[-1]
    plain_ms = 1e3 * 3 / 400
    assert drafting.ratio == pytest.approx(overall["draft_ms_per_step"] / plain_ms)


def test_single_questions_are_compared_turn_by_turn() -> None:
    plain = Answer("qa", 1, "off", 100, 0.5, 50.0, turns=[100, 200, 90])  # one turn on a machine twice as fast
    drafted = Answer("qa", 1, "auto", 100, 0.9, 52.0, DID, turns=[110, 105, 99])
    overall = summary([plain, drafted], ["off", "auto"])[2]
    assert overall["worst"] == pytest.approx(1.1) and overall["ratio"] == pytest.approx(0.5 / 0.9)


def turns_of(**rates: list[float]) -> speculation.Turns:
    """Answers of 100 tokens at these rates, turn by turn."""
    turns = speculation.Turns(list(rates), 2)
    for turn in zip(*rates.values(), strict=True):
        turns.add(
            {
                form: Answer("qa", 1, form, 100 if each else 0, 100 / each if each else 0.9, 50.0)
                for form, each in zip(rates, turn, strict=True)
            }
        )
    return turns


def test_a_question_that_came_out_low_is_asked_until_its_ratio_is_known() -> None:
    plain = [100.0, 50.0, 100.0, 100.0]  # once on a busy machine, which both answers of that turn saw
    assert not turns_of(off=plain, auto=[120.0, 60.0, 121.0, 120.0]).low
    low = turns_of(off=plain, auto=[91.0, 45.0, 90.0, 90.0])
    assert low.low and low.known
    assert [answer.turns for answer in low.answers()] == [plain, pytest.approx([91.0, 45.0, 90.0, 90.0])]
    fastest = [rate([answer]) for answer in turns_of(off=[50.0, 60.0, 100.0], auto=[40.0, 30.0, 200.0]).answers()]
    assert fastest == [60, 40], "turns that only low questions have do not count in rates over all"
    assert not turns_of(off=plain, auto=[120.0, 120.0, 90.0, 120.0]).known, "the turns say different things"
    assert not turns_of(off=[900.0] * 4, auto=[800.0] * 4).known, "half a second says little"
    assert not turns_of(off=[90.0] * 2, auto=[80.0] * 2).known, "nor do two turns"
    assert turns_of(off=[900.0] * 12, auto=[800.0] * 12).known, "but some time it is enough"
    assert not turns_of(off=plain, auto=[0.0] * 4).low, "an answer without tokens says nothing"


def test_a_form_is_compared_over_the_questions_that_it_answered() -> None:
    answers = [Answer("qa", 1, "off", 100, 1.0, 50.0), Answer("qa", 2, "off", 100, 9.0, 50.0)]
    rows = summary([*answers, Answer("qa", 1, "lookup:2", 100, 0.5, 52.0, DID)], ["off", "lookup:2"])
    assert [row["ratio"] for row in rows if row["form"] == "lookup:2"] == [2, 2]


def test_peers_are_compared_with_what_was_measured_beside_them() -> None:
    answers = [
        Answer("qa", 1, "auto", 100, 1.0, 50.0, DID),  # in turns with plain decoding: no part of it
        Answer("qa", 1, "auto", 100, 0.5, 50.0, DID, "genai"),
        Answer("qa", 1, "3-grams", 50, 0.5, 50.0, None, "genai"),
    ]
    rows = against(answers, "auto")
    assert [(row["task"], row["ours"], row["theirs"], row["ratio"]) for row in rows] == [
        ("overall", 200, 100, 2),
        ("qa", 200, 100, 2),
    ]
    assert [goal.met for goal in peer_goals(rows)] == [True]


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (["--peer", "vllm"], "there is no peer 'vllm'; there is: genai, llamacpp"),
        (["--peer", "genai=5-grams"], "genai has no setting '5-grams'; it has: 2-grams, 2 tokens"),
        (["--peer", "genai"], "--peer genai needs --genai"),
        (["--peer", "genai", "--genai", "m", "--temperature", "0.7"], "greedily alone, beside the first bundle: name"),
        (["--tasks", "qa,poems"], "poems"),
    ],
)
def test_a_wrong_option_is_refused_by_name(
    arguments: list[str], complaint: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        speculation.parse(["--bundle", "x.edge", "--questions", "q.jsonl", *arguments])
    assert complaint in capsys.readouterr().err


def test_parts_of_a_run_are_joined(
    tiny_bundle: Bundle, questions: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    command = ["--bundle", tiny_bundle.root, "--questions", questions, "--out", tmp_path, "--tokens", 20]
    command += ["--context", 120, "--count", 1, "--append", "--forms", "auto lookup:2/2 auto@4"]
    assert run(speculation.main, monkeypatch, *command, "--tasks", "chat,qa") == 0
    assert run(speculation.main, monkeypatch, *command, "--tasks", "rag") == 0
    (written,) = json.loads((tmp_path / "speculation.json").read_text())["cases"]
    assert {row["task"] for row in written["rows"]} == {"overall", "chat", "qa", "rag"}
    assert len(written["answers"]) == 4 * 3
    assert written["rows"][0]["form"] == "off" and written["rows"][0]["questions"] == 3


def test_bundles_and_temperatures_are_measured_in_one_run(
    tiny_bundle: Bundle,
    questions: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    command = ["--bundle", tiny_bundle.root, "--questions", questions, "--out", tmp_path, "--tokens", 20]
    command += ["--context", 120, "--count", 1, "--repeats", 2, "--temperature", 0, "--temperature", 0.7]
    monkeypatch.setattr(speculation, "LOW", 0.0)
    assert run(speculation.main, monkeypatch, *command) == 0
    cases = json.loads((tmp_path / "speculation.json").read_text())["cases"]
    assert [case["temperature"] for case in cases] == [0, 0.7]
    assert all(len(answer["turns"]) == 2 for case in cases for answer in case["answers"])
    monkeypatch.setattr(speculation, "LOW", math.inf)
    assert run(speculation.main, monkeypatch, *command[:-2], "--append", "--only", 1) == 0  # the greedy case alone
    again = json.loads((tmp_path / "speculation.json").read_text())["cases"]
    assert [(case["temperature"], len(case["answers"])) for case in again] == [(0.7, 6), (0, 6)]
    assert again[0] == cases[1]
    assert {a["question"]: len(a["turns"]) for a in again[1]["answers"]} == {0: 2, 1: speculation.TURNS, 2: 2}
    changed = [a["question"] for a, b in zip(again[1]["answers"], cases[0]["answers"], strict=True) if a != b]
    assert set(changed) == {1}
    said = capsys.readouterr().out
    assert ", greedy, up to 20 tokens" in said and ", temperature 0.7, up to 20 tokens" in said


def test_all_settings_of_a_peer_take_turns_with_ours(
    tiny_bundle: Bundle, questions: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[str] = []

    class Process:
        def __init__(self, form: str) -> None:
            self.form = form

        def ask(self, what: str, **given: Any) -> dict[str, float]:
            asked.append(self.form)
            return {"tokens": 10, "decode_s": 0.1, "prefill_s": 0.1}

        def close(self) -> None:
            asked.append("ended")

    monkeypatch.setattr(speculation.Run, "_worker", lambda self, peer, form: Process(form))
    monkeypatch.setattr(speculation, "BLOCK", 2)
    first, second = "3-grams, 3 tokens", "4-grams, 4 tokens"
    command = ["--bundle", tiny_bundle.root, "--questions", questions, "--out", tmp_path, "--tokens", 20, "--forms="]
    command += ["--context", 120, "--count", 1, "--peer", f"genai={first};{second}", "--genai", tmp_path]
    run(speculation.main, monkeypatch, *command)
    processes = [each.split() for each in " ".join(asked).split("ended")[:-1]]
    assert [each[0][0] for each in processes] == ["a", "3", "4", "4", "3", "a"]
    assert [each.count("auto") for each in processes] == [3, 0, 0, 0, 0, 2], "one to get warm, and the questions"
    (case,) = json.loads((tmp_path / "speculation.json").read_text())["cases"]
    forms = [(answer["form"], answer["beside"]) for answer in case["answers"]]
    assert {form: forms.count(form) for form in forms} == {(form, "genai"): 3 for form in ("auto", first, second)}


def test_texts_are_checked_from_prompts_that_are_read_once(
    tiny_bundle: Bundle, questions: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    command = ["--bundle", tiny_bundle.root, "--questions", questions, "--tokens", 20, "--context", 120, "--check"]
    assert run(speculation.main, monkeypatch, *command, "--forms", "lookup cascade") == 0
    assert "3 of 3 questions, 6 answers" in (out := capsys.readouterr().out) and "none differs" in out


def test_a_text_that_differs_is_found(
    tiny_bundle: Bundle, questions: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from edge.runtime.decode import loop

    def credulous(logits: Any, draft: Any, sampler: Any) -> tuple[list[int], list[int]]:
        sampled = [*draft.tokens, sampler(logits[len(draft.tokens)])]
        return sampled, list(range(len(draft.tokens)))

    monkeypatch.setattr(loop, "accept", credulous)
    command = ["--bundle", tiny_bundle.root, "--questions", questions, "--tokens", 40, "--context", 120, "--check"]
    assert run(speculation.main, monkeypatch, *command, "--forms", "lookup:3") == 1
    assert "differ: [('lookup:3', " in capsys.readouterr().out


def test_replayed_answers_cost_their_steps(tiny_bundle: Bundle) -> None:
    answer = [5, 6, 7, 8, 5, 6, 7, 8, 9, 5, 6, 7, 8]
    recorded = [Recorded("qa", 1, [5, 6, 7], answer)]
    found = next(iter(replay(tiny_bundle, recorded, Setting("lookup", 3, 2), Line(0.5))))
    assert found.tokens == 12
    # Behind 5: nothing. 6 7 8 were not seen whole before; from the second 5 6 on, three tokens are drafted each time.
    steps, drafted = 0, 0
    text, at = [5, 6, 7, 5], 1
    while at < len(answer):
        known = {tuple(text[i : i + 2]): i + 2 for i in range(len(text) - 2)}
        place = known.get(tuple(text[-2:]))
        draft = [] if place is None else (text[place:] * 3)[: min(3, len(answer) - at - 1)]
        held = next((i for i, token in enumerate(draft) if token != answer[at + i]), len(draft))
        steps, drafted = steps + 1, drafted + len(draft)
        text += answer[at : at + held + 1]
        at += held + 1
    assert found.cost == pytest.approx(steps + 0.5 * drafted)
    plain = choosing.replay_plain(recorded, Line(0.5))
    assert choosing.gains(plain) == {"overall": 1, "qa": 1}


def test_choosing_holds_plans_against_fixed_settings(
    tiny_bundle: Bundle, questions: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(choosing, "LENGTHS", (1, 3))
    command = ["--bundle", tiny_bundle.root, "--questions", questions, "--out", tmp_path, "--tokens", 20]
    assert run(choosing.main, monkeypatch, *command, "--context", 120, "--skip", 0, "--slope", 0.1) == 0
    written = json.loads((tmp_path / "choosing-0.1.json").read_text())
    assert {"lookup", "cascade", "lookup:3/2", "recycle:1", "blend:1"} <= set(written["rows"])
    assert all(set(row) == {"overall", "chat", "qa", "rag"} for row in written["rows"].values())
