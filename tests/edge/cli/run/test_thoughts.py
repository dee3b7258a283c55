"""Thoughts on a terminal are dimmed and stand before the answer; elsewhere there is the answer alone."""

from __future__ import annotations

import dataclasses
import io
import sys
from pathlib import Path

import pytest
from fake_engine import fake_model, says

from edge.cli.run import chat as chat_command
from edge.cli.run.terminal import CtrlC, show
from edge.cli.screen import screened
from edge.manifest import Generation
from edge.runtime.decode.answer import Piece, Timings
from edge.runtime.decode.generate_options import GenerateOptions

TIMINGS = Timings(1)
ANSWER = [
    Piece("", 1, None, TIMINGS, ""),
    Piece("", 2, None, TIMINGS, "hm \x1b[2J"),
    Piece("", 3, None, TIMINGS, "well"),
    Piece("", 4, None, TIMINGS, ""),
    Piece("Yes", 5, None, TIMINGS),
    Piece(".", 6, "stop", TIMINGS),
]


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def shown(
    monkeypatch: pytest.MonkeyPatch, pieces: list[Piece], *, out: bool = True, err: bool = True
) -> tuple[str, str]:
    streams = [Terminal() if terminal else io.StringIO() for terminal in (out, err)]
    monkeypatch.setattr(sys, "stdout", screened(streams[0]))
    monkeypatch.setattr(sys, "stderr", screened(streams[1]))
    show(pieces)
    monkeypatch.undo()
    return streams[0].getvalue(), streams[1].getvalue()


def test_thoughts_are_dimmed_before_the_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("NO_COLOR", raising=False)
    out, err = shown(monkeypatch, ANSWER)
    assert out == "\x1b[2mhm \\x1b[2J\x1b[0m\x1b[2mwell\x1b[0m\n\nYes.\n", "and nothing in them acts on the terminal"
    assert err == ""


@pytest.mark.parametrize("out", [True, False], ids=["terminal", "pipe"])
def test_thoughts_may_come_between_the_words(monkeypatch: pytest.MonkeyPatch, out: bool) -> None:
    """As gpt-oss's do, after what it says of what it does."""
    monkeypatch.setenv("NO_COLOR", "1")
    pieces = [Piece("Wait.", 1, None, TIMINGS), Piece("", 2, None, TIMINGS, "hm"), Piece("Yes.", 3, "stop", TIMINGS)]
    said, notes = shown(monkeypatch, pieces, out=out)
    assert said == ("Wait.\nhm\n\nYes.\n" if out else "Wait.Yes.\n")
    assert notes == ("" if out else "hm\n\n"), "and nobody is told that there was no answer"


def test_without_colours_thoughts_are_plain(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NO_COLOR", "1")
    streams = Terminal(), Terminal()
    monkeypatch.setattr(sys, "stdout", screened(streams[0]))
    show(ANSWER)
    assert streams[0].getvalue() == "hm \\x1b[2Jwell\n\nYes.\n"


def test_a_pipe_gets_the_answer_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("NO_COLOR", raising=False)
    out, err = shown(monkeypatch, ANSWER, out=False)
    assert out == "Yes.\n" and "well" in err, "who sits at a terminal sees that something happens"
    assert shown(monkeypatch, ANSWER, out=False, err=False) == ("Yes.\n", "")


@pytest.mark.parametrize("finish", ["length", "interrupted", "context", "stop"])
def test_an_answer_that_is_only_thoughts_says_what_helps(monkeypatch: pytest.MonkeyPatch, finish: str) -> None:
    pieces = [*ANSWER[:3], Piece("", 4, finish, TIMINGS, "")]  # type: ignore[arg-type]
    out, err = shown(monkeypatch, pieces, out=False, err=False)
    assert out == "\n" and "--think-tokens N closes its thoughts" in err and "--no-think" in err


@pytest.mark.parametrize("given", [{}, {"temperature": 0}, {"temperature": 0.2, "seed": 7}], ids=str)
def test_a_chat_says_at_its_beginning_how_answers_are_drawn(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], given: dict[str, float]
) -> None:
    model, _ = fake_model(tmp_path, says("Hello."))
    settings = Generation(do_sample=True, temperature=0.6, top_k=20)
    manifest = dataclasses.replace(model.bundle.manifest, generation=settings)
    model.bundle = dataclasses.replace(model.bundle, manifest=manifest)
    monkeypatch.setattr("builtins.input", lambda prompt: "/quit")
    interrupted = CtrlC()
    chat_command.chat(model, GenerateOptions(interrupted=interrupted, **given), None, interrupted)  # type: ignore[arg-type]
    said = capsys.readouterr().err
    drawn = f"Answers are drawn: temperature {given.get('temperature', 0.6)}, top-k 20, seed {given.get('seed', 0)}."
    assert (drawn in said) == (given.get("temperature") != 0) == ("Answers are drawn" in said)
