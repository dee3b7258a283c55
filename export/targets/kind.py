"""`edge export --target`: a model's graphs for one kind of device, written next to the plain ones of a bundle.

Each kind is a folder next to this file, which `KINDS` finds by the name that it states.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, cast

import numpy as np
from numpy.typing import NDArray

from edge.bundle import Bundle, BundleWriter
from edge.errors import ExportError, InputError
from edge.export.check.quality import figures
from edge.export.facts.experts import OF_EXPERT
from edge.export.graph.operators import NO_EXPERTS
from edge.export.targets import KINDS
from edge.golden import Golden
from edge.runtime.check.golden import record_form
from edge.runtime.check.perplexity import Agreement
from edge.runtime.engine.engine import Engine
from edge.runtime.engine.variant import Variant
from edge.runtime.load import make_engine
from edge.runtime.providers import open_provider
from edge.targets import TARGETS, DeviceTarget, Target, path_of

if TYPE_CHECKING:
    from edge.export.facts.checkpoint import Checkpoint
    from edge.export.quantize.method import Options
    from edge.manifest import Manifest

MAX_KL, MIN_TOP1 = 0.5, 0.5  # what no sound target comes near


@dataclass(frozen=True)
class Wanted:
    """The target that a user asks for; None for the target's default. name: of the target. context: tokens that graphs
    of fixed sizes have room for, one number or several. socs: chips to compile for. weights: the kind of weights.
    activations: the type of floats."""

    name: str
    context: int | Sequence[int] | None = None
    socs: Sequence[str] = ()
    weights: str | None = None
    activations: str | None = None


class Sample(NamedTuple):
    """Tokens [S] that a decoder reads while activations are measured, and the input of its encoder, if it has one: a
    text's tokens [T], or a sound's features."""

    source: NDArray[Any] | None
    tokens: NDArray[np.int64]


class Kind(Protocol):
    """The functions that the folder of a kind of target has."""

    def check_wanted(self, wanted: Wanted, checkpoint: Checkpoint, context: int) -> None:
        """Refuse at once a target that cannot be written. InputError or ExportError."""

    def write_target(
        self,
        wanted: Wanted,
        checkpoint: Checkpoint,
        writer: BundleWriter,
        manifest: Manifest,
        samples: Callable[[], Sequence[Sample]],
        options: Options,
    ) -> None:
        """Write graphs, weights and `target.json`, in a form that the CPU's provider runs."""

    def finish_target(self, target: Any, writer: BundleWriter, quality: dict[str, float]) -> None:
        """Write `target.json` as the device needs it. target: as it was checked. quality: the figures of the check, if
        there was one."""


def check_wanted(wanted: Wanted, checkpoint: Checkpoint, context: int) -> None:
    """Refuse at once what cannot be made.

    Raises:
        InputError: the target, or an option of it, is unknown or out of range.
        ExportError: no graph for this kind of device can do what the model does.
    """
    if wanted.name not in TARGETS:
        raise InputError(f"There is no target {wanted.name!r}; choose one of {', '.join(TARGETS)}.")
    if any(map(OF_EXPERT.fullmatch, checkpoint.names())):
        raise ExportError(NO_EXPERTS)
    kind(wanted.name).check_wanted(wanted, checkpoint, context)


def kind(name: str) -> Kind:
    """Return the kind of a target."""
    return cast(Kind, KINDS.find(name).load())


def check_target(
    name: str,
    writer: BundleWriter,
    manifest: Manifest,
    compare: Callable[[Engine], Agreement] | None,
    golden: Golden,
) -> Golden:
    """Compare the target's graphs, on the CPU, with the model in float32, and put the figures into `target.json`.
    Returns the golden answers, with what these graphs say along them where they have room for all.

    Raises:
        ExportError: they do not answer as the model does.
    """
    engine = make_engine(Bundle(writer.staging, manifest), Variant(target=name), open_provider("cpu"))
    quality: dict[str, float] = {}
    if compare is not None:
        found = compare(engine)
        if not (found.kl_mean <= MAX_KL and found.top1 >= MIN_TOP1):
            raise ExportError(
                f"The graphs of {manifest.name} for {name} do not answer as the model in float32 does (mean KL "
                f"divergence {found.kl_mean:.3g}, top-1 agreement {found.top1:.1%}), so nothing was written; export it "
                "without --target, and report it."
            )
        quality = figures(found)
    longest = max(max(len(case.prompt_ids) + len(case.greedy_ids), len(case.source_ids)) for case in golden.cases)
    if longest <= engine.context:
        form = record_form(engine, golden, name)
        golden = dataclasses.replace(golden, forms=[*golden.forms, form])
    target = engine.target
    assert target is not None, "an engine over the target's graphs"
    del engine
    kind(name).finish_target(target, writer, quality)
    return golden


def write_json(writer: BundleWriter, target: Target | DeviceTarget) -> None:
    """Write `target.json`."""
    writer.write_file(path_of(target.name), json.dumps(dataclasses.asdict(target), indent=1) + "\n")
