"""The options of an answer."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from edge.errors import InputError
from edge.manifest import Generation
from edge.runtime.decode.form import FORMS, Form, expression, json_schema
from edge.runtime.decode.sampling import SamplingOptions
from edge.runtime.options import Others, flag, function, integer, one_of, option, refused, texts, unless_none

MAX_TOKENS = integer("most tokens to generate", "1 or more", least=1)
LENGTH: dict[str, Any] = {
    "flag": "--max-tokens N",
    "heading": "answer",
    "help": "maximum tokens to generate (default: 512, or the bundle's; and up to 2048 more of thoughts)",
}
STOP: dict[str, Any] = {
    "flag": "--stop TEXT",
    "heading": "answer",
    "help": "end the answer before this text; repeatable",
    "about": "texts that end the answer and are not part of it",
}
EFFORTS = "low", "medium", "high"
MASKS, ALIGNED = "masks", "aligned"
PARTICLES, MOST_PARTICLES = 8, 64  # answers of which aligned sampling draws one, by default and at most
NO_FORM = (
    "The grammar sampling says how an answer in a given form is drawn; give a JSON schema, a regular expression or a "
    "grammar."
)
ONE_FORM = "An answer has one form: give a JSON schema, a regular expression or a grammar, and leave out the others."
INTERRUPTED = function("option interrupted")
INTERRUPTED_HELP = "a function asked before every step; the answer ends once it returns True"


def never() -> bool:
    """Return False: the default of `interrupted`, for answers that nobody interrupts."""
    return False


def _content(path: str) -> str:
    """The text of a file that the command line names."""
    try:
        return Path(path).read_text(encoding="utf-8")
    except (OSError, ValueError) as e:
        import argparse  # which only the command has loaded

        why = getattr(e, "strerror", None) or "it is no UTF-8"
        raise argparse.ArgumentTypeError(f"{path} cannot be read: {why}") from None


def _grammar_sampling(value: Any) -> str:
    """The check of how answers in a given form are drawn."""
    if isinstance(value, str):
        name, _, number = value.partition(":")
        several = name == ALIGNED and re.fullmatch(r"[1-9][0-9]?", number) and 2 <= int(number) <= MOST_PARTICLES
        if value in (MASKS, ALIGNED) or several:
            return str(value)
    raise refused("grammar sampling", f"{MASKS}, {ALIGNED}, or {ALIGNED}:N with N from 2 to {MOST_PARTICLES}", value)


@dataclass(frozen=True)
class GenerateOptions(SamplingOptions):
    """Options of one answer: how tokens are chosen (`SamplingOptions`) and what ends it. docs/reference/options.md says
    what each field means."""

    max_tokens: int | None = option(
        None,
        unless_none(MAX_TOKENS),
        **LENGTH,
        about="maximum tokens to generate, thoughts included; default: 512, and of thoughts up to 2,048 more, which "
        "are then closed",
    )
    think: bool | None = option(
        None,
        unless_none(flag("option think")),
        flag="--think",
        heading="answer",
        help="think before the answer, or do not, where the model can (default: as its chat template has it)",
        about="whether the model [thinks](../guide/chat.md#models-that-think) before it answers, where it can; "
        "default: as its chat template has it",
    )
    think_tokens: int | None = option(
        None,
        unless_none(integer("tokens of thoughts", "0 or more", least=0)),
        flag="--think-tokens N",
        heading="answer",
        help="maximum tokens of thoughts, after which the answer follows",
    )
    effort: str | None = option(
        None,
        unless_none(one_of("effort", "low, medium or high", EFFORTS)),
        flag="--effort LEVEL",
        heading="answer",
        help="how much to think, where the chat template has that (gpt-oss): low, medium or high",
    )
    stop: Sequence[str] = option((), texts("stop string"), **STOP)
    json_schema: str | Mapping[str, Any] | type[Any] | None = option(
        None,
        unless_none(json_schema),
        flag="--json-schema FILE",
        heading="answer",
        help="answer with JSON that satisfies the schema in this file",
        about="a JSON schema that the answer satisfies: a mapping, its text, or a class of pydantic's "
        "([structured.md](../guide/structured.md))",
        read=_content,
        excludes=Others(("regex", "grammar"), ONE_FORM),
    )
    regex: str | None = option(
        None,
        unless_none(expression("regular expression")),
        flag="--regex R",
        heading="answer",
        help="answer with a text that matches this regular expression as a whole",
        read=str,
        excludes=Others(("grammar",), ONE_FORM),
    )
    grammar: str | None = option(
        None,
        unless_none(expression("grammar")),
        flag="--grammar FILE",
        heading="answer",
        help="answer with a text of the grammar in this file, in Lark's notation",
        about="a grammar that the answer is of, in Lark's notation",
        read=_content,
    )
    grammar_sampling: str = option(
        MASKS,
        _grammar_sampling,
        flag="--grammar-sampling HOW",
        heading="answer",
        help="at a temperature above 0, how a text of the form is drawn: masks (default), token by token; aligned, one "
        "of 8 answers, as likely as the model finds them; or aligned:N, one of N",
        about="at a temperature above 0, how a text of the form is drawn: `masks`, token by token among those that the "
        "form allows; `aligned`, one of 8 such answers, drawn as likely as [the model finds "
        "them](../guide/structured.md#drawing-as-the-model-would), or `aligned:N`, one of N",
        needs=Others(FORMS, NO_FORM),
    )
    interrupted: Callable[[], bool] = option(never, INTERRUPTED, help=INTERRUPTED_HELP)

    @property
    def form(self) -> Form | None:
        """The form that the answer is to have; None: any. InputError where several are given."""
        given = [Form(kind, said) for kind in FORMS if (said := getattr(self, kind)) is not None]
        if len(given) > 1:
            raise InputError(ONE_FORM)
        return given[0] if given else None

    @property
    def particles(self) -> int:
        """The number of answers of which one is drawn."""
        name, _, number = self.grammar_sampling.partition(":")
        return 1 if name == MASKS else int(number or PARTICLES)

    def settled(self, given: Generation | None) -> Self:
        """As of `SamplingOptions`; InputError also where one of several answers is to be drawn and none is drawn, or
        without a form."""
        found = super().settled(given)
        if found.particles > 1 and found.form is None:
            raise InputError(NO_FORM)
        if found.particles > 1 and not found.temperature:
            raise InputError(
                "Aligned sampling draws an answer as likely as the model finds it, and at temperature 0 none is drawn; "
                "set a temperature above 0, or draw by masks."
            )
        return found
