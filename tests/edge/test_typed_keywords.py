"""Type checkers know every keyword of the public functions, and call a wrong one an error."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest
from places import ROOT

from edge.runtime.options import fields, has_option
from tools.options import SECTIONS

CALLS = {  # of each section of docs/reference/options.md: the keywords' type, and what takes them
    "Loading": ("edge.runtime.keywords.LoadKeywords", 'edge.load("x", {})', 'edge.load("x", kind=edge.Model, {})'),
    "Answers": (
        "edge.runtime.keywords.GenerateKeywords",
        *('model.generate("x", raw=True, {})', 'model.stream("x", {})', 'model.generate_all(["x"], {})'),
        *('model.answers(["x"], {})', 'model.chat().generate("x", {})', 'model.chat().stream("x", {})'),
    ),
    "Text to text": (
        "edge.runtime.keywords.Text2TextKeywords",
        *('translator.generate("x", {})', 'translator.stream("x", {})', 'translator.candidates("x", {})'),
    ),
    "Transcription": (
        "edge.runtime.keywords.TranscribeKeywords",
        *('whisper.transcribe("x", {})', 'whisper.transcribe_stream("x", {})'),
    ),
    "Export": ("edge.export.request.keywords.ExportKeywords", 'edge.export("x", "y", {})'),
}


def program() -> str:
    """Calls with every keyword, and lines that are wrong."""
    lines = ["# pyright: reportTypedDictNotRequiredAccess=false", "import edge"]
    for number, (section, (kind, *calls)) in enumerate(CALLS.items()):
        home, _, name = kind.rpartition(".")
        lines.append(f"from {home} import {name}")
        lines.append(f"def section_{number}(")
        lines.append(f"    given: {name}, model: edge.Model, translator: edge.Text2Text, whisper: edge.Transcriber")
        lines.append(") -> None:")
        names = [field.name for field in filter(has_option, fields(SECTIONS[section][0]))]
        for call in calls:
            lines.append("    " + call.format(", ".join(f'{name}=given["{name}"]' for name in names)))
            lines.append("    " + call.format("max_tokns=4") + "  # wrong")
            lines.append("    " + call.format(f"{names[0]}=b'x'") + "  # wrong")
    return "\n".join(lines) + "\n"


def wrong_lines(command: list[str], folder: Path) -> set[int]:
    """The lines of the program in which a type checker finds errors."""
    (folder / "calls.py").write_text(program(), encoding="utf-8")
    places = {"MYPYPATH": str(ROOT), "PYTHONPATH": os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])}
    found = subprocess.run(
        [*command, str(folder / "calls.py")], capture_output=True, text=True, cwd=ROOT, env=os.environ | places
    )
    errors = re.findall(r"calls\.py:(\d+)(?::\d+)*:? (?:- )?error", found.stdout)
    assert errors, found.stdout + found.stderr
    return set(map(int, errors))


@pytest.mark.slow  # minutes where no cache is warm
@pytest.mark.parametrize("checker", ["mypy", "pyright"])
def test_type_checkers_know_every_keyword(checker: str, tmp_path: Path) -> None:
    if find_spec(checker) is None or subprocess.run([sys.executable, "-m", checker, "--version"]).returncode:
        pytest.skip(f"{checker} does not run here")
    options = ["--config-file", "pyproject.toml"] if checker == "mypy" else ["--pythonpath", sys.executable]
    expected = {number for number, line in enumerate(program().split("\n"), 1) if line.endswith("# wrong")}
    assert wrong_lines([sys.executable, "-m", checker, *options], tmp_path) == expected
