"""Circles: a greedy answer that begins to repeat itself without end, and the next best way out of it.

Greedy decoding of a small model often falls into a text that it has said before and then says it until the tokens are
used up. `Circles` follows an answer token by token. It sees ids only, which costs a few microseconds a token, so that a
graph may keep its logits; these are wanted only while the text is in a circle. The token that would go on in it loses
some of its logit, more with every token, until another one is the likeliest: an end, or another continuation, where
the model is least sure of the circle. Once a text had to be led out, it is led out earlier the next time.

The rule is that of DRY (p-e-w, 2024: the longest repeated suffix sets a penalty that grows) with the patience of
Momentum Decoding (Lan et al. 2022: a text is resisted only where it returns to what it walked before). Neither is used
as it is: both change most answers that have a list or a table in them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from edge.runtime.decode.rules.rule import Lowering, RuleSettings
from edge.runtime.options import one_of

NAME = "circles"
HELP = "leads a greedy text that repeats itself without end out of it"
TRAITS = {"stage": "losses", "order": 10}

AVOID, ALLOW = "avoid", "allow"
CIRCLES = one_of("option circles", "avoid or allow", (AVOID, ALLOW))

GRAM = 7  # tokens in a row that were said before, from which a text counts as repeating itself
LEAST = 16  # tokens that may be said again without a gap
MORE, LONG = 24, 64  # and after a whole round of a circle; but no more than so many in all, or a round
FEW = 40  # tokens that may be said again in all, with gaps; more of them may, up to half of the answer
WINDOW, SHARE = 128, 104  # the last tokens; how many of these may have been said before
PUSH, DOUBLINGS = 1.0, 5  # by how much each token beyond those lowers a logit; doubled after each of so many circles
NOTHING: dict[int, float] = {}


def rule(settings: RuleSettings) -> Lowering | None:
    if settings.option("temperature", 0.0) or settings.option("circles", ALLOW) == ALLOW:
        return None
    return Circles(settings.source)


class Circles:
    """Follows one answer to `prompt`, and lowers the logits of tokens that would continue a circle."""

    def __init__(self, prompt: Sequence[int] = ()) -> None:
        self.losses: Mapping[int, float] = NOTHING
        self._prompt = prompt
        self._grace: int | None = None  # tokens that may be said again because the prompt says such, once looked at
        self._left = 0  # circles
        self._text: list[int] = []
        self._last: dict[tuple[int, ...], int] = {}  # the place behind the last occurrence of each run of GRAM tokens
        self._before: list[int] = []  # for each place, that behind the occurrence before; -1: none
        self._repeated = [0]  # before each place, how many tokens ended a run that had occurred
        self._at = -1  # the place that says how the text would go on if it went on repeating; -1: it does not repeat
        self._length = 0  # tokens before it that are those before the text's end

    def push(self, token: int) -> None:
        """Append `token` to the text, and set the losses for the one after it."""
        if self.losses and token not in self.losses:
            self._left += 1
        self._follow(token)
        self.losses = NOTHING if self._at < 0 else self._lost()

    def copy(self) -> Circles:
        """Return a copy that follows the same text so far and goes on independently."""
        other = Circles.__new__(Circles)  # copy.copy takes as long as all that is copied
        vars(other).update(vars(self))
        other._text, other._last = self._text.copy(), self._last.copy()
        other._before, other._repeated = self._before.copy(), self._repeated.copy()
        return other

    def _follow(self, token: int) -> None:
        """See what the text repeats after its next token."""
        text, at = self._text, self._at
        text.append(token)
        if at >= 0 and text[at] == token:
            self._at, self._length = at + 1, self._length + 1
        else:
            self._at = -1
        end, before = len(text), -1
        if end >= GRAM:
            gram = tuple(text[-GRAM:])
            before = self._last.get(gram, -1)
            self._last[gram] = end
            if self._at < 0 <= before:
                self._at, self._length = before, GRAM
                while self._length < before and text[before - 1 - self._length] == text[end - 1 - self._length]:
                    self._length += 1
        self._before.append(before)
        self._repeated.append(self._repeated[-1] + (before >= 0))

    def _lost(self) -> dict[int, float]:
        """Return the losses of the tokens that followed the earlier occurrences of the last tokens, if the text has
        repeated more than is allowed."""
        end, repeated = len(self._text), self._repeated
        run = self._length + 1 - self._allowed(end - self._at)
        recent = repeated[end] - repeated[max(0, end - WINDOW)] - SHARE
        over = max(run, recent, repeated[end] - max(FEW, end - repeated[end]))
        if over <= 0:
            return NOTHING
        if self._grace is None:
            self._grace = 2 * longest_circle(self._prompt)
        over -= self._grace
        if over <= 0:
            return NOTHING
        loss, losses, place = PUSH * 2 ** min(self._left, DOUBLINGS) * over, dict[int, float](), self._before[-1]
        while place >= 0:
            losses[self._text[place]] = loss
            place = self._before[place - 1]
        return losses

    def _allowed(self, period: int) -> int:
        """Maximum tokens that may be repeated without a gap, in a circle of `period` tokens."""
        if self._left:
            return GRAM
        new = len(self._text) - self._repeated[-1]
        return max(LEAST, min(period + MORE, max(period, LONG), new))


def longest_circle(text: Sequence[int]) -> int:
    """The most tokens in a text that say again what was said twice before, without a gap."""
    circles, found = Circles(), 0
    for end, token in enumerate(text, 1):
        circles._follow(token)
        if circles._at >= 0 and circles._length >= 2 * (end - circles._at):
            found = max(found, circles._length)
    return found
