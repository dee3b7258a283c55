"""The length of drafts to verify: the one that brings the most tokens for the time, which is often 0.

A step of S tokens brings the accepted tokens of the draft and one more. Its cost comes from the cost curve
(`StepCosts`), the chance that drafted tokens are accepted is learnt by the grade of their evidence (`Acceptance`). A
draft grows while its expected tokens per time do (as SpecDec++ stops, Huang et al. 2024); where none beats a plain
step, the step is plain.
"""

from __future__ import annotations

import math
from array import array
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from edge.runtime.decode.draft import NOTHING, Draft
from edge.runtime.speculate import lookup
from edge.runtime.speculate.drafter import Budget

if TYPE_CHECKING:
    from edge.runtime.costs.curve import CostCurve

GUESSED_SLOPE = 0.22  # of one more token in a step, in plain steps, before it was measured (SmolLM2-135M, 4 bits)
# The same with kernels of our own, by the instructions that they use: what steps of 2 to 8 tokens were found to cost.
OWN_SLOPE, OWN_SLOPES = 0.17, {"avx2": 0.4}
GAIN = 1.1  # by how much a draft must be expected to beat a plain step: of many guesses the best ones are too high
REFRESH = 64  # tokens after which the curve is read anew, or an eighth of the context: it changes slowly

# What is believed of a grade at the start of an answer counts as so many observations of it; older ones fade.
STRENGTH = 12.0
LASTING = 24.0  # the same of what is believed before the first answer
FADING = 0.96
ACROSS = 0.998  # the same over answers

# By how much one measured time may move what is known, up or down: the machine has other things to do at times. What a
# longer step costs in plain ones hardly changes: that moves less the more often such a step was run.
FOLLOWED = 0.05
SETTLED = 0.006
SETTLING = 12  # steps after which it moves half as far

DRAWN = 0.65  # of the chance that a draft is accepted, where tokens are drawn at random (at temperature 0.7)

COSTLY = 0.03  # of a plain step for each token: a drafter that takes longer is asked only where it is likely to pay
EXPLORE = 48  # plain rounds after which a costly drafter is tried again

# What an answer may have lost against plain decoding after a draft of which nothing is accepted, with what drafting
# takes: a share of its tokens, and a first draft of one token. So no answer is much slower than plain, as far as steps
# cost what is believed.
RISK = 0.04
DRAWN_RISK = 0.02
STAKE = 0.3  # plain steps
# What asking, planning and learning take in each round, in plain steps, before it was measured. It counts as lost,
# up to a part of the share: a drafter of a model whose steps are very short is still tried.
OVERHEAD, COUNTED = 0.01, 0.75


class Acceptance:
    """Acceptance rates of drafted tokens by grade, where the token before was right, in earlier answers and in this
    one."""

    def __init__(self, priors: Sequence[float]) -> None:
        # Arrays, whose numbers are contiguous: a step has pushed all of this out of the caches.
        self._right = array("d", [LASTING * prior for prior in priors])
        self._seen = array("d", [LASTING for _ in priors])
        self.begin()

    def begin(self) -> None:
        """Begin an answer, from the rates that earlier answers taught."""
        long_run = array("d", [right / seen for right, seen in zip(self._right, self._seen, strict=True)])
        self._right_here = array("d", [STRENGTH * chance for chance in long_run])
        self._seen_here = array("d", [STRENGTH for _ in long_run])
        self.chances = long_run  # by grade

    def observe(self, grade: int, right: bool) -> None:
        """Record whether a token of this grade was right."""
        self._right[grade] = self._right[grade] * ACROSS + right
        self._seen[grade] = self._seen[grade] * ACROSS + 1
        rights = self._right_here[grade] = self._right_here[grade] * FADING + right
        seen = self._seen_here[grade] = self._seen_here[grade] * FADING + 1
        self.chances[grade] = rights / seen


