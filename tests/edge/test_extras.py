"""The command that brings an extra."""

from __future__ import annotations

from pathlib import Path

import pytest

from edge import extras


def test_a_clone_is_named_so_that_the_command_works_from_every_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(extras, "CLONE", tmp_path / "a clone")
    assert extras.install("gguf") == "pip install '.[gguf]' in a clone of edge"
    (tmp_path / "a clone").mkdir()
    (tmp_path / "a clone" / "pyproject.toml").write_text("")
    assert extras.install("gguf", "--upgrade ") == f"pip install --upgrade -e '{tmp_path}/a clone[gguf]'"
