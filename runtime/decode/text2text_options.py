"""What shapes an output of a model from text to text."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, cast

from edge.errors import InputError
from edge.manifest import Generation
from edge.runtime.decode.beam_options import (
    BEAMS,
    DIVERSITY,
    EARLY_STOPPING,
    GROUPS,
    LENGTH_PENALTY,
    N_BEST,
    BeamOptions,
    EarlyStopping,
)
from edge.runtime.decode.generate_options import INTERRUPTED, MAX_TOKENS, GenerateOptions, never
from edge.runtime.decode.sampling import SamplingOptions
from edge.runtime.options import flag, integer, option, text, texts, unless_none


@dataclass(frozen=True)
class Text2TextOptions(SamplingOptions):
    """What shapes one output. None stands for what the bundle sets, from the checkpoint's own settings.

    Args:
        max_tokens: most tokens to generate; where nothing is set 512.
        min_tokens: fewest tokens before the output may end; 0: no such rule.
        stop: strings that end the output and are left out of it.
        beams: texts pursued at a time; 1: greedy, or drawn with a temperature.
        groups, diversity, length_penalty, early_stopping, n_best: see `edge.runtime.decode.beam_options.BeamOptions`.
        no_repeat_ngram: no run of N tokens occurs twice; 0: no such rule.
        source_language, target_language: codes of a multilingual model, such as ``de``, ``de_DE`` or ``deu_Latn``.
        whole: give the model a text as a whole where it would get sentence by sentence or line by line; see
            `edge.runtime.text.passages`. So it does with `min_tokens`, and for `candidates`.
        interrupted: asked before every step; the output ends once it says True.

    Raises:
        InputError: a value out of its range, or values that do not go together.
    """

    max_tokens: int | None = option(None, unless_none(MAX_TOKENS))
    min_tokens: int | None = option(None, unless_none(integer("fewest tokens", "0 or more", least=0)))
    stop: Sequence[str] = option((), texts("stop string"))
    beams: int | None = option(None, unless_none(BEAMS))
    groups: int = option(1, GROUPS)
    diversity: float = option(0.0, DIVERSITY)
    length_penalty: float | None = option(None, unless_none(LENGTH_PENALTY))
    early_stopping: EarlyStopping | None = option(None, unless_none(EARLY_STOPPING))
    n_best: int = option(1, N_BEST)
    no_repeat_ngram: int | None = option(None, unless_none(integer("n-gram size", "0 or more", least=0)))
    source_language: str | None = option(None, unless_none(text("source language")))
    target_language: str | None = option(None, unless_none(text("target language")))
    whole: bool = option(False, flag("option whole"))
    interrupted: Callable[[], bool] = option(never, INTERRUPTED)

    def __post_init__(self) -> None:
        super().__post_init__()
        least = self.min_tokens or 0
        if self.max_tokens is not None and least > self.max_tokens:
            raise InputError(f"At least {least} and at most {self.max_tokens} tokens cannot both hold.")
        if self.beams is not None:
            self.beam_options(Generation(), 1)
        self.check_drawn()
        if self.temperature and max(self.beams or 1, self.groups, self.n_best) > 1:
            raise InputError(
                "Tokens are drawn for one text at a time, so that there are no beams, groups or n best texts."
            )

    def over(self, defaults: Generation) -> Generation:
        """The bundle's settings with what is set here in their place; lengths are not, which are counted otherwise."""
        given: dict[str, Any] = {
            "num_beams": self.beams if self.beams is not None or not self.temperature else 1,
            "length_penalty": self.length_penalty,
            "early_stopping": self.early_stopping,
            "no_repeat_ngram_size": self.no_repeat_ngram,
            "repetition_penalty": self.repetition_penalty,
        }
        return dataclasses.replace(defaults, **{name: value for name, value in given.items() if value is not None})

    def beam_options(self, defaults: Generation, max_tokens: int) -> BeamOptions:
        """How beams are searched, with the bundle's defaults in the place of what is not set."""
        settings = self.over(defaults)
        if settings.num_beams == 1 and not (self.length_penalty is None and self.early_stopping is None):
            raise InputError(
                "A length penalty and early stopping are for searches of several beams, and there is one; ask for 2 or "
                "more beams, or leave them out."
            )
        return BeamOptions(
            beams=settings.num_beams,
            groups=self.groups,
            diversity=self.diversity,
            length_penalty=settings.length_penalty,
            early_stopping=cast(EarlyStopping, settings.early_stopping),  # the manifest was checked
            n_best=self.n_best,
            max_tokens=max_tokens,
            circles=self.circles,
            interrupted=self.interrupted,
        )


UNSET = Text2TextOptions()


def options_of(options: Text2TextOptions | GenerateOptions | None) -> Text2TextOptions:
    """The options of a decoder's answer as options of an output."""
    if options is None:
        return UNSET
    if isinstance(options, Text2TextOptions):
        return options
    if not isinstance(options, GenerateOptions):
        raise InputError(f"Outputs are shaped by Text2TextOptions, not by {type(options).__name__}.")
    given = {field.name: getattr(options, field.name) for field in dataclasses.fields(options)}
    if given.pop("think") or given.pop("think_tokens") is not None:
        raise InputError("A model from text to text does not think first; leave that option out.")
    return Text2TextOptions(**given)
