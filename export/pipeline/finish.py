"""The second stage of an export, which runs what the first has written: of a decoder the check, what drafts begin with,
golden answers, and the KV cache in int8; and graphs that are made of the written one.

One session at a time has the weights. A quick export imports nothing here that writes graphs, so that in a process of
its own this stage takes what an answer takes.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from edge.bundle import Bundle, BundleWriter
from edge.export.check import of_decoder as check
from edge.export.check.quality import figures, refuse_if_broken
from edge.export.manifest.written import GOLDEN_TOKENS, record, write_golden
from edge.export.pipeline.pack import Packing
from edge.export.pipeline.routers import Routers, write_routers
from edge.export.quantize.method import Options
from edge.gguf_parts import GGUF
from edge.golden import Golden
from edge.golden_vectors import GoldenVectors
from edge.manifest import INT8, KV8, KV8_STEP, Graph, Manifest
from edge.runtime.check.golden import GoldenInput, record_form
from edge.runtime.check.perplexity import CHUNK
from edge.runtime.load import open_engine
from edge.runtime.memory.process import release_freed

if TYPE_CHECKING:
    from edge.export.facts.progress import Progress
    from edge.export.reference.in_torch import RecordedLogits
    from edge.export.request.export_request import ExportRequest
    from edge.runtime.check.perplexity import Agreement
    from edge.runtime.engine.engine import Engine

RECORDED = ".recorded"  # a file that the first stage leaves for the second
PREFILL = "int8"  # the form's only weights
FIGURES = ("top1_agreement", "kl_mean", "kl_p95", "perplexity")  # that the manifest has of other forms too
MEASURED = 4  # windows of the calibration text that keys and values are measured on
MAX_LOST = 0.05  # nats a token that a KV cache in int8 may add to the divergence from float32
GGUF_MEASURED = 64  # tokens of the first of them, of a quick export whose weights are a file's own
QUICK_CHUNK = 16  # tokens of a step of the check: 64 of them have 10 MB more of logits at a vocabulary of 49,152
QUICK_TOKENS = 16  # of a golden answer
GGUF_TOKENS = 6  # of one by weights that are a file's own, for which somebody waits


@dataclass(frozen=True)
class StagedDecoder:
    """Result of a decoder's first stage. recorded: logits that the check compares with. windows: of the calibration
    text [W, S]. kv8: the graph over a KV cache in int8, if it is written already."""

    manifest: Manifest
    recorded: RecordedLogits | None
    windows: NDArray[np.int64]
    golden: list[GoldenInput]
    kv8: Graph | None


@dataclass(frozen=True)
class Staged:
    """Result of the first stage. result: a decoder that is still to be run, or the manifest and golden answers of
    another model. draft_text: tokens of a decoder's answers to count a table for drafts from."""

    result: StagedDecoder | tuple[Manifest, Golden | GoldenVectors]
    routers: Routers | None
    draft_text: int = 0


def finish(
    request: ExportRequest, writer: BundleWriter, staged: Staged, progress: Progress, say: Callable[[str], None]
) -> Manifest:
    """Check the written graphs, record golden answers, and write the files that need the graphs. Returns the
    manifest."""
    golden: Golden | GoldenVectors
    if isinstance(staged.result, StagedDecoder):
        manifest, golden = finish_decoder(
            writer, staged.result, Options(progress=progress, effort=request.effort),
            candidates=request.collects_candidates, draft_text=staged.draft_text, say=say, target=request.target,
        )  # fmt: skip
    else:
        manifest, golden = staged.result
    manifest = write_routers(writer, manifest, staged.routers, request.segments, say)
    if request.segments is not None:
        from edge.export.targets.cpu.skip import write_skip

        progress(0, 0, "writing the graph that skips")
        manifest = write_skip(writer, manifest, request.segments)
    write_golden(writer, golden)
    return manifest


