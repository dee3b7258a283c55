"""Options of an output of a model from text to text."""

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
from edge.runtime.decode.form import FORMS
from edge.runtime.decode.generate_options import (
    INTERRUPTED,
    INTERRUPTED_HELP,
    LENGTH,
    MASKS,
    MAX_TOKENS,
    STOP,
    GenerateOptions,
    never,
)
from edge.runtime.decode.sampling import SamplingOptions
from edge.runtime.options import flag, integer, option, text, texts, unless_none


@dataclass(frozen=True)
class Text2TextOptions(SamplingOptions):
    """Options of one output. None stands for the bundle's value, from the checkpoint's settings.
    docs/reference/options.md says what each field means.

    Raises:
        InputError: a value out of its range, or values that do not go together.
    """

    max_tokens: int | None = option(
        None, unless_none(MAX_TOKENS), **LENGTH, about="maximum tokens to generate; default: the bundle's, or 512"
    )
    stop: Sequence[str] = option((), texts("stop string"), **STOP)
    source_language: str | None = option(
        None,
        unless_none(text("source language")),
        flag="--from/--source-language CODE",
        heading="text to text",
        help="of a multilingual model: the text's language, such as en or eng_Latn",
    )
    target_language: str | None = option(
        None,
        unless_none(text("target language")),
        flag="--to/--target-language CODE",
        heading="text to text",
        help="of a multilingual model: the language to translate into, such as de, deu_Latn or deu",
    )
    beams: int | None = option(
        None,
        unless_none(BEAMS),
        flag="--beams N",
        heading="text to text",
        help="beams of the search; 1: greedy (default: the bundle's)",
    )
    n_best: int = option(
        1,
        N_BEST,
        flag="--n-best N",
        heading="text to text",
        help="print the N best texts of the beams, each after its score",
        about="how many of the best texts `candidates` gives, up to `beams`",
    )
    length_penalty: float | None = option(
        None,
        unless_none(LENGTH_PENALTY),
        flag="--length-penalty P",
        heading="text to text",
        help="above 0 favours longer texts among the beams (default: the bundle's)",
        about="a text's log probability is divided by its length to this power; above 0 favours longer texts; default: "
        "the bundle's",
    )
    early_stopping: EarlyStopping | None = option(
        None,
        unless_none(EARLY_STOPPING),
        flag="--early-stopping WHEN",
        heading="text to text",
        help="when the search ends: true: with as many whole texts as beams; never: when none can be better; or false",
        about="`True` ends the search when there are as many whole texts as beams; `False` when no unfinished text, at "
        'its present length, is ahead of the worst of them; `"never"` when none can get ahead; default: the bundle\'s',
        values={"true": True, "false": False, "never": "never"},
    )
    groups: int = option(
        1,
        GROUPS,
        flag="--beam-groups N",
        heading="text to text",
        help="split the beams into N groups with texts of their own",
        about="equal groups of beams, kept different by `diversity`; 1: no groups",
    )
    diversity: float = option(
        0.0,
        DIVERSITY,
        flag="--diversity D",
        heading="text to text",
        help="how different the groups are, for example 0.5",
        about="subtracted from the score of a token for each beam of an earlier group that has it in this step",
    )
    no_repeat_ngram: int | None = option(
        None,
        unless_none(integer("n-gram size", "0 or more", least=0)),
        flag="--no-repeat-ngram N",
        heading="text to text",
        help="no run of N tokens occurs twice; 0: any may (default: the bundle's)",
    )
    min_tokens: int | None = option(
        None,
        unless_none(integer("fewest tokens", "0 or more", least=0)),
        flag="--min-tokens N",
        heading="text to text",
        help="minimum tokens to generate",
    )
    whole: bool = option(
        False,
        flag("option whole"),
        flag="--whole",
        heading="text to text",
        help="give the model a text as a whole, where it would get sentence by sentence or line by line",
        about="give the model a text as a whole, where it would get sentence by sentence or line by line "
        "([text-to-text.md](../guide/text-to-text.md)); so it does with `min_tokens`, and for `candidates`",
    )
    interrupted: Callable[[], bool] = option(never, INTERRUPTED, help=INTERRUPTED_HELP)

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
        """Return the bundle's search settings, replaced by the options that are set."""
        given: dict[str, Any] = {
            "num_beams": self.beams if self.beams is not None or not self.temperature else 1,
            "length_penalty": self.length_penalty,
            "early_stopping": self.early_stopping,
        }
        return dataclasses.replace(defaults, **{name: value for name, value in given.items() if value is not None})

    def beam_options(self, defaults: Generation, max_tokens: int) -> BeamOptions:
        """Return the options of a beam search, with the bundle's defaults where an option is not set."""
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
    if [given.pop(name) for name in ("think", "think_tokens", "effort")] not in ([None] * 3, [False, None, None]):
        raise InputError("A model from text to text does not think first; leave that option out.")
    if [given.pop(form) for form in FORMS] != [None] * len(FORMS) or given.pop("grammar_sampling") != MASKS:
        raise InputError("A model from text to text gives no answer in a form; leave the form out.")
    return Text2TextOptions(**given)
