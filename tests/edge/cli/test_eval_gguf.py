"""edge eval of a GGUF file: what edge run makes of it, next to the file's own values."""

from __future__ import annotations

from pathlib import Path

import pytest
from gguf import GGMLQuantizationType as Type
from gguf_files import tiny_model, write_gguf

from edge.cli import eval as command
from edge.cli.main import main


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("EDGE_HOME", str(tmp_path / "home"))
    types = {"ffn_down.w": Type.Q4_1, "attn_q.w": Type.Q5_0, "token_embd.w": Type.Q8_0}
    return write_gguf(tmp_path / "m.gguf", tiny_model("llama"), types=types)


@pytest.fixture
def text(tmp_path: Path) -> Path:
    path = tmp_path / "text.txt"
    path.write_text("hello world, the harbour wall is old. " * 9)
    return path


def test_it_is_measured_next_to_its_values_in_float32(
    file: Path, text: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["eval", str(file), "--text", str(text), "--window", "60"]) == 0
    out = capsys.readouterr().out
    assert "m.gguf (Torch, float32): perplexity" in out and "KL divergence mean 0.0" in out


def test_without_pytorch_it_is_measured_alone(
    file: Path, text: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(command, "find_spec", lambda name: None)
    assert main(["eval", str(file), "--text", str(text), "--window", "60"]) == 0
    out, err = capsys.readouterr()
    assert "Torch" not in out and "perplexity" in out and "Without PyTorch" in err


def test_what_is_asked_for_is_measured_as_of_a_bundle(
    file: Path, text: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["eval", str(file), "--text", str(text), "--window", "60", "--agree", str(file)]) == 2
    assert main(["eval", str(file)]) == 2
    assert "Give one thing to measure on" in capsys.readouterr().err
