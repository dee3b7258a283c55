"""The fixture that the tests of `edge run` share."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from edge.cli.main import main


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str]) -> Callable[..., tuple[int, str, str]]:
    """Runs the command in this process: exit status, standard output, standard error."""

    def run(*args: object) -> tuple[int, str, str]:
        status = main(["run", *map(str, args)])
        out, err = capsys.readouterr()
        return status, out, err

    return run
