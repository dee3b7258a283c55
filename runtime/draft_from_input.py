"""Input-guided aggressive decoding: the input is the draft of an output that resembles it, verified many tokens a step.

Ge et al. 2022, "Lossless Acceleration for Seq2seq Generation with Aggressive Decoding", section 3: the output begins as
the input does; where they part, the output's end is looked for in the input, and the draft goes on from there. Here a
draft is as long as pays, by how often such drafts held so far and by what longer steps cost, so that little is lost
where input and output do not resemble; the paper drafts all that is left of the input.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from edge.runtime.sampling import Sampler

if TYPE_CHECKING:
    from edge.runtime.cache import KVCache
    from edge.runtime.engine import Engine
    from edge.runtime.profile.curve import CostCurve

WIDEST = 16  # tokens of a step: a draft, and what is not in the cache before it
SLOPE = 7  # tokens of a draft whose step says what a further token costs
LONGEST_RUN = 4  # equal tokens in a row after which it no longer matters how many there were
MEMORY = 0.98  # what older observations weigh with each new one
GUESSED_COST = 0.2  # of one more token in a step, in steps of one token, before it was measured
# By how much one measurement may move what is known, down and up: the machine has other things to do at times, so that
# slow steps say less than fast ones.
FASTER, SLOWER = 1 / 1.1, 1.03


class Experience:
    """How often the input told the next token, and how long steps take. One for all inputs of a model.

    Args:
        costs: what steps were measured to cost on this device; without it, a guess is where learning starts.
    """

    def __init__(self, costs: CostCurve | None = None) -> None:
        # For each number of tokens in a row that agreed: how many then agreed too, and how many did not. To begin with
        # an output is taken to resemble its input, but a single equal token says little.
        self._agreed = [2.0, 1.0, 2.0, 3.0, 4.0]
        self._failed = [1.0, 1.0, 1.0, 1.0, 1.0]
        self._seconds = 0.0  # of a step of one token
        self.cost = GUESSED_COST if costs is None else _slope(costs)  # of each further token, in steps of one token

    def observe(self, run: int, agreed: bool) -> None:
        """After `run` tokens that agreed with the input, the next one did or did not."""
        run = min(run, LONGEST_RUN)
        self._agreed[run] = self._agreed[run] * MEMORY + agreed
        self._failed[run] = self._failed[run] * MEMORY + (not agreed)

    def chance(self, run: int) -> float:
        """That the next token agrees with the input, after `run` that did."""
        run = min(run, LONGEST_RUN)
        return self._agreed[run] / (self._agreed[run] + self._failed[run])

    def took(self, size: int, seconds: float) -> None:
        """A step of `size` tokens took so long."""
        if size == 1:
            self._seconds = _follow(self._seconds or seconds, seconds)
        elif self._seconds:
            self.cost = _follow(self.cost, (seconds / self._seconds - 1) / (size - 1))

    def best_length(self, run: int, most: int) -> int:
        """How many tokens to draft, up to `most`, for the most tokens per time; 0 where drafting would lose."""
        if self.chance(run) <= self.cost:  # then no draft pays, however likely its other tokens
            return 0
        best, best_rate = 0, 1.0
        expected = holds = 1.0  # tokens that the step brings; the chance that the draft holds so far
        for length in range(1, most + 1):
            holds *= self.chance(run + length - 1)
            expected += holds
            rate = expected / (1 + self.cost * length)
            if rate > best_rate:
                best, best_rate = length, rate
        return best


def _slope(costs: CostCurve) -> float:
    """What each further token of a step of 8 costs, in steps of one token, early in a text."""
    return (costs.ms(1 + SLOPE, 0) / costs.ms(1, 0) - 1) / SLOPE


def _follow(known: float, measured: float) -> float:
    return min(max(measured, known * FASTER), known * SLOWER)


class InputDraft:
    """Where the output stands in the input.

    Args:
        source: the input's tokens, without what the model's format puts around them.
        experience: what earlier inputs taught; is added to.
    """

    def __init__(self, source: Sequence[int], experience: Experience) -> None:
        self._source = list(source)
        self._experience = experience
        self._places: dict[int, list[int]] = defaultdict(list)
        for place, token in enumerate(source):
            self._places[token].append(place)
        self._said: list[int] = []
        self._at = 0  # the place in the source of the token that is expected next
        self._run = 0  # tokens before it that agreed

    def propose(self, most: int) -> list[int]:
        """The draft of what follows, up to `most` tokens; often none."""
        left = len(self._source) - self._at
        length = self._experience.best_length(self._run, min(most, left)) if left > 0 else 0
        return self._source[self._at : self._at + length]

    def saw(self, token: int) -> None:
        """The output goes on with `token`, which was drafted or not."""
        self._said.append(token)
        if self._at < len(self._source):
            agrees = token == self._source[self._at]
            self._experience.observe(self._run, agrees)
            if agrees:
                self._at += 1
                self._run += 1
                return
        self._at, self._run = self._find()

    def _find(self) -> tuple[int, int]:
        """Where the longest end of the output stands in the input, of equals the place nearest to the last; where
        there is none, one token is taken to have been replaced by another."""
        best, longest = self._at + 1, 0
        for place in self._places.get(self._said[-1], ()):
            run = 1
            while run < min(LONGEST_RUN, place + 1, len(self._said)) and (
                self._said[-1 - run] == self._source[place - run]
            ):
                run += 1
            if (run, -abs(place + 1 - self._at)) > (longest, -abs(best - self._at)):
                best, longest = place + 1, run
        return best, longest


def generate_from_draft(
    engine: Engine,
    cache: KVCache,
    prompt: NDArray[np.int64],
    sampler: Sampler,
    draft: InputDraft,
    experience: Experience,
    *,
    interrupted: Callable[[], bool],
) -> Iterator[int]:
    """What `edge.runtime.generate.generate` yields, with several tokens per step where drafts hold.

    The sampler is asked for every token in turn, as it would be without drafts, so that the answer is that of the same
    logits. Those of a step of one token may differ in their last bits from those of more (other kernels compute them).
    A step that drafts has no more tokens than memory was planned for.
    """
    width = WIDEST if engine.plan is None else min(WIDEST, engine.plan.demand.width)
    cache.prompt = cache.length + len(prompt)
    waiting = prompt  # tokens of the answer that are not in the cache
    while not interrupted():
        drafted = draft.propose(max(0, min(width, engine.steady(cache)) - len(waiting)))
        tokens = np.array([*waiting, *drafted], np.int64)
        started = time.perf_counter()
        logits = engine.step(cache, tokens, np.arange(-1 - len(drafted), 0))  # [1 + drafted, V]
        if len(waiting) == 1:
            experience.took(len(tokens), time.perf_counter() - started)
        sampled: list[int] = []
        for row in range(len(logits)):
            sampled.append(sampler(logits[row]))
            draft.saw(sampled[-1])
            if sampled[-1:] != drafted[row : row + 1]:
                break
        cache.truncate(cache.length - len(drafted) + len(sampled) - 1)
        yield from sampled
        if cache.room == 0:
            return
        waiting = np.array(sampled[-1:], np.int64)
