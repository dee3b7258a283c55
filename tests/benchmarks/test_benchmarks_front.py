"""The benchmark of quality against size: it runs whole on a tiny model, where llama.cpp may be missing."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import front
import pytest
from gguf_files import tiny_model, write_gguf


def test_all_forms_of_a_file_are_made_and_measured_in_one_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("matplotlib")
    gguf, text, out = write_gguf(tmp_path / "m.gguf", tiny_model("llama")), tmp_path / "text.txt", tmp_path / "out"
    text.write_text("hello world, hello hello world. " * 20)
    monkeypatch.setattr("comparison.REST_S", 0.0)
    for name, value in {"WINDOW": 64, "CONTEXT": 16, "DECODED": 4}.items():
        monkeypatch.setattr(front, name, value)
    monkeypatch.setattr(front, "OTHERS", {"keep": ("--weights", "keep")})
    options = ["--bits", "6", "--types", "Q8_0", "--rounds", "2", "--tokens", "128", "--threads", "1"]
    command = ["front", "--gguf", str(gguf), "--text", str(text), *options]
    monkeypatch.setattr(sys, "argv", [*command, "--out", str(out), "--work", str(tmp_path / "work")])
    assert front.main() == 0
    result = json.loads((out / "front.json").read_text())
    forms = {form["name"]: form for form in result["forms"]}
    assert list(forms)[:2] == ["edge int4 6", "edge keep"]
    assert forms.keys() | result["skipped"].keys() == {"edge int4 6", "edge keep", "llama.cpp Q8_0"}
    assert 0 < forms["edge keep"]["divergence"] < forms["edge int4 6"]["divergence"] < 0.1
    assert all(len(form["rates"]) == 2 and form["megabytes"] > 0 for form in forms.values())
    assert forms["edge keep"]["perplexity"] == pytest.approx(result["float32"], rel=0.01)
    said = capsys.readouterr().out
    assert "| edge int4 6 " in said and "more than float" in said
    assert (out / "front.png").stat().st_size > 1000


def form(name: str, megabytes: float, rates: list[float]) -> front.Form:
    return front.Form(name, Path(name), megabytes, 22.0, 0.05, 0.8, rates)


def test_speeds_are_relative_to_the_first_form_round_by_round() -> None:
    forms = [form("edge int4 4.8", 90, [100, 50]), form("llama.cpp Q2_K", 80, [50, 30])]
    lines = front.table(forms, 20.0).splitlines()
    assert lines[2].split("|")[1:5] == [" llama.cpp Q2_K ", " 80.0 ", "      22.00 ", "           10.0% "]
    assert lines[2].endswith(" 0.55 |") and lines[3].endswith(" 75.0 |     1.00 |")


def test_a_missing_file_is_one_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    gguf = tmp_path / "no.gguf"
    monkeypatch.setattr(sys, "argv", ["front", "--gguf", str(gguf), "--text", str(gguf)])
    assert front.main() == 2
    assert capsys.readouterr().err == f"front: there is no {gguf}\n"
