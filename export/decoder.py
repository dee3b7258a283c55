"""A decoder's way into a bundle: weights, graph, the check against Torch, golden answers."""

from __future__ import annotations

import dataclasses
import gc
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from edge.bundle import TOKENIZER, Bundle, BundleWriter
from edge.errors import EdgeError
from edge.export import check
from edge.export import quantize as methods
from edge.export.candidates import write_candidates
from edge.export.graph.decoder import build_decoder
from edge.export.lower.cpu.kv8 import write_kv8
from edge.export.quantize.base import Options
from edge.export.quantize.calibration import calibration_windows
from edge.export.quantize.prefill import prefill_weights
from edge.export.tokenizer import compact
from edge.export.written import Watched, Written, manifest_of, say_what_changed
from edge.manifest import INT8, KV8, KV8_STEP, Graph, Manifest
from edge.runtime.check.golden import GoldenInput
from edge.runtime.engine.engine import Engine
from edge.runtime.load import open_engine
from edge.runtime.memory.process import release_freed

if TYPE_CHECKING:
    from edge.export.checkpoint.base import Checkpoint
    from edge.export.torch_reference import RecordedLogits
    from edge.runtime.check.perplexity import Agreement

PREFILL = "int8"  # the form's only weights
FIGURES = ("top1_agreement", "kl_mean", "kl_p95", "perplexity")  # that the manifest has of other forms too
MEASURED, QUICK_MEASURED = 4, 1  # windows of the calibration text that keys and values are measured on
MOST_LOST = 0.05  # nats a token that a KV cache in int8 may add to the divergence from float32

# Answered at export and recorded in golden.json: prose, arithmetic, code, another language.
GOLDEN_PROMPTS = [
    "Why does the moon change its shape in the sky?",
    "A train leaves at 9:40 and arrives at 11:05. How long does it take?",
    "Write a Python function that returns the largest of three numbers.",
    "Traduis en français : the library opens at ten o'clock.",
]
QUICK_PROMPTS = GOLDEN_PROMPTS[:2]


def write_decoder(
    checkpoint: Checkpoint,
    writer: BundleWriter,
    name: str,
    weights: str,
    context: int,
    options: Options,
    *,
    prefill: bool,
    compare: bool,
    candidates: bool,
    say: Callable[[str], None],
) -> Written:
    """Write tensors, graph and tokenizer of `checkpoint`, check them where `compare` is true, and collect candidates
    for drafts where `candidates` is. With little effort the check is one with the reference in numpy."""
    quick = options.effort == "quick"
    # Before the weights, so that Torch's model of the check and that of a calibrated method are never there together.
    recorded = check.reference(checkpoint, context, options.progress, quick=quick) if compare else None
    eights = prefill_weights(checkpoint, options) if prefill else None
    quantized = methods.quantize(
        checkpoint,
        weights,
        block_size=options.block_size,
        calibration=options.calibration,
        progress=options.progress,
        effort=options.effort,
        symmetric=options.symmetric,
        bits=options.bits,
        perplexity=options.perplexity,
        left_out=options.left_out,
    )
    gc.collect()  # a calibrated method's Torch model, whose modules point at each other
    release_freed()
    watched = Watched(quantized, options.report, "writing weights")
    graph = build_decoder(checkpoint, watched, writer, context, eights)
    say_what_changed(checkpoint, watched.methods, say)
    del quantized, watched, eights
    writer.write_file(TOKENIZER, compact(checkpoint.tokenizer.json))
    writer.flush()
    release_freed()
    template = checkpoint.tokenizer.chat_template
    manifest = manifest_of(checkpoint, graph, name, "decoder", weights, context, chat_template=template)
    staged = Bundle(writer.staging, manifest)
    engine = open_engine(staged, context=context)
    if recorded is not None:
        options.report(0, 0, "checking against the model in float32")
        found = check.check(engine, recorded)
        check.refuse_if_broken(found, manifest)
        quality = check.quality(found)
        if engine.prefill is not None:
            found = check.check(engine, recorded, prefill=True)
            check.refuse_if_broken(found, dataclasses.replace(manifest, weights=PREFILL), flag="--prefill-weights")
            quality |= _figures_of("prefill", found)
        manifest = dataclasses.replace(manifest, quality=quality)
    windows = calibration_windows(checkpoint, options.calibration)
    options.report(0, 0, "measuring keys and values")
    kv8 = write_kv8(writer, engine, windows[: QUICK_MEASURED if quick else MEASURED])
    del engine  # two sessions at a time would have all weights twice, and so would what the C library keeps of one
    release_freed()
    manifest = _with_kv8(writer, manifest, kv8, recorded, options, say)
    engine = open_engine(staged, context=context)
    if candidates:
        write_candidates(writer, engine, windows, options)
    prompts = QUICK_PROMPTS if quick else GOLDEN_PROMPTS
    return Written(manifest, engine, golden_inputs(engine, staged, prompts, say))


def _with_kv8(
    writer: BundleWriter,
    manifest: Manifest,
    graph: Graph,
    recorded: RecordedLogits | None,
    options: Options,
    say: Callable[[str], None],
) -> Manifest:
    """The manifest with the graph over a KV cache in int8, which was written, and its figures where there are logits
    in float32 to compare with; without it where such a cache says too little of this model's keys and values."""
    more = dataclasses.replace(manifest, graphs=[*manifest.graphs, graph])
    if recorded is None:
        return more
    options.report(0, 0, "checking the KV cache in int8")
    engine = open_engine(Bundle(writer.staging, more), context=manifest.context, kv=INT8)
    found = check.check(engine, recorded, chunk=KV8_STEP)
    del engine
    release_freed()
    lost = found.kl_mean - manifest.quality["kl_mean"]
    if not lost <= MOST_LOST:
        (writer.staging / graph.path).unlink()
        say(f"A KV cache in int8 would lose too much (KL divergence {lost:.2g} more); the bundle has float32 alone.")
        return manifest
    return dataclasses.replace(more, quality=manifest.quality | _figures_of(KV8, found))


def _figures_of(form: str, found: Agreement) -> dict[str, float]:
    """What the manifest says of another form than the decoder's own."""
    return {f"{form}_{name}": figure for name, figure in check.quality(found).items() if name in FIGURES}


def golden_inputs(
    engine: Engine, bundle: Bundle, texts: Sequence[str], tell: Callable[[str], None]
) -> list[GoldenInput]:
    """The prompts `texts`, in the model's chat format where it has one that can be rendered."""
    from edge.runtime.model import Model
    from edge.runtime.text.tokenizer import Text

    model = Model(bundle, engine, Text(bundle))
    try:
        prompts = [model.prompt_ids(text) for text in texts]
    except EdgeError as e:
        tell(f"{e} The golden answers are recorded without it.")
        prompts = [model.prompt_ids(text, raw=True) for text in texts]
    return [GoldenInput(ids) for ids in prompts]
