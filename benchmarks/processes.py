"""Talking to the workers, and timing fresh processes."""

from __future__ import annotations

import json
import os
import subprocess
import threading
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from engines import Timed
from worker import private_mb

WORKER = Path(__file__).resolve().parent / "worker.py"
REST_S = 0.3  # before another process answers: threads of the one before have stopped spinning by then
LOOK_S = 0.01  # between two looks at a process's memory
LIST_S = 0.1  # between two lists of a process's descendants, which take 2 ms each


class PrivatePeak:
    """The most private memory that a process has while it is watched from outside, `mb` in MiB: what the system cannot
    take back, so neither code nor mapped files. With `tree`, that of the process and of all its descendants together.
    Linux only; elsewhere 0."""

    def __init__(self, pid: int, look_s: float = LOOK_S, *, tree: bool = False) -> None:
        self.mb = 0.0
        self._pid, self._look_s, self._tree, self._done = pid, look_s, tree, threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self._thread.start()

    def _watch(self) -> None:
        pids, listed = [self._pid], 0.0
        while not self._done.wait(self._look_s):
            if self._tree and time.monotonic() - listed > LIST_S:
                pids, listed = [self._pid, *descendants(self._pid)], time.monotonic()
            found = [mb for pid in pids if (mb := _private_mb_of(pid)) is not None]
            if not found:  # it has ended, or this is no Linux
                return
            self.mb = max(self.mb, sum(found))

    def stop(self) -> float:
        """No more looks; the peak."""
        self._done.set()
        self._thread.join()
        return self.mb


def _private_mb_of(pid: int) -> float | None:
    try:
        return private_mb(Path(f"/proc/{pid}/status").read_text())
    except (OSError, IndexError):
        return None


def descendants(pid: int) -> list[int]:
    """The processes that a process, or one of its descendants, started and that have not ended. Linux only."""
    children: dict[int, list[int]] = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):  # it has ended meanwhile
            parent = int(stat.read_text().rpartition(")")[2].split()[1])
            children.setdefault(parent, []).append(int(stat.parent.name))
    found = children.get(pid, [])
    for child in found:  # which grows meanwhile
        found += children.get(child, [])
    return found


class WorkerFailed(Exception):
    """The sentence that a worker gave, or that it died."""


class Worker:
    """The process of an engine, which is the name of its file's module. Without a model it only imports the package.

    `peak_rss_mb` is that of its last answer; `peak_private_mb` the most that it had at the end of an answer, or, where
    it is `watched`, at any time. `idle_share` is how much of one core it used between two answers, at
    most: an engine whose threads spin while others are measured would spoil their figures.
    """

    def __init__(
        self, python: str, engine: str, log: IO[str], request: dict[str, Any], *, watched: bool = False
    ) -> None:
        self.idle_share = self.peak_private_mb = 0.0
        self._process = subprocess.Popen(
            [python, str(WORKER), engine, json.dumps(request)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=log,
            text=True,
        )
        self._watch = PrivatePeak(self._process.pid) if watched else None
        self._read()

    def generate(self, ids: list[int], n: int) -> Timed:
        """One answer; see `engines.EngineFile`."""
        got = self.ask("generate", ids=ids, n=n)
        return Timed(got["prefill_s"], got["decode_s"], got["tokens"])

    def ask(self, method: str, **arguments: Any) -> dict[str, Any]:
        """What a method of the loaded model returns, a dataclass, as its fields."""
        cpu, asked = self.cpu_s, time.perf_counter()
        idle_s = asked - self._answered
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(json.dumps([method, arguments]) + "\n")
            self._process.stdin.flush()
        except BrokenPipeError:
            raise WorkerFailed("its process died") from None
        got = self._read()
        if idle_s > 0.5:
            self.idle_share = max(self.idle_share, (got["woken_cpu_s"] - cpu) / idle_s)
        return got

    def _read(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        self._answered = time.perf_counter()
        if not line:
            raise WorkerFailed(f"its process ended with status {self._process.wait()}")
        got: dict[str, Any] = json.loads(line)
        if "error" in got:
            raise WorkerFailed(got["error"])
        self.cpu_s: float = got["cpu_s"]
        self.peak_rss_mb: float = got["peak_rss_mb"]
        self.peak_private_mb = max(self.peak_private_mb, got["private_mb"])
        return got

    def close(self) -> None:
        """End the process."""
        if self._watch is not None:
            self.peak_private_mb = max(self.peak_private_mb, self._watch.stop())
        self._process.kill()
        self._process.communicate()


@dataclass(frozen=True)
class FirstByte:
    """Seconds from starting a process to the first byte that it wrote; all that it wrote; and, where it was watched,
    the peak of private memory of it and its descendants together, in MiB."""

    seconds: float
    text: str
    peak_private_mb: float


def first_byte(
    command: list[str], log: IO[str], *, env: Mapping[str, str] | None = None, watched: bool = False
) -> FirstByte:
    """Run a command to its end and measure what `FirstByte` has."""
    start = time.perf_counter()
    process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=log, env=env)
    watch = PrivatePeak(process.pid, tree=True) if watched else None
    assert process.stdout is not None
    first = os.read(process.stdout.fileno(), 1)
    elapsed = time.perf_counter() - start
    rest = process.stdout.read()
    status = process.wait()
    peak = watch.stop() if watch is not None else 0.0
    if not first:
        raise WorkerFailed(f"its first-token script wrote nothing and ended with status {status}")
    return FirstByte(elapsed, (first + rest).decode(errors="replace"), peak)
