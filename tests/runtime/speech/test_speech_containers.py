"""Sound that libsndfile does not read: by ffmpeg, by PyAV, or a sentence that names both."""

from __future__ import annotations

import builtins
import stat
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sounds import tone, write_wave

from edge.errors import InputError, MissingExtraError
from edge.runtime.speech import containers
from edge.runtime.speech.audio import open_audio

RATE = 16_000
OPENED = "  Duration: 00:00:02.50, start: 0.000000, bitrate: 128 kb/s"

Fake = Callable[..., Path]


@pytest.fixture(autouse=True)
def without_either(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """A machine that has neither, and that lacks more modules where asked to."""
    real, missing = builtins.__import__, {"av"}

    def load(name: str, *args: Any, **options: Any) -> Any:
        if name in missing:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
        return real(name, *args, **options)

    monkeypatch.setattr(builtins, "__import__", load)
    monkeypatch.setenv("PATH", "")
    return missing.update


@pytest.fixture
def ffmpeg(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Fake:
    """Puts a program of that name on the PATH, which writes its arguments down and then does so."""

    def make(probe: str, decode: str) -> Path:
        folder = tmp_path / "bin"
        folder.mkdir()
        program, seen = folder / "ffmpeg", tmp_path / "arguments"
        program.write_text(
            f"#!{sys.executable} -IS\nimport sys, time, array\n"
            f"with open({str(seen)!r}, 'a') as file: print(sys.argv[1:], file=file)\n"
            f"if 'null' in sys.argv:\n    {probe}\nelse:\n    {decode}\n"
        )
        program.chmod(program.stat().st_mode | stat.S_IXUSR)
        monkeypatch.setenv("PATH", str(folder))
        return seen

    return make


@pytest.fixture
def talk(tmp_path: Path) -> Path:
    (tmp_path / "talk.m4a").write_bytes(b"\0\0\0\x20ftypM4A " * 100)
    return tmp_path / "talk.m4a"


SAMPLES = "sys.stdout.buffer.write(array.array('f', [0.25]) * {count})"
SAYS = "print({text!r}, file=sys.stderr)"


@pytest.mark.parametrize("name", ["a.m4a", "a.mp4", "a.webm", "-a.mkv", "http:a.wma", "a b'.aac"])
@pytest.mark.parametrize("count", [1, RATE // 10, 2 * RATE + 5])
def test_ffmpeg_reads_what_libsndfile_does_not(
    ffmpeg: Fake, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, count: int
) -> None:
    seen = ffmpeg(SAYS.format(text=OPENED), SAMPLES.format(count=count))
    (tmp_path / name).write_bytes(b"no sound that anybody knows" * 9)
    monkeypatch.chdir(tmp_path)
    audio = open_audio(name, RATE)
    samples = np.concatenate(list(audio.blocks))
    assert audio.duration == 2.5 and len(samples) == count and (samples == 0.25).all()
    for line in seen.read_text().splitlines():
        assert f"file:{tmp_path / name}" in eval(line), "a name is neither an option nor an address"
        assert "'-protocol_whitelist', 'file'" in line


@pytest.mark.parametrize("text", ["", "  Duration: N/A", "  Duration: 00:00:00.00", "Duration: x" + "9" * 9999])
def test_a_file_that_does_not_tell_its_length_is_read(ffmpeg: Fake, talk: Path, text: str) -> None:
    ffmpeg(SAYS.format(text=text), SAMPLES.format(count=RATE))
    audio = open_audio(talk, RATE)
    assert audio.duration is None and len(np.concatenate(list(audio.blocks))) == RATE


@pytest.mark.parametrize(
    ("said", "sentence"),
    [
        ("x: Invalid data found when processing input\n", r"cannot be read as sound \(Invalid data found when"),
        ("Stream map '0:a:0' matches no streams.\nTo ignore\n", "talk.m4a has no sound in it"),
        ("", "ffmpeg does not say why"),
        ("!" * 10_000, "cannot be read as sound"),
    ],
)
def test_what_ffmpeg_refuses_gets_one_sentence(ffmpeg: Fake, talk: Path, said: str, sentence: str) -> None:
    ffmpeg(f"{SAYS.format(text=said)}; sys.exit(183)", "sys.exit(1)")
    with pytest.raises(InputError, match=sentence) as found:
        open_audio(talk, RATE)
    assert "\n" not in str(found.value) and len(str(found.value)) < 500


def read(path: Path) -> list[np.ndarray]:
    """The blocks before an error, which is the last."""
    blocks: list[Any] = []
    try:
        blocks.extend(open_audio(path, RATE).blocks)
    except InputError as e:
        blocks.append(str(e))
    return blocks


def test_damage_keeps_what_came_before_it(ffmpeg: Fake, talk: Path) -> None:
    ffmpeg("pass", f"{SAMPLES.format(count=2 * RATE)}; sys.stdout.flush(); sys.exit(69)")
    blocks = iter(open_audio(talk, RATE).blocks)
    assert [len(next(blocks)), len(next(blocks))] == [RATE, RATE]
    with pytest.raises(InputError, match=r"talk.m4a is damaged after 2 s"):
        next(blocks)


def test_a_file_of_no_samples_gets_a_sentence(ffmpeg: Fake, talk: Path) -> None:
    ffmpeg("pass", "pass")
    assert read(talk) == [f"{talk} has no samples; there is nothing to hear in it."]


def test_a_decoder_that_says_nothing_more_is_ended(ffmpeg: Fake, talk: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ffmpeg("pass", "time.sleep(60)")
    blocks = open_audio(talk, RATE).blocks
    monkeypatch.setattr(containers, "WAIT_S", 1)
    began = time.monotonic()
    with pytest.raises(InputError, match="no sound came for 1 s"):
        next(blocks)
    assert time.monotonic() - began < 40, "it was waited for"


def test_an_opening_that_never_ends_is_ended(ffmpeg: Fake, talk: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ffmpeg("time.sleep(60)", "pass")
    monkeypatch.setattr(containers, "WAIT_S", 1)
    assert "had not opened it after 1 s" in read(talk)[-1]


def test_sound_without_an_end_is_cut_off(ffmpeg: Fake, talk: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ffmpeg("pass", f"while True: {SAMPLES.format(count=RATE)}")
    monkeypatch.setattr(containers, "LONGEST_S", 3)
    blocks = read(talk)
    assert len(blocks) == 4 and "has more than" in blocks[-1]


def test_without_either_a_sentence_names_both(talk: Path, without_either: Callable[..., None]) -> None:
    pytest.importorskip("soundfile")
    with pytest.raises(InputError, match=r"ffmpeg or PyAV \(pip install av\) is installed"):
        open_audio(talk, RATE)
    without_either(["soundfile"])
    with pytest.raises(MissingExtraError, match=r"for other formats run: .*ffmpeg or PyAV \(pip install av\)"):
        open_audio(talk, RATE)


def test_a_program_that_cannot_be_run_is_passed_over(ffmpeg: Fake, talk: Path) -> None:
    seen = ffmpeg("pass", "pass")
    (seen.parent / "bin" / "ffmpeg").write_text("#!/no/such/interpreter\n")
    with pytest.raises(InputError, match="ffmpeg or PyAV"):
        open_audio(talk, RATE)


def test_what_our_readers_take_starts_no_program(ffmpeg: Fake, tmp_path: Path) -> None:
    seen = ffmpeg("sys.exit(1)", "sys.exit(1)")
    audio = open_audio(write_wave(tmp_path / "a.wav", tone(1)), RATE)
    assert len(np.concatenate(list(audio.blocks))) == RATE and not seen.exists()


class FakeAV:
    """What is used of PyAV: a file of stereo frames."""

    time_base = 1_000_000

    class FFmpegError(OSError):
        pass

    def __init__(self, frames: Sequence[np.ndarray | Exception], audio: bool = True) -> None:
        self.streams, self.duration, self._frames = type("Streams", (), {"audio": [0] if audio else []}), None, frames

    def open(self, name: str, **options: Any) -> FakeAV:
        assert name.startswith("file:/") and options["options"] == {"protocol_whitelist": "file"}
        return self

    def __enter__(self) -> None:
        pass

    def __exit__(self, *_: object) -> None:
        pass

    def close(self) -> None:
        pass

    def AudioResampler(self, format: str, rate: int) -> FakeAV:
        return self

    def decode(self, stream: int) -> Any:
        for frame in self._frames:
            if isinstance(frame, Exception):
                raise frame
            yield frame

    def resample(self, frame: np.ndarray | None) -> list[Any]:
        held = np.zeros((2, 7), np.float32) if frame is None else frame
        return [type("Frame", (), {"to_ndarray": lambda self: held})()]


def test_pyav_reads_where_there_is_no_ffmpeg(talk: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    monkeypatch.setenv("PATH", "")
    stereo = np.stack([np.full(RATE, 0.5), np.zeros(RATE)]).astype(np.float32)
    monkeypatch.setitem(sys.modules, "av", FakeAV([stereo]))
    samples = np.concatenate(list(open_audio(talk, RATE).blocks))
    assert len(samples) == RATE + 7 and (samples[:RATE] == 0.25).all()
    monkeypatch.setitem(sys.modules, "av", FakeAV([stereo, FakeAV.FFmpegError(1, "Invalid data")]))
    assert read(talk)[-1] == f"{talk} is damaged after 1 s (Invalid data)."
    monkeypatch.setitem(sys.modules, "av", FakeAV([], audio=False))
    assert read(talk) == [f"{talk} has no sound in it."]
