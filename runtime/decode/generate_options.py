"""The options of an answer."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from edge.runtime.decode.sampling import SamplingOptions
from edge.runtime.options import flag, function, integer, option, texts, unless_none

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
INTERRUPTED = function("option interrupted")
INTERRUPTED_HELP = "a function asked before every step; the answer ends once it returns True"


def never() -> bool:
    """Return False: the default of `interrupted`, for answers that nobody interrupts."""
    return False


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
    stop: Sequence[str] = option((), texts("stop string"), **STOP)
    interrupted: Callable[[], bool] = option(never, INTERRUPTED, help=INTERRUPTED_HELP)
