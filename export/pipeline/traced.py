"""The way into a bundle of a decoder that transformers knows and no family's file builds."""

from __future__ import annotations

from collections.abc import Callable

import onnx_ir as ir

from edge.bundle import BundleWriter
from edge.export.check import of_decoder as check
from edge.export.check.quality import refuse_if_broken
from edge.export.facts.progress import Progress
from edge.export.graph.imported.signature import read_signature
from edge.export.manifest.tokenizer import fitted
from edge.export.pipeline.imported import finished, write_imported
from edge.export.pipeline.settle import Plan
from edge.export.quantize import METHODS
from edge.export.quantize.gptq import ROUNDED_BLOCK
from edge.export.quantize.rtn import INT8_BLOCK
from edge.export.reference.in_torch import RecordedLogits, TorchLogits
from edge.export.reference.traced import load_whole, trace
from edge.export.targets.cpu.blocks import EIGHT, round_products
from edge.golden import Golden
from edge.manifest import Manifest


def stage_traced(
    plan: Plan, writer: BundleWriter, progress: Progress, say: Callable[[str], None]
) -> tuple[Manifest, Golden]:
    """Write the bundle of a model that transformers' exporter traces, and compare it with Torch. The model is in memory
    in float32."""
    checkpoint, weights = plan.checkpoint, plan.chosen.weights
    tokenizer = fitted(checkpoint, say)
    progress(0, 0, "loading the Torch model")
    model = load_whole(checkpoint)
    progress(0, 0, "tracing the model")
    kind = str(checkpoint.config["model_type"])
    graph = trace(model)
    recorded = None
    if plan.request.check:
        progress(0, 0, "running Torch on the check's text")
        window = check.QUICK_WINDOW if plan.request.quick else check.WINDOW
        recorded = RecordedLogits(TorchLogits(model), check.check_text(checkpoint, plan.chosen.context, window))
    signature = read_signature(graph.graph, f"The graph of {checkpoint.name}", int(model.config.vocab_size))
    bits, vocab = int(METHODS[weights].traits["bits"]), signature.vocab

    def rounded(found: ir.Graph) -> None:
        if weights != "fp32":
            block = plan.chosen.block_size or (INT8_BLOCK if bits == EIGHT else ROUNDED_BLOCK)
            round_products(found, writer, vocab, bits, block)

    manifest, inputs = write_imported(plan, graph, signature, kind, tokenizer, writer, progress, say, rounded)
    del graph, signature, model
    return finished(plan, manifest, inputs, recorded, writer, progress, refuse_if_broken)
