"""This runtime with its encoder reading whole windows of 30 s, whatever the sound's length."""

from __future__ import annotations

from pathlib import Path

from seq2seq import edge_runtime
from seq2seq.seq2seq_engine import RECORDING, Loaded

PACKAGE, MODULES, IMPORT = edge_runtime.PACKAGE, edge_runtime.MODULES, edge_runtime.IMPORT
VARIANTS = {RECORDING: edge_runtime.VARIANTS[RECORDING]}


def load(model: Path, threads: int, capacity: int, task: str) -> Loaded:
    loaded = edge_runtime.load(model, threads, capacity, task)
    loaded.whole_windows()  # type: ignore[attr-defined]
    return loaded
