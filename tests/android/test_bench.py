"""What measures the Kotlin runtime runs it."""

from __future__ import annotations

import sys
from pathlib import Path

import busy
import pytest


def test_the_kotlin_worker_answers_each_line(maven: str, corpus: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "path", [*sys.path])
    worker = busy.start(busy.kotlin(), corpus / "bundles" / "int8.edge", 1, 4)
    assert busy.answer(worker) > 0
    worker.communicate("")
    assert worker.returncode == 0
