"""Settings of tuning, and the policies that a model may be tuned for."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from edge.errors import InputError
from edge.registry import Registry

POLICIES = Registry("edge.export.tune", "policy")  # to tune for; see `policy.TrainedPolicy`
LOSSES = ("distill", "lm", "both")
PRECISIONS = ("auto", "bf16", "fp32")


@dataclass(frozen=True)
class Settings:
    """The settings that a tuned model depends on, besides the model.

    data: a JSONL file of texts, or of prompts and answers, or a text file. prompts: those that the model answers
    itself, for training with the data or without any; where there is neither, built-in ones. batch: sequences of a
    step. length: the maximum of tokens of each. answer, temperature: the maximum of tokens of an answer that the model
    generates, and its sampling temperature (0: the most likely tokens). rank: of the adapters. rate: the highest
    learning rate. loss: distill for the KL divergence from the untouched model, lm for the text's likelihood, or both,
    where the model's answers have the first alone. validation: the maximum of sequences that are not trained on, so
    that figures can be measured on them.

    Of the policy: ratio: the share of layers, or of feed-forward blocks, to leave out, of all but skipdecode. span: the
    minimum and the maximum of layers that run, of skipdecode. unit: layers that first leaves out together. candidates:
    units that have a router. penalty: of first, nats for the squared distance of the share that routers leave out from
    `ratio`; a tenth of the layers costs 0.6 with 60, the default.
    """

    policy: str
    data: Path | None = None
    prompts: Path | None = None
    steps: int = 300
    batch: int = 4
    length: int = 320
    answer: int = 256
    temperature: float = 1.0
    rank: int = 16
    rate: float = 1e-3
    loss: str = "distill"
    seed: int = 0
    precision: str = "auto"
    validation: int = 0
    ratio: float | None = None
    span: tuple[int, int] | None = None
    unit: int = 1
    candidates: int | None = None
    penalty: float | None = None

    def check(self) -> None:
        """Raise InputError if a value is out of its range."""
        for name, value, minimum in (
            ("--steps", self.steps, 1),
            ("--batch", self.batch, 1),
            ("--length", self.length, 48),
            ("--answer", self.answer, 16),
            ("--rank", self.rank, 1),
            ("--seed", self.seed, 0),
        ):
            if value < minimum:
                raise InputError(f"{name} must be {minimum} or more, not {value}.")
        if not 0 <= self.temperature <= 10:
            raise InputError(f"--temperature must lie between 0 and 10, not {self.temperature:g}.")
        if not 0 < self.rate < 1:
            raise InputError(f"--rate must lie between 0 and 1, not {self.rate:g}.")
        for option, choice, choices in (("--loss", self.loss, LOSSES), ("--precision", self.precision, PRECISIONS)):
            if choice not in choices:
                raise InputError(f"There is no {option} {choice!r}; choose one of {', '.join(choices)}.")

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
