"""The training side of a skip policy: gates for a step's tokens, and its terms of the loss besides good predictions."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from edge.errors import InputError
from edge.export.facts.progress import Progress
from edge.export.tune.network import Network, Tensors
from edge.export.tune.settings import POLICIES, Settings


class TrainedPolicy(ABC):
    """Leaves out layers of answers' tokens during training as its namesake in `edge.runtime.skip` does.

    A file next to this one has `make(layers, hidden_size, settings)`, and in its TRAITS the option that it `takes`,
    "--ratio" or "--layers"; where it has them, `routers`, and the `segments` that its bundle needs.
    """

    feed_forward = False  # whether it leaves out feed-forward blocks, and not whole layers

    def prepare(self, network: Network, batches: Sequence[Tensors], folder: Path, progress: Progress) -> None:  # noqa: B027
        """Prepare the policy with the untrained model. A resumed run does not repeat it. Slow results are stored in the
        run's folder."""

    def parameters(self) -> dict[str, torch.nn.Parameter]:
        """The parameters that are trained besides the adapters, by name."""
        return {}

    def begin(self, network: Network, tensors: Tensors, draw: np.random.Generator) -> None:  # noqa: B027
        """Start a step. `draw` depends on the run's seed and the step's number alone."""

    @abstractmethod
    def gate(self, layer: int, stream: torch.Tensor) -> torch.Tensor | float: ...

    def penalty(self) -> torch.Tensor | float:
        """Return the term that is added to the loss of the latest step."""
        return 0.0

    @abstractmethod
    def skipped(self) -> float:
        """The share of the layers that the answers of the step left out."""

    def finish(self, network: Network, batches: Iterable[Tensors]) -> dict[str, float]:
        """Finish the policy with the trained model and these answers; return figures to report, by name."""
        return {}

    def routers(self) -> NDArray[np.float32] | None:
        """Routers [units, H + 1] as the runtime reads them; None where the policy has none."""
        return None

    @abstractmethod
    def skip(self) -> str:
        """The setting of `--skip` that the model was tuned for."""


def make_policy(settings: Settings, layers: int, hidden_size: int) -> TrainedPolicy:
    """The policy that is asked for, for a decoder of `layers` layers.

    Raises:
        InputError: there is no such policy, or what is asked of it is out of its range.
    """
    name, policy = settings.policy, POLICIES.find(settings.policy)
    if layers < 3:
        raise InputError(f"Of {layers} decoder layers the first and the last always run, so there is nothing to tune.")
    of_routers = settings.unit != 1 or settings.candidates is not None or settings.penalty is not None
    if of_routers and not policy.traits.get("routers"):
        raise InputError(f"{name} has no routers, so --unit, --candidates and --penalty do not apply.")
    takes = policy.traits["takes"]
    for option, value in (("--ratio", settings.ratio), ("--layers", settings.span)):
        if value is not None and option != takes:
            others = ", ".join(other for other, entry in POLICIES.items() if entry.traits["takes"] == option)
            raise InputError(f"{name} takes {takes}; {option} belongs to {others}.")
    made: TrainedPolicy = policy.load().make(layers, hidden_size, settings)
    return made


def ratio_of(settings: Settings) -> float:
    if settings.ratio is None:
        return 0.15
    if not 0 < settings.ratio < 1:
        raise InputError(f"A ratio of {settings.ratio:g} is no share of the layers; choose one between 0 and 1.")
    return settings.ratio


def span_of(settings: Settings, layers: int) -> tuple[int, int]:
    minimum, maximum = settings.span or (max(2, layers // 2), layers)
    if not 2 <= minimum <= maximum <= layers:
        raise InputError(
            f"--layers {minimum}-{maximum} does not go from 2 or more layers up to no more than the model's {layers}."
        )
    return minimum, maximum
