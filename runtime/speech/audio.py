"""Sound as a stream: a file, an array or a pipe becomes blocks of mono float32 at the rate that a model hears.

Blocks are read as they are asked for, so that a file of any length needs the memory of one block. WAV files of plain
PCM are read by the standard library where soundfile is not installed; other sound needs the extra `audio`, and what
libsndfile does not read ffmpeg or PyAV.
"""

from __future__ import annotations

import itertools
import wave
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from io import RawIOBase
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

from edge.errors import InputError, MissingExtraError
from edge.extras import install
from edge.runtime.speech.containers import ADVICE, Container, open_container

BLOCK_S = 1  # seconds read at once
BLOCK_SAMPLES = 1 << 20  # maximum samples read at once, of all channels together
RATES = range(1_000, 1_000_001)  # samples a second that sound has; others are damage
LOUDEST = 1e9  # full scale is 1, and some write 16-bit values as floats; beyond this is damage
WIDEST = 4  # maximum bytes of a sample that are read without soundfile
UNKNOWN_FRAMES = 1 << 62  # what libsndfile reports, or more, where a file does not tell its length


@dataclass(frozen=True)
class Audio:
    """Mono sound in blocks [N] float32. duration: in seconds; None where it is unknown before the end."""

    blocks: Iterator[NDArray[np.float32]]
    duration: float | None


def open_audio(path: str | Path, rate: int) -> Audio:
    """Open a sound file of any sample rate and channel count, to be heard at `rate` samples a second.

    Raises:
        InputError: no such file, no sound in it, or a format that cannot be read; while reading, damage.
        MissingExtraError: the file's format or rate needs soundfile or soxr, which are not installed.
    """
    path = Path(path)
    try:
        if path.is_dir():
            raise InputError(f"{path} is a folder; name a sound file.")
        if path.stat().st_size == 0:
            raise InputError(f"{path} is an empty file; there is nothing to hear in it.")
    except (OSError, ValueError) as e:  # ValueError: a name with a character that no name has
        raise InputError(f"The sound file {path} cannot be read: {getattr(e, 'strerror', None) or e}.") from None
    sound = _opened(path, rate)
    if sound.rate not in RATES:
        raise InputError(
            f"{path} is damaged: its header says {sound.rate:,} samples a second; sound that is heard here has "
            f"{RATES[0]:,} to {RATES[-1]:,}."
        )
    if sound.frames == 0:
        raise InputError(f"{path} has no samples; there is nothing to hear in it.")
    duration = None if sound.frames is None else sound.frames / sound.rate
    blocks = _mono(sound.read(), sound.rate, str(path))
    return Audio(blocks if sound.rate == rate else _resampled(blocks, sound.rate, rate, path), duration)


def _opened(path: Path, rate: int) -> _SoundFile | _WaveFile | Container:
    """The file, by the first that reads it: soundfile or the standard library, ffmpeg, PyAV."""
    try:
        import soundfile
    except (ImportError, OSError):  # OSError: its library libsndfile is not there
        soundfile = None
    try:
        return _WaveFile(path) if soundfile is None else _SoundFile(soundfile, path)
    except (InputError, MissingExtraError):
        if (container := open_container(path, rate)) is None:
            raise
        return container


def from_samples(samples: NDArray[Any], rate: int) -> Audio:
    """Sound that is in memory: mono samples [N] of a float type at `rate`, full scale 1; InputError for another shape,
    type, no samples or, while reading, a sample that is not a number."""
    if samples.ndim != 1 or not np.issubdtype(samples.dtype, np.floating):
        raise InputError(
            f"Samples must be one channel of floats at {rate:,} Hz between -1 and 1, "
            f"not {samples.dtype} of shape {list(samples.shape)}."
        )
    if not len(samples):
        raise InputError("There are no samples; there is nothing to hear.")
    size = BLOCK_S * rate
    blocks = (samples[start : start + size, None] for start in range(0, len(samples), size))
    return Audio(_mono(blocks, rate, "The audio"), len(samples) / rate)


def from_pcm(stream: BinaryIO, rate: int) -> Audio:
    """Raw 16-bit little-endian mono samples at `rate` from a pipe of which nothing was read yet, as they come. Reading
    waits for the pipe."""
    # Without its buffer: Python closes that when it ends, and aborts where a thread that reads still has its lock.
    return Audio(_pcm(getattr(stream, "raw", stream)), None)


def _pcm(stream: BinaryIO | RawIOBase) -> Iterator[NDArray[np.float32]]:
    read = getattr(stream, "read1", stream.read)  # what is there, and not only a full block
    half = b""
    while data := read(1 << 16):
        data = half + data
        whole = len(data) & ~1
        half = data[whole:]
        yield np.frombuffer(data[:whole], "<i2").astype(np.float32) / np.float32(2**15)


