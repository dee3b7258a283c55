"""The options of a beam search."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from edge.errors import InputError
from edge.runtime.decode.generate_options import INTERRUPTED, never
from edge.runtime.decode.rules.circles import ALLOW, CIRCLES
from edge.runtime.limits import MOST_BEAMS
from edge.runtime.options import Options, integer, number, one_of, option

EarlyStopping = Literal["never"] | bool

BEAMS = integer("number of beams", "1 or more", least=1, most=MOST_BEAMS)
GROUPS = integer("number of beam groups", "1 or more", least=1, most=MOST_BEAMS)
N_BEST = integer("number of best texts", "1 or more", least=1, most=MOST_BEAMS)
DIVERSITY = number("diversity", "a number of 0 or more, up to 1e30", least=0, most=1e30)
LENGTH_PENALTY = number("length penalty", "a number from -20 to 20", least=-20, most=20)  # more would overflow
EARLY_STOPPING = one_of("early stopping", "true, false or never", (True, False, "never"))


@dataclass(frozen=True)
class BeamOptions(Options):
    """Options of a beam search.

    Args:
        beams: texts that are pursued at a time.
        groups: equal groups of beams, kept different by `diversity`; 1: no groups.
        diversity: subtracted from the score of a token for each beam of an earlier group that has it in this step.
        length_penalty: a text's log probability is divided by its length to this power; above 0 favours longer texts.
        early_stopping: True ends the search when there are as many whole texts as beams; False when no unfinished text,
            at its present length, is ahead of the worst of them; "never" when none can get ahead.
        n_best: whole texts to return, up to `beams`.
        max_tokens: maximum tokens of a text.
        circles: "avoid": texts that repeat themselves without end lose probability
            (`edge.runtime.decode.rules.circles`); "allow": they do not.
        interrupted: asked before every step; the search ends once it says True.

    Raises:
        InputError: a value out of its range, or values that do not go together.
    """

    beams: int = option(4, BEAMS)
    groups: int = option(1, GROUPS)
    diversity: float = option(0.0, DIVERSITY)
    length_penalty: float = option(1.0, LENGTH_PENALTY)
    early_stopping: EarlyStopping = option(False, EARLY_STOPPING)
    n_best: int = option(1, N_BEST)
    max_tokens: int = option(512, integer("maximum of tokens to generate", "1 or more", least=1))
    circles: str = option(ALLOW, CIRCLES)
    interrupted: Callable[[], bool] = option(never, INTERRUPTED)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.n_best > self.beams:
            beams = "1 beam" if self.beams == 1 else f"{self.beams} beams"
            raise InputError(f"{beams} cannot give {self.n_best} texts; ask for {self.n_best} beams or more.")
        if self.beams % self.groups:
            raise InputError(f"{self.beams} beams cannot be split into {self.groups} groups of one size.")
        if self.groups > 1 and self.diversity == 0:
            raise InputError(f"{self.groups} beam groups need a diversity above 0, or they would all find the same.")
        if self.groups == 1 and self.diversity > 0:
            raise InputError("A diversity needs beam groups, which it keeps different; give 2 or more.")
