"""Other processes take no code from the current folder, end with their parent, and answer as a function does."""

from __future__ import annotations

import os
import random
import subprocess
import sys
import sysconfig
import time
from pathlib import Path
from typing import Any

import children_work as work
import pytest

from edge import children, errors
from edge.children import Child, ChildEnded, ChildTooSlow, call, find_program, run

DEPENDENCIES = ["edge", "numpy", "torch", "onnx", "onnxruntime", "pip", "rich", "safetensors", "tokenizers", "gguf"]
STARTUP = ["sitecustomize", "usercustomize", "readline", "encodings"]
FORMS = ["module", "package", "folder", "library", "plain library", "bytecode"]
FOLDERS = str(Path(work.__file__).parent)
ERRORS = [name for name, kind in vars(errors).items() if isinstance(kind, type) and issubclass(kind, errors.EdgeError)]


def plant(folder: Path, name: str, form: str) -> None:
    """A module in the folder that leaves a file beside it where it is run; a library is damaged, which is an error."""
    code = f"open({str(folder / f'RAN-{name}')!r}, 'w')\nraise SystemExit(7)\n"
    if form in ("package", "folder"):
        (folder / name).mkdir()
        (folder / name / "__main__.py").write_text(code)
        if form == "package":
            (folder / name / "__init__.py").write_text(code)
    elif "library" in form:
        ending = ".so" if form == "plain library" else sysconfig.get_config_var("EXT_SUFFIX")
        (folder / f"{name}{ending}").write_bytes(b"\x7fELF damaged")
    elif form == "bytecode":
        (folder / f"{name}.pyc").write_bytes(b"damaged")
    else:
        (folder / f"{name}.py").write_text(code)


