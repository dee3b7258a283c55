"""Talking to the workers, and timing fresh processes."""

from __future__ import annotations

import json
import os
import subprocess
import time
from pathlib import Path
from typing import IO, Any

from engines.base import Timed

WORKER = Path(__file__).resolve().parent / "worker.py"
REST_S = 0.3  # before another process answers: threads of the one before have stopped spinning by then


class WorkerFailed(Exception):
    """The sentence that a worker gave, or that it died."""


class Worker:
    """The process of an engine, which is the name of its file's module. Without a model it only imports the package.

    `peak_rss_mb` is that of its last answer. `idle_share` is how much of one core it used between two answers, at
    most: an engine whose threads spin while others are measured would spoil their figures.
    """

    def __init__(self, python: str, engine: str, log: IO[str], request: dict[str, Any]) -> None:
        self.idle_share = 0.0
        self._process = subprocess.Popen(
            [python, str(WORKER), engine, json.dumps(request)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=log,
            text=True,
        )
        self._read()

    def generate(self, ids: list[int], n: int) -> Timed:
        """One answer; see `engines.base.Loaded`."""
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
        return got

    def close(self) -> None:
        """End the process."""
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
