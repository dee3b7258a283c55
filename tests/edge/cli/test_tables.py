"""Tables in windows of any width: no word and no number is cut."""

from __future__ import annotations

import io
import random
import re
from collections.abc import Callable

import pytest
from rich.cells import cell_len

from edge import catalog
from edge.bundle import Bundle
from edge.cli import tables
from edge.cli.main import main

CODES = re.compile(r"\x1b\[[0-9;]*m")


class Window(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.fixture
def shown(monkeypatch: pytest.MonkeyPatch) -> Callable[..., str]:
    """What a command shows in a window of so many columns."""

    def shown(columns: int, *command: str) -> str:
        out = Window()
        monkeypatch.setenv("COLUMNS", str(columns))
        monkeypatch.setenv("TERM", "xterm")
        monkeypatch.setattr("sys.stdout", out)
        assert main(list(command)) == 0
        monkeypatch.undo()
        return CODES.sub("", out.getvalue())

    return shown


@pytest.mark.parametrize("columns", [20, 30, 40, 60, 79, 80, 120, 200])
@pytest.mark.parametrize("seed", range(4))
def test_every_cell_is_whole_in_every_window(seed: int, columns: int, monkeypatch: pytest.MonkeyPatch) -> None:
    choose = random.Random(seed)
    words = ["Apache-2.0", "hub,", "PyPI*", "-", "日本語", "naïve", "layers.12.mlp", "x"]
    text = {"Name", "Licence", "Notes"}
    rows = [
        (
            *(f"name-{i}", f"{choose.randint(0, 10**7):,}", choose.choice(words), f"{choose.random():.4f}"),
            " ".join(choose.choices(words, k=5)),
        )
        for i in range(5)
    ]
    made = tables.table("Title", "Name", "Bytes", "Licence", "ms", "Notes", text=text, compact=choose.random() < 0.5)
    for row in rows:
        made.add_row(*row)
    out = Window()
    monkeypatch.setenv("COLUMNS", str(columns))
    monkeypatch.setattr("sys.stdout", out)
    tables.console(wrap=choose.random() < 0.5).print(made)
    lines = CODES.sub("", out.getvalue()).splitlines()
    assert all(cell_len(line) <= columns for line in lines)
    found = " ".join(lines).split()
    assert {word for row in rows for cell in row for word in cell.split()} <= set(found)


def test_what_fits_is_a_table_and_what_does_not_is_lines_of_a_name_and_a_value(shown: Callable[..., str]) -> None:
    wide, narrow = shown(80, "models"), shown(60, "models")
    rows = [line for line in wide.splitlines() if re.match(r"[a-z0-9.:-]+[†‡]? +[0-9.]+[MB] ", line)]
    assert len(rows) == len(catalog.entries()) and all(len(line) <= 80 for line in wide.splitlines())
    assert all("Apache-2.0" in line or "Apache" not in line for line in rows)
    assert re.search(r"^gemma-3-270m† +268M ", wide, re.MULTILINE)
    assert "† a base model: it continues a text" in wide
    assert "\ngemma-3-270m†\n  Size     268M" in narrow and all(len(line) <= 60 for line in narrow.splitlines())


def test_a_pipe_gets_tables_in_their_full_width(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("COLUMNS", raising=False)
    made = tables.table("", *(f"column {i}" for i in range(30)), text=1)
    made.add_row("name", *(f"{i * 1001:,}" for i in range(1, 30)))
    tables.console().print(made)
    assert any(line.split()[:3] == ["name", "1,001", "2,002"] for line in capsys.readouterr().out.splitlines())


def test_what_is_in_a_bundle_fits_a_narrow_window(tiny_bundle: Bundle, shown: Callable[..., str]) -> None:
    text = shown(50, "inspect", str(tiny_bundle.root))
    assert all(cell_len(line) <= 50 for line in text.splitlines()), text
    assert "Method       float32" in text
