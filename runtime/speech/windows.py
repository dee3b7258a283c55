"""Windows over a stream of sound, one of which a model hears at once, and the pauses and silence in them."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np
from numpy.typing import NDArray

from edge.errors import InputError

SILENT = 10 ** (-70 / 20)  # no sample reaches -70 dB of full scale: nothing was recorded, no room is that quiet
LONG_SILENCE_S = 1.0  # shorter ones are left to the model
MARGIN_S = 0.2  # of silence is kept before and after a sound
GAP_S = 5.0  # a silence so long ends a window: a shorter one costs less than another window

FRAME_S = 0.02  # loudness is measured over this time
PAUSE_S = 0.5  # a speaker who is quiet for so long has ended a sentence: recordings had a pause of it every 2 to 9 s
MIN_S = 2.0  # to hear before a pause is looked for
PAUSE_POWER = 0.01  # 20 dB below the loud parts


def until_full(held: NDArray[np.float32]) -> bool:
    """Return False: recordings wait for a full window, unless the sound ends."""
    return False


class Windows:
    """A window of up to `size` samples over blocks of mono sound, [N] float32 each, that moves forward.

    enough: given what is in the buffer, whether to go on without a full window. position: where the window begins, in
    samples. Damage in the stream (`InputError`) ends it; `close` raises it.
    """

    def __init__(
        self,
        blocks: Iterator[NDArray[np.float32]],
        size: int,
        enough: Callable[[NDArray[np.float32]], bool] = until_full,
    ) -> None:
        self.position = 0
        self.ended = False
        self._blocks, self._size, self._enough = blocks, size, enough
        self._buffer = np.empty(2 * size, np.float32)
        self._start = self._end = 0  # what is held of the buffer
        self._error: InputError | None = None

    def peek(self) -> NDArray[np.float32]:
        """The window's samples [N], N <= size: fewer at the end, or where fewer were enough. Valid until the next."""
        held = self._held()
        while not (self.ended or len(held) >= self._size or self._enough(held)):
            try:
                block = next(self._blocks, None)
            except InputError as e:
                self._error, block = e, None
            if block is None:
                self.ended = True
            else:
                self._append(block)
                held = self._held()
        return held[: self._size]

    def advance(self, samples: int) -> None:
        """Move the window's begin forward, at most to the end of the buffer."""
        samples = min(samples, self._end - self._start)
        self._start += samples
        self.position += samples

    def close(self) -> None:
        """Raise the damage that ended the stream, if any did."""
        if self._error is not None:
            raise self._error

    def _held(self) -> NDArray[np.float32]:
        return self._buffer[self._start : self._end]

    def _append(self, block: NDArray[np.float32]) -> None:
        if self._end + len(block) > len(self._buffer):
            held = self._held().copy()
            if len(held) + len(block) > len(self._buffer):
                self._buffer = np.empty(len(held) + len(block), np.float32)
            self._buffer[: len(held)] = held
            self._start, self._end = 0, len(held)
        self._buffer[self._end : self._end + len(block)] = block
        self._end += len(block)


def silence_to_skip(samples: NDArray[np.float32], rate: int, step: int) -> int:
    """Number of samples at the beginning that are silence to leave out: a multiple of `step`, 0 where a sound comes
    soon, all where none comes."""
    loud = np.abs(samples) >= SILENT
    first = int(loud.argmax())
    if not loud[first]:
        return len(samples)
    if first < LONG_SILENCE_S * rate:
        return 0
    return int(first - MARGIN_S * rate) // step * step


def sound_before_gap(samples: NDArray[np.float32], rate: int, step: int) -> int:
    """Number of samples before a long silence, a multiple of `step`; all where there is none, or too little before
    it."""
    count = len(samples) // step
    frames = np.abs(samples[: count * step]).reshape(count, step).max(axis=1, initial=0)
    loud = np.flatnonzero(frames >= SILENT)
    gaps = np.flatnonzero(np.diff(loud, append=count) > GAP_S * rate / step)
    if not len(gaps):
        return len(samples)
    end = (int(loud[gaps[0]]) + 1) * step + int(MARGIN_S * rate) // step * step
    return end if end >= LONG_SILENCE_S * rate else len(samples)


def ends_in_pause(samples: NDArray[np.float32], rate: int) -> bool:
    """True if there was speech and then a pause: the place to cut a live stream."""
    frame = int(FRAME_S * rate)
    count = len(samples) // frame
    if count * FRAME_S < MIN_S:
        return False
    frames = samples[len(samples) - count * frame :].reshape(count, frame)
    power = np.square(frames).mean(axis=1)  # [count]
    loud = np.partition(power, -max(count // 20, 1))[-max(count // 20, 1)]  # which a twentieth of the time reaches
    return bool(loud > SILENT**2 and power[-round(PAUSE_S / FRAME_S) :].max() < PAUSE_POWER * loud)
