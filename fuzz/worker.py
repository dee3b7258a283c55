"""Tries cases of one kind of input, one after the other, in a process that may die of them.

`python -m fuzz.worker MODULE SEED FIRST COUNT WHOLE PLACE` prints a line of JSON when a case begins and another when it
ends. MODULE is a kind's, WHOLE holds whole inputs, and PLACE is an empty folder, in which each case has one of its own.
With FIRST "-" the case is the one that stands in PLACE already.
"""

from __future__ import annotations

import faulthandler
import importlib
import json
import os
import random
import shutil
import sys
import tempfile
import threading
import time
import traceback
from pathlib import Path
from typing import Any

from edge.errors import EdgeError
from fuzz.oracle import Fault, fault_of

CASE_S = 60.0  # the longest that a case may take, on a busy machine too; most take milliseconds
CASE_BYTES = 384 << 20  # of private memory that a case may take beyond what there was
LEAK_BYTES = 1 << 30  # of private memory after which a process is ended, and another goes on
AGAIN = "-"
CASE = "case"  # the folder of a case

ACCEPTED, REFUSED, FAULT = "accepted", "refused", "fault"


def generator(seed: int, kind: str, case: int) -> random.Random:
    """The random generator of a case, which is the same one whatever was tried before it."""
    return random.Random(f"{seed} {kind} {case}")


def make(kind: Any, seed: int, case: int, whole: Path, place: Path) -> None:
    """Write the input of a case into a new folder."""
    shutil.rmtree(place, ignore_errors=True)
    place.mkdir()
    kind.make_case(generator(seed, kind.NAME, case), whole, place)


def judge(kind: Any, place: Path) -> tuple[str, str]:
    """How a case ended, and what there is to tell of that."""
    try:
        kind.try_one(place)
    except EdgeError as e:
        wrong = fault_of(str(e))
        return (REFUSED, str(e)) if wrong is None else (FAULT, f"{wrong}: {str(e)[:1500]!r}")
    except Fault as e:
        return FAULT, str(e)
    except BaseException as e:  # Rust's panics are no Exceptions
        return FAULT, "".join(traceback.format_exception(e))[-3000:]
    return ACCEPTED, ""


def main(arguments: list[str]) -> int:
    module, seed, first, count, whole, place = arguments
    _end_with_parent(os.dup(0))
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    said = os.fdopen(os.dup(1), "w", encoding="utf-8", buffering=1)
    log = os.open(Path(place) / "log", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    os.dup2(log, 1)  # what the code under test prints
    os.dup2(log, 2)
    faulthandler.enable()
    os.environ["EDGE_HOME"] = str(Path(place) / "home")
    kind = importlib.import_module(module)
    bounded = "cases" not in kind.TRAITS

    def say(**told: Any) -> None:
        said.write(json.dumps(told) + "\n")

    with tempfile.TemporaryDirectory() as elsewhere:  # nothing of the folder that we were started in
        os.chdir(elsewhere)
        if hasattr(kind, "prepare"):
            kind.prepare(Path(whole))
        say(ready=True)
        start = private_bytes()
        again = first == AGAIN
        for case in [0] if again else range(int(first), int(first) + int(count)):
            at = Path(place) / (CASE if again else f"{CASE}-{case}")
            say(began=case, resident=_resident())
            os.truncate(log, 0)
            if not again:
                make(kind, int(seed), case, Path(whole), at)
            if bounded:
                _limit(CASE_BYTES)
                faulthandler.dump_traceback_later(kind.TRAITS.get("seconds", CASE_S), exit=True)  # in native code too
            began = time.monotonic()
            end, told = judge(kind, at)
            faulthandler.cancel_dump_traceback_later()
            _limit(None)
            say(case=case, end=end, told=told, seconds=time.monotonic() - began)
            if end != FAULT and not again:
                shutil.rmtree(at, ignore_errors=True)
            if private_bytes() > start + LEAK_BYTES:
                break
    return 0


def _end_with_parent(lifeline: int) -> None:
    """End this process when nobody is there any more who watches it."""

    def watch() -> None:
        os.read(lifeline, 1)
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()


def private_bytes() -> int:
    """This process's private writable memory, which RLIMIT_DATA limits; 0 where the system does not tell."""
    try:
        status = Path("/proc/self/status").read_text(encoding="utf-8")
    except OSError:
        return 0
    return int(status.partition("VmData:")[2].split()[0]) << 10


def _resident() -> int:
    """Bytes of this process in memory; 0 where the system does not tell."""
    try:
        return int(Path("/proc/self/statm").read_text(encoding="utf-8").split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except OSError:
        return 0


def _limit(more: int | None) -> None:
    """Let the process take so much more private memory than it has; None: as much as it may."""
    if not Path("/proc/self/status").exists():
        return
    import resource

    hard = resource.getrlimit(resource.RLIMIT_DATA)[1]
    resource.setrlimit(resource.RLIMIT_DATA, (hard if more is None else private_bytes() + more, hard))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