def finish_decoder(
    writer: BundleWriter,
    staged: StagedDecoder,
    options: Options,
    *,
    candidates: bool,
    draft_text: int,
    say: Callable[[str], None],
    target: str | None = None,
) -> tuple[Manifest, Golden]:
    """Check the written graphs, and collect `candidates` for drafts and a table from `draft_text` tokens of the model's
    answers. target: the device whose written graphs are checked, too. Returns the manifest and the golden answers."""
    manifest, recorded, context = staged.manifest, staged.recorded, staged.manifest.context
    quick = options.effort == "quick"
    if manifest.weights == GGUF:
        with Packing(writer, manifest) as packing:
            packing.wait(options.report)
    engine = open_engine(Bundle(writer.staging, manifest), context=context)
    if recorded is not None:
        options.report(0, 0, "checking against the model in float32")
        found = check.check(engine, recorded, chunk=QUICK_CHUNK if quick else CHUNK)
        refuse_if_broken(found, manifest)
        quality = figures(found)
        if engine.prefill is not None:
            found = check.check(engine, recorded, prefill=True)
            refuse_if_broken(found, dataclasses.replace(manifest, weights=PREFILL), flag="--prefill-weights")
            quality |= _figures_of("prefill", found)
        manifest = dataclasses.replace(manifest, quality=quality)
    if candidates:
        from edge.export.drafts.candidates import write_candidates

        write_candidates(writer, engine, staged.windows, options)
    options.report(0, 0, "recording golden answers")
    tokens = GOLDEN_TOKENS if not quick else GGUF_TOKENS if manifest.weights == GGUF else QUICK_TOKENS
    golden = record(engine, staged.golden, tokens)
    if draft_text:
        from edge.export.drafts.successors import write_successors

        write_successors(writer, Bundle(writer.staging, manifest), engine, draft_text, options.report)
    kv8 = staged.kv8
    with_states = {state.layer for state in manifest.states}
    shared = any(not layer.heads and i not in with_states for i, layer in enumerate(manifest.kv.layers))
    if kv8 is None and not shared:  # onnxruntime reads no other layer's bytes
        from edge.export.targets.cpu.kv8 import largest_of, write_kv8

        options.report(0, 0, "measuring keys and values")
        windows = [staged.windows[0][:GGUF_MEASURED]] if quick else staged.windows[:MEASURED]
        kv8 = write_kv8(writer, largest_of(engine, windows), sum(map(len, windows)))
    del engine  # two sessions at a time would have all weights twice, and so would what the C library keeps of one
    release_freed()
    if kv8 is not None:
        manifest, golden = _with_kv8(writer, manifest, golden, kv8, recorded, options, say)
    if target is not None:
        from edge.export.targets.kind import check_target

        options.report(0, 0, f"checking the graphs for {target}")
        compare = None if recorded is None else partial(_of_target, recorded)
        golden = check_target(target, writer, manifest, compare, golden)
    if recorded is not None:
        recorded.close()
    (writer.staging / RECORDED).unlink(missing_ok=True)
    return manifest, golden


def _with_kv8(
    writer: BundleWriter,
    manifest: Manifest,
    golden: Golden,
    graph: Graph,
    recorded: RecordedLogits | None,
    options: Options,
    say: Callable[[str], None],
) -> tuple[Manifest, Golden]:
    """Add the written graph over a KV cache in int8 to the manifest and the golden answers. Its figures are added if
    there are logits in float32 to compare with. Both stay without it if int8 loses too much of this model's keys and
    values."""
    more = dataclasses.replace(manifest, graphs=[*manifest.graphs, graph])
    options.report(0, 0, "checking the KV cache in int8")
    engine = open_engine(Bundle(writer.staging, more), context=manifest.context, kv=INT8)
    if recorded is not None:
        found = check.check(engine, recorded, chunk=KV8_STEP)
        lost = found.kl_mean - manifest.quality["kl_mean"]
        if not lost <= MAX_LOST:
            (writer.staging / graph.path).unlink()
            say(
                f"A KV cache in int8 would lose too much (KL divergence {lost:.2g} more); the bundle has float32 alone."
            )
            return manifest, golden
        more = dataclasses.replace(more, quality=manifest.quality | _figures_of(KV8, found))
    own = record_form(engine, golden, KV8)
    return more, dataclasses.replace(golden, forms=[*golden.forms, own])


def _of_target(recorded: RecordedLogits, engine: Engine) -> Agreement:
    """Check a target's graphs on as much of the text as their context has room for."""
    return check.check(engine, recorded.up_to(engine.context))


def _figures_of(form: str, found: Agreement) -> dict[str, float]:
    """Return the manifest's figures of a graph other than the decode graph."""
    return {f"{form}_{name}": figure for name, figure in figures(found).items() if name in FIGURES}
