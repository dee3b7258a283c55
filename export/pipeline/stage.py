"""The first stage of an export, which needs the checkpoint: what is made of it is settled, and tensors, graphs and
tokenizer are written. `finish.py` has the second."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from edge.bundle import BundleWriter
from edge.errors import InputError
from edge.export import quantize as methods
from edge.export.facts.checkpoint import Checkpoint
from edge.export.facts.progress import Progress
from edge.export.pipeline.finish import Staged
from edge.export.pipeline.routers import Routers, read_routers
from edge.export.quantize.base import Options
from edge.export.request.choices import Choices, bits_within, choose, described, draft_tokens
from edge.export.request.export_request import ExportRequest
from edge.export.request.memory import DRAFTS, Request, leave_out

if TYPE_CHECKING:
    from edge.export.targets.base import Wanted


@dataclass(frozen=True)
class Plan:
    """What is made of a checkpoint, by default too. name: the model's, in the manifest. routers: those that the
    checkpoint has. target: whose graphs are written as well."""

    request: ExportRequest
    checkpoint: Checkpoint
    name: str
    chosen: Choices
    routers: Routers | None
    target: Wanted | None


def settle(request: ExportRequest, checkpoint: Checkpoint, say: Callable[[str], None]) -> Plan:
    """What is made of the checkpoint. Refuses what it cannot become, as far as its configuration tells."""
    routers = read_routers(checkpoint)
    chosen = choose(
        checkpoint,
        request.weights,
        request.block_size,
        request.max_context,
        quick=request.quick,
        anew=request.anew,
    )
    target = None
    if request.target is not None:
        from edge.export.targets.base import Wanted, check_wanted

        target = Wanted(
            request.target, request.target_context, request.soc, request.target_weights, request.target_activations
        )
        check_wanted(target, checkpoint, chosen.context)
    name = request.name or Path(checkpoint.name).name  # a hub id's owner is no part of the name
    say(described(checkpoint, chosen.weights))
    return Plan(request, checkpoint, name, chosen, routers, target)


def stage(plan: Plan, writer: BundleWriter, progress: Progress, say: Callable[[str], None]) -> Staged:
    """Write all that needs the checkpoint."""
    both = bool(plan.checkpoint.config.get("is_encoder_decoder"))
    return (_encoder_decoder if both else _decoder)(plan, writer, progress, say)


def _decoder(plan: Plan, writer: BundleWriter, progress: Progress, say: Callable[[str], None]) -> Staged:
    from edge.export.pipeline.decoder import stage_decoder

    request, checkpoint, chosen = plan.request, plan.checkpoint, plan.chosen
    if request.encoder_weights or request.decoder_weights:
        raise InputError(f"{plan.name} is a decoder alone; --encoder-weights and --decoder-weights have no place.")
    text = request.calibration
    if isinstance(text, Path):
        text = methods.read_calibration(text)
    prefill, bits = request.prefill_weights == "int8", request.bits
    if request.size is not None:
        bits = bits_within(request.size, checkpoint, chosen.context, prefill=prefill)
    options = Options(chosen.block_size, text, progress, request.effort, request.symmetric, bits, request.perplexity)
    drafts = draft_tokens(request, checkpoint)
    asked = Request(
        chosen.weights, options, chosen.context, request.check, prefill, drafts, required=bool(request.draft_text)
    )
    options = dataclasses.replace(options, left_out=leave_out(checkpoint, asked, request.limit, say))
    decoder = stage_decoder(
        checkpoint, writer, plan.name, chosen.weights, chosen.context, options,
        prefill=prefill, compare=request.check, say=say,
    )  # fmt: skip
    if plan.target is not None:
        from edge.export.targets.base import kind

        kind(plan.target.name).write_target(
            plan.target, checkpoint, writer, decoder.manifest, lambda: decoder.windows, options
        )
    return Staged(decoder, plan.routers, 0 if DRAFTS in options.left_out else drafts)


def _encoder_decoder(plan: Plan, writer: BundleWriter, progress: Progress, say: Callable[[str], None]) -> Staged:
    from edge.export.pipeline.encoder_decoder import halves, write_encoder_decoder

    request, checkpoint, chosen, name = plan.request, plan.checkpoint, plan.chosen, plan.name
    if request.prefill_weights == "int8":
        raise InputError(
            f"{name} is an encoder-decoder, whose encoder takes int8 with --encoder-weights; leave out "
            "--prefill-weights."
        )
    if request.limited:
        option = "--symmetric" if request.symmetric else "a limit by --bits, --size or --perplexity"
        raise InputError(f"{name} is an encoder-decoder; {option} is for decoders alone.")
    if request.draft_text:
        raise InputError(f"{name} is an encoder-decoder; --draft-text is for decoders alone.")
    weights = halves(chosen.weights, request.encoder_weights, request.decoder_weights)
    asked = Request("+".join(dict.fromkeys(weights)), Options(chosen.block_size), chosen.context)
    leave_out(checkpoint, asked, request.limit, say)
    made = write_encoder_decoder(
        checkpoint, writer, name, weights, chosen.context, chosen.block_size, request.calibration,
        effort=request.effort, compare=request.check, progress=progress, say=say, target=plan.target,
    )  # fmt: skip
    return Staged(made, plan.routers)
