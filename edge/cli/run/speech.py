"""`edge run` with a speech bundle: a sound file or a live recording becomes text, subtitles or JSON, as it is heard."""

from __future__ import annotations

import argparse
import os
import sys
import time
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, TextIO

from edge.cli.arguments import taken
from edge.cli.ending import INTERRUPTED, Terminated
from edge.cli.reports import check_target, same_file
from edge.cli.run.terminal import CtrlC, peak_memory
from edge.cli.screen import below, screened
from edge.errors import InputError
from edge.home import make_file

if TYPE_CHECKING:
    from edge.bundle import Bundle
    from edge.runtime.speech.formats import Format
    from edge.runtime.speech.segments import Segment
    from edge.runtime.speech.transcribe import Sound, Transcriber, Transcription
    from edge.runtime.speech.transcribe_options import TranscribeOptions

FORMS = {"timestamps": "times", "srt": "srt", "vtt": "vtt", "json": "json"}
ENDINGS = {"srt", "vtt", "json"}  # of a file's name, which choose the form of the same name
REDRAWN_S = 0.1  # the progress line is drawn at most this often


def run_speech(args: argparse.Namespace, bundle: Bundle) -> int:
    """Transcribe with the opened bundle what the arguments of `edge run` name, and return the exit status.

    What was transcribed is written at once and stays, whatever happens afterwards.
    """
    from edge.runtime.load import start
    from edge.runtime.load_options import LoadOptions

    form = _form(args)
    _check(args)
    assert bundle.manifest.speech is not None
    rate = bundle.manifest.speech.sample_rate
    with CtrlC() as interrupted:
        loading = start(bundle, LoadOptions(**taken(args, LoadOptions)))
        from edge.runtime.decode.generate_options import never
        from edge.runtime.speech.formats import FORMATS
        from edge.runtime.speech.transcribe import Transcriber
        from edge.runtime.speech.transcribe_options import TranscribeOptions, warmer_from

        progress = _Progress()
        options = TranscribeOptions(
            **taken(args, TranscribeOptions)
            | {
                "temperatures": warmer_from(args.temperature or 0.0),
                # Of a recording the first Ctrl-C is its end: what was said until then is still transcribed.
                "interrupted": never if args.stdin_pcm else interrupted,
                "language": None if args.language is None else args.language.lower(),
                "progress": progress.show,
            }
        )
        sound: Sound = args.audio
        if args.stdin_pcm:
            from edge.runtime.speech.audio import from_pcm
            from edge.runtime.speech.live import recording

            sound = recording(from_pcm(sys.stdin.buffer, rate), rate, interrupted)
        model = loading.model()
        assert isinstance(model, Transcriber)
        output = _Output(args.output, FORMATS[form], progress)
        try:
            with output:
                running = _transcribe(model, sound, options, output)
                if args.stdin_pcm and not running.position:
                    if interrupted():
                        raise KeyboardInterrupt
                    raise InputError(
                        f"Standard input ended without a sample; pipe 16-bit mono samples at {rate:,} Hz into it."
                    )
        except KeyboardInterrupt as e:  # Ctrl-C once more, or SIGTERM
            print(output.interruption(), file=sys.stderr)
            if isinstance(e, Terminated):
                raise
            return INTERRUPTED
        if not running.complete:
            print(_figures(running, output, progress.seconds), output.interruption(), sep=" · ", file=sys.stderr)
            return INTERRUPTED
        if form != "json":
            print(_figures(running, output, progress.seconds), file=sys.stderr)
    return 0


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
    ending = Path(args.output).suffix.lower()[1:] if args.output else ""
    if len(chosen) > 1:
        raise InputError(f"--{chosen[0]} and --{chosen[1]} are two formats; ask for one of them.")
    if not chosen:
        return ending if ending in ENDINGS else "text"
    form = FORMS[chosen[0]]
    if ending in ENDINGS - {form}:
        other = f".{form}" if form in ENDINGS else ".txt"
        raise InputError(
            f"--{chosen[0]} and the name {args.output} ask for two formats; leave the option out, or name a file that "
            f"ends in {other}."
        )
    return form


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
    if args.audio and args.output and same_file(Path(args.audio), args.output):
        raise InputError(f"The transcript would overwrite the recording {args.audio}; name another file with --output.")


