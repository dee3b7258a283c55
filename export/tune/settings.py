"""Settings of tuning, and the policies that a model may be tuned for."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from edge.errors import InputError
from edge.registry import Registry
from edge.runtime.options import Options, any_value, integer, number, one_of, option, unless_none

POLICIES = Registry("edge.export.tune", "policy")  # to tune for; see `policy.TrainedPolicy`
LOSSES = ("distill", "lm", "both")
PRECISIONS = ("auto", "bf16", "fp32")


def _at_least(name: str, least: int) -> Any:
    return integer(name, f"{least} or more", least=least)


def _choice(name: str, choices: tuple[str, ...]) -> Any:
    return one_of(name, f"one of {', '.join(choices)}", choices)


def _span(text: str) -> tuple[int, int]:
    found = re.fullmatch(r"(\d+)-(\d+)", text)
    if not found:
        raise InputError(f"--layers {text!r} is no range of layers; write it like 20-30.")
    return int(found[1]), int(found[2])


@dataclass(frozen=True)
class Settings(Options):
    """The settings that a tuned model depends on, besides the model and `policy`, the name of a skip policy.

    A recipe may set each by the name of its flag. validation: the maximum of sequences that are not trained on, so that
    figures can be measured on them.
    """

    policy: str
    data: Path | None = option(
        None,
        any_value,
        flag="--data FILE",
        heading="data",
        help="text, or JSONL lines with a text, or with a prompt and an answer",
    )
    prompts: Path | None = option(
        None,
        any_value,
        flag="--prompts FILE",
        heading="data",
        help="prompts that the model answers itself, for training, with --data too (default: built-in ones)",
    )
    steps: int = option(
        300, _at_least("steps", 1), flag="--steps N", heading="training", help="training steps (default: 300)"
    )
    batch: int = option(
        4, _at_least("batch", 1), flag="--batch N", heading="training", help="sequences of a step (default: 4)"
    )
    length: int = option(
        320,
        _at_least("length", 48),
        flag="--length N",
        heading="training",
        help="maximum tokens of a sequence (default: 320)",
    )
    answer: int = option(
        256,
        _at_least("answer", 16),
        flag="--answer N",
        heading="data",
        help="maximum tokens of these answers (default: 256)",
    )
    temperature: float = option(
        1.0,
        number("temperature", "a number between 0 and 10", least=0, most=10),
        flag="--temperature X",
        heading="data",
        help="temperature of these answers, 0 for the likeliest tokens (default: 1)",
    )
    rank: int = option(
        16, _at_least("rank", 1), flag="--rank N", heading="training", help="of the LoRA adapters (default: 16)"
    )
    rate: float = option(
        1e-3,
        number("rate", "a number between 0 and 1", above=0, most=math.nextafter(1, 0)),
        flag="--rate X",
        heading="training",
        help="the highest learning rate (default: 0.001)",
    )
    loss: str = option(
        "distill",
        _choice("loss", LOSSES),
        flag="--loss KIND",
        heading="training",
        help="distill (default): the untouched model's predictions; lm: the text; both",
    )
    seed: int = option(0, _at_least("seed", 0), flag="--seed N", heading="training", help="repeats a run (default: 0)")
    precision: str = option(
        "auto",
        _choice("precision", PRECISIONS),
        flag="--precision KIND",
        heading="training",
        help="of products: bf16, fp32 or auto (default): what is faster",
    )
    validation: int = 0
    ratio: float | None = option(
        None,
        any_value,
        flag="--ratio R",
        heading="policy",
        help="of all but skipdecode: the share of layers to skip (default: 0.15)",
    )
    span: tuple[int, int] | None = option(
        None,
        any_value,
        flag="--layers MIN-MAX",
        heading="policy",
        help="of skipdecode: minimum and maximum of layers that run (default: half to all)",
        read=_span,
    )
    unit: int = option(
        1,
        _at_least("unit", 1),
        flag="--unit N",
        heading="policy",
        help="of first: layers that one router decides on (default: 1)",
    )
    candidates: int | None = option(
        None,
        unless_none(_at_least("number of candidates", 1)),
        flag="--candidates N",
        heading="policy",
        help="of first: units that have a router (default: some more than are skipped)",
    )
    penalty: float | None = option(
        None,
        unless_none(number("penalty", "0 or more", least=0)),
        flag="--penalty X",
        heading="policy",
        help="of first: how strongly --ratio is enforced, in nats for the squared distance of the share (default: 60)",
    )

    @property
    def answering(self) -> bool:
        """True if the model is trained on answers that it generates."""
        return self.data is None or self.prompts is not None

    def sources(self, own: Path) -> list[Path]:
        """The files that are read: the data, and `own`, which holds the prompts that are answered or the answers."""
        return [*([] if self.data is None else [self.data]), *([own] if self.answering else [])]

    def given(self, source: Path) -> bool:
        """True if a file of `sources` is the given data, and not answers that the model generated."""
        return source == self.data
