"""The benchmark of a busy machine: its processes and arithmetic; no model is needed."""

from __future__ import annotations

import sys

import busy
import pytest

from edge.bundle import Bundle

WORKER = """
import sys
bundle, threads, tokens, prompt = sys.argv[1:]
for answer, _ in enumerate(sys.stdin):
    print(100 * int(threads) if answer >= 3 else 1, flush=True)  # it begins slowly
"""


def test_hosts_answer_in_turns_and_are_compared_with_the_first(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(busy, "REST_S", 0.0)
    monkeypatch.setattr(busy, "kotlin", lambda: [sys.executable, "-c", WORKER])
    asked = ["--bundle", "smol.edge", "--host", "jvm", "--threads", "1", "2", "--busy", "0", "1", "--rounds", "3"]
    monkeypatch.setattr(sys, "argv", ["busy", *asked])
    busy.main()
    line = "{} busy, {} threads: {}, to the first {}"
    assert capsys.readouterr().out.splitlines()[1:] == [
        "  " + line.format(programs, threads, f"{speed} ({speed} to {speed})", f"{ratio} ({ratio} to {ratio})")
        for programs in (0, 1)
        for threads, speed, ratio in ((1, 100, "1.00"), (2, 200, "2.00"))
    ]


def test_the_worker_of_this_host_answers_each_line(pristine_tiny_bundle: Bundle) -> None:
    worker = busy.start([sys.executable, busy.__file__, busy.WORKER], pristine_tiny_bundle.root, 1, 4)
    assert busy.answer(worker) > 0
    worker.communicate("")
    assert worker.returncode == 0
