"""`Transcriber`: a loaded speech bundle that turns sound into segments of text, window by window.

Sound longer than a window is heard by the reference's sequential rules (openai/whisper, transcribe.py): each window
begins where the last finished segment of the one before ended, and is given that one's text.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Generator, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Unpack

import numpy as np
from numpy.typing import NDArray

from edge.bundle import Bundle
from edge.errors import InputError
from edge.manifest import Speech
from edge.runtime.background import Background
from edge.runtime.decode.stream import next_of
from edge.runtime.engine.engine import Engine
from edge.runtime.keywords import TranscribeKeywords
from edge.runtime.loaded import Loaded
from edge.runtime.options import shown, with_keywords
from edge.runtime.speculate.drafter import OFF
from edge.runtime.speech.audio import Audio, from_samples, open_audio
from edge.runtime.speech.decoding import Decoded, WindowDecoder
from edge.runtime.speech.live import Recording
from edge.runtime.speech.segments import Segment, split
from edge.runtime.speech.transcribe_options import TranscribeOptions
from edge.runtime.speech.windows import Windows, ends_in_pause, silence_to_skip, sound_before_gap, until_full
from edge.runtime.speech.words import Spoken

FRAMES_PER_SECOND = 100  # of the spectrogram: less than one of them is nothing to hear
SHORTEST_S = 0.1  # of sound in all; of less Whisper writes a word all the same
KNOWN_SHOWN = 12  # languages named in an error
RESET_TEMPERATURE = 0.5  # above it a text is too unsure to lead the next window's

TRANSLATE = "translate"  # a task

_log = logging.getLogger(__name__)

Sound = str | Path | NDArray[Any] | Audio


@dataclass(frozen=True)
class Transcript:
    """A whole transcription. language: None where none was heard. duration: in seconds. complete: False where it was
    interrupted."""

    text: str
    segments: list[Segment] = field(repr=False)
    language: str | None
    duration: float
    complete: bool


class Transcriber(Loaded):
    """A speech bundle in memory. `edge.load` makes one.

    engine: over the bundle; may still be loading. text: what decodes its tokens. speculate: ``off`` or the name of a
    drafter; InputError where that does not serve the bundle.
    """

    def __init__(
        self, bundle: Bundle, engine: Engine | Background[Engine], text: Spoken, *, speculate: str = OFF
    ) -> None:
        super().__init__(bundle, engine, speculate)
        self.text = text

    @property
    def speech(self) -> Speech:
        """The manifest's description of the sound that the model hears."""
        speech = self.bundle.manifest.speech
        assert speech is not None
        return speech

    def transcribe(
        self, sound: Sound, options: TranscribeOptions | None = None, **keywords: Unpack[TranscribeKeywords]
    ) -> Transcript:
        """Transcribe a whole file, or samples; see `transcribe_stream`."""
        running = self.transcribe_stream(sound, options, **keywords)
        segments = list(running)
        return running.transcript(segments)

    def transcribe_stream(
        self, sound: Sound, options: TranscribeOptions | None = None, **keywords: Unpack[TranscribeKeywords]
    ) -> Transcription:
        """Transcribe segment by segment as they are understood.

        Args:
            sound: a file of any sample rate and channel count; mono samples [N] of a float type at the bundle's rate
                (16 kHz), full scale 1; or an `Audio`.
            options: default: the language is detected, the reference's settings.
            keywords: fields of `TranscribeOptions`, which go before those of `options`.

        Raises:
            InputError: no sound to read, or an option that the bundle cannot follow. While segments come: damage in
                the file, after everything before it was transcribed.
            MissingExtraError: the file's format or rate needs a library that is not installed.
        """
        if options is not None and not isinstance(options, TranscribeOptions):
            raise InputError(f"Transcriptions are shaped by TranscribeOptions, not by {type(options).__name__}.")
        options = with_keywords(TranscribeOptions() if options is None else options, keywords)
        if options.beams > 1 and self._speculate != OFF:
            raise InputError(
                f"The drafter {self._speculate} drafts one text at a time; leave it out, or ask for one beam."
            )
        check_speech_options(self.speech, options)
        if options.task == TRANSLATE:
            _warn_of_translating(self.bundle)
        if isinstance(sound, np.ndarray):
            sound = from_samples(sound, self.speech.sample_rate)
        elif isinstance(sound, bytes | bytearray) or not isinstance(sound, str | os.PathLike | Audio):
            raise InputError(f"Sound is the path of a file, or an array of samples, and not {shown(sound)}.")
        elif not isinstance(sound, Audio):
            sound = open_audio(sound, self.speech.sample_rate)
        return Transcription(self, sound, options)


