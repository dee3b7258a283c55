"""From logits to the next token: the rules of `edge.runtime.decode.rules` in their order, and then the likeliest token,
or a draw."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from edge.errors import BundleError, InputError
from edge.manifest import Generation
from edge.runtime.decode import rules
from edge.runtime.decode.rules.circles import AVOID, CIRCLES
from edge.runtime.decode.rules.rule import Lowering, Processor, RuleSettings
from edge.runtime.engine.candidates import Candidates
from edge.runtime.engine.failures import no_token
from edge.runtime.options import Options, integer, number, option, unless_none

Sampler = Callable[[NDArray[np.float32]], int]
"""Logits [V] float32 in, token id out. The logits are left as they are."""

DRAW_BLOCK = 256  # weights summed at once while drawing: a cumulative sum over a vocabulary costs ten times more

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
    """Options of how the next token is chosen. The same call gives the same tokens, unless the seed is random.

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
        """Raise InputError where an option says how tokens are drawn, and none are drawn."""
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
    """The sampler for one answer to `prompt` (token ids, which rules count as part of the text)."""
    settings = RuleSettings(options, begin=len(prompt), source=prompt)
    return processed(rules.make_processors(settings), make_chooser(settings), prompt)


def processed(processors: Sequence[Processor], sampler: Sampler, prompt: Sequence[int]) -> Sampler:
    """A sampler that applies these processors first, in a text that begins with `prompt`."""
    return ProcessedSampler(processors, sampler, prompt) if processors else sampler


def make_chooser(settings: RuleSettings) -> Sampler:
    """Return the sampler of one text for scores to which the processors were applied already."""
    if settings.option("temperature", 0.0):
        return Categorical(settings)
    lowering = rules.make_lowering(settings)
    return greedy if lowering is None else Uncircling(lowering)


def greedy(logits: NDArray[np.float32]) -> int:
    """Return the most likely token; the first of equals. BundleError where its logit is not finite: NaN counts as the
    largest."""
    token = int(logits.argmax())
    if not math.isfinite(logits.item(token)):
        raise no_token(logits.item(token))
    return token


class Uncircling:
    """Takes the most likely token of one answer, or the next best where a rule lowers that one's logit."""

    def __init__(self, lowering: Lowering) -> None:
        self._lowering = lowering

    @property
    def unsure(self) -> bool:
        """True if the next choice may need logits. If False, it is the likeliest token."""
        return bool(self._lowering.losses)

    def __call__(self, logits: NDArray[np.float32]) -> int:
        token, losses = greedy(logits), self._lowering.losses
        if token in losses:
            logits = logits.copy()
            for lost, loss in losses.items():
                logits[lost] -= np.float32(loss)
            token = greedy(logits)
        self._lowering.push(token)
        return token

    def accepts(self, likeliest: int) -> bool:
        """Accept the likeliest token as the next one, unless a rule lowers its logit. True if it was accepted; it then
        follows the text."""
        if likeliest in self._lowering.losses:
            return False
        self._lowering.push(likeliest)
        return True


def largest_logit(logits: NDArray[np.float32]) -> float:
    """Return the largest of logits; BundleError where it is not finite: one is NaN or infinite, or all are -inf."""
    found = float(logits.max())
    if not math.isfinite(found):
        raise no_token(found)
    return found


class Categorical:
    """Draws a token at random from those that rules leave, by weights whose largest is 1."""

    def __init__(self, settings: RuleSettings) -> None:
        self._filters, self._thresholds = rules.make_filters(settings), rules.make_thresholds(settings)
        self._temperature = rules.make_temperature(settings)
        seed = settings.option("seed", RANDOM)
        self._random = np.random.default_rng(None if isinstance(seed, str) else seed)

    def among(self, candidates: Candidates) -> int:
        """Draw the token that a call with all logits of the row would draw. Only the candidates are read where rules
        leave no other tokens, else the whole row."""
        tokens, logits = candidates.tokens, candidates.logits
        best = largest_logit(logits)
        if not self._decided(logits, best):
            return self(candidates.whole())
        order = np.argsort(tokens)  # as they stand in the row
        return self._drawn(logits[order], best, tokens[order])

    def _decided(self, logits: NDArray[np.float32], best: float) -> bool:
        """True if all tokens of a row that rules leave have their logits in the largest ones [K]."""
        if self._filters:
            return self._filters[0].decides(logits)  # the others see what this one leaves
        if not self._thresholds:
            return False
        weights = self._temperature(logits, best)
        return all(threshold.decides(weights) for threshold in self._thresholds)

    def __call__(self, logits: NDArray[np.float32]) -> int:
        return self._drawn(logits, largest_logit(logits), None)

    def _drawn(self, logits: NDArray[np.float32], best: float, tokens: NDArray[np.intp] | None) -> int:
        weights, left = self.left(logits, best, tokens)
        drawn = _draw(weights, self._random.random())
        return drawn if left is None else int(left[drawn])

    def log_mass(self, logits: NDArray[np.float32], *, whole: bool = False) -> float:
        """Return the logarithm of the sum of exp(logit / temperature) over the tokens to draw from, or `whole`, over
        all."""
        best = largest_logit(logits)
        weights = self._temperature(logits, best) if whole else self.left(logits, best, None)[0]
        return best / self._temperature.divisor + math.log(weights.sum(dtype=np.float64))

    def left(
        self, logits: NDArray[np.float32], best: float, tokens: NDArray[np.intp] | None
    ) -> tuple[NDArray[np.float32], NDArray[np.intp] | None]:
        """Return the weights of the tokens to draw from, and these tokens, None for the whole row.

        logits: [N], of `tokens` or of the whole row. best: the largest of the row.
        """
        for rule in self._filters:
            if (kept := rule(logits)) is not None:
                logits, tokens = logits[kept], kept if tokens is None else tokens[kept]
        weights = self._temperature(logits, best)
        least = 0.0
        for threshold in self._thresholds:
            least = max(least, threshold(weights))
        if least > 0:
            kept = np.flatnonzero(weights >= np.float32(least))
            weights, tokens = weights[kept], kept if tokens is None else tokens[kept]
        return weights, tokens


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


class ProcessedSampler:
    """Applies processors to the logits, in their order, and then a sampler. Stores the text for them, which begins with
    the tokens of `prompt`."""

    def __init__(self, processors: Sequence[Processor], sampler: Sampler, prompt: Sequence[int]) -> None:
        self._processors = processors
        self._sampler = sampler
        self._text = np.array([prompt], np.int64)
        self._length = len(prompt)
        self._scores = np.empty((1, 0), np.float32)

    def __call__(self, logits: NDArray[np.float32]) -> int:
        if self._scores.shape[1] != logits.shape[0]:
            self._scores = np.empty((1, logits.shape[0]), np.float32)
        scores = self._scores
        scores[0] = logits
        for process in self._processors:
            process(self._text[:, : self._length], scores)
        try:
            token = self._sampler(scores[0])
        except BundleError:
            if math.isfinite(logits.max()):
                raise InputError(
                    "The rules of this answer forbid every token: those that were said, that repeat words or are "
                    "suppressed, and an end too early; leave out one of these options."
                ) from None
            raise
        if self._length == self._text.shape[1]:
            self._text = np.pad(self._text, ((0, 0), (0, self._length + 16)))
        self._text[0, self._length] = token
        self._length += 1
        return token
