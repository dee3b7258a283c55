"""Other processes: the only module that starts any.

A child ends with this process, also where that is killed. It takes no code from the current folder: Python looks for
modules there first, and some systems for programs.
"""

from __future__ import annotations

import errno
import os
import pickle
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, TypeVar

from edge import child

T = TypeVar("T")
Program = subprocess.Popen[bytes]

SAFE = {"PYTHONSAFEPATH": "1"}  # of the environment, which the children of a child have too
CANNOT_RUN = 126  # the exit status of a program that cannot be run, as of a shell
# Becomes a program, which ends with this process. Arguments: this process's number, the program and its arguments.
BECOME = f"""
import ctypes, os, signal, sys
ctypes.CDLL(None).prctl({child.DEATH_SIGNAL}, signal.SIGKILL)
if os.getppid() == int(sys.argv[1]):
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)
    signal.signal(signal.SIGXFSZ, signal.SIG_DFL)
    try:
        os.execv(sys.argv[2], sys.argv[2:])
    except OSError as e:
        print(e.strerror, file=sys.stderr)
        sys.exit({CANNOT_RUN})
"""


class ChildEnded(Exception):
    """A child ended without an answer; the message completes '... (...)'."""


class ChildTooSlow(ChildEnded):
    """A child gave no answer in time, and was ended."""


class Child:
    """A function that runs in another Python. Leaving the block ends the process.

    Args:
        work: a function of a module, with `arguments` that can be pickled.
        said: the file that what it prints goes to, by default this process's standard error; QUIET keeps only the
            last line, for a `ChildEnded`.
        variables: more of them for its environment.
    """

    QUIET = subprocess.PIPE

    def __init__(
        self,
        work: Callable[..., Any],
        *arguments: Any,
        said: IO[Any] | int | None = None,
        variables: Mapping[str, str] | None = None,
    ) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-P", *_flags(), child.__file__],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL if said is None and sys.stderr is None else said,
            env={**os.environ, **(variables or {}), **SAFE},
        )
        assert self._process.stdin is not None
        self._lifeline, self._process.stdin = self._process.stdin, None  # it closes when this process ends
        with suppress(BrokenPipeError):  # it has ended, which `result` tells
            self._lifeline.write(pickle.dumps((_path(), pickle.dumps((work, arguments)))))
            self._lifeline.flush()

    def runs(self, seconds: float) -> bool:
        """Wait up to so many seconds; True if the process still runs then."""
        try:
            self._process.wait(seconds)
        except subprocess.TimeoutExpired:
            return True
        return False

    def result(self, seconds: float | None = None) -> Any:
        """Return the function's result; an exception that it raised is raised here.

        Raises:
            ChildEnded: the process ended before, or had no answer after so many seconds.
        """
        try:
            answer, said = self._process.communicate(timeout=seconds)
        except subprocess.TimeoutExpired:
            raise ChildTooSlow(f"it had no answer after {seconds:.0f} s") from None
        try:
            succeeded, found = pickle.loads(answer)
        except Exception:  # none, or a part of one
            raise ChildEnded(_last_line(said) or _how(self._process.returncode)) from None
        if not succeeded:
            raise found
        return found

    def __enter__(self) -> Child:
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.wait()
        for pipe in (self._lifeline, self._process.stdout, self._process.stderr):
            if pipe is not None:
                with suppress(BrokenPipeError):
                    pipe.close()


def call(work: Callable[..., T], *arguments: Any) -> T:
    """Run `work` in another Python process and return its result. It prints to this process's standard error; see
    `Child`."""
    with Child(work, *arguments) as other:
        found: T = other.result()
    return found


def _flags() -> list[str]:
    """Options of this Python that say where modules are looked for."""
    flags = {"-E": sys.flags.ignore_environment, "-s": sys.flags.no_user_site, "-S": sys.flags.no_site}
    return [flag for flag, given in flags.items() if given]


def _path() -> list[tuple[str, bool]]:
    """Folders of modules, and which of them a child may take without another word: not the current folder, unless
    `edge` is there, for Python names that by itself where a program is not run as a command."""
    home = str(Path(__file__).parents[1])
    try:
        here = str(Path.cwd())
    except OSError:  # it was removed
        here = ""
    named = [home if not folder and here == home else str(folder) for folder in sys.path]
    return [(folder, folder == home or (Path(folder).is_absolute() and folder != here)) for folder in named]


def _last_line(said: bytes | None) -> str:
    lines = (said or b"").decode(errors="replace").strip().splitlines()
    return lines[-1].strip() if lines else ""


def _how(status: int) -> str:
    if status < 0:
        with suppress(ValueError):
            return f"the system ended it with {signal.Signals(-status).name}"
    return f"it ended with status {status}"


# Programs that are no Python


@dataclass(frozen=True)
class Ran:
    """A program that has ended."""

    status: int
    output: str
    error: str


def find_program(name: str) -> str | None:
    """The path of a program that a folder of the PATH has. One that is relative, or empty, is passed over: it would be
    looked up in the current folder."""
    for folder in os.environ.get("PATH", os.defpath).split(os.pathsep):
        path = Path(folder) / (f"{name}.exe" if sys.platform == "win32" else name)
        if Path(folder).is_absolute() and path.is_file() and os.access(path, os.X_OK):
            return str(path)
    return None


@contextmanager
def started(
    command: Sequence[str], *, stdin: bool = False, stdout: bool = False, stderr: bool = True
) -> Iterator[Program]:
    """A program that runs until the block is left; its path is absolute. The streams that are asked for are pipes.

    Raises:
        OSError: it may not be run. Where it cannot be for another reason, on Linux its exit status is CANNOT_RUN.
    """
    program = command[0]
    assert Path(program).is_absolute(), program
    if not os.access(program, os.X_OK):
        raise OSError(errno.EACCES, os.strerror(errno.EACCES), program)
    before = []
    if sys.platform in child.LINUX:
        before = [sys.executable, "-I", "-S", "-c", BECOME, str(os.getpid())]
    pipes = [subprocess.PIPE if wanted else subprocess.DEVNULL for wanted in (stdin, stdout, stderr)]
    with subprocess.Popen([*before, *command], stdin=pipes[0], stdout=pipes[1], stderr=pipes[2]) as process:
        try:
            yield process
        finally:
            process.kill()


def ended(process: Program, seconds: float) -> int | None:
    """Return the exit status of a program; None if it does not end in time."""
    try:
        return process.wait(seconds)
    except subprocess.TimeoutExpired:
        return None


def run(command: Sequence[str], seconds: float) -> Ran:
    """Run a program to its end.

    Raises:
        OSError: it cannot be run.
        TimeoutError: it did not end in time, and was ended.
    """
    with started(command, stdout=True) as process:
        try:
            output, error = process.communicate(timeout=seconds)
        except subprocess.TimeoutExpired:
            raise TimeoutError(f"{command[0]} did not end in {seconds:.0f} s") from None
        ran = Ran(process.returncode, output.decode(errors="replace"), error.decode(errors="replace"))
        if ran.status == CANNOT_RUN and sys.platform in child.LINUX and len(ran.error.splitlines()) == 1:
            raise OSError(None, ran.error.strip(), command[0])
        return ran