class Transcription(Iterator[Segment]):
    """A transcription that is under way: an iterator of its segments. language: its code, once it is known. complete:
    whether the sound was heard to its end."""

    def __init__(self, model: Transcriber, audio: Audio, options: TranscribeOptions) -> None:
        check_length(audio.duration)
        self.duration = audio.duration  # in seconds; None until the end where the sound does not tell
        self.complete = False
        self._model, self._speech, self._options = model, model.speech, options
        self.language = options.language if self._speech.languages else "en"
        enough: Callable[[NDArray[np.float32]], bool] = until_full
        if isinstance(audio, Recording):
            recording, rate = audio, self._speech.sample_rate

            def enough(held: NDArray[np.float32]) -> bool:  # what waits already is heard at once
                return not recording.waiting() and ends_in_pause(held, rate)

        self._windows = Windows(audio.blocks, self._speech.window_samples, enough)
        self._decoder: WindowDecoder | None = None
        self._segments = self._run()

    @property
    def position(self) -> float:
        """Seconds of the sound that are transcribed so far."""
        return self._windows.position / self._speech.sample_rate

    @property
    def speculation(self) -> dict[str, Any] | None:
        """Counts and times of drafts so far, as in `edge.Result`; None where there were none."""
        figures = None if self._decoder is None else self._decoder.speculated
        return None if figures is None else figures.summary()

    def __next__(self) -> Segment:
        return next_of(self._segments)

    def transcript(self, segments: Sequence[Segment]) -> Transcript:
        """Make a transcript of the segments that came."""
        text = "".join(segment.text for segment in segments).strip()
        duration = self.position if self.duration is None or self.complete else self.duration
        return Transcript(text, list(segments), self.language, duration, self.complete)

    def _run(self) -> Iterator[Segment]:
        """The segments as they are understood, with a share of a memory limit."""
        engine = self._model.engine
        if engine.plan is None:
            return (yield from self._understood())
        assert engine.shares is not None
        yield from engine.shares.over(engine.plan.answer_bytes(), self._options.interrupted, self._understood())

    def _understood(self) -> Generator[Segment, None, None]:
        options, speech, windows = self._options, self._speech, self._windows
        decoder = self._decoder = WindowDecoder(self._model.engine, self._model.text, options, self._model.speculation)
        tick = speech.sample_rate // speech.frames_per_second
        room = self._model.engine.context // 2 - 1  # for earlier text in a prompt, after the token that announces it
        said: list[int] = []  # tokens of earlier windows, for the next one's prompt
        while not options.interrupted():
            window = windows.peek()
            if windows.ended and not windows.position and len(window):
                check_length(len(window) / speech.sample_rate)
            if len(window) < speech.sample_rate // FRAMES_PER_SECOND:
                windows.advance(len(window))
                windows.close()
                self.complete = True
                return
            quiet = silence_to_skip(window, speech.sample_rate, tick) if options.skip_silence else 0
            if quiet:
                self._advance(quiet)
                continue
            held = len(window)
            if options.skip_silence:
                window = window[: sound_before_gap(window, speech.sample_rate, tick)]
            decoder.hear(window)
            language = self.language or decoder.detect_language()
            decoded = decoder.decode(self._prompt(language, said))
            if decoded is None:
                return
            if decoder.is_silence(decoded):
                self._advance(len(window))
                continue
            self.language = language  # noise has none: it is that of the first window with speech
            last = windows.ended and len(window) == held
            segments, heard = self._place(decoded, len(window), last=last)
            self._advance(heard)
            if not options.previous_text or decoded.temperature > RESET_TEMPERATURE:
                said = []
            else:
                said = [*said, *(token for segment in segments for token in segment.tokens)][-room:]
            yield from segments

    def _prompt(self, language: str, said: Sequence[int]) -> list[int]:
        speech = self._speech
        prompt = [speech.start]
        if speech.languages:
            prompt.append(speech.languages[language])
        if speech.tasks:
            prompt.append(speech.tasks[self._options.task])
        if said and speech.previous is not None:
            prompt = [speech.previous, *said, *prompt]
        return prompt

    def _place(self, decoded: Decoded, window: int, *, last: bool) -> tuple[list[Segment], int]:
        """The segments of a window of `window` samples that have text and a length, and how much of it was heard.
        Those of the `last` may end after it."""
        speech, text, rate = self._speech, self._model.text, self._speech.sample_rate
        end_token, begin = self._model.bundle.manifest.tokens.eos[0], self._windows.position
        spans, heard = split(decoded.tokens, speech, window)
        segments = []
        for span in spans:
            words = text.decode([token for token in span.tokens if token < end_token])
            end = span.end if last else min(span.end, window)  # nothing reaches into the next window
            if words.strip() and end > span.start:
                segments.append(
                    Segment(
                        start=(begin + span.start) / rate,
                        end=(begin + end) / rate,
                        text=words,
                        tokens=span.tokens,
                        avg_logprob=decoded.avg_logprob,
                        compression_ratio=decoded.compression_ratio,
                        no_speech_prob=decoded.no_speech_prob,
                        temperature=decoded.temperature,
                    )
                )
        return segments, heard

    def _advance(self, samples: int) -> None:
        self._windows.advance(samples)
        if self._options.progress is not None:
            self._options.progress(self.position)


