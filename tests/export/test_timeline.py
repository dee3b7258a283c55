"""How long an export still takes, by stages whose shares are known and a clock that is not."""

from __future__ import annotations

from pathlib import Path

import pytest

import edge
from edge.cli.export import LEFT
from edge.export.timeline import OF_INT4, Timeline

STAGES = [("reading", 10.0), ("solving", 60.0), ("reading", 10.0), ("writing", 20.0)]


class Run:
    """A timeline, and what it says."""

    def __init__(self) -> None:
        self.now, self.said = 0.0, list[str]()
        self.report = Timeline(lambda done, total, text: self.said.append(text), STAGES, lambda: self.now)

    def at(self, seconds: float, done: int, total: int, text: str) -> str:
        self.now = seconds
        self.report(done, total, text)
        return self.said[-1]


def test_the_time_that_is_left_follows_from_the_speed_so_far() -> None:
    run = Run()
    assert run.at(0, 0, 10, "reading") == "reading"
    assert run.at(30, 0, 10, "solving") == "solving · about 4 min left"  # 10 of 100 in 30 s
    assert run.at(60, 5, 30, "solving") == "solving · about 4 min left"
    assert run.at(210, 0, 10, "reading") == "reading · about 2 min left"  # in the last 150 s 50 of them
    assert run.at(246, 1, 10, "writing") == "writing · about 50 s left"


def test_nothing_is_said_before_there_is_something_to_go_by() -> None:
    run = Run()
    assert run.at(0, 0, 10, "reading") == "reading"
    assert run.at(3, 9, 10, "reading") == "reading"


def test_what_was_kept_does_not_count_as_fast() -> None:
    run = Run()
    run.at(0, 0, 30, "solving")
    run.at(1, 20, 30, "solving")  # 20 of 30 layers were there
    for layer in range(21, 30):
        said = run.at(1 + 30 * (layer - 20), layer, 30, "solving")
    assert said == "solving · about 8 min left"  # 15 s for each of 32


def test_stages_that_are_left_out_do_not_count_as_fast() -> None:
    run = Run()
    run.at(0, 0, 10, "reading")
    run.at(10, 5, 10, "reading")
    run.at(20, 0, 20, "writing")  # 70 of 100 were left out
    assert run.at(40, 10, 20, "writing") == "writing · about 20 s left"


def test_a_stage_that_is_not_named_takes_the_last_estimate_along() -> None:
    run = Run()
    run.at(0, 0, 10, "reading")
    run.at(30, 0, 10, "solving")
    assert run.at(31, 0, 0, "hashing") == "hashing · about 4 min left"


@pytest.mark.parametrize("done", [0, 5, 10])
def test_a_total_that_is_not_known_counts_as_nothing_done(done: int) -> None:
    run = Run()
    run.at(0, 0, 10, "reading")
    assert run.at(30, done, 0, "solving") == "solving · about 4 min left"


@pytest.mark.parametrize("effort", OF_INT4)
def test_an_export_goes_through_the_stages_that_its_remaining_time_is_told_by(
    effort: str, tiny_checkpoint: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("edge.export.check.refuse_if_broken", lambda *_, **__: None)  # random weights in 4 bits may be
    told: list[str] = []

    def progress(done: int, total: int, text: str) -> None:
        told.append(text.partition(LEFT)[0])

    edge.export(tiny_checkpoint, tmp_path / "x.edge", weights="int4", effort=effort, draft_text=0, progress=progress)
    later = iter(told)
    assert all(name in later for name, _ in OF_INT4[effort]), told
