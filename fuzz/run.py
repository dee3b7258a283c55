"""Lets processes try cases, and watches them: how long a case takes, how much memory, and how the process ends."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from queue import Empty, Queue
from typing import Any

from edge.registry import Entry
from fuzz.inputs import variables
from fuzz.worker import ACCEPTED, AGAIN, CASE, CASE_S, FAULT, REFUSED

START_S = 180.0  # for imports and whole inputs, before the first case
LATE_S = 5.0  # after which a process that did not end a case by itself is killed
RESIDENT = 1 << 30  # bytes that a case's processes may come to have in memory, files included
LOOK_S = 0.1  # between two looks at that
ENDLESS = 1 << 40  # cases
MOST_FAULTS = 20  # of a kind, after which it is left


@dataclass
class Tally:
    """What became of the cases of a kind. faults: sentences, each with the command that repeats it."""

    kind: str
    ends: dict[str, int] = field(default_factory=lambda: dict.fromkeys((ACCEPTED, REFUSED, FAULT), 0))
    faults: list[str] = field(default_factory=list)
    seconds: float = 0.0  # of trying, without starts
    slowest: float = 0.0
    began: float | None = None  # the first case, monotonic
    missing: str = ""  # what this checkout lacks to try anything
    broken: str = ""  # how the harness itself failed

    @property
    def cases(self) -> int:
        return sum(self.ends.values())


@dataclass(frozen=True)
class Order:
    """What is to be tried of a kind: cases from `first` on, until there were `count` or it took `seconds`.

    whole: the folder with whole inputs. kept: where inputs that failed are copied to.
    """

    entry: Entry
    seed: int
    whole: Path
    kept: Path
    first: int = 0
    count: int = ENDLESS
    seconds: float = float("inf")  # from the first case on: a start takes as long on a busy machine

    def repeated(self, case: int) -> str:
        """The command that tries a case again."""
        return f"python -m fuzz --kind {self.entry.name} --seed {self.seed} --case {case}"


def run(order: Order) -> Tally:
    """Try cases in processes, one after the other: after a case that ended one, another goes on with the next."""
    tally = Tally(order.entry.name)
    case = order.first
    end = order.first + order.count
    while case < end and not _done(order, tally):
        with tempfile.TemporaryDirectory(dir=order.whole, prefix=f"try-{tally.kind}-") as place:
            before = case
            case = _watch(order, tally, case, end - case, Path(place))
            if case == before:  # it did not come to a case
                break
    return tally


def _done(order: Order, tally: Tally) -> bool:
    """Whether a kind had its time, or has failed often enough."""
    late = tally.began is not None and time.monotonic() > tally.began + order.seconds
    return late or len(tally.faults) >= MOST_FAULTS


def again(entry: Entry, saved: Path, whole: Path) -> Tally:
    """Try the input that stands in `saved` once more."""
    tally = Tally(entry.name)
    with tempfile.TemporaryDirectory(dir=whole, prefix="try-") as place:
        shutil.copytree(saved, Path(place) / CASE, symlinks=True)
        _watch(Order(entry, 0, whole, saved.parent), tally, 0, 1, Path(place), AGAIN)
    return tally


def _watch(order: Order, tally: Tally, first: int, count: int, place: Path, mark: str | None = None) -> int:
    """Start a process for cases from `first` on and follow it to its end; return the case that comes next.

    Its standard input closes when this process ends, and that ends it too.
    """
    asked = [order.entry.module, str(order.seed), mark or str(first), str(count)]
    command = [sys.executable, "-m", "fuzz.worker", *asked]
    process = subprocess.Popen(
        [*command, str(order.whole), str(place)],
        env=variables(TMPDIR=str(place)), stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        cwd=place, start_new_session=True, text=True,
    )  # fmt: skip
    lines: Queue[str | None] = Queue()
    errors: list[str] = []
    readers = [
        threading.Thread(target=_read, args=(process.stdout, lines.put), daemon=True),
        threading.Thread(target=_read, args=(process.stderr, lambda line: errors.append(line or "")), daemon=True),
    ]
    for reader in readers:
        reader.start()
    bounded, longest = "cases" not in order.entry.traits, float(order.entry.traits.get("seconds", CASE_S))
    at_hand, due, resident, why = None, time.monotonic() + START_S, 0, ""
    while True:
        try:
            line = lines.get(timeout=LOOK_S)
        except Empty:
            if bounded and time.monotonic() > due:
                why = f"it took longer than {longest:.0f} s"
            elif bounded and at_hand is not None and (more := _resident(process.pid) - resident) > RESIDENT:
                why = f"it took {more >> 20:,} MiB of memory"
            else:
                continue
            break
        if line is None:
            try:
                process.wait(LATE_S)
            except subprocess.TimeoutExpired:
                why = "the process became another, which did not end"
            break
        told = json.loads(line)
        if "began" in told:
            tally.began = tally.began or time.monotonic()
            at_hand, due, resident = told["began"], time.monotonic() + longest + LATE_S, told["resident"]
        elif "case" in told:
            tally.ends[told["end"]] += 1
            tally.seconds += told["seconds"]
            tally.slowest = max(tally.slowest, told["seconds"])
            if told["end"] == FAULT:
                _keep(order, tally, told["case"], place, told["told"])
            at_hand, due = None, time.monotonic() + START_S
            if _done(order, tally):
                _end(process)
                return int(told["case"]) + 1
            first = int(told["case"]) + 1
    _end(process)
    for reader in readers:
        reader.join(LATE_S)
    if at_hand is None:
        if process.returncode not in (0, -signal.SIGKILL):
            tally.broken = "".join(errors)[-2000:] + _log(place)
        return first
    why = why or f"the process ended with {_named(process.returncode)}"
    tally.ends[FAULT] += 1
    _keep(order, tally, at_hand, place, f"{why}:\n{_log(place)}")
    return int(at_hand) + 1


def _read(stream: Any, put: Callable[[str | None], object]) -> None:
    for line in stream:
        put(line)
    put(None)


def _end(process: subprocess.Popen[str]) -> None:
    """End a process of ours and whatever it started."""
    try:
        os.killpg(process.pid, signal.SIGKILL)
    except (ProcessLookupError, PermissionError):
        process.kill()
    process.wait()


def _named(status: int) -> str:
    """How a process ended, in words."""
    if status >= 0:
        return f"status {status}"
    try:
        return signal.Signals(-status).name
    except ValueError:
        return f"signal {-status}"


def _log(place: Path) -> str:
    try:
        log = (place / "log").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""
    return log if len(log) < 3000 else f"{log[:1000]}\n[...]\n{log[-2000:]}"


def _keep(order: Order, tally: Tally, case: int, place: Path, told: str) -> None:
    """Copy the input of a case that failed, and say how it is tried again."""
    kept = order.kept / f"{tally.kind}-{order.seed}-{case}"
    shutil.rmtree(kept, ignore_errors=True)
    made = place / f"{CASE}-{case}"
    if made.exists():
        # Links stay links; what is no file (a pipe, say) is left out.
        special = lambda folder, names: [n for n in names if not _plain(Path(folder) / n)]  # noqa: E731
        shutil.copytree(made, kept, symlinks=True, ignore=special)
        shutil.rmtree(made, ignore_errors=True)
    tally.faults.append(f"{order.repeated(case)}\n  input: {kept}\n  {told.strip()}".replace("\n", "\n  "))


def _plain(path: Path) -> bool:
    return path.is_symlink() or path.is_file() or path.is_dir()


def _resident(group: int) -> int:
    """Bytes in memory of the processes of a session of ours; 0 where the system does not tell."""
    pages = 0
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            # state, parent, group, session: the fields behind the name, which may hold anything but ends with ')'
            if (
                int((entry / "stat").read_text(encoding="utf-8", errors="replace").rpartition(")")[2].split()[3])
                == group
            ):
                pages += int((entry / "statm").read_text(encoding="utf-8").split()[1])
        except (OSError, ValueError, IndexError):
            continue
    return pages * os.sysconf("SC_PAGE_SIZE")