class _Output:
    """Output of segments, each flushed as it comes. Leaving the block writes the format's end, also after an error.

    A file is created, or an earlier transcript in it replaced, at the first segment, or when the audio ends without
    one.
    """

    def __init__(self, path: Path | None, form: Format, progress: _Progress) -> None:
        self.count = 0
        self.form, self.more = form, dict[str, Any]()  # more: for the format's end
        self._path, self._progress = path, progress
        self._running: Transcription | None = None
        self._segments: list[Segment] = []  # those that the format's end needs
        self._file: TextIO | None = None
        self._begun = False
        self._is_file = path is not None  # and no device, pipe or standard output

    def __enter__(self) -> _Output:
        return self

    def begin(self, running: Transcription) -> None:
        """Find out whether the file can be written: not before the sound could be opened, whose error says more."""
        if self._path is None:
            self._file = sys.stdout
        else:
            self._open(self._path)
        self._running = running
        self._progress.start(running.duration)

    def _open(self, path: Path) -> None:
        try:
            self._file = screened(open(path, "a", encoding="utf-8", opener=_existing))  # noqa: SIM115
            self._is_file = path.is_file()
        except FileNotFoundError:
            if path.is_symlink():
                raise InputError(f"The output file {path} is a link that leads nowhere; name a file.") from None
            check_target(path, "output file")
        except OSError as e:
            raise InputError(f"The output file {path} cannot be written: {e.strerror}.") from None

    def write(self, segment: Segment) -> None:
        self.count += 1
        if self.form.needs_segments:
            self._segments.append(segment)
        self._write(self.form.segment(self.count, segment))

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            if self._running is not None:
                finished = kind is None and self._running.complete
                if self._begun or finished or not self._is_file:
                    self._write(self.form.end(self._running.transcript(self._segments), self.more))
        finally:
            self._progress.clear()
            if self._path is not None and self._file is not None:
                self._file.close()

    def interruption(self) -> str:
        """Says that Ctrl-C ended it, and what became of the file."""
        if self._path is None or not self._is_file:
            return "interrupted"
        if not self._begun:
            return f"interrupted, nothing was written to {self._path}"
        return f"interrupted, {self._path} has what was understood until then"

    def _write(self, text: str) -> None:
        if self._file is None:  # there was none; a link that was put there since is replaced, and leads nowhere
            assert self._path is not None
            self._file = os.fdopen(make_file(self._path, 0o666), "w", encoding="utf-8")
        if not self._begun:
            self._begun, text = True, self.form.begin() + text
            if self._is_file:
                self._file.truncate(0)
        if not text:
            return
        if not self._is_file:
            self._progress.clear()
        self._file.write(text)
        self._file.flush()
        if self._file.isatty():
            self._progress.draw()


def _existing(path: str, flags: int) -> int:
    """A descriptor of a file that is there."""
    return os.open(path, flags & ~os.O_CREAT)


class _Progress:
    """Progress of a transcription: one line on standard error that is redrawn, on a terminal."""

    def __init__(self) -> None:
        self._duration: float | None = None
        self._begun = time.monotonic()
        self._position = 0.0
        self._drawn = -REDRAWN_S
        self._shown = False
        self._terminal = sys.stderr.isatty()

    def start(self, duration: float | None) -> None:
        """Count from now on."""
        self._duration, self._begun = duration, time.monotonic()
        self.draw()

    @property
    def seconds(self) -> float:
        """Seconds since the start."""
        return time.monotonic() - self._begun

    def show(self, position: float) -> None:
        """Say how many seconds were heard."""
        self._position = position
        now = time.monotonic()
        if not self._shown or now - self._drawn >= REDRAWN_S:
            self._drawn = now
            self.draw()

    def draw(self) -> None:
        """Draw the line again, after something else was printed."""
        if not self._terminal:
            return
        from edge.runtime.speech.formats import clock

        position, line = self._position, clock(self._position)[:-4]
        if self._duration is not None:
            line += f" of {clock(self._duration)[:-4]}, {min(1.0, position / self._duration):.0%}"
        if position:
            line += f", {position / max(self.seconds, 1e-3):.1f}x"
        self._put(line)
        self._shown = True

    def clear(self) -> None:
        """Take the line away before something else is printed."""
        if self._shown:
            self._put("")
            self._shown = False

    def _put(self, line: str) -> None:
        out = below(sys.stderr)
        out.write(f"\r{line}\x1b[K")
        out.flush()


def _figures(running: Transcription, output: _Output, seconds: float) -> str:
    """One line: language, how much was heard, how fast, peak memory."""
    heard, count = running.position, output.count
    none = "nothing was said" if running.complete else "no segment yet"
    return " · ".join(
        [
            running.language or "no language",
            f"{heard:.1f} s heard in {seconds:.1f} s" + (f", {heard / seconds:.1f}x" if seconds > 0 else ""),
            f"{count} segment{'' if count == 1 else 's'}" if count else none,
            peak_memory(),
        ]
    )
