"""The fixtures that the tests of `edge run` share."""

from __future__ import annotations

import io
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from fake_engine import fake_model, says

from edge.cli.main import main
from edge.cli.run import chat as chat_command
from edge.cli.run.terminal import CtrlC
from edge.runtime.decode.generate_options import GenerateOptions
from edge.runtime.engine.variant import PLAIN
from edge.runtime.load import Loading


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str]) -> Callable[..., tuple[int, str, str]]:
    """Runs the command in this process: exit status, standard output, standard error."""

    def run(*args: object) -> tuple[int, str, str]:
        status = main(["run", *map(str, args)])
        out, err = capsys.readouterr()
        return status, out, err

    return run


@pytest.fixture
def serve(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Puts a model in the place of every bundle."""

    def serve(model: Any, engine: Any) -> None:
        monkeypatch.setattr("edge.cli.run.source.open_source", lambda path: model.bundle)
        monkeypatch.setattr("edge.runtime.load.start", lambda _, asked: Loading(model.bundle, asked, PLAIN, engine))

    return serve


@pytest.fixture
def pipe(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Gives the command its standard input."""

    def pipe(data: bytes, terminal: bool = False) -> None:
        monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(data)))
        monkeypatch.setattr("sys.stdin.isatty", lambda: terminal)

    return pipe


@pytest.fixture
def talk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Callable[..., tuple]:
    """Holds a chat with the lines a user types: standard output, standard error, the engine."""

    def talk(lines: list[str | type[BaseException]], *answers: str, **options: object) -> tuple[str, str, object]:
        model, engine = fake_model(tmp_path, says(*answers), **options)  # type: ignore[arg-type]
        typed = iter(lines)

        def type_line(prompt: str = "") -> str:
            line = next(typed, EOFError)
            if not isinstance(line, str):
                raise line
            return line

        monkeypatch.setattr("builtins.input", type_line)
        interrupted = CtrlC()
        chat_command.chat(model, GenerateOptions(interrupted=interrupted, max_tokens=20), None, interrupted)
        out, err = capsys.readouterr()
        return out, err, engine

    return talk
