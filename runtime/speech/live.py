"""Sound that is being recorded: read in a thread of its own, so that none is lost while the model computes."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from edge.runtime.speech.audio import Audio

WAITING = 10_000  # blocks kept for the model: over ten minutes, as pipes hand out at most 64 KB
POLL_S = 0.1  # how long a stop may go unnoticed


@dataclass(frozen=True)
class Recording(Audio):
    """Sound that may still be coming in; `waiting()` says whether more of it is there already."""

    waiting: Callable[[], bool]


def recording(audio: Audio, stopped: Callable[[], bool]) -> Recording:
    """Read `audio` ahead. It ends where `audio` ends, or soon after `stopped()` says so."""
    blocks: queue.Queue[NDArray[np.float32] | Exception | None] = queue.Queue(WAITING)

    def read() -> None:
        try:
            for block in audio.blocks:
                blocks.put(block)
            blocks.put(None)
        except Exception as e:
            blocks.put(e)

    def come() -> Iterator[NDArray[np.float32]]:
        # A daemon: waiting for a pipe cannot be interrupted, and must not keep the program from ending.
        threading.Thread(target=read, name="edge-recording", daemon=True).start()
        while True:
            try:
                block = blocks.get_nowait() if stopped() else blocks.get(timeout=POLL_S)
            except queue.Empty:
                if stopped():
                    return
                continue
            if block is None:
                return
            if isinstance(block, Exception):
                raise block
            yield block

    return Recording(come(), audio.duration, lambda: not blocks.empty())
