"""The layers that draft, in a model that drafts for itself: a fixed set, a set that is searched for, or all up to an
exit.

A choice says before each draft which units of an engine over segments it leaves out, and learns from its own drafts.
"""

from __future__ import annotations

import itertools
import random
import re
from collections.abc import Sequence

from edge.bundle import Bundle
from edge.errors import InputError
from edge.runtime.skip import skip_policy as skip
from edge.runtime.skip.unified import spread

Unit = tuple[int, ...]
"""Segments that are left out together, by their indices in the manifest."""

SEARCH, EXIT = "search", "exit"  # settings; another one names layers
PIECES = 12  # maximum units of a search: with fewer the search ends sooner
LEFT_OUT = 0.45  # of the units; SWIFT's skip ratio
WINDOW = 16  # tokens of the answer that a set is tried on
APART = 8  # tokens of the answer between two tries
TRIES = 40  # maximum sets tried
PATIENCE = 20  # maximum sets tried without a better one
ENOUGH = 0.95  # of the tokens right: no better set is looked for
RANDOM = 0.2  # of the sets that are tried; the others are the best one with one unit exchanged

EXITS = 6
FADING = 0.97  # of what is known of an exit, with each drafted token
BELIEVED = 8.0  # drafted tokens that what is believed of an exit at first counts as


class Choice:
    """Chooses the units that a draft leaves out: always all `units`."""

    def __init__(self, units: Sequence[Unit]) -> None:
        self.units = units

    @property
    def tries(self) -> bool:
        """True if there is a set to be tried (`trial`)."""
        return False

    def left_out(self, tokens: int) -> Sequence[Unit]:
        """The units that a draft of up to `tokens` tokens leaves out."""
        return self.units

    def trial(self) -> Sequence[Unit]:
        """A set of units to try on text that is there already."""
        return self.units

    def tried(self, units: Sequence[Unit], right: float) -> None:
        """Record a trial: with the set `units`, this share of the tokens was right."""

    def drafted(self, units: Sequence[Unit], right: bool) -> None:
        """Record whether a drafted token was right where the one before it was."""


def choice(bundle: Bundle, setting: str | None) -> Choice:
    """The choice that is asked for: ``search`` (or None), ``exit``, ``unified:R`` or layers' numbers, ``3,4,9``;
    InputError where the setting is none of these, or names layers that cannot be left out."""
    segments = bundle.manifest.segments
    units = skip.skippable(segments)
    if setting in (None, SEARCH):
        return Search(_pieces(units, PIECES))
    if setting == EXIT:
        return Exits(_pieces(units, EXITS), bundle.manifest.dims.num_layers)
    if setting.startswith("unified:"):
        ratio = skip.share(setting.partition(":")[2], "self=unified:0.2")
        width = len(segments[units[0][0]].layers)
        count = min(round(ratio * bundle.manifest.dims.num_layers / width), len(units))
        return Choice([units[i] for i in spread(count, len(units))])
    if not re.fullmatch(r"\d+(,\d+)*", setting):
        raise InputError(
            f"{setting!r} does not say which layers draft; write self, self=exit, self=unified:0.4, or the layers that "
            "are left out, as in self=3,4,9."
        )
    return Choice(_units_of(bundle, units, {int(layer) for layer in setting.split(",")}))


def _units_of(bundle: Bundle, units: Sequence[Unit], layers: set[int]) -> list[Unit]:
    """The units of exactly these layers."""
    segments = bundle.manifest.segments
    found = [unit for unit in units if set(segments[unit[0]].layers) <= layers]
    missing = layers - {layer for unit in found for layer in segments[unit[0]].layers}
    if missing:
        sets = ", ".join("+".join(map(str, segments[unit[0]].layers)) for unit in units)
        raise InputError(
            f"Layer {min(missing)} of {bundle.manifest.name} cannot be left out like this; these can, each as a whole: "
            f"{sets}."
        )
    return found


def _pieces(units: Sequence[Unit], maximum: int) -> list[Unit]:
    """Neighbouring units put together, so that there are `maximum` of them or fewer."""
    count = min(maximum, len(units))
    ends = [j * len(units) // count for j in range(count + 1)]
    return [tuple(i for unit in units[a:b] for i in unit) for a, b in itertools.pairwise(ends)]


class Search(Choice):
    """The set that is right most often, of as many units as `LEFT_OUT` says.

    Xia et al. 2024, "SWIFT: On-the-Fly Self-Speculative Decoding for LLM Inference Acceleration": while the model
    answers, sets are tried on what it said just before, by one step each, and the best one drafts. The paper proposes
    sets by Bayesian optimization; here a set is the best one with one unit exchanged, or random.
    """

    def __init__(self, units: Sequence[Unit]) -> None:
        super().__init__(units)
        self._count = max(1, round(LEFT_OUT * len(units)))
        self._best: tuple[int, ...] = tuple(spread(self._count, len(units)))
        self._best_right = -1.0
        self._random = random.Random(0)
        self._trial = self._best
        self._tries = self._since = 0

    @property
    def tries(self) -> bool:
        return self._tries < TRIES and self._since < PATIENCE and self._best_right < ENOUGH

    def left_out(self, tokens: int) -> Sequence[Unit]:
        return [self.units[i] for i in self._best]

    def trial(self) -> Sequence[Unit]:
        others = [i for i in range(len(self.units)) if i not in self._best]
        if self._tries == 0 or not others:
            self._trial = self._best
        elif self._random.random() < RANDOM:
            self._trial = tuple(sorted(self._random.sample(range(len(self.units)), self._count)))
        else:
            gone, come = self._random.choice(self._best), self._random.choice(others)
            self._trial = tuple(sorted({*self._best, come} - {gone}))
        return [self.units[i] for i in self._trial]

    def tried(self, units: Sequence[Unit], right: float) -> None:
        self._tries += 1
        self._since += 1
        if right >= self._best_right:  # of equals the latest, so that the search does not stand still
            self._since *= right == self._best_right
            self._best, self._best_right = self._trial, right


class Exits(Choice):
    """Layers up to an exit, then the last one and the head: the exit with the most expected tokens per layer.

    Entin et al. 2025, "DEL: Context-Aware Dynamic Exit Layer for Efficient Self-Speculative Decoding". There the head
    is run after every layer to learn how often each would be right; here that is learnt from the exits that were taken.
    """

    def __init__(self, units: Sequence[Unit], layers: int) -> None:
        super().__init__(units)
        count = len(units)
        self._shares = [(2 + exit * (layers - 2) / count) / layers for exit in range(count)]  # of layers that run
        self._right = [BELIEVED * share**0.25 for share in self._shares]
        self._seen = [BELIEVED] * count

    def left_out(self, tokens: int) -> Sequence[Unit]:
        return self.units[self._best(tokens) :]

    def _best(self, tokens: int) -> int:
        """Return the exit with the most expected tokens per layer, for drafts of up to `tokens` tokens."""
        best, best_rate = 0, 0.0
        for exit, share in enumerate(self._shares):
            chance = self._right[exit] / self._seen[exit]
            accepted = expected = 1.0
            for length in range(1, tokens + 1):
                accepted *= chance
                expected += accepted
                rate = expected / (1 + share * length)  # tokens per layer, times the layers there are
                if rate > best_rate:
                    best, best_rate = exit, rate
        return best

    def drafted(self, units: Sequence[Unit], right: bool) -> None:
        exit = len(self.units) - len(units)
        self._right[exit] = self._right[exit] * FADING + right
        self._seen[exit] = self._seen[exit] * FADING + 1
