"""The plan of an export: a request, completed with the facts of the checkpoint."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from edge.errors import InputError
from edge.export.facts.checkpoint import Checkpoint
from edge.export.pipeline.routers import Routers, read_routers
from edge.export.quantize import METHODS
from edge.export.request.choices import Choices, choose, described
from edge.export.request.export_request import ExportRequest

if TYPE_CHECKING:
    from edge.export.targets.kind import Wanted


@dataclass(frozen=True)
class Plan:
    """The plan of an export. chosen: of the request, with defaults. name: the model's, in the manifest. routers: those
    of the checkpoint. target: a device whose graphs are written as well."""

    request: ExportRequest
    checkpoint: Checkpoint
    name: str
    chosen: Choices
    routers: Routers | None
    target: Wanted | None

    @property
    def keeps_blocks(self) -> bool:
        """True if the weights are a file's own, which are not rounded."""
        return bool(METHODS.find(self.chosen.weights).traits.get("gguf_blocks"))


def settle(request: ExportRequest, checkpoint: Checkpoint, say: Callable[[str], None]) -> Plan:
    """Return the plan of an export. Refuses a request that the checkpoint cannot fulfil, as far as its configuration
    tells."""
    if checkpoint.embeds:
        _refuse_others(request, checkpoint.name)
    routers = read_routers(checkpoint)
    chosen = choose(
        checkpoint,
        request.weights,
        request.block_size,
        request.max_context,
        quick=request.quick,
        anew=request.anew,
        in_place=request.in_place,
        device=request.target is not None,
    )
    if request.in_place and not checkpoint.files:
        raise InputError(f"Weights stay in their file with GGUF files alone, and {checkpoint.name} is none.")
    target = None
    if request.target is not None:
        from edge.export.targets.kind import Wanted, check_wanted

        target = Wanted(
            request.target, request.target_context, request.soc, request.target_weights, request.target_activations
        )
        check_wanted(target, checkpoint, chosen.context)
    name = request.name or Path(checkpoint.name).name  # a hub id's owner is no part of the name
    say(described(checkpoint, chosen.weights))
    return Plan(request, checkpoint, name, chosen, routers, target)


def _refuse_others(request: ExportRequest, name: str) -> None:
    """Raise InputError for options of models that answer."""
    given = {
        "--encoder-weights": request.encoder_weights,
        "--decoder-weights": request.decoder_weights,
        "--prefill-weights": request.prefill_weights == "int8",
        "--symmetric": request.symmetric,
        "--bits, --size and --perplexity": request.limited,
        "--draft-text": request.draft_text,
        "--segments": request.segments,
        "--calibration": request.calibration,
        "--target": request.target,
    }
    for option, value in given.items():
        if value:
            raise InputError(f"{name} answers nothing; {option} is for models that do.")