class StepCosts:
    """Costs of steps, in plain steps: from the device's cost curve or a guess, and from the steps that are run.

    What was measured during an answer counts from the next one on, so that the first answer of a process is always the
    same.

    curve: gives the curve that was measured on this device, where there is one. width: maximum tokens of a step.
    multiple: of which the engine makes every step's size. slope: the guess of each further token, in plain steps.
    """

    def __init__(
        self, curve: Callable[[], CostCurve | None], width: int, multiple: int = 1, slope: float = GUESSED_SLOPE
    ) -> None:
        self._curve_of = curve
        self._sizes = [-(-size // multiple) * multiple for size in range(1, width + 1)]
        self._slope = slope
        # What steps cost more than the curve says: of sizes that were run, in plain steps, and of others by a factor.
        self._off: dict[int, float] = {}
        self._steepness = 1.0
        self._times = [0] * (width + 1)  # that each size was run, and at 0 all of them
        self.plain = 0.0  # seconds of a plain step, followed; 0 before there was one

    def begin(self) -> None:
        """Begin an answer, with the costs that were measured before it."""
        self._curve = self._curve_of()
        self._counted = dict(self._off)
        self._counted_steepness = self._steepness
        self._read_at = self._refresh = 0
        self.at(0)

    def at(self, context: int) -> None:
        """Compute the costs of steps at about this context."""
        if abs(context - self._read_at) < self._refresh:
            return
        self._refresh = max(REFRESH, context // 8)
        self._read_at = context
        if self._curve is None:
            costs = [1 + self._slope * (size - 1) for size in self._sizes]
        else:
            costs = [self._curve.ms(size, context) for size in self._sizes]
        self._believed = [cost / costs[0] for cost in costs]
        ratios = [self._found(size, self._counted) for size in range(1, len(costs) + 1)]
        for i in range(len(ratios) - 1, 1, -1):  # a longer step is never cheaper
            ratios[i - 1] = min(ratios[i - 1], ratios[i])
        self.slope = (ratios[-1] - 1) / (len(ratios) - 1)  # of each further token
        self.ratios = [0.0, *ratios]  # by size

    def took(self, size: int, seconds: float) -> None:
        """Record that a step of `size` tokens took so many seconds."""
        if size == 1:
            self.plain = _follow(self.plain or seconds, seconds)
        elif self.plain:
            ratio, believed = seconds / self.plain, self._believed[size - 1]
            found = _follow(self._found(size, self._off), ratio, self._moved(size))
            self._off[size] = found - believed
            if believed > 1:
                steeper = _follow(1 + (believed - 1) * self._steepness, ratio, self._moved(0))
                self._steepness = max(0.05, (steeper - 1) / (believed - 1))

    def _found(self, size: int, off: dict[int, float]) -> float:
        """Cost of a step of this size: the believed one, corrected by what was measured."""
        believed = self._believed[size - 1]
        return max(1.0, believed + off.get(size, (believed - 1) * (self._counted_steepness - 1)))

    def _moved(self, size: int) -> float:
        """Share of the known cost by which one more step of this size may change it. Counts the step."""
        self._times[size] += 1
        return max(SETTLED, FOLLOWED / (1 + self._times[size] / SETTLING))


def _follow(known: float, measured: float, share: float = FOLLOWED) -> float:
    return min(max(measured, known / (1 + share)), known * (1 + share))


class Planner:
    """Cuts drafts to what pays.

    priors: what is believed of the drafter's grades. width: maximum tokens of a step, with the one before the draft.
    cost: of drafting a token, in plain steps, before it was measured. even: the costs of the steps of exact answers,
    which run even numbers of tokens; default: `costs`.
    """

    def __init__(
        self,
        priors: Sequence[float],
        costs: StepCosts,
        width: int,
        *,
        cost: float = 0.0,
        even: StepCosts | None = None,
    ) -> None:
        # Drafts are accepted less often where tokens are drawn at random: what is learnt of those is kept apart.
        self._acceptances = Acceptance(priors), Acceptance([DRAWN * prior for prior in priors])
        self.acceptance = self._acceptances[False]
        self.costs = costs
        self._costs = costs, even or costs
        self._width = width
        self._cost = self._told = cost
        self._draft_s = 0.0  # seconds of drafting a token, followed
        self._scale = self._measured = 1.0  # what a drafter's own steps take, by what they are told to; and followed
        self._spent = 0.0  # plain steps that its steps took for the draft that is being run
        self._host_s = 0.0  # seconds that a round takes beside its step and what a costly drafter drafts, followed
        self._overhead = OVERHEAD  # the same in plain steps, as it counts
        self._mean = 0.5  # chance of a drafted token, whatever its grade
        self._plain_rounds = 0
        self._risk = RISK
        self._said = 0  # tokens of this answer
        self._ahead = 0.0  # of plain decoding, in plain steps
        self._ran = 0  # tokens of the draft that is being run

    def begin(self, drawn: bool = False, exact: bool = False) -> None:
        """Begin an answer, whose tokens are `drawn` at random or the likeliest ones, in `exact` steps or any."""
        self.acceptance = self._acceptances[drawn]
        self.acceptance.begin()
        self.costs = self._costs[exact]
        self.costs.begin()
        self._risk = DRAWN_RISK if drawn else RISK
        self._said, self._ahead, self._ran, self._spent = 0, 0.0, 0, 0.0
        if self._draft_s and self.costs.plain:
            self._cost = self._draft_s / self.costs.plain
        elif self._measured != 1:
            self._scale, self._cost = self._measured, self._told * self._measured
        overhead = self._host_s / self.costs.plain if self._host_s and self.costs.plain else OVERHEAD
        self._overhead = min(overhead, COUNTED * self._risk)

    def budget(self, maximum: int, context: int, forced: int = 0) -> Budget:
        """Return the budget of the next draft, where `maximum` tokens have room; no tokens where drafting would not
        pay. forced: tokens that its step runs anyway."""
        self.costs.at(context)
        self._ran, self._spent = 0, 0.0
        tokens = min(maximum, self._width - 1 - forced)
        ratios, slope, cost = self.costs.ratios, self.costs.slope, self._cost
        if cost <= COSTLY:  # by half: what is learnt may be more than the drafter knows
            return Budget(tokens, slope / 2, self._afford)
        left = self._left()
        while tokens > 0 and not ratios[tokens + 1] - 1 + cost * tokens <= left:
            tokens -= 1
        self._plain_rounds += 1
        if self._plain_rounds > EXPLORE and tokens > 0:
            self._plain_rounds = 0
            return Budget(min(tokens, 2), slope + cost, self._afford)
        length = _best_length([self._mean] * tokens, ratios, cost)
        if length:
            self._plain_rounds = 0
        return Budget(length, slope + cost, self._afford)

    def _left(self) -> float:
        """Plain steps that the answer can still lose."""
        return self._ahead + STAKE + self._risk * self._said - self._spent

    def _afford(self, share: float, size: int) -> bool:
        """Count a step of `size` tokens through a share of the model, where the answer can lose it: `Budget.afford`."""
        ratios, last = self.costs.ratios, len(self.costs.ratios) - 1
        took = self._scale * share * (ratios[min(size, last)] + self.costs.slope * max(0, size - last))
        if not took <= self._left():
            return False
        self._spent += took
        return True

    def drafted(self, tokens: int, seconds: float) -> None:
        """Record that drafting `tokens` tokens took `seconds`. An empty draft costs nothing that asking less could
        save."""
        if self._spent:
            if self.costs.plain:
                found = seconds / self.costs.plain / self._spent * self._scale
                self._measured = _follow(self._measured, found)
        elif tokens:
            each = seconds / tokens
            self._draft_s = _follow(self._draft_s or each, each)

    def rounded(self, seconds: float, drafting: float) -> None:
        """Record the seconds of a round outside its step, of which `drafting` are the drafter's."""
        if self.costs.plain:
            took = seconds if self._cost <= COSTLY else seconds - drafting  # which counts by itself
            self._host_s = _follow(self._host_s or OVERHEAD * self.costs.plain, took)

    def cut(self, draft: Draft) -> Draft:
        """The part of a draft that brings the most tokens per time; nothing where a plain step brings more."""
        if not draft.tokens:
            return NOTHING
        chances, ratios = self.acceptance.chances, self.costs.ratios
        length = _best_length([chances[grade] for grade in draft.grades[: self._width - 1]], ratios)
        self._ran = self._affordable(length)
        return Draft(draft.tokens[: self._ran], draft.grades[: self._ran]) if self._ran else NOTHING

    def _affordable(self, length: int) -> int:
        """Maximum tokens of a draft, up to `length`, that an answer can lose without becoming too slow."""
        limit = 1 + self._left()
        while length and not self.costs.ratios[length + 1] <= limit:
            length -= 1
        return length

    def observe(self, draft: Draft, sampled: Sequence[int]) -> None:
        """Learn from a step: the text went on with `sampled`, after the drafter had proposed `draft`, the part that was
        cut included."""
        self._said += len(sampled)
        self._ahead += len(sampled) - self.costs.ratios[self._ran + 1] - self._overhead
        if self._spent:
            self._ahead, self._spent = self._ahead - self._spent, 0.0
        elif self._cost > COSTLY:  # what a cheap drafter takes, it takes whatever is run of its drafts
            self._ahead -= self._cost * len(draft.tokens)
        observe = self.acceptance.observe
        for grade, token, actual in zip(draft.grades, draft.tokens, sampled, strict=False):
            observe(grade, token == actual)
            self._mean += 0.03 * ((token == actual) - self._mean)
            if token != actual:
                break


def expected_gain(ratios: Sequence[float], width: int) -> float:
    """The speed of answers to questions like Spec-Bench's with `lookup`, in multiples of plain decoding: a low estimate
    of `blend`. ratios: cost in plain steps of steps by size, from 0 on. width: maximum tokens of a step."""
    tokens = time = 0.0
    for match, share in enumerate(lookup.SHARES):
        chances = [lookup.PRIORS[min(match + i, lookup.LONGEST)] for i in range(width - 1)] if match else []
        length = _best_length(chances, ratios)
        tokens += share * sum(math.prod(chances[:i]) for i in range(length + 1))
        time += share * ratios[length + 1]
    return tokens / time


def _best_length(chances: Sequence[float], ratios: Sequence[float], cost: float = 0.0) -> int:
    """Number of tokens of a chain that brings the most tokens per time; 0 where a plain step does.

    chances: of each token that it is accepted where the one before is. cost: of drafting each, in plain steps.
    """
    best, best_rate = 0, GAIN
    expected = accepted = 1.0
    for length, chance in enumerate(chances, 1):
        accepted *= chance
        expected += accepted
        rate = expected / (ratios[length + 1] + cost * length)
        if rate > best_rate:
            best, best_rate = length, rate
        elif accepted < 0.02:
            break
    return best
