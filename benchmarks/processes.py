"""Talking to the workers, and timing fresh processes."""

from __future__ import annotations

import json
import os
import subprocess
import threading
import time
from pathlib import Path
from typing import IO, Any

from engines.decoding_engine import Timed
from worker import private_mb

WORKER = Path(__file__).resolve().parent / "worker.py"
REST_S = 0.3  # before another process answers: threads of the one before have stopped spinning by then


LOOK_S = 0.01  # between two looks at a process's memory


class PrivatePeak:
    """The most private memory that a process has while it is watched from outside, `mb` in MiB: what the system cannot
    take back, so neither code nor mapped files. Linux only; elsewhere 0."""

    def __init__(self, pid: int, look_s: float = LOOK_S) -> None:
        self.mb = 0.0
        self._status, self._look_s, self._done = Path(f"/proc/{pid}/status"), look_s, threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self._thread.start()

    def _watch(self) -> None:
        while not self._done.wait(self._look_s):
            try:
                self.mb = max(self.mb, private_mb(self._status.read_text()))
            except (OSError, IndexError):  # it has ended, or this is no Linux
                return

    def stop(self) -> float:
        """No more looks; the peak."""
        self._done.set()
        self._thread.join()
        return self.mb


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
        """One answer; see `engines.decoding_engine.Loaded`."""
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
        self.last_cpu_s = self.cpu_s - got["woken_cpu_s"]
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


def first_byte(command: list[str], log: IO[str]) -> tuple[float, str]:
    """Seconds from starting a process to the first byte that it writes, and all that it wrote."""
    start = time.perf_counter()
    process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=log)
    assert process.stdout is not None
    first = os.read(process.stdout.fileno(), 1)
    elapsed = time.perf_counter() - start
    rest = process.stdout.read()
    status = process.wait()
    if not first:
        raise WorkerFailed(f"its first-token script wrote nothing and ended with status {status}")
    return elapsed, (first + rest).decode(errors="replace")
