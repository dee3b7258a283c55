"""`edge run` with a speech bundle: a sound file or a live recording becomes text, subtitles or JSON, as it is heard."""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, TextIO

from edge.cli.ending import INTERRUPTED
from edge.cli.run.parser import taken
from edge.cli.run.terminal import CtrlC, peak_memory
from edge.cli.screen import below, screened
from edge.errors import InputError

if TYPE_CHECKING:
    from edge.bundle import Bundle
    from edge.runtime.speech.formats import Format
    from edge.runtime.speech.segments import Segment
    from edge.runtime.speech.transcribe import Sound, TranscribeOptions, Transcriber, Transcription

LOADED = ("threads", "memory", "beams", "speculate", "exact", "skip", "provider", "strict")  # fields of LoadOptions
FORMS = {"timestamps": "times", "srt": "srt", "vtt": "vtt", "json": "json"}
WARMER = 0.2  # from one temperature to the next, as the reference's command does it
WARMEST = 1.0
REDRAWN_S = 0.1  # the progress line is drawn at most this often


def run_speech(args: argparse.Namespace, bundle: Bundle) -> int:
    """Transcribe with the opened bundle what the arguments of `edge run` name, and return the exit status.

    What was transcribed is written at once and stays, whatever happens afterwards.
    """
    from edge.runtime.engine.variant import LoadOptions
    from edge.runtime.load import start

    form = _form(args)
    _check(args)
    assert bundle.manifest.speech is not None
    rate = bundle.manifest.speech.sample_rate
    with CtrlC() as interrupted:
        loading = start(bundle, LoadOptions(**taken(args, LOADED)))
        from edge.runtime.decode.answer import never
        from edge.runtime.speech.formats import FORMATS
        from edge.runtime.speech.transcribe import TranscribeOptions, Transcriber

        progress = _Progress()
        options = TranscribeOptions(
            **taken(args, ("beams", "seed", "task")),
            temperatures=_temperatures(args.temperature or 0.0),
            # Of a recording the first Ctrl-C is its end: what was said until then is still transcribed.
            interrupted=never if args.stdin_pcm else interrupted,
            language=None if args.language is None else args.language.lower(),
            progress=progress.show,
        )
        sound: Sound = args.audio
        if args.stdin_pcm:
            from edge.runtime.speech.audio import from_pcm
            from edge.runtime.speech.live import recording

            sound = recording(from_pcm(sys.stdin.buffer, rate), rate, interrupted)
        model = loading.model()
        assert isinstance(model, Transcriber)
        with _Output(args.output, FORMATS[form], progress) as output:
            running = _transcribe(model, sound, options, output)
            if args.stdin_pcm and not running.position:
                raise InputError(
                    f"Standard input ended without a sample; pipe 16-bit mono samples at {rate:,} Hz into it."
                )
        if form != "json":
            print(_figures(running, output.count, progress.seconds), file=sys.stderr)
    return INTERRUPTED if interrupted() and not args.stdin_pcm else 0


def _transcribe(model: Transcriber, sound: Sound, options: TranscribeOptions, output: _Output) -> Transcription:
    running = model.transcribe_stream(sound, options)  # what is wrong with the sound is told before the model is there
    engine = model.engine  # waits for it
    output.begin(running)
    if output.form.needs_segments:
        from edge.cli.run.placement import placement

        output.more["placement"] = placement(engine)
    for segment in running:
        output.write(segment)
    return running


def _form(args: argparse.Namespace) -> str:
    """The name of the format that is asked for, or that the output file's name asks for."""
    chosen = [name for name in FORMS if getattr(args, name)]
    if len(chosen) > 1:
        raise InputError(f"--{chosen[0]} and --{chosen[1]} are two formats; ask for one of them.")
    if chosen:
        return FORMS[chosen[0]]
    suffix = Path(args.output).suffix.lower()[1:] if args.output else ""
    return suffix if suffix in ("srt", "vtt", "json") else "text"


def _check(args: argparse.Namespace) -> None:
    """Raise InputError where a speech bundle is given what it cannot use, or no sound."""
    if args.audio and args.stdin_pcm:
        raise InputError("There are two sounds, --audio and --stdin-pcm; give one of them.")
    if given := [each for each in (args.prompt, *(args.file or []), args.lines) if each is not None]:
        prompt = str(given[-1])
        advice = f"write --audio {prompt}" if Path(prompt).is_file() else "name a sound file with --audio"
        raise InputError(f"{args.bundle} transcribes sound and takes no prompt; {advice}.")
    if args.stdin_pcm and sys.stdin.isatty():
        raise InputError(
            "Standard input is a terminal; pipe samples into it: "
            f"arecord -t raw -f S16_LE -r 16000 -c 1 | edge run {args.bundle} --stdin-pcm"
        )
    if not (args.audio or args.stdin_pcm):
        raise InputError(f"{args.bundle} transcribes sound; name a file with --audio or pipe one into --stdin-pcm.")
    if args.audio and args.output and _same_file(Path(args.audio), args.output):
        raise InputError(f"The transcript would overwrite the recording {args.audio}; name another file with --output.")


