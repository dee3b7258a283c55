"""Reading sound: formats, rates, channels, damage, and what is said about what cannot be read."""

from __future__ import annotations

import builtins
import io
import struct
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sounds import RATE, tone, write_wave

from edge.errors import InputError, MissingExtraError
from edge.extras import install
from edge.runtime.speech.audio import BLOCK_SAMPLES, from_pcm, from_samples, open_audio


def read(path: Path, rate: int = RATE) -> np.ndarray:
    return np.concatenate([np.zeros(0, np.float32), *open_audio(path, rate).blocks])


@pytest.fixture
def without(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Makes modules impossible to import."""
    real = builtins.__import__

    def without(*names: str) -> None:
        def refuse(name: str, *args: Any, **kwargs: Any) -> Any:
            if name in names:
                raise ImportError(name)
            return real(name, *args, **kwargs)

        monkeypatch.setattr(builtins, "__import__", refuse)

    return without


@pytest.fixture(params=[True, False], ids=["soundfile", "standard library"])
def library(request: pytest.FixtureRequest, without: Callable[..., None]) -> bool:
    """Whether soundfile reads; else the standard library does, alone."""
    if request.param:
        pytest.importorskip("soundfile")
    else:
        without("soundfile", "soxr")
    return bool(request.param)


@pytest.mark.parametrize("width", [1, 2, 3, 4])
def test_wave_files_of_every_width_are_read(tmp_path: Path, width: int, library: bool) -> None:
    samples = tone(2.5)
    heard = read(write_wave(tmp_path / "a.wav", samples, width=width))
    assert heard.dtype == np.float32 and len(heard) == len(samples)
    assert np.abs(heard - samples).max() <= 2.0 ** (1 - 8 * width) + 1e-7


def test_channels_are_averaged(tmp_path: Path, library: bool) -> None:
    samples = np.stack([tone(1), np.zeros(RATE), -tone(1) / 2], axis=1)
    assert np.abs(read(write_wave(tmp_path / "a.wav", samples)) - tone(1) / 6).max() < 1e-4


@pytest.mark.parametrize("rate", [8_000, 11_025, 44_100, 48_000])
def test_any_rate_becomes_the_models(tmp_path: Path, rate: int) -> None:
    pytest.importorskip("soundfile")
    pytest.importorskip("soxr")
    path = write_wave(tmp_path / "a.wav", tone(3, rate), rate)
    heard = read(path)
    assert abs(len(heard) - 3 * RATE) <= 1 and open_audio(path, RATE).duration == 3.0
    inner = slice(RATE // 2, -RATE // 2)  # a filter rings at the ends
    assert np.abs(heard[inner] - tone(3)[: len(heard)][inner]).max() < 2e-3


@pytest.mark.parametrize("kind", ["FLAC", "OGG", "MP3"])
def test_compressed_files_are_read(tmp_path: Path, kind: str) -> None:
    soundfile = pytest.importorskip("soundfile")
    if kind not in soundfile.available_formats():
        pytest.skip(f"this libsndfile knows no {kind}")
    path = tmp_path / f"a.{kind.lower()}"
    soundfile.write(path, tone(2), RATE, format=kind)
    heard = read(path)
    assert abs(len(heard) - 2 * RATE) < 2500
    spectrum = np.abs(np.fft.rfft(heard[:RATE]))
    assert abs(int(spectrum.argmax()) - 440) <= 1


def test_a_file_is_read_block_by_block(tmp_path: Path) -> None:
    path = write_wave(tmp_path / "a.wav", tone(10))
    blocks = open_audio(path, RATE).blocks
    assert len(next(blocks)) == RATE


def test_a_file_that_is_cut_off_is_read_as_far_as_it_goes(tmp_path: Path, without: Callable[..., None]) -> None:
    path = write_wave(tmp_path / "a.wav", tone(2), width=3)
    path.write_bytes(path.read_bytes()[: 44 + 3 * RATE + 1])
    assert len(read(path)) == RATE
    without("soundfile")
    assert len(read(path)) == RATE


def refusal(path: Path, error: type[Exception] = InputError) -> str:
    with pytest.raises(error) as caught:
        read(path)
    sentence = str(caught.value)
    assert str(path.name) in sentence
    return sentence


def test_what_is_no_sound_gets_a_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("soundfile")
    monkeypatch.setenv("PATH", "")  # no ffmpeg
    (tmp_path / "a.txt").write_text("no sound at all " * 100)
    assert "cannot be read as sound (Format not recognised); WAV, FLAC, MP3 and OGG can" in refusal(tmp_path / "a.txt")
    (tmp_path / "a.raw").write_bytes(b"\0" * 1000)
    assert "cannot be read as sound" in refusal(tmp_path / "a.raw")
    (tmp_path / "empty.wav").write_bytes(b"")
    assert "is an empty file" in refusal(tmp_path / "empty.wav")
    assert "No such file" in refusal(tmp_path / "none.wav")
    assert "is a folder" in refusal(tmp_path)


def test_a_file_without_samples_gets_a_sentence(tmp_path: Path, library: bool) -> None:
    assert "has no samples" in refusal(write_wave(tmp_path / "a.wav", np.zeros(0)))


def test_a_file_without_a_sample_rate_gets_a_sentence(tmp_path: Path, library: bool) -> None:
    path = write_wave(tmp_path / "a.wav", tone(1))
    data = bytearray(path.read_bytes())
    data[24:28] = bytes(4)
    path.write_bytes(data)
    sentence = refusal(path)
    assert library or "its header says 0 samples a second" in sentence


@pytest.mark.parametrize("rate", [3, 4_000_000_000])
def test_a_sample_rate_that_no_sound_has_gets_a_sentence(tmp_path: Path, rate: int, library: bool) -> None:
    path = write_wave(tmp_path / "a.wav", tone(1))
    data = bytearray(path.read_bytes())
    data[24:28] = struct.pack("<I", rate)
    path.write_bytes(data)
    sentence = refusal(path)
    assert "is damaged: its header says" in sentence or "cannot be read as sound" in sentence


def test_many_channels_are_read_in_blocks_of_bounded_size(tmp_path: Path, library: bool) -> None:
    path = write_wave(tmp_path / "a.wav", np.tile(tone(1)[:8_000, None], 512))
    blocks = list(open_audio(path, RATE).blocks)
    assert max(map(len, blocks)) * 512 <= BLOCK_SAMPLES
    assert np.abs(np.concatenate(blocks) - tone(1)[:8_000]).max() < 1e-4


def test_a_chunk_that_ends_beyond_the_file_gets_a_sentence(tmp_path: Path, without: Callable[..., None]) -> None:
    without("soundfile", "soxr")
    path = write_wave(tmp_path / "a.wav", tone(1))
    data = bytearray(path.read_bytes())
    data[16:20] = struct.pack("<I", 1 << 30)  # of the header's own chunk
    path.write_bytes(data)
    assert "is not a WAV file of plain PCM (it breaks off)" in refusal(path, MissingExtraError)


def test_what_the_standard_library_cannot_do_names_the_extra(tmp_path: Path, without: Callable[..., None]) -> None:
    without("soundfile", "soxr")
    (tmp_path / "a.flac").write_bytes(b"fLaC" + b"\0" * 100)
    assert f"run: {install('audio')}" in refusal(tmp_path / "a.flac", MissingExtraError)
    path = write_wave(tmp_path / "wide.wav", tone(1))
    data = bytearray(path.read_bytes())
    data[32:36] = struct.pack("<HH", 8, 64)
    path.write_bytes(data)
    assert "is not a WAV file of plain PCM (64 bits a sample)" in refusal(path, MissingExtraError)
    path = write_wave(tmp_path / "a.wav", tone(1, 48_000), 48_000)
    sentence = refusal(path, MissingExtraError)
    assert "48,000 samples a second and this model hears 16,000" in sentence
    assert install("audio") in sentence


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf, 1e20])
def test_a_sample_that_is_no_loudness_is_named(tmp_path: Path, value: float) -> None:
    soundfile = pytest.importorskip("soundfile")
    samples = np.stack([tone(3, 8_000), tone(3, 8_000)], axis=1)
    samples[12_345, 1] = value
    soundfile.write(tmp_path / "a.wav", samples, 8_000, subtype="FLOAT")
    sentence = refusal(tmp_path / "a.wav")
    assert "is damaged: sample 12,345, at 1.54 s, is" in sentence and sentence.endswith("no loudness.")


def test_damage_in_a_compressed_file_is_told_where_it_begins_and_what_was_before_is_read(tmp_path: Path) -> None:
    soundfile = pytest.importorskip("soundfile")
    path = tmp_path / "a.flac"
    noise = np.random.default_rng(0).standard_normal(6 * RATE) * 0.1
    soundfile.write(path, noise, RATE)
    data = bytearray(path.read_bytes())
    data[len(data) // 2 : len(data) // 2 + 20_000] = b"\xff" * 20_000
    path.write_bytes(data)
    heard = 0
    try:
        for block in open_audio(path, RATE).blocks:
            heard += len(block)
    except InputError as e:
        assert "is damaged after" in str(e)
    assert heard >= 2 * RATE


def test_samples_in_memory_may_have_any_float_type() -> None:
    for kind in (np.float16, np.float32, np.float64):
        audio = from_samples(tone(2.5).astype(kind), RATE)
        heard = np.concatenate(list(audio.blocks))
        assert heard.dtype == np.float32 and audio.duration == 2.5
        assert np.abs(heard - tone(2.5)).max() < 1e-3


def test_a_pipe_of_samples_is_read_as_it_comes() -> None:
    class Pipe(io.RawIOBase):
        """Hands out a few bytes at a time, also odd numbers of them."""

        def __init__(self, data: bytes) -> None:
            self._data = data

        def read(self, size: int = -1) -> bytes:
            piece, self._data = self._data[:333], self._data[333:]
            return piece

    values = [-32768, -1, 0, 1, 16384, 32767] * 500
    data = struct.pack(f"<{len(values)}h", *values)
    heard = np.concatenate(list(from_pcm(Pipe(data + b"\x01"), RATE).blocks))  # type: ignore[arg-type]
    assert np.array_equal(heard, np.array(values, np.float32) / 32768)


def test_transcribing_imports_the_extra_only_where_a_file_needs_it() -> None:
    script = (
        "import sys; from edge.cli.run import speech; from edge.runtime.speech import formats, live, transcribe;"
        "print(sorted({'soundfile', 'soxr', 'torch', 'transformers', 'rich'} & set(sys.modules)))"
    )
    result = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60)
    assert result.stdout == "[]\n", result.stderr
