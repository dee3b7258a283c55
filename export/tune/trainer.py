"""The training loop: adapters and a policy's own parameters learn to predict answers with layers left out.

Everything random in a step (its batch, its budgets) is drawn from the run's seed and the step's number, so that a run
which is resumed from a checkpoint ends with the weights of one that was never interrupted.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from edge.errors import InputError
from edge.export.facts.progress import Progress
from edge.export.tune.data import Batch, Example, batches, per_epoch
from edge.export.tune.network import Network, Tensors, divergence, likelihood
from edge.export.tune.policy import TrainedPolicy
from edge.export.tune.settings import Settings

LOOKED_AT = 1  # batches that a policy sees before the first step
WARM_UP = 0.1  # of the steps: the learning rate rises
FINISHED_BY = 256  # sequences that it sees after the last step
LAST = 0.1  # of the learning rate: what a cosine falls to
ROUTERS = 3.0  # times the adapters' learning rate: of a policy's own parameters
CLIP = 1.0  # the longest gradient
STATE = "state.pt"


@dataclass(frozen=True)
class TrainingStep:
    """Figures of one step: nats a token, and the share of layers that answers left out."""

    number: int
    loss: float
    skipped: float


class Stopped(Exception):
    """Somebody asked the training to stop; its checkpoint is of `step`."""

    def __init__(self, step: int) -> None:
        super().__init__(step)
        self.step = step


class Trainer:
    """folder: holds the checkpoint; where there is one the run goes on from it. every: steps from one checkpoint to the
    next."""

    def __init__(
        self,
        network: Network,
        policy: TrainedPolicy,
        examples: Sequence[Example],
        settings: Settings,
        folder: Path,
        every: int,
    ) -> None:
        self.network, self.policy, self.examples, self.settings = network, policy, examples, settings
        self._path, self._every = folder / STATE, every
        for parameter in policy.parameters().values():
            parameter.data = parameter.data.to(network.device)
        self._trained = {**network.adapters, **{f"policy.{name}": p for name, p in policy.parameters().items()}}
        groups = [
            {"params": list(network.adapters.values()), "factor": 1.0},
            {"params": list(policy.parameters().values()), "factor": ROUTERS},
        ]
        self._optimizer = torch.optim.AdamW([g for g in groups if g["params"]], lr=settings.rate, weight_decay=0.0)
        self.history: list[TrainingStep] = []

    @property
    def done(self) -> int:
        return len(self.history)

    def run(self, stop: Callable[[], bool], progress: Progress, told: Callable[[TrainingStep], None]) -> None:
        """Train from the last checkpoint, if there is one, to the end.

        stop: asked between steps. told: of each step.

        Raises:
            Stopped: the training was to stop, and its checkpoint is written.
            InputError: the checkpoint in the folder is not whole, or the loss is no number.
        """
        if not self._load():
            looked = batches(self.examples, self.settings.batch, self.settings.seed)
            first = [self.network.tensors(next(looked)) for _ in range(LOOKED_AT)]
            self.policy.prepare(self.network, first, self._path.parent, progress)
            self.save()
        following = batches(self.examples, self.settings.batch, self.settings.seed, start=self.done)
        while self.done < self.settings.steps:
            if stop():
                self.save()
                raise Stopped(self.done)
            step = self._step(next(following))
            self.history.append(step)
            told(step)
            if self.done % self._every == 0:
                self.save()
        self.save()

    def finish(self, stop: Callable[[], bool], progress: Progress) -> dict[str, float]:
        """Let the policy look at the trained model, by some of the sequences that it was trained on: rather the model's
        own answers, because what is asked of it differs most, and text where they are too few.

        Raises:
            Stopped: as `run`.
        """
        order = np.random.default_rng([self.settings.seed, 4]).permutation(len(self.examples))
        own = [i for i in order if not self.examples[i].given]
        given = [i for i in order if self.examples[i].given]
        chosen = [self.examples[i] for i in [*own, *given][:FINISHED_BY]]
        count = per_epoch(chosen, self.settings.batch)  # so that no sequence comes twice
        following = batches(chosen, self.settings.batch, self.settings.seed)

        def looked() -> Iterator[Tensors]:
            for done in range(count):
                if stop():
                    raise Stopped(self.done)
                progress(done, count, "measuring which layers answers need")
                yield self.network.tensors(next(following))

        return self.policy.finish(self.network, looked())

    def _step(self, batch: Batch) -> TrainingStep:
        number = self.done
        tensors = self.network.tensors(batch)
        self.policy.begin(self.network, tensors, np.random.default_rng([self.settings.seed, 2, number]))
        student = self.network.logits(tensors, self.policy.gate, feed_forward=self.policy.feed_forward)
        if self.settings.loss == "lm":
            loss = likelihood(tensors, student)
        else:
            with torch.no_grad():
                teacher = self.network.logits(tensors, None, adapted=False)
            loss = divergence(teacher, student)
            if self.settings.loss == "both":
                loss = loss + likelihood(tensors, student, given=True)
        value = float(loss.detach())
        if not math.isfinite(value):
            raise InputError(f"The loss of step {number + 1} is {value}; tune with a smaller --rate.")
        self._optimizer.zero_grad(set_to_none=True)
        (loss + self.policy.penalty()).backward()
        torch.nn.utils.clip_grad_norm_(self._trained.values(), CLIP)
        for group in self._optimizer.param_groups:
            group["lr"] = group["factor"] * self._rate(number)
        self._optimizer.step()
        return TrainingStep(number, value, self.policy.skipped())

    def _rate(self, number: int) -> float:
        warm = max(1, round(WARM_UP * self.settings.steps))
        if number < warm:
            return self.settings.rate * (number + 1) / warm
        done = (number - warm) / max(1, self.settings.steps - warm)
        return self.settings.rate * (LAST + (1 - LAST) * (1 + math.cos(math.pi * done)) / 2)

    def save(self) -> None:
        """Write the checkpoint, which replaces the last one when it is whole."""
        state = {
            "trained": {name: p.detach().cpu() for name, p in self._trained.items()},
            "optimizer": self._optimizer.state_dict(),
            "history": [(s.number, s.loss, s.skipped) for s in self.history],
        }
        part = self._path.with_suffix(".part")
        torch.save(state, part)
        part.replace(self._path)

    def _load(self) -> bool:
        if not self._path.exists():
            return False
        try:
            state = torch.load(self._path, map_location="cpu", weights_only=True)
        except Exception as e:  # pickle, zipfile and torch each raise their own
            reason = type(e).__name__
            raise InputError(f"{self._path} is no whole checkpoint ({reason}); start anew with --restart.") from None
        with torch.no_grad():
            for name, parameter in self._trained.items():
                parameter.copy_(state["trained"][name])
        self._optimizer.load_state_dict(state["optimizer"])
        self.history = [TrainingStep(*step) for step in state["history"]]
        return True
