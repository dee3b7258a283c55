"""Torch checkpoint -> bundle. May import torch, transformers, onnx and onnxscript; this file alone does not.

`edge.export` is this package and also the function that does its work: ``edge.export("model/", "model.edge")`` calls
`export` below. Importing any part of a package sets the package as an attribute of its parent, so that a plain
function of the same name in `edge` would vanish with the first such import; the package itself is callable instead.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import math
import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

from edge import catalog
from edge.bundle import GOLDEN, Bundle, BundleWriter
from edge.errors import CheckpointError, ExportError, InputError
from edge.export import quantize as methods
from edge.export.quantize.base import FLOATS, Options, Progress
from edge.extras import needing
from edge.manifest import KV8
from edge.runtime.check.golden import Golden, open_role, record_form, record_golden, roles
from edge.runtime.engine.variant import PREFILL
from edge.runtime.memory.process import release_freed

if TYPE_CHECKING:
    from edge.export.checkpoint.base import Checkpoint
    from edge.export.written import Written

LEAST_CONTEXT = 16
MOST_CONTEXT = 8192  # of the default: rope tables and verification cost memory for every position; more must be asked
GOLDEN_TOKENS = 24
PREFILL_WEIGHTS = ("int8", "none")
QUICK, NORMAL, BEST = EFFORTS = ("quick", "normal", "best")


@needing("Exporting", instead="or for a .gguf file choose --effort quick")
def export(
    source: str | Path,
    out: str | Path | None = None,
    *,
    weights: str | None = None,
    block_size: int | None = None,
    symmetric: bool = False,
    bits: float | None = None,
    max_context: int | None = None,
    calibration: str | Path | None = None,
    encoder_weights: str | None = None,
    decoder_weights: str | None = None,
    prefill_weights: str | None = None,
    segments: int | str | None = None,
    trees: bool = False,
    check: bool = True,
    effort: str = NORMAL,
    candidates: bool = True,
    draft_text: int | None = None,
    force: bool = False,
    name: str | None = None,
    progress: Progress | None = None,
    say: Callable[[str], None] | None = None,
) -> Bundle:
    """Turn a checkpoint into a bundle.

    Args:
        source: a model directory, a .gguf file, a catalog name or a hub id.
        out: the bundle to write; default: NAME.edge in the current folder.
        weights: fp32, fp16, int8, int4, or keep (a GGUF's own precision); default: the catalog's, else int4, or int8
            for an encoder-decoder.
        block_size: weights that share one scale; default: the catalog's for its own weights, else the method's.
        symmetric: int4 without zero points, in blocks of 32, for the fast paths of NPUs and GPUs.
        bits: a weight, on average, up to which int4 gives 8 bits to the matrices that gain most by them.
        max_context: most tokens the bundle can take; default: the catalog's, else the model's, up to 8,192.
        calibration: a text that calibrated methods run the model on, or the file of one, whose lines an
            encoder-decoder reads one by one; for a speech model the file of a recording. Default: what is built in.
        encoder_weights: of an encoder-decoder's encoder: fp32 or int8; default: as `weights` says (int8 for int4).
        decoder_weights: of its decoder: fp32, int8 or int4; default: as `weights` says.
        prefill_weights: int8 for a decoder's int8 prefill graph (docs/guide/long-prompts.md), or none (default).
        segments: also write the decoder in parts that can be left out: of so many layers, or "ffn" for half-layers.
        trees: also write a decoder's graph for steps that verify trees of drafted tokens (docs/guide/speculation.md).
        check: compare the written graphs with Torch, and write the figures into the manifest's `quality`.
        effort: ``normal``; ``quick``, in seconds instead of minutes: a GGUF keeps its own precision, other decoders
            get int8 weights, and nothing is collected for drafts; or ``best``: int4 weights in smaller blocks,
            calibrated on more text and tuned longer.
        candidates: collect what the drafter recycle begins with, over the calibration text.
        draft_text: tokens of a decoder's own answers from which a table for drafts is counted
            (docs/guide/speculation.md); 0 for no table; default: as many as take a minute or two.
        force: replace a bundle that stands at `out`.
        name: the model's name in the manifest; default: the checkpoint's.
        progress: told how far each stage is; a total of 0 is one that is not known.
        say: told in sentences what is done to the model.

    Returns:
        The bundle, written whole; where anything fails, nothing is left at `out`.

    Raises:
        EdgeError: one of its subclasses, with a sentence that says what is wrong.
    """
    tell, advance = say or _silent, progress or _silent
    if weights is not None:
        methods.METHODS.find(weights)
    if not (segments is None or segments == "ffn" or (isinstance(segments, int) and segments >= 1)):
        raise InputError(f"Segments of {segments!r} are neither of a number of layers, 1 or more, nor ffn.")
    if draft_text is not None and draft_text < 0:
        raise InputError(f"The text to draft from cannot have {draft_text} tokens; name 0 or more.")
    if prefill_weights not in (None, *PREFILL_WEIGHTS):
        kinds = ", ".join(PREFILL_WEIGHTS)
        raise InputError(f"There are no prefill weights {prefill_weights!r}; choose one of {kinds}.")
    if effort not in EFFORTS:
        raise InputError(f"There is no effort {effort!r}; choose one of {', '.join(EFFORTS)}.")
    if isinstance(calibration, Path) and not calibration.is_file():
        raise ExportError(f"The calibration file {calibration} cannot be read: there is no such file.")
    if weights is not None and encoder_weights is not None and decoder_weights is not None:
        raise InputError("--encoder-weights and --decoder-weights say all that --weights does; leave it out.")

    from edge.export.checkpoint import open_checkpoint
    from edge.export.graph.families import find_family
    from edge.export.routers import check_routers, write_routers

    advance(0, 0, "opening the checkpoint")
    checkpoint = open_checkpoint(str(source), progress=progress, say=say)
    entry = catalog.find(checkpoint.name) if checkpoint.kind == "catalog" else None
    defaults = {} if entry is None else entry.export
    both = bool(checkpoint.config.get("is_encoder_decoder"))
    if effort == QUICK:
        candidates, draft_text = False, draft_text or 0
        if weights is None and not both:
            weights = "keep" if {*map(checkpoint.stored_type, checkpoint.names())} - FLOATS else "int8"
    if block_size is None and weights in (None, defaults.get("weights")):
        block_size = defaults.get("block_size")
    weights = weights or str(defaults.get("weights", "int8" if both else "int4"))
    max_context = defaults.get("max_context") if max_context is None else max_context
    family, _ = find_family(str(checkpoint.config.get("model_type")))
    check_routers(checkpoint)
    context = _context(checkpoint, max_context)
    name = name or Path(checkpoint.name).name  # a hub id's owner is no part of the name
    _describe(checkpoint, family, weights, tell)
    target = Path(f"{name}.edge" if out is None else out)
    with _no_folders_left(target), BundleWriter(target, force=force) as writer:
        if both:
            from edge.export.encoder_decoder import halves, write_encoder_decoder

            if prefill_weights == "int8":
                raise InputError(
                    f"{name} is an encoder-decoder, whose encoder takes int8 with --encoder-weights; leave out "
                    "--prefill-weights."
                )
            if symmetric or bits is not None:
                option = "--symmetric" if symmetric else "--bits"
                raise InputError(f"{name} is an encoder-decoder; {option} is for decoders alone.")
            if draft_text:
                raise InputError(f"{name} is an encoder-decoder; --draft-text is for decoders alone.")
            pair = halves(weights, encoder_weights, decoder_weights)
            written = write_encoder_decoder(
                checkpoint, writer, name, pair, context, block_size, calibration,
                compare=check, progress=advance, say=tell,
            )  # fmt: skip
        else:
            if encoder_weights or decoder_weights:
                raise InputError(f"{name} is a decoder alone; --encoder-weights and --decoder-weights have no place.")
            from edge.export.decoder import write_decoder

            text = methods.read_calibration(calibration) if isinstance(calibration, Path) else calibration
            options = Options(block_size, text, progress, effort, symmetric, bits)
            prefill = prefill_weights == "int8"
            written = write_decoder(
                checkpoint, writer, name, weights, context, options,
                prefill=prefill, compare=check, candidates=candidates, say=tell,
            )  # fmt: skip
        advance(0, 0, "recording golden answers")
        golden = _golden(written)
        manifest = written.manifest
        if not both:
            from edge.export.successors import default_tokens, write_successors

            if draft_text is None:
                draft_text = default_tokens(_weights(checkpoint))
            if draft_text:
                write_successors(writer, Bundle(writer.staging, manifest), written.engine, draft_text, advance)
        del written
        golden = _with_kv8(golden, Bundle(writer.staging, manifest), context)
        writer.write_file(GOLDEN, json.dumps(dataclasses.asdict(golden), indent=1) + "\n")
        manifest = write_routers(writer, manifest, checkpoint, segments, tell)
        if segments is not None:
            from edge.export.graph.skip import write_skip

            advance(0, 0, "writing the graph that skips")
            manifest = write_skip(writer, manifest, segments)
        if trees:
            from edge.export.lower.cpu.trees import write_trees

            manifest = write_trees(writer, manifest)
        advance(0, 0, "hashing the bundle")
        return writer.commit(manifest)


@contextlib.contextmanager
def _no_folders_left(target: Path) -> Iterator[None]:
    """Where writing `target` fails, remove the folders on the way to it that were not there before.

    Raises:
        ExportError: something on the way is no folder.
    """
    missing = []
    for folder in target.parents:
        if os.path.lexists(folder):
            if not folder.is_dir():
                raise ExportError(f"{target} cannot be written: {folder} is not a folder.")
            break
        missing.append(folder)
    try:
        yield
    except BaseException:
        for folder in missing:
            with contextlib.suppress(OSError):  # never made, or another program has put something there
                folder.rmdir()
        raise


def _context(checkpoint: Checkpoint, asked: int | None) -> int:
    """The bundle's context: what is asked for, within the model's; default: the model's, up to MOST_CONTEXT."""
    stated = (checkpoint.config.get(name) for name in ("max_position_embeddings", "max_target_positions"))
    most = int(next((s for s in stated if s), MOST_CONTEXT))
    if most < LEAST_CONTEXT:
        raise CheckpointError(
            f"The configuration of {checkpoint.name} gives it a context of {most} tokens, and no model has less than "
            f"{LEAST_CONTEXT}; fetch it again."
        )
    if asked is None:
        return min(most, MOST_CONTEXT)
    if asked < LEAST_CONTEXT:
        raise InputError(f"A context of {asked} tokens is too small; choose --max-context {LEAST_CONTEXT} or more.")
    if asked > most:
        raise InputError(
            f"A context of {asked} tokens is more than the {most} that {checkpoint.name} was made for; choose "
            f"--max-context {most} or less."
        )
    return asked


def _describe(checkpoint: Checkpoint, family: str, weights: str, tell: Callable[[str], None]) -> None:
    count = _weights(checkpoint)
    licence = checkpoint.licence or "no licence stated"
    tell(f"{checkpoint.name} ({checkpoint.kind}, {licence}): family {family}, {count:,} weights, to {weights}.")


def _weights(checkpoint: Checkpoint) -> int:
    return sum(math.prod(checkpoint.shape(name)) for name in checkpoint.names())


def _golden(written: Written) -> Golden:
    """Recorded answers, cut to what the engine's context holds, and what its int8 prefill graph says along them."""
    engine = written.engine
    tokens = min(GOLDEN_TOKENS, engine.context // 2)
    room = engine.context - tokens - 1
    inputs = [dataclasses.replace(i, prompt_ids=i.prompt_ids[:room]) for i in written.golden]
    golden = record_golden(engine, inputs, tokens)
    if engine.prefill is None:
        return golden
    return dataclasses.replace(golden, forms=[record_form(engine, golden, PREFILL)])


def _with_kv8(golden: Golden, staged: Bundle, context: int) -> Golden:
    """The recorded answers with what the graph over a KV cache in int8 says along them, where there is one."""
    if KV8 not in roles(staged.manifest):
        return golden
    release_freed()  # two engines at a time would hold the weights twice, and so would what the C library keeps of one
    own = record_form(open_role(staged, KV8, context=context), golden, KV8)
    return dataclasses.replace(golden, forms=[*golden.forms, own])


def _silent(*args: Any) -> None:
    pass


class _CallablePackage(ModuleType):
    __call__ = staticmethod(export)


sys.modules[__name__].__class__ = _CallablePackage
