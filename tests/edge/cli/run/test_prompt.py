"""Where the prompt of `edge run` comes from: a pipe, files and the argument, together or alone."""

from __future__ import annotations

import io
import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from edge.bundle import Bundle
from edge.cli.run import prompt as prompts
from edge.cli.run.prompt import has_piped, read_prompt
from edge.cli.streams import StandardInputClosed
from edge.errors import InputError

posix = pytest.mark.skipif(sys.platform == "win32", reason="pipes and signals as POSIX has them")


@pytest.mark.parametrize("seed", range(20))
def test_all_parts_that_are_there_make_the_prompt_in_their_order(pipe: Callable, tmp_path: Path, seed: int) -> None:
    """The pipe, the files, the argument, with one blank line between them, however each of them ends."""
    choose = random.Random(seed)
    bodies = ["a report", "# Notes\n\nof two lines", "  indented", "Grüße\nan alle"]
    piped, *files, prompt = (choose.choice([None, *bodies]) for _ in range(4))
    ends = [choose.choice(["", "\n", "\r\n", "\n\n\n"]) for _ in range(3)]
    pipe(b"" if piped is None else (piped + ends[0]).encode())
    paths = []
    for number, (text, end) in enumerate(zip(files, ends[1:], strict=True)):
        if text is not None:
            paths.append(tmp_path / f"{number}.txt")
            paths[-1].write_bytes((text + end).encode())
    wanted = [part for part in (piped, *files, prompt) if part is not None]
    if not wanted:
        with pytest.raises(InputError, match="Standard input is empty"):
            read_prompt(prompt, paths or None)
        return
    found = read_prompt(prompt, paths or None)
    assert found is not None and found.rstrip("\r\n") == "\n\n".join(wanted)


@posix
@pytest.mark.parametrize("data", [b"", b"x"])
@pytest.mark.parametrize("kind", ["pipe", "file", "nothing"])
def test_what_is_piped_is_seen_without_being_read(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, kind: str, data: bytes
) -> None:
    """A pipe that is open and has nothing yet is not waited for."""
    reading, writing = os.pipe()
    os.write(writing, data)
    (tmp_path / "f").write_bytes(data)
    opened = reading if kind == "pipe" else os.open(tmp_path / "f" if kind == "file" else os.devnull, os.O_RDONLY)
    with os.fdopen(opened, encoding="utf-8") as file:
        monkeypatch.setattr("sys.stdin", file)
        assert has_piped() == (bool(data) and kind != "nothing")
    os.close(writing)


@pytest.mark.parametrize("data", [b"", b"\n", b" \r\n\n", b"\xef\xbb\xbf"])
def test_a_pipe_with_nothing_in_it_changes_no_prompt(pipe: Callable, data: bytes) -> None:
    pipe(data)
    assert read_prompt("Why?\n", None) == "Why?\n"


class Unreadable(io.RawIOBase):
    def __init__(self, error: Exception) -> None:
        self.error = error

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: object) -> int:
        raise self.error


@pytest.mark.parametrize("error", [OSError(5, "Input/output error"), OSError(21, "Is a folder"), StandardInputClosed()])
def test_a_pipe_that_cannot_be_read_is_left_out_where_there_is_a_prompt(
    monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BufferedReader(Unreadable(error))))
    assert read_prompt("Why?", None) == "Why?"
    with pytest.raises(InputError):
        read_prompt(None, None)
    with pytest.raises(InputError):
        read_prompt("-", None)


def test_a_dash_asks_for_what_is_piped(pipe: Callable) -> None:
    for given in (("Why?", [Path("-")]), ("-", None)):
        pipe(b"")
        with pytest.raises(InputError, match="Standard input is empty"):
            read_prompt(*given)
    pipe(b"a report\n")
    assert read_prompt("Why?", [Path("-")]) == "a report\n\nWhy?"


def test_what_is_piped_is_text(pipe: Callable) -> None:
    pipe(b"\x89PNG\r\n\x1a\n\x00")
    with pytest.raises(InputError, match="Standard input is not UTF-8 text"):
        read_prompt("What is in the picture?", None)


def test_who_waits_for_standard_input_is_told(
    pipe: Callable, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    told, tell = threading.Event(), prompts._tell
    monkeypatch.setattr(prompts, "_tell", lambda: (tell(), told.set()))
    monkeypatch.setattr(prompts, "PATIENCE_S", 0.05)

    class Slow(io.RawIOBase):
        def readable(self) -> bool:
            return True

        def readinto(self, buffer: object) -> int:
            assert told.wait(30)
            return 0

    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BufferedReader(Slow())))
    assert read_prompt("Why?", None) == "Why?"
    assert capsys.readouterr().err.count("Waiting for standard input") == 1
    monkeypatch.setattr(prompts, "PATIENCE_S", 60)
    pipe(b"quick")
    read_prompt("Why?", None)
    timers = [each for each in threading.enumerate() if isinstance(each, threading.Timer)]
    assert not [each for each in timers if each.function is prompts._tell and not each.finished.is_set()]
    assert capsys.readouterr().err == ""


def command(bundle: Bundle, *more: str) -> list[str]:
    return [sys.executable, "-m", "edge.cli.main", "run", str(bundle.root), "Why?", "--max-tokens", "2", *more]


@posix
@pytest.mark.parametrize("stdin", ["</dev/null", "<&-", "< <(true)", "< <(printf '\\n')"])
def test_a_prompt_alone_gives_the_same_answer_whatever_standard_input_is(tiny_bundle: Bundle, stdin: str) -> None:
    ran = [sys.executable, "-m", "edge.cli.main", "run", str(tiny_bundle.root), "Why?", "--max-tokens", "4"]
    line = f"{' '.join(ran)} {stdin}"
    ended = subprocess.run(["bash", "-c", line], capture_output=True, timeout=60)
    wanted = subprocess.run(ran, capture_output=True, timeout=60, stdin=subprocess.DEVNULL)
    assert (ended.returncode, ended.stdout) == (0, wanted.stdout), ended.stderr


@posix
def test_a_pipe_that_stays_open_is_waited_for_aloud_and_ctrl_c_ends_that(tiny_bundle: Bundle) -> None:
    reading, writing = os.pipe()
    with subprocess.Popen(command(tiny_bundle), stdin=reading, stderr=subprocess.PIPE, text=True) as process:
        os.close(reading)
        assert process.stderr is not None
        assert process.stderr.readline().startswith("Waiting for standard input, which belongs to the prompt, to end")
        process.send_signal(signal.SIGINT)
        assert process.wait(30) == 130
        assert process.stderr.read() == ""
    os.close(writing)


@posix
def test_a_pipe_that_does_not_block_is_read_to_its_end(tiny_bundle: Bundle) -> None:
    """As Node.js leaves them to its children."""
    reading, writing = os.pipe()
    os.set_blocking(reading, False)
    ran = command(tiny_bundle, "--json")
    with subprocess.Popen(ran, stdin=reading, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        os.close(reading)
        time.sleep(0.5)
        os.write(writing, b"word " * 20)
        os.close(writing)
        out, err = process.communicate(timeout=60)
    assert process.returncode == 0, err
    assert '"prompt_tokens": 2' not in out and len(out) > 0
