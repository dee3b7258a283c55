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

PROGRAM = """
import sys, threading, time
import edge

model = edge.load(sys.argv[1], threads=2, kind=edge.Model, **({"memory": sys.argv[3]} if sys.argv[3] else {}))
chat = model.chat()
chat.generate("The moon", max_tokens=20)
stream = model.stream("The moon", max_tokens=20)
next(stream)
time.sleep(0.5)  # threads without work stop spinning
began = time.process_time()
time.sleep(float(sys.argv[2]))
print(time.process_time() - began)
"""


@pytest.mark.parametrize("memory", ["", "2GB"])
def test_a_loaded_model_with_a_chat_and_an_open_stream_takes_no_processor_time(
    pristine_tiny_bundle: Bundle, memory: str
) -> None:
    command = [sys.executable, "-c", PROGRAM, str(pristine_tiny_bundle.root), str(IDLE_S), memory]
    assert float(subprocess.check_output(command, text=True)) < LEAST * IDLE_S


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
        time.sleep(2)  # it has answered
        before = processor_s(chat.pid)
        time.sleep(IDLE_S)
        assert chat.poll() is None, said
        assert processor_s(chat.pid) - before < max(LEAST * IDLE_S, 2 / os.sysconf("SC_CLK_TCK"))
    finally:
        chat.kill()
        chat.wait()
        with contextlib.suppress(OSError):
            os.close(ours)
