"""Weights in a file without a name until an export is done."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from edge.export.facts.tensors import QTensor
from edge.export.quantize.solved_file import SolvedFile
from edge.runtime.memory.process import private_bytes

MB = 10**6


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("EDGE_HOME", str(tmp_path / "home"))
    return tmp_path / "home"


def weight(rows: int, columns: int, seed: int = 0, *, zeros: bool = True) -> QTensor:
    random, blocks = np.random.default_rng(seed), -(-columns // 32)
    q = random.integers(0, 16, (rows, columns), np.uint8)
    scales = random.random((rows, blocks), np.float32)
    return QTensor(4, 32, q, scales, random.integers(0, 16, (rows, blocks), np.uint8) if zeros else None, "gptq")


def assert_the_same(one: QTensor, other: QTensor) -> None:
    assert (one.bits, one.block_size, one.method) == (other.bits, other.block_size, other.method)
    assert np.array_equal(one.dequantize(), other.dequantize())
    assert (one.zero_points is None) == (other.zero_points is None)


def test_weights_come_back_as_they_were_and_in_the_order_that_is_asked_for() -> None:
    made = {"a": weight(5, 33), "b": weight(7, 64, 1, zeros=False), "c": weight(3, 32, 2)}
    kept = SolvedFile()
    for name, each in made.items():
        kept.add(name, each)
    assert list(kept) == ["a", "b", "c"] and list(kept.in_order("ca")) == ["c", "a"]
    for found in (kept, kept.in_order("cab")):
        assert len(found) == 3 and "d" not in found
        for name, each in found.items():
            assert_the_same(each, made[name])


def test_they_take_no_private_memory_and_leave_no_file(home: Path) -> None:
    kept = SolvedFile()
    before = private_bytes()
    for i in range(8):
        kept.add(str(i), weight(1024, 8192, i))
    assert private_bytes() - before < 40 * MB  # of 64 MB of integers, and 9 of scales and zero points
    assert_the_same(kept["5"], weight(1024, 8192, 5))
    assert not [each for each in home.rglob("*") if each.is_file()]


def test_without_a_folder_or_room_weights_stay_in_memory(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    home.write_text("no folder")
    kept = SolvedFile()
    kept.add("a", weight(5, 33))
    assert_the_same(kept["a"], weight(5, 33))
    home.unlink()
    kept = SolvedFile()
    kept.add("a", weight(5, 33))

    class Full:
        def seek(self, *_: int) -> None: ...

        def write(self, _: memoryview) -> int:
            raise OSError(28, "No space left on device")

    with monkeypatch.context() as full:
        full.setattr(kept, "_file", Full())
        kept.add("b", weight(5, 33, 1))
    kept.add("c", weight(5, 33, 2))
    for i, name in enumerate("abc"):
        assert_the_same(kept[name], weight(5, 33, i))
