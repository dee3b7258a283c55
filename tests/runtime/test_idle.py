"""A model that nobody asks takes no processor time, nor does a chat that waits for words."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from edge.bundle import Bundle

IDLE_S = 2.0
LEAST = 0.01  # of a core: what the system rounds
TRIES = 10  # until it is idle: on a busy machine an answer ends, and threads without work stop spinning, later

PROGRAM = """
import sys, threading, time
import edge

model = edge.load(sys.argv[1], threads=2, kind=edge.Model, **({"memory": sys.argv[2]} if sys.argv[2] else {}))
chat = model.chat()
chat.generate("The moon", max_tokens=20)
stream = model.stream("The moon", max_tokens=20)
next(stream)
idle_s, least_s, tries = map(float, sys.argv[3:])
took = least_s
while took >= least_s and tries:
    began, tries = time.process_time(), tries - 1
    time.sleep(idle_s)
    took = time.process_time() - began
print(took)
"""


@pytest.mark.parametrize("memory", ["", "2GB"])
def test_a_loaded_model_with_a_chat_and_an_open_stream_takes_no_processor_time(
    pristine_tiny_bundle: Bundle, memory: str
) -> None:
    given = [str(pristine_tiny_bundle.root), memory, *map(str, (IDLE_S, LEAST * IDLE_S, TRIES))]
    took = subprocess.check_output([sys.executable, "-c", PROGRAM, *given], text=True)
    assert float(took) < LEAST * IDLE_S


def processor_s(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_a_chat_that_waits_for_words_takes_no_processor_time(pristine_tiny_bundle: Bundle) -> None:
    import pty

    ours, theirs = pty.openpty()
    command = [sys.executable, "-m", "edge.cli.main", "run", str(pristine_tiny_bundle.root), "--max-tokens", "5"]
    chat = subprocess.Popen(command, stdin=theirs, stdout=theirs, stderr=theirs)
    try:
        os.close(theirs)
        said, until = b"", time.monotonic() + 30
        while b">" not in said and time.monotonic() < until:
            said += os.read(ours, 1000)
        os.write(ours, b"The moon\n")
        least = max(LEAST * IDLE_S, 2 / os.sysconf("SC_CLK_TCK"))
        for _ in range(TRIES):
            before = processor_s(chat.pid)
            time.sleep(IDLE_S)
            assert chat.poll() is None, said
            if (took := processor_s(chat.pid) - before) < least:
                break
        assert took < least
    finally:
        chat.kill()
        chat.wait()
        with contextlib.suppress(OSError):
            os.close(ours)
