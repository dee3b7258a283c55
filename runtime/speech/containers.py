"""Sound in containers and codecs that libsndfile does not read (M4A, MP4, WebM, ...), by ffmpeg or else by PyAV.

They convert it to mono at the rate that a model hears. Neither is a dependency: whichever there is serves.
"""

from __future__ import annotations

import importlib
import itertools
import re
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from threading import Timer
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edge.errors import InputError, on_one_line

ADVICE = "most other files are read where ffmpeg or PyAV (pip install av) is installed"
WAIT_S = 60  # for a second of sound, or for what a file says of itself
LONGEST_S = 48 * 3600  # of sound: a small file can claim any length
BLOCK_S = 1  # seconds read at once
NO_SOUND = "matches no streams"  # ffmpeg's words
DURATION = re.compile(r"Duration: (\d{1,5}):(\d\d):(\d\d\.\d+)")


class Container:
    """A file read like `_SoundFile`, whose blocks [N, channels] have the wanted rate already. seconds: None if
    unknown."""

    def __init__(self, path: Path, rate: int, seconds: float | None, blocks: Iterator[NDArray[np.float32]]) -> None:
        self.rate, self._path, self._blocks = rate, path, blocks
        self.frames = None if not seconds else max(1, round(seconds * rate))

    def read(self) -> Iterator[NDArray[Any]]:
        """Yield the blocks; InputError where there is none, or where the sound is longer than `LONGEST_S`."""
        read = 0
        for block in self._blocks:
            read += len(block)
            if read > LONGEST_S * self.rate:
                raise InputError(f"{self._path} has more than {LONGEST_S // 3600} hours of sound; cut it into parts.")
            yield block
        if not read:
            raise InputError(f"{self._path} has no samples; there is nothing to hear in it.")


def open_container(path: Path, rate: int) -> Container | None:
    """Open a file of any kind that ffmpeg or PyAV reads; None where neither is installed.

    Raises:
        InputError: it cannot be read, or has no sound in it.
    """
    from edge.children import find_program

    program = find_program("ffmpeg")
    return (_by_ffmpeg(program, path, rate) if program else None) or _by_pyav(path, rate)


def _by_ffmpeg(program: str, path: Path, rate: int) -> Container | None:
    """None where the program cannot be run."""
    from edge.children import CANNOT_RUN, run

    # Files alone: a playlist in the place of sound must not lead to the network.
    source = ["-hide_banner", "-nostdin", "-protocol_whitelist", "file", "-i", f"file:{path.absolute()}"]
    source += ["-map", "0:a:0"]
    try:
        ran = run([program, *source, "-t", "1", "-f", "null", "-"], WAIT_S)
    except TimeoutError:
        raise InputError(f"{path} cannot be read as sound: ffmpeg had not opened it after {WAIT_S} s.") from None
    except OSError:
        return None
    if ran.status == CANNOT_RUN:
        return None
    if ran.status:
        raise _refused(path, ran.error)
    found = DURATION.search(ran.error)
    seconds = 3600 * int(found[1]) + 60 * int(found[2]) + float(found[3]) if found else None
    output = ["-ac", "1", "-rematrix_maxval", "1", "-ar", str(rate), "-f", "f32le", "pipe:1"]  # 1: the channels' mean
    return Container(path, rate, seconds, _decoded([program, "-v", "fatal", *source, *output], path, rate))


def _refused(path: Path, said: str) -> InputError:
    if NO_SOUND in said:
        return InputError(f"{path} has no sound in it.")
    lines = [line.strip() for line in said.splitlines() if line.strip()]
    reason = lines[-1].rpartition(": ")[2].rstrip(".")[:200] if lines else "ffmpeg does not say why"
    return InputError(f"{path} cannot be read as sound ({reason}).")


def _decoded(command: Sequence[str], path: Path, rate: int) -> Iterator[NDArray[np.float32]]:
    """Yield the sound [N, 1] that ffmpeg writes to a pipe, block by block. InputError where no sound comes for
    `WAIT_S`, or ffmpeg fails."""
    from edge.children import ended, started

    position = 0
    with started(command, stdout=True, stderr=False) as process:
        assert process.stdout is not None
        while True:
            begun = time.monotonic()
            watch = Timer(WAIT_S, process.kill)
            watch.start()
            try:
                data = process.stdout.read(4 * BLOCK_S * rate)
            finally:
                watch.cancel()
            if time.monotonic() - begun >= WAIT_S:
                raise InputError(f"{path} is damaged after {position / rate:.0f} s: no sound came for {WAIT_S} s.")
            if not data:
                break
            block = np.frombuffer(data[: len(data) // 4 * 4], "<f4")[:, None]
            position += len(block)
            yield block
        status = ended(process, WAIT_S)
    if status != 0:
        raise InputError(f"{path} is damaged after {position / rate:.0f} s (ffmpeg reads no further).")


def _by_pyav(path: Path, rate: int) -> Container | None:
    try:
        av: Any = importlib.import_module("av")  # which no extra brings
    except (ImportError, OSError):  # OSError: a library of it is not there
        return None
    try:
        file = av.open(
            f"file:{path.absolute()}",
            options={"protocol_whitelist": "file"},
            metadata_errors="ignore",
            timeout=WAIT_S,
        )
    except (av.FFmpegError, OSError, ValueError) as e:
        raise InputError(f"{path} cannot be read as sound ({_reason(e)}).") from None
    if not file.streams.audio:
        file.close()
        raise InputError(f"{path} has no sound in it.")
    seconds = file.duration / av.time_base if file.duration and file.duration > 0 else None
    return Container(path, rate, seconds, _frames(av, file, path, rate))


def _frames(av: Any, file: Any, path: Path, rate: int) -> Iterator[NDArray[np.float32]]:
    resampler = av.AudioResampler(format="fltp", rate=rate)
    position = 0
    with file:
        try:
            for frame in itertools.chain(file.decode(file.streams.audio[0]), [None]):  # None: what was held back
                for converted in resampler.resample(frame):
                    block = converted.to_ndarray().T
                    position += len(block)
                    yield block
        except (av.FFmpegError, OSError, ValueError) as e:
            raise InputError(f"{path} is damaged after {position / rate:.0f} s ({_reason(e)}).") from None


def _reason(error: Exception) -> str:
    return getattr(error, "strerror", None) or on_one_line(error)