@pytest.fixture(params=["", ".", "here"])
def hostile(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The current folder, with a module of each name that a child may import, in one form or another. This Python
    imports from it, as programs do that are no command, or are run with -m."""
    rng, folder = random.Random(request.param), tmp_path / "downloaded"
    folder.mkdir()
    for name in sorted({*sys.stdlib_module_names, *DEPENDENCIES, *STARTUP}):
        plant(folder, name, rng.choice(FORMS))
    monkeypatch.chdir(folder)
    monkeypatch.setattr(sys, "path", [str(folder) if request.param == "here" else request.param, *sys.path])
    return folder


def ran(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.glob("RAN-*"))


def test_a_child_imports_nothing_of_the_current_folder(hostile: Path) -> None:
    names = ["numpy", "json", "asyncio", "multiprocessing.pool", "edge.errors", "ctypes", "colorsys", "pip"]
    found = call(work.imported, names)
    assert ran(hostile) == []
    assert not [place for place in found.values() if str(hostile) in place or "Error" in place], found
    assert Path(found["edge.errors"]) == Path(errors.__file__).with_name("__init__.py")
    assert call(work.python_of_its_own, "import colorsys, timeit; print(colorsys.__file__)").endswith("colorsys.py\n")
    assert ran(hostile) == []


def test_the_folder_that_edge_itself_is_in_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    home = Path(children.__file__).parents[1]
    monkeypatch.chdir(home)
    for entry in ("", str(home)):
        monkeypatch.setattr(sys, "path", [entry, "/elsewhere", "relative"])
        assert children._path() == [(str(home), True), ("/elsewhere", True), ("relative", False)]


def test_a_folder_that_was_removed_is_no_fault(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "gone").mkdir()
    monkeypatch.chdir(tmp_path / "gone")
    (tmp_path / "gone").rmdir()
    assert call(work.echo, 1) == 1


@pytest.mark.parametrize("value", [None, {"a": [1.5, b"\0" * 10]}, "é" * 3_000_000, Path("x")])
def test_a_child_answers_as_a_function_does(value: Any, capfd: pytest.CaptureFixture[str]) -> None:
    assert call(work.echo, value) == value
    out, err = capfd.readouterr()
    assert out == "" and sorted(err.splitlines()) == ["a line on standard output", "another"]


@pytest.mark.parametrize("kind", ERRORS)
def test_each_error_of_ours_comes_back_as_itself(kind: str) -> None:
    with pytest.raises(errors.EdgeError) as caught:
        call(work.fail, kind)
    assert (type(caught.value).__name__, str(caught.value)) == (kind, f"A {kind} says é.")
    assert "children_work.py" in caught.value.__notes__[0]


@pytest.mark.parametrize(("kind", "text"), [("Odd", "Odd: 1 and 2"), ("local", "Local: of a function")])
def test_an_error_that_cannot_be_sent_comes_back_with_its_text(kind: str, text: str) -> None:
    with pytest.raises(RuntimeError, match=text):
        call(work.fail, kind)


def test_an_error_of_the_system_keeps_its_number_and_file() -> None:
    with pytest.raises(OSError) as caught:
        call(work.fail, "OSError")
    assert (caught.value.errno, caught.value.filename) == (28, "/some/file")


@pytest.mark.parametrize(
    ("how", "said"), [("exit", "status 7"), ("_exit", "status 8"), ("SIGKILL", "SIGKILL"), ("SIGSEGV", "SIGSEGV")]
)
def test_a_child_that_ends_without_an_answer_is_said(how: str, said: str) -> None:
    with pytest.raises(ChildEnded, match=said):
        call(work.end, how)


def test_a_child_has_only_so_long() -> None:
    start = time.monotonic()
    with pytest.raises(ChildTooSlow, match="no answer after 1 s"), Child(time.sleep, 60) as other:
        other.result(1)
    assert time.monotonic() - start < 30


def test_leaving_the_block_ends_the_child(tmp_path: Path) -> None:
    with Child(work.stay, "_busy", str(tmp_path / "note")):
        pid = noted(tmp_path / "note")
    assert gone(pid)


def noted(path: Path) -> int:
    for _ in range(300):
        if path.exists():
            return int(path.read_text())
        time.sleep(0.1)
    pytest.fail(f"nothing wrote {path}")


def gone(pid: int) -> bool:
    """Whether a process has ended, within half a minute; that nobody has asked for its status yet is no matter."""
    for _ in range(300):
        try:
            os.kill(pid, 0)
            if Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z":
                return True
        except OSError:
            return True
        time.sleep(0.1)
    return False


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere it ends when it gives Python's lock back")
@pytest.mark.parametrize("how", ["_sleep", "_busy", "_in_c", "_by_the_pipe_alone", "_grandchild", "_program"])
def test_a_child_ends_with_its_parent_whatever_it_does(how: str, tmp_path: Path) -> None:
    note = tmp_path / "note"
    script = f"import sys; sys.path.insert(0, {FOLDERS!r}); import children_work as work\n"
    script += f"from edge.children import call; call(work.stay, {how!r}, {str(note)!r})"
    parent = subprocess.Popen([sys.executable, "-c", script])
    try:
        ending = {"_grandchild": (".1", ".2"), "_program": (".1", ".3")}.get(how, ("",))
        pids = [noted(Path(f"{note}{each}")) for each in ending]
    finally:
        parent.kill()
        parent.wait()
    assert [pid for pid in pids if not gone(pid)] == []


@pytest.mark.parametrize("entry", ["", ".", "bin", "./bin", "../x/bin"])
def test_a_program_of_the_current_folder_is_not_run(
    entry: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    there, honest = tmp_path / "x" / "bin", tmp_path / "honest"
    for folder in (there, there.parent, honest):
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "adb").write_text("#!/bin/sh\nexit 0\n")
        (folder / "adb").chmod(0o755)
    monkeypatch.chdir(there.parent)
    monkeypatch.setenv("PATH", entry)
    assert find_program("adb") is None
    monkeypatch.setenv("PATH", f"{entry}{os.pathsep}{honest}")
    assert find_program("adb") == str(honest / "adb")


def test_a_program_says_what_it_says_and_why_it_cannot_be_run(tmp_path: Path) -> None:
    ran = run(["/bin/sh", "-c", "echo out; echo err >&2; printf '\\377'; exit 3"], 10)
    assert (ran.status, ran.output, ran.error) == (3, "out\n�", "err\n")
    assert run(["/bin/sh", "-c", "yes | head -1"], 10).error == ""  # a reader that goes ends a writer as ever
    with pytest.raises(TimeoutError):
        run(["/bin/sleep", "60"], 0.5)
    for content, mode in (("", 0o644), ("no program", 0o755)):
        (tmp_path / "x").write_text(content)
        (tmp_path / "x").chmod(mode)
        with pytest.raises(OSError) as caught:
            run([str(tmp_path / "x")], 10)
        assert caught.value.strerror in ("Permission denied", "Exec format error")
