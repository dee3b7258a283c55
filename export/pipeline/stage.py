"""The first stage of an export, which needs the checkpoint: tensors, graphs and tokenizer are written. `finish.py` has
the second."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path

from edge.bundle import BundleWriter
from edge.errors import InputError
from edge.export import quantize as methods
from edge.export.facts.progress import Progress
from edge.export.pipeline.finish import Staged
from edge.export.pipeline.settle import Plan
from edge.export.quantize.method import Options
from edge.export.request.choices import bits_within, draft_tokens
from edge.export.request.memory import DRAFTS, Request, leave_out


def stage(plan: Plan, writer: BundleWriter, progress: Progress, say: Callable[[str], None]) -> Staged:
    """Write all that needs the checkpoint."""
    if plan.checkpoint.onnx is not None:
        from edge.export.pipeline.ready import stage_ready

        return Staged(stage_ready(plan, writer, progress, say), None)
    if plan.traced:
        from edge.export.pipeline.traced import stage_traced

        return Staged(stage_traced(plan, writer, progress, say), None)
    if plan.checkpoint.pooling is not None:
        return _embedder(plan, writer, progress, say)
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
    options = Options(
        chosen.block_size, text, progress, request.effort, request.symmetric, bits, request.perplexity,
        in_place=request.in_place,
    )  # fmt: skip
    drafts = draft_tokens(request, checkpoint)
    asked = Request(
        chosen.weights, options, chosen.context, request.check, prefill, drafts, required=bool(request.draft_text)
    )
    options = dataclasses.replace(options, left_out=leave_out(checkpoint, asked, request.limit, say))
    decoder = stage_decoder(plan, options, writer, say)
    if plan.target is not None:
        from edge.export.targets.kind import Sample, kind

        samples = [Sample(None, window) for window in decoder.windows]
        kind(plan.target.name).write_target(plan.target, checkpoint, writer, decoder.manifest, lambda: samples, options)
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
    return Staged(write_encoder_decoder(plan, weights, writer, progress, say), plan.routers)


def _embedder(plan: Plan, writer: BundleWriter, progress: Progress, say: Callable[[str], None]) -> Staged:
    from edge.export.pipeline.embedder import write_embedder

    checkpoint, chosen = plan.checkpoint, plan.chosen
    leave_out(checkpoint, Request(chosen.weights, Options(chosen.block_size), chosen.context), plan.request.limit, say)
    return Staged(write_embedder(plan, writer, progress, say), None)
