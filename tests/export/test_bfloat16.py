"""Products in bfloat16 are taken only where they run."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from edge.export.quantize import bfloat16


def _forget() -> None:
    bfloat16.fast_dtype.cache_clear()
    bfloat16.runs.cache_clear()


@pytest.fixture(autouse=True)
def asked_anew() -> Iterator[None]:
    _forget()
    yield
    _forget()


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def test_a_processor_that_kills_them_takes_float32(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """As virtual machines do that offer AMX and hide its tiles' sizes."""
    monkeypatch.setattr(Path, "read_text", lambda *_, **__: "flags : amx_bf16 amx_tile amx_int8")
    monkeypatch.setattr(bfloat16, "_multiply", die)
    assert bfloat16.fast_dtype() == torch.float32
    assert "products in bfloat16 crash on this processor" in caplog.text


def test_nothing_is_tried_elsewhere_without_amx(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Path, "read_text", lambda *_, **__: "flags : avx2 fma")
    monkeypatch.setattr(bfloat16, "Child", lambda *_, **__: pytest.fail("a process was started"))
    monkeypatch.setattr(bfloat16, "_matmul_time", lambda dtype: 1.0 if dtype == torch.bfloat16 else 2.0)
    assert bfloat16.fast_dtype() == torch.bfloat16
