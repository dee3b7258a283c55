"""Names that no file can have, streams that are closed or full, folders that are gone: one sentence, exit status 2."""

from __future__ import annotations

import argparse
import errno
import io
import subprocess
import sys
from pathlib import Path

import pytest

from edge.bundle import Bundle
from edge.cli import run
from edge.cli.arguments import Parser
from edge.cli.main import COMMANDS, main

posix = pytest.mark.skipif(sys.platform == "win32", reason="file descriptors and names as POSIX has them")


NAMES = ("audio", "source", "bundle", "name", "names")  # of arguments that are perhaps files


def paths() -> list[tuple[str, argparse.Action]]:
    """Every argument of every command that names a file or a folder."""
    found = []
    for name, command in COMMANDS.items():
        parser = Parser(f"edge {name}", "")
        command.load().add_arguments(parser)
        named = [action for action in parser._actions if action.type is Path or action.dest in NAMES]
        found += [(name, action) for action in named]
    return found


PATHS = paths()
IDS = [f"{name}-{action.dest}" for name, action in PATHS]


def odd_names(folder: Path) -> list[str]:
    """Names under which nothing can be read and nothing written."""
    (folder / "file").write_text("x")
    (folder / "loop").symlink_to("loop")
    return [
        "n" * 300,
        "d/" * 3000,
        str(folder / "file" / "below"),
        str(folder / "loop"),
        "a\0b",
        f"{'n' * 290}\udcff",
        "~nosuchuser/x",
    ]


@posix
@pytest.mark.parametrize(("command", "action"), PATHS, ids=IDS)
def test_a_name_that_no_file_can_have_gets_one_sentence_wherever_it_is_given(
    command: str,
    action: argparse.Action,
    tmp_path: Path,
    tiny_bundle: Bundle,
    capfd: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    parser = Parser("edge", "")
    COMMANDS[command].load().add_arguments(parser)
    for odd in odd_names(tmp_path)[: 1 if action.dest == "emit" else None]:  # which is written after the verdict
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"Hello")))
        args = [command]
        for other in parser._actions:
            if not other.option_strings and other.dest == action.dest:
                args.append(odd)
            elif other.dest == "bundle":
                args.append(str(tiny_bundle.root))
            elif not other.option_strings and other.nargs is None:
                args.append(str(tmp_path / "nothing"))
        if action.option_strings:
            args += [action.option_strings[-1], *[odd] * (action.nargs if isinstance(action.nargs, int) else 1)]
        if command == "run" and action.dest == "output":
            args += ["-f", str(tmp_path / "file")]
        capfd.readouterr()
        status = main(args)
        err = capfd.readouterr().err
        *_, sentence = err.splitlines()
        if (command, action.dest) == ("run", "output") and odd.endswith("loop"):
            continue  # the answers take the link's place
        assert status == 2, (args, err)
        assert sentence.startswith("edge: ") and len(sentence) < 7000 and "Traceback" not in err


@posix
@pytest.mark.parametrize(
    "command", [["run", "hi", "--speculate"], ["profile", "--speculate", "--drafter"]], ids="".join
)
def test_so_does_a_drafters_path(
    command: list[str], tmp_path: Path, tiny_bundle: Bundle, capfd: pytest.CaptureFixture[str]
) -> None:
    for odd in odd_names(tmp_path):
        name, *rest = command
        assert main([name, str(tiny_bundle.root), *rest, f"model={odd}"]) == 2
        err = capfd.readouterr().err
        assert err.startswith("edge: ") and err.count("\n") == 1


@posix
@pytest.mark.parametrize("prompt", [["Hello"], []])
@pytest.mark.parametrize(
    ("streams", "status", "said"),
    [
        (">&-", 2, "Standard output is closed"),
        ("<&-", None, "Standard input is closed; name what to read"),
        ("2>&-", None, ""),
        (">&- 2>&-", 2, ""),
        ("<&- >&- 2>&-", 2, ""),
        ("<&- 2>&-", None, ""),
        (">/dev/full", 2, "The output could not be written: No space left on device."),
        ("2>/dev/full", 2, ""),
        (">/dev/full 2>/dev/full", 2, ""),
        ("1</dev/null", 2, "The output could not be written: Bad file descriptor."),
    ],
)
def test_streams_that_are_closed_or_full(
    tiny_bundle: Bundle, streams: str, status: int | None, said: str, prompt: list[str], tmp_path: Path
) -> None:
    command = [sys.executable, "-m", "edge.cli.main", "run", str(tiny_bundle.root), *prompt, "--max-tokens", "2"]
    line = " ".join([*command, "</dev/null" if "<&-" not in streams else "", streams])
    ended = subprocess.run(["bash", "-c", line], capture_output=True, text=True, timeout=60, cwd=tmp_path)
    assert "Traceback" not in ended.stderr and "Exception" not in ended.stderr and "foresee" not in ended.stderr
    if prompt:
        assert ended.returncode == (status or 0), ended.stderr
        assert status is None or said in ended.stderr
    else:
        assert ended.returncode == 2
        assert said in ended.stderr or "Standard input is empty" in ended.stderr
    assert list(tmp_path.iterdir()) == [tiny_bundle.root]


@posix
def test_a_folder_that_is_gone(tiny_bundle: Bundle, tmp_path: Path) -> None:
    gone = tmp_path / "gone"
    gone.mkdir()
    line = f"rmdir {gone}; {sys.executable} -m edge.cli.main inspect x.edge"
    ended = subprocess.run(["bash", "-c", line], capture_output=True, text=True, timeout=60, cwd=gone)
    assert ended.returncode == 2 and "Traceback" not in ended.stderr
    assert ended.stderr.splitlines()[-1].startswith("edge: ")


@pytest.mark.parametrize(
    ("error", "sentence"),
    [
        (OSError(errno.ENAMETOOLONG, "File name too long", "n" * 300), "n...n"),
        (PermissionError(errno.EACCES, "Permission denied", b"secret"), "secret cannot be used: Permission denied."),
        (OSError(errno.EIO, "Input/output error"), "The system refused what edge asked of it: Input/output error."),
        (OSError("no number"), "The system refused what edge asked of it: no number."),
        (MemoryError(), "Memory ran out"),
        (RecursionError("maximum recursion depth exceeded"), "nested too deeply"),
    ],
)
def test_what_the_system_refuses_is_said_and_is_no_bug(
    error: Exception, sentence: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def command(args: argparse.Namespace) -> None:
        raise error

    monkeypatch.setattr(run, "add_arguments", lambda parser: None)
    monkeypatch.setattr(run, "command", command)
    assert main(["run"]) == 2
    said = capsys.readouterr().err
    assert sentence in said.replace("n" * 100, "n") and said.count("\n") == 1


@pytest.mark.skipif(not Path("/dev/zero").exists(), reason="needs /dev/zero")
def test_a_text_that_never_ends_is_not_read_for_ever(
    tiny_bundle: Bundle, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("edge.text_file.MOST", 1 << 20)
    for args in (["run", tiny_bundle.root, "-f", "/dev/zero"], ["eval", tiny_bundle.root, "--text", "/dev/zero"]):
        assert main([str(arg) for arg in args]) == 2
        assert "/dev/zero has more than 1 MiB; split it, or name another." in capsys.readouterr().err
