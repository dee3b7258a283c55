"""The options of a transcription."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from edge.errors import InputError
from edge.runtime.decode.beam_options import BEAMS
from edge.runtime.decode.generate_options import INTERRUPTED, never
from edge.runtime.decode.rules.circles import AVOID, CIRCLES
from edge.runtime.decode.sampling import SEED, TEMPERATURE
from edge.runtime.options import Options, flag, function, number, option, several, text, unless_none

TEMPERATURES = (0.0, 0.2, 0.4, 0.6, 0.8, 1.0)
WARMER, WARMEST = 0.2, 1.0  # from one temperature to the next that is tried, and the last of them
REPETITIVE, UNSURE = 2.4, -1.0  # the reference's compression ratio and mean log probability of a text to try again


@dataclass(frozen=True)
class DecodingOptions(Options):
    """Options of decoding one window; docs/reference/options.md says what each field means.

    Raises:
        InputError: a value out of its range.
    """

    temperatures: Sequence[float] = option(
        TEMPERATURES,
        several(
            *(TEMPERATURE, "temperatures", "numbers of 0 or more in a list"),
            "There is no temperature to decode at; name at least one, such as 0.",
        ),
        flag="--temperature T",
        read=float,  # the first of them
        help="tried one after the other until a result is good enough; 0 takes the likeliest tokens",
    )
    beams: int = option(
        1,
        BEAMS,
        flag="--beams N",
        help="texts pursued at a time at temperature 0; 1: greedy",
    )
    compression_ratio_threshold: float | None = option(
        REPETITIVE,
        unless_none(number("compression ratio threshold", "a number, or None for any")),
        help="a text that zlib compresses by more repeats itself: try again. `None`: any",
    )
    logprob_threshold: float | None = option(
        UNSURE,
        unless_none(number("log probability threshold", "a number, or None for any")),
        help="a text whose mean log probability is lower is unsure: try again. `None`: any",
    )
    no_speech_threshold: float | None = option(
        0.6,
        unless_none(number("no-speech threshold", "a number, or None for no window")),
        help="an unsure window whose chance of no speech is higher is skipped, and one of more than half of it whose "
        "text has nothing to do with the sound. `None`: no window is",
    )
    seed: int = option(0, SEED, flag="--seed N", help="what draws begin with; the same sound gives the same text")
    circles: str = option(
        AVOID,
        CIRCLES,
        help="`avoid`: where no other temperature would be tried for it, a text that repeats itself without end is led "
        "out of it; `allow`: it goes on",
    )
    interrupted: Callable[[], bool] = option(
        never, INTERRUPTED, help="a function asked before every step; the window is given up once it returns True"
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.beams > 1 and 0 not in self.temperatures:
            raise InputError(
                f"{self.beams} beams are for temperature 0, which is none of those given; leave out the beams or the "
                "temperature."
            )


@dataclass(frozen=True)
class TranscribeOptions(DecodingOptions):
    """Options of a transcription; see `DecodingOptions` for how each window is decoded.

    Raises:
        InputError: a value out of its range.
    """

    language: str | None = option(
        None,
        unless_none(text("language")),
        flag="--language CODE",
        heading="speech",
        help="the language that is spoken, such as de (default: detected)",
    )
    task: str = option(
        "transcribe",
        text("task"),
        flag="--task TASK",
        heading="speech",
        help="transcribe (default), or translate into English",
    )
    previous_text: bool = option(
        True,
        flag("option previous_text"),
        help="give the model the text so far with the next window: names keep their spelling, but a wrong window may "
        "mislead the next",
    )
    skip_silence: bool = option(
        True,
        flag("option skip_silence"),
        help="leave out stretches without any sound, from 1 second before a sound and 5 seconds after one",
    )
    progress: Callable[[float], None] | None = option(
        None,
        unless_none(function("option progress")),
        help="a function called with the seconds that were heard so far",
    )


def warmer_from(first: float) -> list[float]:
    """The temperatures that are tried one after another from `first` on, as Whisper's reference does it."""
    if first < 0 or first != first:
        return [first]  # which the options refuse
    count = int((WARMEST - first) / WARMER + 1e-6) + 1 if first < WARMEST else 1
    return [round(first + i * WARMER, 6) for i in range(count)]