def check_length(seconds: float | None) -> None:
    """Raise InputError where a sound is known to be too short for any word."""
    if seconds is not None and seconds < SHORTEST_S:
        raise InputError(f"There is {seconds:.2g} s of sound, and nothing can be said in less than {SHORTEST_S} s.")


def check_speech_options(speech: Speech, options: TranscribeOptions) -> None:
    """Raise InputError where a model does not know the language or the task that is asked for."""
    language = options.language
    if language is not None and language not in (speech.languages or ("en",)):
        if not speech.languages:
            raise InputError(f"This model understands English alone, not {language!r}; leave the language out.")
        known = list(speech.languages)  # Whisper's order: the most frequent come first
        some = ", ".join(known[:KNOWN_SHOWN])
        more = f" and {len(known) - KNOWN_SHOWN} more" if len(known) > KNOWN_SHOWN else ""
        raise InputError(f"{language!r} is not the code of a language that this model knows; it knows {some}{more}.")
    tasks = speech.tasks or {"transcribe": 0}
    if options.task == TRANSLATE and TRANSLATE not in tasks:
        why = "knows no language but English" if not speech.languages else f"has no token for the task {TRANSLATE!r}"
        raise InputError(f"This model was not trained to translate: it {why}; leave the task out, and it transcribes.")
    if options.task not in tasks:
        raise InputError(f"The task must be one of {', '.join(tasks)} for this model, not {options.task!r}.")


def _warn_of_translating(bundle: Bundle) -> None:
    """Say it where a model has the token of a task that it was not trained for. OpenAI trained decoders as deep as
    their encoders to translate; the data of those that were shortened had no translations."""
    decoder, encoder = bundle.manifest.dims.num_layers, bundle.manifest.encoder
    if encoder is not None and decoder < encoder.num_layers:
        _log.warning(
            "This model's decoder was shortened to %d of %d layers, as those of turbo and Distil-Whisper, which were "
            "not trained to translate: it may well transcribe instead.",
            decoder,
            encoder.num_layers,
        )
