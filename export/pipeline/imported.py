"""The way of a graph that was not built here into a bundle, from its file or from a trace: rewritten, written, compared
and run. See `edge.export.graph.imported`."""

from __future__ import annotations

import dataclasses
import gc
from collections.abc import Callable
from typing import Any

import onnx_ir as ir

from edge.bundle import Bundle, BundleWriter
from edge.export.check import of_decoder as check
from edge.export.check.quality import figures
from edge.export.facts.progress import Progress
from edge.export.graph.imported.bind import bind
from edge.export.graph.imported.signature import Signature
from edge.export.graph.imported.stored import store_tensors
from edge.export.graph.step import DECODER, Built
from edge.export.manifest.written import GOLDEN_TOKENS, manifest_of, record
from edge.export.pipeline.decoder import with_text
from edge.export.pipeline.finish import QUICK_CHUNK, QUICK_TOKENS
from edge.export.pipeline.settle import Plan
from edge.export.reference.in_torch import RecordedLogits
from edge.export.targets.cpu.files import write_graph
from edge.golden import Golden
from edge.manifest import Dims, Manifest
from edge.runtime.check.golden import GoldenInput
from edge.runtime.check.perplexity import CHUNK, Agreement
from edge.runtime.load import open_engine
from edge.runtime.memory.process import release_freed

WIDER = 4  # a feed-forward block than the hidden size, where nobody says


def write_imported(
    plan: Plan,
    model: ir.Model,
    signature: Signature,
    family: str,
    tokenizer: str,
    writer: BundleWriter,
    progress: Progress,
    say: Callable[[str], None],
    rounded: Callable[[ir.Graph], None] = lambda graph: None,
) -> tuple[Manifest, list[GoldenInput]]:
    """Write a graph with its tensors and the tokenizer. rounded: rounds what of them stays no float. Returns the
    manifest and the prompts of golden answers."""
    checkpoint = plan.checkpoint
    bind(model, signature)
    progress(0, 0, "writing weights")
    rounded(model.graph)
    groups = store_tensors(model.graph, writer)
    writer.flush()
    graph = write_graph(writer, "decoder", DECODER, model.graph, ir_version=model.ir_version)
    built = Built(family, dims_of(checkpoint.config, signature), signature.kv, groups, [graph])
    template = checkpoint.tokenizer.chat_template
    common = manifest_of(
        checkpoint, built, plan.name, "decoder", plan.chosen.weights, plan.chosen.context, chat_template=template
    )
    return with_text(plan, common, tokenizer, writer, say)


def finished(
    plan: Plan,
    manifest: Manifest,
    inputs: list[GoldenInput],
    recorded: RecordedLogits | None,
    writer: BundleWriter,
    progress: Progress,
    refuse: Callable[[Agreement, Manifest], None],
) -> tuple[Manifest, Golden]:
    """Run what was written: compare it, and record golden answers. refuse: raises where it answers in another way."""
    gc.collect()
    release_freed()
    quick = plan.request.quick
    engine = open_engine(Bundle(writer.staging, manifest), context=plan.chosen.context)
    if recorded is not None:
        progress(0, 0, "checking the bundle")
        found = check.check(engine, recorded, chunk=QUICK_CHUNK if quick else CHUNK)
        recorded.close()
        refuse(found, manifest)
        manifest = dataclasses.replace(manifest, quality=figures(found))
    progress(0, 0, "recording golden answers")
    return manifest, record(engine, inputs, QUICK_TOKENS if quick else GOLDEN_TOKENS)


def dims_of(config: dict[str, Any], signature: Signature) -> Dims:
    """The sizes of a decoder, as its configuration has them, and its graph where that says nothing."""
    largest = max(signature.kv.layers, key=lambda layer: layer.heads * layer.head_dim)
    heads = int(config.get("num_attention_heads") or largest.heads)
    hidden = int(config.get("hidden_size") or heads * largest.head_dim)
    return Dims(
        num_layers=len(signature.kv.layers),
        hidden_size=hidden,
        intermediate_size=int(config.get("intermediate_size") or WIDER * hidden),
        num_heads=heads,
        num_kv_heads=largest.heads,
        head_dim=largest.head_dim,
        vocab_size=signature.vocab,
    )
