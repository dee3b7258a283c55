"""The plan of an export: a request, completed with the facts of the checkpoint."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from edge.errors import InputError
from edge.export.checkpoint.model_config import is_traced
from edge.export.facts.checkpoint import Checkpoint
from edge.export.pipeline.routers import Routers, read_routers
from edge.export.quantize import METHODS, check_block_size
from edge.export.request.choices import Choices, choose, context_of, count_weights, described
from edge.export.request.export_request import ExportRequest

if TYPE_CHECKING:
    from edge.export.targets.kind import Wanted

ONNX = "onnx"  # the weights of a ready ONNX model
OF_FAMILIES = "of known families"
TRACED_WEIGHTS = ("int8", "int4", "fp32")


@dataclass(frozen=True)
class Plan:
    """The plan of an export. chosen: of the request, with defaults. routers: those of the checkpoint. target: a device
    whose graphs are written as well. traced: transformers makes its graph."""

    request: ExportRequest
    checkpoint: Checkpoint
    chosen: Choices
    routers: Routers | None = None
    target: Wanted | None = None
    traced: bool = False

    @property
    def name(self) -> str:
        """The model's name in the manifest, where a hub id's owner is no part of it."""
        return self.request.name or Path(self.checkpoint.name).name

    @property
    def keeps_blocks(self) -> bool:
        """True if the weights are a file's own, which are not rounded."""
        return bool(METHODS.find(self.chosen.weights).traits.get("gguf_blocks"))


def settle(request: ExportRequest, checkpoint: Checkpoint, say: Callable[[str], None]) -> Plan:
    """Return the plan of an export. Refuses a request that the checkpoint cannot fulfil, as far as its configuration
    tells."""
    if checkpoint.onnx is not None:
        return _settle_ready(request, checkpoint, say)
    if is_traced(checkpoint.config):
        return _settle_traced(request, checkpoint, say)
    if checkpoint.embeds:
        _refuse_others(request, f"{checkpoint.name} answers nothing", "that do", obeyed="--block-size")
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
    say(described(checkpoint, chosen.weights))
    return Plan(request, checkpoint, chosen, routers, target)


def _settle_ready(request: ExportRequest, checkpoint: Checkpoint, say: Callable[[str], None]) -> Plan:
    """The plan of a bundle of a ready ONNX model, whose weights stay as they are."""
    _refuse_others(request, f"{checkpoint.name} is an ONNX graph already", OF_FAMILIES)
    chosen = Choices(ONNX, None, context_of(checkpoint, request.max_context))
    licence = checkpoint.licence or "no licence stated"
    say(
        f"{checkpoint.name} ({checkpoint.kind}, {licence}): a ready ONNX model, whose graph and weights stay as they "
        "are; slower than a known family's, and without skipping, tuning and other targets than the CPU."
    )
    return Plan(request, checkpoint, chosen)


def _settle_traced(request: ExportRequest, checkpoint: Checkpoint, say: Callable[[str], None]) -> Plan:
    """The plan of a bundle of a model that is traced."""
    kind = str(checkpoint.config["model_type"])
    why = f"Models of the type {kind!r} are traced"
    _refuse_others(request, why, OF_FAMILIES, obeyed="--block-size")
    weights = request.weights or "int8"
    if any(checkpoint.config.get(key) for key in ("quantization_config", "compression_config")):
        raise InputError(f"{why} from floats, and the weights of {checkpoint.name} are quantized.")
    if weights not in TRACED_WEIGHTS:
        raise InputError(f"{why}, to --weights {', '.join(TRACED_WEIGHTS)}, and not {weights}.")
    check_block_size(request.block_size, weights)
    licence = checkpoint.licence or "no licence stated"
    say(
        f"{checkpoint.name} ({checkpoint.kind}, {licence}): {kind!r} is no family with a graph here, so transformers' "
        f"exporter traces it, which takes up to minutes and float32 in memory; {count_weights(checkpoint):,} weights, "
        f"to {weights}. It is slower than a known family's, and without skipping, tuning and other targets than the "
        "CPU."
    )
    chosen = Choices(weights, request.block_size, context_of(checkpoint, request.max_context))
    return Plan(request, checkpoint, chosen, traced=True)


def _refuse_others(request: ExportRequest, why: str, others: str, *, obeyed: str = "") -> None:
    """Raise InputError for an option that is only for models `others`. obeyed: one that is not."""
    given = {
        "--encoder-weights": request.encoder_weights,
        "--decoder-weights": request.decoder_weights,
        "--prefill-weights": request.prefill_weights == "int8",
        "--block-size": request.block_size,
        "--symmetric": request.symmetric,
        "--bits, --size and --perplexity": request.limited,
        "--draft-text": request.draft_text,
        "--segments": request.segments,
        "--calibration": request.calibration,
        "--target": request.target,
    }
    for option, value in given.items():
        if value and option != obeyed:
            raise InputError(f"{why}; {option} is for models {others}.")
