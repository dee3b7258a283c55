"""How long an export still takes, by what its stages are expected to take and a clock that says what they took."""

from __future__ import annotations

import random
import re
from pathlib import Path

import pytest

import edge
from edge.cli.export import LEFT
from edge.export.quantize import allocate, calibration
from edge.export.request.timeline import Stages, Timeline, in_words

STAGES = [("reading", 10.0), ("solving", 60.0), ("reading", 10.0), ("writing", 20.0)]


class Run:
    """A timeline, and what it says."""

    def __init__(self, stages: Stages = STAGES) -> None:
        self.now, self.said = 0.0, list[str]()
        self.timeline = Timeline(lambda done, total, text: self.said.append(text), lambda: self.now)
        self.timeline.begin(stages)

    def at(self, seconds: float, done: int, total: int, text: str) -> str:
        self.now = seconds
        self.timeline(done, total, text)
        return self.said[-1]

    def left(self, seconds: float) -> float:
        self.now = seconds
        return self.timeline.left()


def test_the_time_that_is_left_is_said_from_the_beginning() -> None:
    run = Run()
    assert run.said == ["reading · about 2 min left"] and run.left(0) == 100
    assert run.at(0, 0, 10, "reading") == "reading · about 2 min left"


def test_it_goes_by_while_nothing_is_reported() -> None:
    run = Run()
    assert [run.left(seconds) for seconds in (0, 2, 9.5)] == [100, 98, 90.5]


def test_a_stage_that_takes_longer_leaves_what_comes_after_it() -> None:
    run = Run()
    assert run.left(50) == run.left(500) == 90
    run.at(500, 0, 10, "writing")
    run.at(510, 10, 10, "writing")
    assert run.left(510) == run.left(9999) == 0


def test_what_stages_took_corrects_what_is_expected_of_the_others() -> None:
    run = Run()
    run.at(20, 0, 60, "solving")  # 20 s instead of 10
    assert 120 < run.left(20) < 180
    for done in range(1, 31):
        run.at(20 + 2 * done, done, 60, "solving")
    assert run.left(80) == pytest.approx(120, rel=0.1)  # 60 s of the estimate are left
    for done in range(31, 61):  # now as fast as expected
        run.at(50 + done, done, 60, "solving")
    assert run.left(110) == pytest.approx(30, rel=0.3)


def test_what_was_kept_does_not_count_as_fast() -> None:
    run = Run()
    run.at(10, 0, 30, "solving")
    run.at(11, 20, 30, "solving")  # 20 of 30 layers were there
    assert run.left(11) == pytest.approx(50, abs=1)


def test_stages_that_are_left_out_do_not_count_as_fast() -> None:
    run = Run()
    run.at(10, 0, 20, "writing")
    assert run.left(10) == pytest.approx(20, abs=1)


def test_a_stage_that_is_not_named_takes_the_last_estimate_along() -> None:
    run = Run()
    run.at(10, 0, 10, "solving")
    assert run.at(12, 0, 0, "hashing") == "hashing · about 90 s left" and run.left(12) == 88


@pytest.mark.parametrize("done", [0, 5, 10])
def test_a_total_that_is_not_known_counts_as_nothing_done(done: int) -> None:
    run = Run()
    run.at(10, done, 0, "solving")
    assert run.left(10) == 90


def test_nothing_is_said_where_nothing_is_known() -> None:
    said = list[str]()
    Timeline(lambda done, total, text: said.append(text))(0, 10, "reading")
    assert said == ["reading"]


@pytest.mark.parametrize("seed", range(20))
def test_the_time_that_is_left_stays_sane_however_stages_go(seed: int) -> None:
    """Whatever is faster, slower, left out, kept or reported twice: what is left is never negative, lies within what
    the slowest and the fastest of these stages would leave, and only falls between two reports."""
    draw = random.Random(seed)
    stages = [(f"stage {i}", draw.choice([0.5, 3, 20, 90])) for i in range(8)]
    run, now = Run(stages), 0.0
    for i, (text, seconds) in enumerate(stages):
        if draw.random() < 0.2:
            continue
        pace, steps = draw.choice([0.01, 0.5, 1, 3]), draw.choice([0, 1, 7])
        for done in range(steps + 1):
            run.at(now, done, steps, text)
            after = sum(share for _, share in stages[i:])
            assert 0 <= run.left(now) <= 8 * after + 1
            now += draw.random() * 2 * pace * seconds / (steps + 1)
            assert 0 <= run.left(now) <= run.left(now - 0.001)
    assert run.left(now + 1e4) == 0 or stages[-1][0] not in {text.partition(LEFT)[0] for text in run.said}


@pytest.mark.parametrize(
    ("seconds", "words"),
    [
        *((0, "a few seconds"), (7, "a few seconds"), (8, "about 10 s"), (44, "about 40 s"), (89, "about 90 s")),
        *((95, "about 2 min"), (362, "about 6 min"), (7000, "about 2 h"), (8400, "about 2 h 20 min")),
    ],
)
def test_times_are_said_as_exactly_as_they_are_known(seconds: float, words: str) -> None:
    assert in_words(seconds) == words


@pytest.mark.parametrize("seed", range(3))
def test_a_longer_time_is_never_said_to_be_shorter(seed: int) -> None:
    draw = random.Random(seed)

    def length(words: str) -> int:
        units = {"s": 1, "min": 60, "h": 3600}
        return sum(int(count) * units[unit] for count, unit in re.findall(r"(\d+) (\w+)", words))

    times = sorted(draw.expovariate(1 / 3000) for _ in range(300))
    said = [length(in_words(each)) for each in times]
    assert said == sorted(said)


@pytest.mark.parametrize(
    ("weights", "effort"),
    [("int4", "quick"), ("int4", "normal"), ("int4", "best"), ("int8", "quick"), ("int8", "normal")],
)
def test_an_export_goes_through_the_stages_that_its_remaining_time_is_told_by(
    weights: str, effort: str, tiny_checkpoint: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        "edge.export.pipeline.finish.refuse_if_broken", lambda *_, **__: None
    )  # random weights in 4 bits may be
    monkeypatch.setattr(calibration, "MAX_WINDOWS", allocate.WINDOWS)  # as few as every stage runs with
    told, begun = list[str](), list[Stages]()
    begin = Timeline.begin

    def noted(timeline: Timeline, stages: Stages) -> None:
        begun.append(stages)
        begin(timeline, stages)

    monkeypatch.setattr(Timeline, "begin", noted)

    def progress(done: int, total: int, text: str) -> None:
        told.append(text.partition(LEFT)[0])

    edge.export(tiny_checkpoint, tmp_path / "x.edge", weights=weights, effort=effort, draft_text=8, progress=progress)
    (stages,) = begun
    later = iter(told)
    assert stages and all(name in later for name, _ in stages), (stages, told)
