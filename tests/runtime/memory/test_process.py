"""What this process says of its own memory."""

from __future__ import annotations

import sys
import time

import pytest

from edge.runtime.memory import process


@pytest.mark.skipif(sys.platform != "linux", reason="other systems keep the peak themselves")
@pytest.mark.parametrize("watched", [True, False])
def test_a_peak_between_two_calls_is_seen_where_memory_is_watched(
    monkeypatch: pytest.MonkeyPatch, watched: bool
) -> None:
    size, before = 64 * 2**20, process.private_bytes()
    monkeypatch.setattr(process, "_peak", 0)
    with process.watching(every=0.001 if watched else 60):
        content = bytearray(size)
        content[::4096] = b"1" * (size // 4096)
        until = time.monotonic() + (30 if watched else 0.2)
        while process._peak < before + size * 0.9 and time.monotonic() < until:
            time.sleep(0.01)
        del content
    found = process.held()
    assert found is not None
    assert (found.peak_private >= before + size * 0.9) == watched
