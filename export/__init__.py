"""Torch checkpoint -> bundle. May import torch, transformers, onnx and onnxscript; this file alone does not.

`edge.export` is this package and also the function that does its work: ``edge.export("model/", "model.edge")`` calls
`export` below. Importing any part of a package sets the package as an attribute of its parent, so that a plain
function of the same name in `edge` would vanish with the first such import; the package itself is callable instead.
"""

from __future__ import annotations

import contextlib
import dataclasses
import math
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

from edge.bundle import Bundle, BundleWriter
from edge.errors import CheckpointError, ExportError, InputError
from edge.export import quantize as methods
from edge.export.facts.progress import Progress
from edge.export.quantize.base import Options
from edge.extras import needing
from edge.runtime.mapped_file import check_all

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
    size: int | None = None,
    perplexity: float | None = None,
    max_context: int | None = None,
    calibration: str | Path | None = None,
    encoder_weights: str | None = None,
    decoder_weights: str | None = None,
    prefill_weights: str | None = None,
    segments: int | str | None = None,
    trees: bool = False,
    check: bool = True,
    effort: str = NORMAL,
    candidates: bool | None = None,
    draft_text: int | None = None,
    force: bool = False,
    name: str | None = None,
    memory: int | str | None = None,
    target: str | None = None,
    target_context: int | Sequence[int] | None = None,
    target_weights: str | None = None,
    target_activations: str | None = None,
    soc: Sequence[str] = (),
    progress: Progress | None = None,
    say: Callable[[str], None] | None = None,
    expect: Callable[[str, Callable[[], float]], None] | None = None,
) -> Bundle:
    """Turn a checkpoint into a bundle.

    Args:
        source: a model directory, a .gguf file, a catalog name or a hub id.
        out: the bundle to write; default: NAME.edge in the current folder.
        weights: fp32, fp16, int8, int4, or keep (the own precision of a GGUF or a quantized folder); default: the
            catalog's, else keep for a folder whose integers fit, else int4, or int8 for an encoder-decoder.
        block_size: weights that share one scale; default: the catalog's for its own weights, else the method's.
        symmetric: int4 without zero points, in blocks of 32, for the fast paths of NPUs and GPUs.
        bits: a weight, on average, scales included, for which int4 gives each matrix the blocks and the 4 or 8 bits
            that bring most; default: 4.8, or 5.2 with the effort ``best``; ``quick``, a `block_size` and `symmetric`
            give all the same.
        size: bytes that the bundle may take, instead of `bits`.
        perplexity: relative to the float model's (1.05, say), for which int4 takes as few bits as it can, instead of
            `bits`. It is estimated on the calibration text; `check` measures it on another.
        max_context: maximum tokens the bundle can take; default: the catalog's, else the model's, up to 8,192.
        calibration: a text that calibrated methods run the model on, or the file of one, whose lines an
            encoder-decoder reads one by one; for a speech model the file of a recording. Default: what is built in.
        encoder_weights: of an encoder-decoder's encoder: fp32 or int8; default: as `weights` says (int8 for int4).
        decoder_weights: of its decoder: fp32, int8 or int4; default: as `weights` says.
        prefill_weights: int8 for a decoder's int8 prefill graph (docs/guide/long-prompts.md), or none (default).
        segments: also write the decoder in parts that can be left out: of N layers, or "ffn" for half-layers.
        trees: also write a decoder's graph for steps that verify trees of drafted tokens (docs/guide/speculation.md).
        check: compare the written graphs with the model in float32, and write the figures into the manifest.
        effort: ``normal``; ``quick``, in seconds instead of minutes: a GGUF keeps its own precision, other decoders
            get int8 weights, and nothing is collected for drafts; or ``best``: int4 weights with more
            bits, calibrated on more text and tuned.
        candidates: collect what the drafter recycle begins with, over the calibration text; default: with the effort
            ``best`` alone.
        draft_text: tokens of a decoder's own answers from which a table for drafts is counted
            (docs/guide/speculation.md); 0 for no table; default: as many as take a minute or less.
        force: replace a bundle that stands at `out`.
        name: the model's name in the manifest; default: the checkpoint's.
        memory: maximum private bytes that this process may take, as a number or like ``8GB``. What does not fit is left
            out, which `say` is told: text of the model's own, the tuning of scales, the text to draft from.
        target: also write graphs for a kind of device: ``npu-qualcomm`` (docs/guide/npu.md) or ``cuda``
            (docs/guide/cuda.md).
        target_context: tokens that graphs for NPUs have room for; default: 512, or `max_context` where it is less. Of
            several each has its graphs, and a text moves to the next when it is full.
        target_weights: of these graphs. For NPUs ``int8`` (default), or ``int4``, 4 bits in blocks, of decoders alone;
            for CUDA ``int4`` (default), ``int8`` or ``float16``, which encoder-decoders have.
        target_activations: the type of floats of graphs for CUDA: ``float16`` (default) or ``bfloat16``.
        soc: chips to compile them for, such as ``sm8650``; default: none, and the device compiles them at each start.
        progress: told how far each stage is; a total of 0 is one that is not known.
        say: told in sentences what is done to the model.
        expect: told before that how long it takes, where that is known: a sentence, and a function that returns how
            many seconds are left.

    Returns:
        The bundle, written whole; where anything fails, nothing is left at `out`.

    Raises:
        EdgeError: one of its subclasses, with a sentence that says what is wrong.
    """
    tell = say or _silent
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
    if sum(limit is not None for limit in (bits, size, perplexity)) > 1:
        raise InputError("--bits, --size and --perplexity say the same in different ways; choose one of them.")
    if bits is not None and not 0 < bits < math.inf:
        raise InputError(f"--bits {bits:g} is no number of bits a weight; name one like 4.8.")
    if perplexity is not None and not 1 < perplexity < math.inf:
        raise InputError(f"--perplexity {perplexity:g} is relative to the float model's: name more than 1, like 1.05.")
    limit = None if memory is None else _read_limit(memory)
    if isinstance(calibration, Path) and not calibration.is_file():
        raise ExportError(f"The calibration file {calibration} cannot be read: there is no such file.")
    if weights is not None and encoder_weights is not None and decoder_weights is not None:
        raise InputError("--encoder-weights and --decoder-weights say all that --weights does; leave it out.")

    if target is None and (soc or (target_context, target_weights, target_activations) != (None, None, None)):
        raise InputError(
            "--target-context, --target-weights, --target-activations and --soc are for graphs that --target writes; "
            "name one."
        )

    from edge.export.request.choices import Named
    from edge.export.request.foretold import Command

    candidates = effort == BEST if candidates is None else candidates
    from edge.export.request.glance import glance_at
    from edge.export.request.timeline import Timeline

    progress = advance = line = Timeline(progress or _silent)
    advance(0, 0, "opening the checkpoint")
    anew = symmetric or (block_size, bits, size, perplexity, calibration) != (None,) * 5
    command = Command(
        weights="int4" if decoder_weights == "int4" else weights,
        options=Options(block_size, None, None, effort, symmetric, bits, perplexity),
        limited=symmetric or (bits, size, perplexity) != (None,) * 3,
        anew=anew,
        compare=check,
        candidates=candidates,
        draft_text=draft_text,
        target=target,
    )

    def begin(model: Named) -> bool:
        if (foretold := command.foretell(model)) is None:
            return False
        sentence, stages = foretold
        line.begin(stages)
        if expect is not None:
            expect(sentence, line.left)
        return True

    glance = glance_at(str(source))
    begun = glance is not None and begin(glance)

    from edge.export.checkpoint import open_checkpoint
    from edge.export.manifest.written import write_golden
    from edge.export.pipeline.routers import read_routers, write_routers
    from edge.export.request.choices import bits_within, choose, count_weights, default_tokens, described
    from edge.export.request.memory import DRAFTS, Request, leave_out

    checkpoint = open_checkpoint(str(source), progress=progress, say=say)
    if not begun:
        begin(checkpoint)
    both = bool(checkpoint.config.get("is_encoder_decoder"))
    routers = read_routers(checkpoint)
    chosen = choose(checkpoint, weights, block_size, max_context, quick=effort == QUICK, anew=anew or effort == BEST)
    context = chosen.context
    wanted = None
    if target is not None:
        from edge.export.targets.base import Wanted, check_wanted

        wanted = Wanted(target, target_context, soc, target_weights, target_activations)
        check_wanted(wanted, checkpoint, context)
    if effort == QUICK:
        candidates, draft_text = False, draft_text or 0
    name = name or Path(checkpoint.name).name  # a hub id's owner is no part of the name
    tell(described(checkpoint, chosen.weights))
    place = Path(f"{name}.edge" if out is None else out)
    with _no_folders_left(place), BundleWriter(place, force=force) as writer:
        if both:
            from edge.export.pipeline.encoder_decoder import halves, write_encoder_decoder

            if prefill_weights == "int8":
                raise InputError(
                    f"{name} is an encoder-decoder, whose encoder takes int8 with --encoder-weights; leave out "
                    "--prefill-weights."
                )
            if symmetric or (bits, size, perplexity) != (None, None, None):
                option = "--symmetric" if symmetric else "a limit by --bits, --size or --perplexity"
                raise InputError(f"{name} is an encoder-decoder; {option} is for decoders alone.")
            if draft_text:
                raise InputError(f"{name} is an encoder-decoder; --draft-text is for decoders alone.")
            pair = halves(chosen.weights, encoder_weights, decoder_weights)
            kinds = "+".join(dict.fromkeys(pair))
            leave_out(checkpoint, Request(kinds, Options(chosen.block_size), context), limit, tell)
            manifest, golden = write_encoder_decoder(
                checkpoint, writer, name, pair, context, chosen.block_size, calibration,
                effort=effort, compare=check, progress=advance, say=tell, target=wanted,
            )  # fmt: skip
        else:
            if encoder_weights or decoder_weights:
                raise InputError(f"{name} is a decoder alone; --encoder-weights and --decoder-weights have no place.")
            from edge.export.pipeline.decoder import stage_decoder
            from edge.export.pipeline.finish import finish_decoder

            text = methods.read_calibration(calibration) if isinstance(calibration, Path) else calibration

            prefill, required = prefill_weights == "int8", bool(draft_text)
            if size is not None:
                bits = bits_within(size, checkpoint, context, prefill=prefill)
            options = Options(chosen.block_size, text, progress, effort, symmetric, bits, perplexity)
            if draft_text is None:
                draft_text = default_tokens(count_weights(checkpoint))
            request = Request(chosen.weights, options, context, check, prefill, draft_text, required)
            options = dataclasses.replace(options, left_out=leave_out(checkpoint, request, limit, tell))
            staged = stage_decoder(
                checkpoint, writer, name, chosen.weights, context, options,
                prefill=prefill, compare=check, say=tell,
            )  # fmt: skip
            if wanted is not None:
                from edge.export.targets.base import kind

                windows = staged.windows
                kind(wanted.name).write_target(wanted, checkpoint, writer, staged.manifest, lambda: windows, options)
            manifest, golden = finish_decoder(
                writer, staged, options,
                candidates=candidates, draft_text=0 if DRAFTS in options.left_out else draft_text, say=tell,
                target=target,
            )  # fmt: skip
        manifest = write_routers(writer, manifest, routers, segments, tell)
        if segments is not None:
            from edge.export.targets.cpu.skip import write_skip

            advance(0, 0, "writing the graph that skips")
            manifest = write_skip(writer, manifest, segments)
        if trees:
            from edge.export.targets.cpu.trees import write_trees

            manifest = write_trees(writer, manifest)
        write_golden(writer, golden)
        check_all(CheckpointError)
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


def _read_limit(memory: int | str) -> int | None:
    from edge.export.request.memory import read_limit

    return read_limit(memory)


def _silent(*args: Any) -> None:
    pass


class _CallablePackage(ModuleType):
    __call__ = staticmethod(export)


sys.modules[__name__].__class__ = _CallablePackage
