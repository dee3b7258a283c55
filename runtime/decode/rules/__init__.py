"""Rules that change which token may come next: one file each, in one list for decoders, encoder-decoders, speech,
several prompts, and the candidates of a device. `edge.runtime.decode.rules.rule` says what a rule is."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

from edge.registry import Entry, Registry
from edge.runtime.decode.rules.rule import Filter, Joined, Lowering, Processor, RuleSettings, Temperature, Threshold

RULES = Registry(__name__, "rule")
STAGES = ("scores", "losses", "logits", "temperature", "weights")


def in_order() -> list[Entry]:
    """All rules, in the order in which they apply."""
    return sorted(RULES.values(), key=lambda entry: (STAGES.index(entry.traits["stage"]), entry.traits["order"]))


@cache
def _of(stage: str) -> list[Callable[[RuleSettings], Any]]:
    return [entry.load().rule for entry in in_order() if entry.traits["stage"] == stage]


def _asked_for(stage: str, settings: RuleSettings) -> list[Any]:
    return [made for make in _of(stage) if (made := make(settings)) is not None]


def make_processors(settings: RuleSettings) -> list[Processor]:
    """Return the rules that change the scores of all tokens by the text so far."""
    return _asked_for("scores", settings)


def make_lowering(settings: RuleSettings) -> Lowering | None:
    """Return the rule that lowers the scores of a few tokens of one text, several joined into one; None without any."""
    found: list[Lowering] = _asked_for("losses", settings)
    return Joined(found) if len(found) > 1 else next(iter(found), None)


def make_filters(settings: RuleSettings) -> list[Filter]:
    """Return the rules that leave out tokens by their logits."""
    return _asked_for("logits", settings)


def make_temperature(settings: RuleSettings) -> Temperature:
    """Return the rule that turns the logits that are left into weights."""
    (found,) = _asked_for("temperature", settings)
    return found  # type: ignore[no-any-return]


def make_thresholds(settings: RuleSettings) -> list[Threshold]:
    """Return the rules that leave out tokens by their weights."""
    return _asked_for("weights", settings)
