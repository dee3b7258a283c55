"""From logits to the next token: greedy, temperature, top-k, top-p, min-p and the repetition penalty.

The steps and their order are those of transformers' `generate`: penalty, temperature, top-k, top-p, min-p, draw.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from edge.errors import InputError
from edge.manifest import Generation
from edge.runtime.decode.circles import AVOID, CIRCLES, Circles
from edge.runtime.decode.logits_processors import ProcessedSampler, RepetitionPenalty
from edge.runtime.engine.candidates import Candidates
from edge.runtime.engine.failures import no_token
from edge.runtime.largest import largest
from edge.runtime.options import Options, integer, number, option, unless_none

Sampler = Callable[[NDArray[np.float32]], int]
"""Logits [V] float32 in, token id out. The logits are left as they are."""

DRAW_BLOCK = 256  # weights summed at once while drawing: a cumulative sum over a vocabulary costs ten times more
SMALLEST, LARGEST = float(np.finfo(np.float32).tiny), float(np.finfo(np.float32).max)
NUCLEUS = 256  # the first guess of how many of the largest weights sum up to top_p


TEMPERATURE = number("temperature", "a number of 0 or more", least=0)
SEED = integer("seed", "a whole number of 0 or more", least=0, most=2**128 - 1)  # numpy's have 128 bits
RANDOM = "random"
_NUMBER = integer("seed", f"a whole number of 0 or more, or '{RANDOM}'", least=0, most=2**128 - 1)
# Options as if the model's makers had set nothing.
UNSHAPED: dict[str, Any] = {"temperature": 0.0, "top_k": 0, "top_p": 1.0, "min_p": 0.0, "repetition_penalty": 1.0}
_UNSET = Generation()


def _seed(value: Any) -> int | str:
    return RANDOM if value is None or (isinstance(value, str) and value == RANDOM) else int(_NUMBER(value))


def _whole(text: str) -> int | str:
    """A whole number, or else what the check takes or refuses."""
    return int(text) if text.lstrip("-").isdecimal() else text


@dataclass(frozen=True)
class SamplingOptions(Options):
    """How the next token is chosen: the same call gives the same tokens, unless the seed is random.

    None stands for what the model's makers set, where the prompt goes through the bundle's chat template; else for the
    value that changes nothing. docs/reference/options.md says what each field means.

    Raises:
        InputError: a value out of its range.
    """

    temperature: float | None = option(
        None,
        unless_none(TEMPERATURE),
        flag="--temperature T",
        heading="answer",
        help="0: the most likely token; above 0 tokens are drawn (default: as the model's makers set it for chats, or "
        "0)",
        about="0: the most likely token, whatever the makers set; above 0 logits are divided by it before a token is "
        "drawn",
    )
    top_k: int | None = option(
        None,
        unless_none(integer("top-k", "a whole number of 0 or more (0: all tokens)", least=0)),
        flag="--top-k K",
        heading="answer",
        help="draw from the K most likely tokens; where tokens are drawn",
        about="draw from the k most likely tokens; 0: from all",
    )
    top_p: float | None = option(
        None,
        unless_none(number("top-p", "above 0 and at most 1", above=0, most=1)),
        flag="--top-p P",
        heading="answer",
        help="draw from the fewest likely tokens whose probabilities sum to P",
        about="draw from the smallest set of most likely tokens whose probabilities reach top_p; 1: from all",
    )
    min_p: float | None = option(
        None,
        unless_none(number("min-p", "between 0 and 1", least=0, most=1)),
        flag="--min-p P",
        heading="answer",
        help="draw no token below P times the probability of the most likely one",
        about="leave out tokens less likely than min_p times the most likely one; 0: none",
    )
    repetition_penalty: float | None = option(
        None,
        unless_none(number("repetition penalty", "a number above 0 (1: no penalty)", above=0)),
        flag="--repetition-penalty R",
        heading="answer",
        help="above 1, tokens that occurred before become less likely",
        about="divides positive and multiplies negative logits of tokens that occurred in the prompt or the answer "
        "(Keskar et al. 2019, section 4.1); 1: none",
    )
    seed: int | str | None = option(
        0,
        _seed,
        flag="--seed N",
        heading="answer",
        help="what draws begin with (default: 0); random: other draws every time",
        read=_whole,
    )
    circles: str = option(
        AVOID,
        CIRCLES,
        flag="--circles WHAT",
        heading="answer",
        help="avoid (default): lead an answer out of what it repeats without end; allow: do not",
        about="`avoid`: at temperature 0, an answer that repeats itself without end is led "
        "[out of it](../guide/chat.md#circles); `allow`: it goes on",
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.temperature == 0:
            self.check_drawn()

    def check_drawn(self) -> None:
        """Raise InputError where something says how tokens are drawn, and none is."""
        if not self.temperature and (self.top_k or 0, self.min_p or 0, self.top_p in (None, 1)) != (0, 0, True):
            raise InputError(
                "The top-k, top-p and min-p say which tokens are drawn from, and at temperature 0 none is drawn; set a "
                "temperature above 0, or leave them out."
            )

    def settled(self, given: Generation | None) -> Self:
        """These options with what is not set taken from the model's own settings; None: from none.

        Raises:
            InputError: something says how tokens are drawn, and none is.
        """
        given = given or _UNSET
        temperature = self.temperature
        if temperature is None:
            temperature = given.temperature if given.do_sample else 0.0
        drawn = given if temperature > 0 else _UNSET
        whole: dict[str, Any] = {
            "temperature": temperature,
            "top_k": drawn.top_k,
            "top_p": drawn.top_p,
            "min_p": drawn.min_p,
            # Who asks for the likeliest token wants that.
            "repetition_penalty": 1.0 if self.temperature == 0 else given.repetition_penalty,
        }
        missing = {name: value for name, value in whole.items() if getattr(self, name) is None}
        return dataclasses.replace(self, **missing) if missing else self


def make_sampler(options: SamplingOptions, prompt: Sequence[int] = ()) -> Sampler:
    """The sampler for one answer to `prompt` (token ids, which the repetition penalty takes for said)."""
    sampler: Sampler = Categorical(options) if options.temperature else greedily(options, prompt)
    if options.repetition_penalty in (None, 1):
        return sampler
    return ProcessedSampler([RepetitionPenalty(options.repetition_penalty)], sampler, prompt)


def greedily(options: SamplingOptions, prompt: Sequence[int]) -> Sampler:
    """Takes the most likely token of one answer to `prompt`."""
    return Uncircling(prompt) if options.circles == AVOID else greedy


def greedy(logits: NDArray[np.float32]) -> int:
    """The most likely token; the first of equals. BundleError where its logit is not finite: of several logits with one
    that is no number, that is the largest."""
    token = int(logits.argmax())
    if not math.isfinite(logits.item(token)):
        raise no_token(logits.item(token))
    return token


class Uncircling:
    """Takes the most likely token of one answer to `prompt`, or the next best way out of a circle: see `Circles`."""

    def __init__(self, prompt: Sequence[int] = ()) -> None:
        self._circles = Circles(prompt)

    @property
    def unsure(self) -> bool:
        """Whether the next choice may need logits: else the likeliest token is it."""
        return bool(self._circles.losses)

    def __call__(self, logits: NDArray[np.float32]) -> int:
        token, losses = greedy(logits), self._circles.losses
        if token in losses:
            logits = logits.copy()
            for lost, loss in losses.items():
                logits[lost] -= np.float32(loss)
            token = greedy(logits)
        self._circles.push(token)
        return token

    def accepts(self, likeliest: int) -> bool:
        """Whether the next token is the likeliest, of whose logit nothing is lost: it follows the text then."""
        if likeliest in self._circles.losses:
            return False
        self._circles.push(likeliest)
        return True


def largest_logit(logits: NDArray[np.float32]) -> float:
    """The largest of logits; BundleError where that is not finite: one is no number, or infinite, or all are -inf."""
    found = float(logits.max())
    if not math.isfinite(found):
        raise no_token(found)
    return found


class Categorical:
    """Draws a token at random after temperature, top-k, top-p and min-p, from unnormalised probabilities whose largest
    is 1. Top-p and min-p each are a threshold, and the higher one counts."""

    def __init__(self, options: SamplingOptions) -> None:
        options = options.settled(None)
        self._temperature, self._top_k = options.temperature or 0.0, options.top_k or 0
        self._top_p, self._min_p = options.top_p or 1.0, options.min_p or 0.0
        self._random = np.random.default_rng(None if isinstance(options.seed, str) else options.seed)

    def among(self, candidates: Candidates) -> int:
        """As for all logits of the row, and the same token: of the candidates where these decide, else of all."""
        tokens, logits, top_k = candidates.tokens, candidates.logits, self._top_k
        best = largest_logit(logits)
        last = float(logits[-1])  # tokens that are not among them may have as much
        if top_k and top_k < len(logits) and last < logits[top_k - 1]:
            chosen = tokens[logits >= logits[top_k - 1]]
        elif top_k or self._top_p < 1:
            return self(candidates.whole())
        elif _weights(logits, best, self._temperature)[-1] < self._min_p:
            chosen = tokens
        else:
            return self(candidates.whole())
        order = np.argsort(chosen)  # as they stand in the row
        return self._drawn(logits[: len(chosen)][order], best, chosen[order])

    def __call__(self, logits: NDArray[np.float32]) -> int:
        tokens: NDArray[np.intp] | None = None  # the candidates' ids; None: all of them, in order
        best = largest_logit(logits)
        if 0 < self._top_k < logits.shape[0]:
            tokens = _most_likely(logits, self._top_k)
            logits = logits[tokens]
        return self._drawn(logits, best, tokens)

    def _drawn(self, logits: NDArray[np.float32], best: float, tokens: NDArray[np.intp] | None) -> int:
        """A token of these, or of the whole row. best: the largest of the logits."""
        weights = _weights(logits, best, self._temperature)  # [candidates] float32
        threshold = self._min_p
        if self._top_p < 1:
            threshold = max(threshold, _nucleus_threshold(weights, self._top_p))
        if threshold > 0:
            kept = _at_least(weights, threshold)
            weights = weights[kept]
            tokens = kept if tokens is None else tokens[kept]
        drawn = _draw(weights, self._random.random())
        return drawn if tokens is None else int(tokens[drawn])


def _weights(logits: NDArray[np.float32], best: float, temperature: float) -> NDArray[np.float32]:
    """exp((logit - best) / temperature): probabilities up to a factor. best: the largest of the logits."""
    with np.errstate(over="ignore"):  # a tiny temperature sends all but the largest to exp(-inf) = 0, as it should
        divisor = np.float32(min(max(temperature, SMALLEST), LARGEST))  # -inf over infinity would be no number
        weights: NDArray[np.float32] = (logits - np.float32(best)) / divisor
    np.exp(weights, out=weights)
    return weights


def _most_likely(logits: NDArray[np.float32], count: int) -> NDArray[np.intp]:
    """The `count` likeliest tokens, and all that are as likely as the last of them, in order of their ids."""
    values, places = largest(logits, count + 1)
    if values[count] == values[count - 1]:
        return _at_least(logits, float(values[count - 1]))
    return np.sort(places[:count])


def _at_least(values: NDArray[np.float32], threshold: float) -> NDArray[np.intp]:
    return np.flatnonzero(values >= np.float32(threshold))


def _nucleus_threshold(weights: NDArray[np.float32], top_p: float) -> float:
    """The smallest weight in the smallest set of largest weights that holds `top_p` of their sum."""
    size = weights.shape[0]
    wanted = top_p * float(weights.sum(dtype=np.float64))
    count = min(NUCLEUS, size)
    while True:  # sorts the `count` largest only; a vocabulary's nucleus is rarely more than that
        head = largest(weights, count)[0]
        reached = np.cumsum(head, dtype=np.float64)
        if reached[-1] >= wanted or count == size:
            return float(head[min(int(np.searchsorted(reached, wanted)), count - 1)])
        count = min(8 * count, size)


def _draw(weights: NDArray[np.float32], uniform: float) -> int:
    """An index with probability proportional to its weight, from a number in [0, 1)."""
    starts = np.arange(0, weights.shape[0], DRAW_BLOCK)
    blocks = np.cumsum(np.add.reduceat(weights, starts, dtype=np.float64))
    point = uniform * blocks[-1]
    block = min(int(np.searchsorted(blocks, point, side="right")), starts.shape[0] - 1)
    start = block * DRAW_BLOCK
    within = np.cumsum(weights[start : start + DRAW_BLOCK], dtype=np.float64)
    point -= blocks[block - 1] if block else 0.0
    drawn = int(np.searchsorted(within, point, side="right"))
    if drawn == within.shape[0]:  # the block's sum was rounded otherwise: the last one that has a weight
        drawn = int(np.searchsorted(within, within[-1]))
    return start + drawn
