"""Sound that is being recorded: read in a thread of its own, so that none is lost while the model computes."""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from edge.runtime.speech.audio import Audio

AHEAD_S = 600  # of sound kept for the model, 38 MB at 16 kHz; then the pipe has to wait
POLL_S = 0.1  # how long a stop, or room for more sound, may go unnoticed


@dataclass(frozen=True)
class Recording(Audio):
    """Sound that may still be coming in; `waiting()` says whether more of it is there already."""

    waiting: Callable[[], bool]


def recording(audio: Audio, rate: int, stopped: Callable[[], bool]) -> Recording:
    """Read `audio`, at `rate` samples a second, up to `AHEAD_S` ahead, until it ends or `stopped()` says so."""
    blocks: queue.SimpleQueue[NDArray[np.float32] | Exception | None] = queue.SimpleQueue()
    read_samples = heard_samples = 0  # each written by one thread

    def read() -> None:
        nonlocal read_samples
        try:
            for block in audio.blocks:
                blocks.put(block)
                read_samples += len(block)
                while read_samples - heard_samples >= AHEAD_S * rate and not stopped():
                    time.sleep(POLL_S)
                if stopped():
                    break
            blocks.put(None)
        except Exception as e:
            blocks.put(e)

    def come() -> Iterator[NDArray[np.float32]]:
        nonlocal heard_samples
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
            heard_samples += len(block)
            yield block

    return Recording(come(), audio.duration, lambda: not blocks.empty())