def _same_file(a: Path, b: Path) -> bool:
    try:
        return a.samefile(b)
    except OSError:  # one of them is not there
        return False


def _temperatures(first: float) -> list[float]:
    """`first`, and the warmer ones to fall back to."""
    if first < 0 or first != first:
        return [first]  # which the options refuse
    count = int((WARMEST - first) / WARMER + 1e-6) + 1 if first < WARMEST else 1
    return [round(first + i * WARMER, 6) for i in range(count)]


class _Output:
    """Where segments go, each written through as it comes; leaving it writes the end, also after an error.

    An earlier transcript in the file stays until there is a segment, or the sound was heard to its end without one.
    """

    def __init__(self, path: Path | None, form: Format, progress: _Progress) -> None:
        self.count = 0
        self.form, self.more = form, dict[str, Any]()  # more: for the format's end
        self._path, self._progress = path, progress
        self._running: Transcription | None = None
        self._segments: list[Segment] = []  # those that the format's end needs
        self._begun = self._earlier = False

    def __enter__(self) -> _Output:
        return self

    def begin(self, running: Transcription) -> None:
        """Open the file: not before the sound could be opened, so that none is made for nothing."""
        self._file: TextIO = sys.stdout
        if self._path is not None:
            try:
                self._file = screened(self._path.open("a", encoding="utf-8"))  # `__exit__` closes it
                self._earlier = self._path.is_file() and self._path.stat().st_size > 0
            except OSError as e:
                raise InputError(f"The output file {self._path} cannot be written: {e.strerror}.") from None
        self._running = running
        self._progress.start(running.duration)

    def write(self, segment: Segment) -> None:
        self.count += 1
        if self.form.needs_segments:
            self._segments.append(segment)
        self._write(self.form.segment(self.count, segment))

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._progress.clear()
        if self._running is None:
            return
        finished = kind is None and self._running.complete
        if self._begun or finished or not self._earlier:
            self._write(self.form.end(self._running.transcript(self._segments), self.more))
        if self._path is not None:
            self._file.close()

    def _write(self, text: str) -> None:
        self._progress.clear()
        if not self._begun:
            self._begun, text = True, self.form.begin() + text
            if self._earlier:
                self._file.truncate(0)
        if text:
            self._file.write(text)
            self._file.flush()


class _Progress:
    """How far a transcription has come: one line on standard error that is drawn again and again, on a terminal."""

    def __init__(self) -> None:
        self._duration: float | None = None
        self._begun = self._drawn = time.monotonic()
        self._shown = False
        self._terminal = sys.stderr.isatty()

    def start(self, duration: float | None) -> None:
        """Count from now on."""
        self._duration, self._begun = duration, time.monotonic()

    @property
    def seconds(self) -> float:
        """How long it has taken so far."""
        return time.monotonic() - self._begun

    def show(self, position: float) -> None:
        """Say how many seconds were heard."""
        now = time.monotonic()
        if not self._terminal or (self._shown and now - self._drawn < REDRAWN_S):
            return
        from edge.runtime.speech.formats import clock

        whole = "" if self._duration is None else f" of {clock(self._duration)[:-4]}, {position / self._duration:.0%}"
        self._draw(f"{clock(position)[:-4]}{whole}, {position / max(self.seconds, 1e-3):.1f}x")
        self._drawn, self._shown = now, True

    def clear(self) -> None:
        """Take the line away before something else is printed."""
        if self._shown:
            self._draw("")
            self._shown = False

    def _draw(self, line: str) -> None:
        out = below(sys.stderr)
        out.write(f"\r{line}\x1b[K")
        out.flush()


def _figures(running: Transcription, segments: int, seconds: float) -> str:
    """One line: language, how much was heard, how fast, peak memory, and what ended it."""
    heard = running.position
    return " · ".join(
        [
            running.language or "no language",
            f"{heard:.1f} s heard in {seconds:.1f} s" + (f", {heard / seconds:.1f}x" if seconds > 0 else ""),
            f"{segments} segment{'' if segments == 1 else 's'}" if segments else "nothing was said",
            peak_memory(),
            *([] if running.complete else ["stopped"]),
        ]
    )
