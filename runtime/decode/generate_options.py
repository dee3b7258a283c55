"""The options of an answer."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from edge.runtime.decode.sampling import SamplingOptions
from edge.runtime.options import flag, function, integer, option, texts, unless_none

MAX_TOKENS = integer("most tokens to generate", "1 or more", least=1)
INTERRUPTED = function("option interrupted")


def never() -> bool:
    """For answers that nobody interrupts."""
    return False


@dataclass(frozen=True)
class GenerateOptions(SamplingOptions):
    """What shapes one answer: how tokens are chosen (`SamplingOptions`) and what ends it.

    Args:
        max_tokens: most tokens to generate, thoughts included; None: 512, and of thoughts up to 2,048 more, which are
            then closed.
        think: whether the model thinks before it answers, where it can; None: as its chat template has it.
        think_tokens: most tokens of thoughts, after which they are closed and the answer follows; None: any number.
        stop: strings that end the answer and are left out of it.
        interrupted: asked before every step; the answer ends once it says True.

    Raises:
        InputError: a value out of its range.
    """

    max_tokens: int | None = option(None, unless_none(MAX_TOKENS))
    think: bool | None = option(None, unless_none(flag("option think")))
    think_tokens: int | None = option(None, unless_none(integer("tokens of thoughts", "0 or more", least=0)))
    stop: Sequence[str] = option((), texts("stop string"))
    interrupted: Callable[[], bool] = option(never, INTERRUPTED)
