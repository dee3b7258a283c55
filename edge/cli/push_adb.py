"""`adb` as `edge push` calls it: one phone, every call with a limit of time, every failure a sentence."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

from edge.children import Program, Ran, find_program, run, started
from edge.errors import InputError, PhoneError

QUICK_S = 60  # of a call that answers at once
CHUNK = 1 << 18  # bytes that are sent at a time
ADVICE = "check its cable and whether it is unlocked, and run the command again"


def find_adb(given: Path | None) -> str:
    """The adb to call: the given one, or that on the PATH; InputError where there is none."""
    if given is not None:
        if not given.is_file():
            raise InputError(f"There is no adb at {given}.")
        return str(given.absolute())
    found = find_program("adb")
    if found is None:
        raise InputError(
            "There is no adb on the PATH; install Android's platform-tools (Debian: apt install adb), or name it with "
            "--adb PATH."
        )
    return found


def find_phone(adb: str, serial: str | None) -> Phone:
    """The phone to talk to, by its serial number where there are several; PhoneError where it cannot be."""
    listed = _run([adb, "devices"], "adb").output.splitlines()
    states = dict(line.split("\t", 1) for line in listed if "\t" in line)
    names = ", ".join(states)
    if not states:
        raise PhoneError("No phone is connected; plug one in, and allow USB debugging in its developer options.")
    if serial is None and len(states) > 1:
        raise PhoneError(f"Several phones are connected ({names}); name one with --serial.")
    if serial is None:
        (serial,) = states
    if serial not in states:
        raise PhoneError(f"There is no phone {serial} here; connected: {names}.")
    state = states[serial].strip()
    if state == "unauthorized":
        raise PhoneError(f"The phone {serial} does not trust this computer; unlock it and allow USB debugging there.")
    if state != "device":
        raise PhoneError(f"The phone {serial} cannot be used, adb says: {state}.")
    return Phone(adb, serial)


@dataclass(frozen=True)
class Phone:
    """A phone that is connected."""

    adb: str
    serial: str

    def _command(self, script: str) -> list[str]:
        return [self.adb, "-s", self.serial, "shell", script]

    def shell(self, script: str, seconds: float | None = None) -> Ran:
        """Run a script on the phone; return its output and exit status. PhoneError if the phone does not answer."""
        return _run(self._command(script), f"The phone {self.serial}", seconds)

    def send(self, script: str, source: Path, progress: Callable[[int], None]) -> None:
        """Give a file to a script as its input; `progress` is told the bytes that were sent."""
        with self._started(script, QUICK_S, stdin=True) as (process, alive):
            assert process.stdin is not None and process.stderr is not None
            with contextlib.suppress(BrokenPipeError), source.open("rb") as file, process.stdin as pipe:
                while chunk := file.read(CHUNK):  # a pipe that breaks: the process says why
                    pipe.write(chunk)
                    progress(len(chunk))
                    alive()
            error = process.stderr.read().decode(errors="replace")
            if process.wait() != 0:
                _refuse(f"The phone {self.serial}", error)

    def lines(self, script: str, seconds: float) -> Iterator[str]:
        """Yield the lines that a script prints as they come, whatever its exit status. PhoneError if no line comes for
        so many seconds."""
        with self._started(script, seconds, stdout=True) as (process, alive):
            assert process.stdout is not None and process.stderr is not None
            for line in process.stdout:
                alive()
                yield line.decode(errors="replace").rstrip("\r\n")
            error = process.stderr.read().decode(errors="replace")
            if _said_by_adb(error):
                _refuse(f"The phone {self.serial}", error)

    @contextlib.contextmanager
    def _started(
        self, script: str, seconds: float, *, stdin: bool = False, stdout: bool = False
    ) -> Iterator[tuple[Program, Callable[[], None]]]:
        """A process that is ended where `alive` is not called for so long, and in any case when the block is left."""
        with started(self._command(script), stdin=stdin, stdout=stdout) as process:
            watch = _Watch(process, seconds)
            try:
                yield process, watch.alive
            except PhoneError:
                if not watch.ended:
                    raise
            finally:
                watch.stop()
        if watch.ended:
            raise PhoneError(f"The phone {self.serial} did nothing for {seconds:.0f} s; {ADVICE}.")


class _Watch:
    """Ends a process that was not said to be alive for a time."""

    def __init__(self, process: Program, seconds: float) -> None:
        self.ended = False
        self._process = process
        self._seconds = seconds
        self._timer = self._start()

    def _start(self) -> threading.Timer:
        timer = threading.Timer(self._seconds, self._end)
        timer.daemon = True
        timer.start()
        return timer

    def _end(self) -> None:
        self.ended = True
        self._process.kill()

    def alive(self) -> None:
        self._timer.cancel()
        self._timer = self._start()

    def stop(self) -> None:
        self._timer.cancel()


def _run(command: list[str], who: str, seconds: float | None = None) -> Ran:
    seconds = QUICK_S if seconds is None else seconds
    try:
        ran = run(command, seconds)
    except TimeoutError:
        raise PhoneError(f"{who} did nothing for {seconds:.0f} s; {ADVICE}.") from None
    except OSError as e:
        raise InputError(f"{command[0]} cannot be run: {e.strerror}.") from None
    if ran.status != 0 and _said_by_adb(ran.error):
        _refuse(who, ran.error)
    return ran


def _said_by_adb(error: str) -> bool:
    """True if adb itself failed, and not the program that it ran."""
    return any(line.startswith(("error: ", "adb: ")) for line in error.splitlines())


def _refuse(who: str, error: str) -> NoReturn:
    lines = [line.strip() for line in error.splitlines() if line.strip()]
    if _said_by_adb(error) or not lines:
        why = lines[-1].removeprefix("error: ").removeprefix("adb: ") if lines else "the connection ended"
        raise PhoneError(f"{who} went away ({why}); {ADVICE}.")
    raise PhoneError(f"{who} refused: {lines[-1].rstrip('.')}.")
