"""The benchmark of first answers: its command line, processes and arithmetic; no peer and no model is needed."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import first_answer
import pytest
import report
from engines import DECODER, DECODERS, engine_file
from processes import descendants, first_byte

FILLS = """
import sys, time, pathlib
made = pathlib.Path(sys.argv[1]) / "made"
print("again" if made.exists() else "first")
made.touch()
"""
HOLDS = "held = bytearray(b'x' * 40 * 2**20); import time; time.sleep(3)"  # 40 MiB
STARTS = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {HOLDS!r}]); print('done')"


@pytest.fixture
def gguf(tmp_path: Path) -> Path:
    file = tmp_path / "model.gguf"
    file.write_bytes(b"GGUF")
    return file


def _main(monkeypatch: pytest.MonkeyPatch, gguf: Path, *options: str) -> dict[str, object]:
    out = gguf.parent / "out"
    given = ["--gguf", str(gguf), "--out", str(out), "--work", str(out), *options]
    monkeypatch.setattr(sys, "argv", ["first_answer", *given])
    monkeypatch.setattr(first_answer, "REST_S", 0.0)
    assert first_answer.main() == 0
    found: dict[str, object] = json.loads((out / "first_answer.json").read_text())
    return found


def _all_run(monkeypatch: pytest.MonkeyPatch, code: str, names: tuple[str, ...]) -> None:
    """Let these engines be found in this environment and run `code`, whose argument is the cache."""
    for name in names:
        monkeypatch.setattr(engine_file(name), "MODULES", ("sys",))
        monkeypatch.setattr(engine_file(name), "IMPORT", "import sys")
        monkeypatch.setattr(engine_file(name), "from_gguf", lambda python, gguf, cache, *_: [python, "-c", code, cache])
    monkeypatch.setattr(engine_file("onnxruntime-genai"), "FROM_GGUF_NEEDS", ())


def test_every_round_begins_with_an_empty_cache_that_the_second_run_finds(
    gguf: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    _all_run(monkeypatch, FILLS, ("edge", "llama.cpp"))
    result = _main(monkeypatch, gguf, "--rounds", "2", "--engines", "edge,llama.cpp")
    lines = [line.strip() for line in capsys.readouterr().out.splitlines() if " private, '" in line]
    assert [line.rpartition(" ")[2] for line in lines] == ["'first'", "'again'"] * 4
    assert {label: {e: len(v) for e, v in rounds.items()} for label, rounds in result["rounds"].items()} == {
        label: {"edge": 2, "llama.cpp": 2} for label, *_ in first_answer.ROWS
    }


def test_ratios_are_of_this_runtime_over_each_peer() -> None:
    compared = first_answer.Comparison(DECODER, 2, sys.stderr)
    compared.figures["first run"] |= {"edge": [10.0, 30.0, 12.0], "llama.cpp": [1.0, 2.0, 2.0]}
    row = report.ratios_table(compared.metrics(first_answer.ROWS), ["edge", "llama.cpp"]).splitlines()[2]
    assert row.startswith("| first run (less is better) |") and "10.00 (6.00-15.00) llama.cpp" in row


def test_an_engine_that_is_absent_or_dies_is_skipped_with_a_sentence(
    gguf: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    _all_run(monkeypatch, "import sys; sys.exit(3)", ("edge", "llama.cpp", "onnxruntime-genai"))
    monkeypatch.setattr(engine_file("llama.cpp"), "MODULES", ("no_such_module",))
    monkeypatch.setattr(engine_file("onnxruntime-genai"), "FROM_GGUF_NEEDS", ("no_such_builder",))
    result = _main(monkeypatch, gguf, "--engines", "edge,llama.cpp,onnxruntime-genai")
    assert result["skipped"] == {
        "edge": "its first-token script wrote nothing and ended with status 3",
        "llama.cpp": "llama-cpp-python is not installed",
        "onnxruntime-genai": "making its model of a GGUF file needs no_such_builder in its environment",
    }
    assert "SKIPPED llama.cpp: llama-cpp-python is not installed" in capsys.readouterr().out


def test_the_peak_is_of_a_process_and_its_descendants_together() -> None:
    if not Path("/proc/self/status").exists():
        pytest.skip("only Linux tells")
    command = [sys.executable, "-c", STARTS]
    assert first_byte(command, sys.stderr, watched=True).peak_private_mb > 40
    assert first_byte([sys.executable, "-c", "print()"], sys.stderr).peak_private_mb == 0


def test_descendants_include_those_of_children() -> None:
    if not Path("/proc/self/status").exists():
        pytest.skip("only Linux tells")
    code = "import subprocess, sys; p = subprocess.Popen(['sleep', '9']); print(p.pid, flush=True); p.wait()"
    child = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
    assert child.stdout is not None
    grandchild = int(child.stdout.readline())
    try:
        assert {child.pid, grandchild} <= set(descendants(os.getpid()))
    finally:
        os.kill(grandchild, 9)
        child.communicate()


def test_commands_name_the_file_the_cache_and_the_threads(gguf: Path, tmp_path: Path) -> None:
    for name in DECODERS:
        line = engine_file(name).from_gguf("python", gguf, tmp_path / "cache", "Hello", 3)
        assert str(gguf) in line and "3" in line
        assert (str(tmp_path / "cache") in line) == (name in ("onnxruntime-genai", "openvino-genai"))


def test_a_file_that_is_not_there_is_one_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["first_answer", "--gguf", str(tmp_path / "none.gguf")])
    assert first_answer.main() == 2
    assert capsys.readouterr().err == f"first_answer: there is no {tmp_path / 'none.gguf'}\n"


@pytest.mark.parametrize("options", [["--rounds", "0"], ["--threads", "0"], ["--engines", "vllm"]])
def test_wrong_options_are_refused(options: list[str]) -> None:
    with pytest.raises(SystemExit) as stopped:
        first_answer.parse(["--gguf", "m.gguf", *options])
    assert stopped.value.code == 2
