"""`edge profile --speculate`: which drafters it measures, over which engines, and what it refuses."""

from __future__ import annotations

import json
import re
import shutil
import weakref
from pathlib import Path
from typing import Any

import pytest
from places import DOCS

from edge.bundle import Bundle
from edge.cli import profile, profile_drafts
from edge.cli.arguments import Parser
from edge.cli.main import main
from edge.runtime.check.acceptance import _Counter
from edge.runtime.decode.draft import Draft
from edge.runtime.engine.engine import Engine
from edge.runtime.speculate.planner import Planner, StepCosts


def named(*names: str) -> list[str]:
    return [part for name in names for part in ("--drafter", name)]


def measured(bundle: Bundle, capsys: pytest.CaptureFixture[str], *names: str) -> list[str]:
    """The drafters of the command's rows."""
    assert main(["profile", str(bundle.root), "--speculate", "--seconds", "1", "--json", *named(*names)]) == 0
    return [each["drafter"] for each in json.loads(capsys.readouterr().out)]


def test_drafters_that_take_an_argument_are_measured_where_they_are_named(
    by_layer: Bundle, tiny_bundle: Bundle, capsys: pytest.CaptureFixture[str]
) -> None:
    names = ["self=exit", f"model={tiny_bundle.root}", "lookup", "self"]
    assert measured(by_layer, capsys, *names, "lookup") == ["off", *names], "once each, in the order of the command"


def test_a_path_stands_in_the_table_as_it_was_given(
    tiny_bundle: Bundle, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Where it is long, it goes on in the next line, and no number is cut."""
    folder = tmp_path / ("a" * 50)
    shutil.copytree(tiny_bundle.root, folder / "s[b].edge")
    monkeypatch.chdir(folder)
    for path in (Path("s[b].edge"), folder / "s[b].edge"):
        assert main(["profile", str(tiny_bundle.root), "--speculate", "--seconds", "1", *named(f"model={path}")]) == 0
        out = capsys.readouterr().out
        start = out.index("  model=")
        lines = out[start : out.index("Drafts: steps")].splitlines()
        assert f"model={path}" in "".join(line.split()[0] for line in lines if line.strip())
        assert re.search(r"% .* \d+\.\d\d +\d+\.\d{3} +\d+ +\d+\.\d\d *$", lines[0]), lines


def test_the_weights_of_two_engines_are_never_held_at_once(
    by_layer: Bundle, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    opened: list[weakref.ref[Engine]] = []
    opens = profile_drafts.open_engine

    def alone(*args: Any, **kwargs: Any) -> Engine:
        assert not any(engine() for engine in opened)
        engine = opens(*args, **kwargs)
        opened.append(weakref.ref(engine))
        return engine

    monkeypatch.setattr(profile_drafts, "open_engine", alone)
    assert measured(by_layer, capsys, "recycle", "self=exit", "lookup") == ["off", "recycle", "self=exit", "lookup"]
    assert len(opened) == 2, "one for all that run the whole model"


def test_tokens_count_at_a_position_where_all_before_were_right() -> None:
    planner = Planner((0.5,), StepCosts(lambda: None, 8), 8)
    planner.begin()
    counter = _Counter(planner)
    draft = Draft([8, 5, 7], [0] * 3)
    planner.observe(draft, [8, 5, 3])
    assert (counter.seen[:4], counter.right[:4]) == ([1, 1, 1, 0], [1, 1, 0, 0])
    planner.observe(draft, [8, 6])
    assert (counter.seen[:4], counter.right[:4]) == ([2, 2, 1, 0], [2, 1, 0, 0])
    planner.observe(draft, [4])
    planner.observe(Draft((), ()), [8])
    assert (counter.seen[:4], counter.right[:4]) == ([3, 2, 1, 0], [2, 1, 0, 0])
    assert (counter.rounds, counter.drafts) == (4, 3)
    assert planner.acceptance.chances[0] != 0.5, "the planner still learns"


@pytest.mark.parametrize(
    ("name", "sentence"),
    [("self=exit", "tiny-llama has 2 layers"), ("self", "tiny-llama has 2 layers"),
     ("model=no-such.edge", "There is no bundle at no-such.edge")],
)  # fmt: skip
def test_a_drafter_that_the_bundle_cannot_have_is_refused_before_anything_is_loaded(
    name: str, sentence: str, tiny_bundle: Bundle, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delattr(profile_drafts, "open_engine")
    assert main(["profile", str(tiny_bundle.root), "--speculate", *named("lookup", name)]) == 2
    captured = capsys.readouterr()
    assert captured.out == "" and sentence in captured.err and captured.err.count("\n") == 1


def test_every_option_of_the_command_has_a_row_in_its_page() -> None:
    parser = Parser("edge profile", "")
    profile.add_arguments(parser)
    options = {option for action in parser._actions for option in action.option_strings if option[:2] == "--"}
    rows = set(re.findall(r"^\| `(--[a-z]+)", (DOCS / "guide" / "profile.md").read_text(), re.MULTILINE))
    assert rows == options - {"--help", "--no-strict"}  # which is in the row of --strict
