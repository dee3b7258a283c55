"""The options of a transcription."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from edge.errors import InputError
from edge.runtime.decode.beam_options import BEAMS
from edge.runtime.decode.circles import AVOID, CIRCLES
from edge.runtime.decode.generate_options import INTERRUPTED, never
from edge.runtime.decode.sampling import SEED, TEMPERATURE
from edge.runtime.options import Options, flag, function, number, option, several, text, unless_none

TEMPERATURES = (0.0, 0.2, 0.4, 0.6, 0.8, 1.0)
REPETITIVE, UNSURE = 2.4, -1.0  # the reference's compression ratio and mean log probability of a text to try again


@dataclass(frozen=True)
class DecodingOptions(Options):
    """How one window is decoded.

    Args:
        temperatures: tried one after the other until a result is good enough; 0 takes the likeliest tokens.
        beams: texts pursued at a time at temperature 0; 1 is greedy.
        compression_ratio_threshold: a text that zlib compresses by more repeats itself: try again. None: any.
        logprob_threshold: a text whose mean log probability is lower is unsure: try again. None: any.
        no_speech_threshold: an unsure window whose chance of no speech is higher is skipped, and one of more than half
            of it whose text has nothing to do with the sound. None: no window is.
        seed: of the draws; the same sound gives the same text.
        circles: "avoid": where no other temperature would be tried for it, a text that repeats itself without end is
            led out of it; "allow": it goes on.
        interrupted: asked before every step; the window is given up once it says True.

    Raises:
        InputError: a value out of its range.
    """

    temperatures: Sequence[float] = option(
        TEMPERATURES,
        several(
            *(TEMPERATURE, "temperatures", "numbers of 0 or more in a list"),
            "There is no temperature to decode at; name at least one, such as 0.",
        ),
    )
    beams: int = option(1, BEAMS)
    compression_ratio_threshold: float | None = option(
        REPETITIVE, unless_none(number("compression ratio threshold", "a number, or None for any"))
    )
    logprob_threshold: float | None = option(
        UNSURE, unless_none(number("log probability threshold", "a number, or None for any"))
    )
    no_speech_threshold: float | None = option(
        0.6, unless_none(number("no-speech threshold", "a number, or None for no window"))
    )
    seed: int = option(0, SEED)
    circles: str = option(AVOID, CIRCLES)
    interrupted: Callable[[], bool] = option(never, INTERRUPTED)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.beams > 1 and 0 not in self.temperatures:
            raise InputError(
                f"{self.beams} beams are for temperature 0, which is none of those given; leave out the beams or the "
                "temperature."
            )


@dataclass(frozen=True)
class TranscribeOptions(DecodingOptions):
    """How sound is transcribed; see `DecodingOptions` for how each window is decoded.

    Args:
        language: the code of the language that is spoken, such as "de"; default: heard in the first window with
            speech.
        task: "transcribe", or "translate" into English.
        previous_text: give the model the text so far with the next window: names keep their spelling, but a wrong
            window may mislead the next.
        skip_silence: leave out stretches without any sound, from 1 second before a sound and 5 seconds after one.
        progress: called with the seconds that were heard so far.

    Raises:
        InputError: a value out of its range.
    """

    language: str | None = option(None, unless_none(text("language")))
    task: str = option("transcribe", text("task"))
    previous_text: bool = option(True, flag("option previous_text"))
    skip_silence: bool = option(True, flag("option skip_silence"))
    progress: Callable[[float], None] | None = option(None, unless_none(function("option progress")))
