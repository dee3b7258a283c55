"""The benchmark of an NPU's operators: its graphs compute what it compares with, and what is missing is a sentence."""

from __future__ import annotations

import sys

import pytest
from places import BENCHMARKS

from edge.extras import install

FOLDER = BENCHMARKS
import npu_operators  # noqa: E402

from edge.runtime.providers import cpu  # noqa: E402


def test_integers_of_16_bits_are_close_to_float32_and_those_of_8_are_not() -> None:
    provider = cpu.make()
    errors = {name: operator.error(provider) for name, operator in npu_operators.operators().items()}
    coarse = errors.pop("attention times values in uint8")
    assert all(0 < error < 0.0005 for error in errors.values()), errors
    assert 0.005 < coarse < 0.02


def test_a_missing_plugin_is_a_sentence(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setitem(sys.modules, "onnxruntime_qnn", None)
    monkeypatch.setattr(sys, "argv", ["npu_operators.py"])
    assert npu_operators.main() == 1
    said = capsys.readouterr()
    assert not said.out and said.err.count("\n") == 1 and install('npu-qualcomm') in said.err