def _mono(blocks: Iterable[NDArray[Any]], rate: int, name: str) -> Iterator[NDArray[np.float32]]:
    """The mean of the channels of blocks [N, channels]; InputError at a sample that is no number."""
    position = 0
    for block in blocks:
        with np.errstate(over="ignore"):  # what float32 cannot hold becomes infinite, which is told below
            block = block.astype(np.float32, copy=False)
        valid = np.abs(block) < LOUDEST  # also False for NaN
        if not valid.all():
            frame = int(np.argmin(valid.all(axis=1)))
            raise InputError(
                f"{name} is damaged: sample {position + frame:,}, at {(position + frame) / rate:.2f} s, "
                f"is {block[frame][~valid[frame]][0]} and no loudness."
            )
        position += len(block)
        yield block.mean(axis=1, dtype=np.float32)


def _resampled(
    blocks: Iterator[NDArray[np.float32]], rate: int, wanted: int, path: Path
) -> Iterator[NDArray[np.float32]]:
    try:
        import soxr
    except ImportError:
        raise MissingExtraError(
            f"{path} has {rate:,} samples a second and this model hears {wanted:,}; to convert them run: "
            f"{install('audio')}"
        ) from None
    stream = soxr.ResampleStream(rate, wanted, 1, dtype="float32")
    ends = itertools.chain(((block, False) for block in blocks), [(np.zeros(0, np.float32), True)])
    return (stream.resample_chunk(block, last=last) for block, last in ends)


class _SoundFile:
    """Whatever libsndfile reads: `rate` in samples a second, `frames` in all (None: unknown), blocks [N, channels]."""

    def __init__(self, soundfile: Any, path: Path) -> None:
        self._error, self._path = soundfile.SoundFileError, path
        try:
            self._file = soundfile.SoundFile(str(path))
        except (soundfile.SoundFileError, TypeError) as e:  # TypeError: a name that ends in .raw
            raise InputError(
                f"{path} cannot be read as sound ({_reason(e)}); WAV, FLAC, MP3 and OGG can, and {ADVICE}."
            ) from None
        self.rate, self._block = self._file.samplerate, _block(self._file.samplerate, self._file.channels)
        self.frames = self._file.frames if self._file.frames < UNKNOWN_FRAMES else None

    def read(self) -> Iterator[NDArray[Any]]:
        with self._file as file:
            position = 0
            while True:
                try:
                    block = file.read(self._block, dtype="float32", always_2d=True)
                except self._error as e:
                    at = position / self.rate
                    raise InputError(f"{self._path} is damaged after {at:.0f} s ({_reason(e)}).") from None
                if not len(block):
                    return
                position += len(block)
                yield block


class _WaveFile:
    """Reads a WAV file of plain PCM with the standard library alone, like `_SoundFile`."""

    def __init__(self, path: Path) -> None:
        try:
            self._file = wave.open(str(path), "rb")  # noqa: SIM115 (`read` closes it)
            if self._file.getsampwidth() > WIDEST:
                raise wave.Error(f"{8 * self._file.getsampwidth()} bits a sample")
        except (wave.Error, EOFError, RuntimeError) as e:  # RuntimeError: a chunk that ends beyond the file
            raise MissingExtraError(
                f"{path} is not a WAV file of plain PCM ({str(e) or 'it breaks off'}); for other formats run: "
                f"{install('audio')}; {ADVICE}"
            ) from None
        self.rate, self.frames = self._file.getframerate(), self._file.getnframes()
        self._channels, self._width = self._file.getnchannels(), self._file.getsampwidth()

    def read(self) -> Iterator[NDArray[Any]]:
        with self._file as file:
            while data := file.readframes(_block(self.rate, self._channels)):
                whole = len(data) // (self._width * self._channels) * self._width * self._channels
                yield _scaled(data[:whole], self._width).reshape(-1, self._channels)


def _block(rate: int, channels: int) -> int:
    """The frames that are read at once."""
    return max(1, min(BLOCK_S * rate, BLOCK_SAMPLES // channels))


def _scaled(data: bytes, width: int) -> NDArray[np.float32]:
    """Samples of `width` bytes each, as WAV files hold them, as floats of full scale 1."""
    if width == 1:  # the only unsigned one
        return (np.frombuffer(data, np.uint8).astype(np.float32) - np.float32(128)) / np.float32(128)
    wide = np.zeros((len(data) // width, 4), np.uint8)
    wide[:, 4 - width :] = np.frombuffer(data, np.uint8).reshape(-1, width)  # as the upper bytes of 32 bits
    samples: NDArray[np.float32] = wide.view("<i4")[:, 0].astype(np.float32) / np.float32(2**31)
    return samples


def _reason(error: Exception) -> str:
    """Return a library's error message without its introduction and full stop."""
    return str(error).rpartition(": ")[2].rstrip(".") or type(error).__name__
