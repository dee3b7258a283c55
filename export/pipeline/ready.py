"""A ready ONNX model's way into a bundle, which is compared with onnxruntime on the file as it is."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from edge.bundle import BundleWriter
from edge.errors import BundleError, ExportError, on_one_line
from edge.export.check import of_decoder as check
from edge.export.facts.progress import Progress
from edge.export.graph.imported.file import read_model
from edge.export.graph.imported.signature import (
    BRANCH,
    IDS,
    KEPT_LOGITS,
    LOGITS,
    MASK,
    POSITIONS,
    Signature,
    read_signature,
)
from edge.export.graph.step import DECODER
from edge.export.manifest.tokenizer import fitted
from edge.export.pipeline.finish import QUICK_CHUNK
from edge.export.pipeline.imported import finished, write_imported
from edge.export.pipeline.settle import Plan
from edge.export.reference.in_torch import RecordedLogits
from edge.golden import Golden
from edge.manifest import Manifest
from edge.runtime.check.perplexity import CHUNK, Agreement, compare, pieces
from edge.runtime.kernels.graph_check import read_graph
from edge.runtime.providers import open_provider

if TYPE_CHECKING:
    from edge.export.checkpoint.onnx_model import OnnxCheckpoint

FAMILY = "onnx"  # of a model whose configuration does not say what it is
MAX_KL = 0.02  # nats a token: our kernels round activations as onnxruntime does, and not always alike
MAX_ODD = 0.5  # of a graph in steps against one piece: what rounds over all rows together differs


def stage_ready(
    plan: Plan, writer: BundleWriter, progress: Progress, say: Callable[[str], None]
) -> tuple[Manifest, Golden]:
    """Write the bundle of a ready ONNX model, and compare it with onnxruntime on the graph as it was. onnxruntime gets
    to see the file after the bundle's graph was checked as those of strangers are."""
    checkpoint: OnnxCheckpoint = plan.checkpoint  # type: ignore[assignment]
    path, quick = checkpoint.file_for(plan.request.weights), plan.request.quick
    progress(0, 0, "reading the graph")
    model = read_model(path)
    signature = read_signature(model.graph, path.name, checkpoint.config.get("vocab_size"))
    checkpoint.config["vocab_size"] = signature.vocab
    tokenizer = fitted(checkpoint, say)
    whole = ReadyLogits(path, signature)
    in_steps = ReadyLogits(path, signature, QUICK_CHUNK if quick else CHUNK)
    kind = str(checkpoint.config.get("model_type") or FAMILY)
    manifest, inputs = write_imported(plan, model, signature, kind, tokenizer, writer, progress, say)
    del model, signature
    try:
        read_graph(writer.staging / DECODER, writer.staging)
    except BundleError as e:
        raise ExportError(f"The graph of {path} is none that a bundle may have: {on_one_line(e)}.") from None
    recorded = None
    if plan.request.check:
        progress(0, 0, "running the graph as it is")
        texts = check.check_text(checkpoint, plan.chosen.context, check.QUICK_WINDOW if quick else check.WINDOW)
        recorded = RecordedLogits(in_steps, texts)
        _refuse_odd(compare(RecordedLogits(whole, texts), recorded, texts), path)
    return finished(plan, manifest, inputs, recorded, writer, progress, lambda found, m: _refuse_other(found, m, path))


class ReadyLogits:
    """The logits of a ready ONNX model by onnxruntime alone, which keeps what the graph gives.

    chunk: tokens of a run; default: the whole text, without a past. Nothing is loaded before logits are asked for.
    """

    def __init__(self, path: Path, signature: Signature, chunk: int | None = None) -> None:
        self.vocab_size, self._path, self._chunk = signature.vocab, path, chunk
        self._inputs = dict[str, tuple[Any, int]]()  # type and number of sizes
        for name, value in signature.inputs.items():
            assert value.dtype is not None and value.shape is not None, "which `read_signature` has checked"
            self._inputs[name] = value.dtype.numpy(), len(value.shape)
        self._kept = {str(kept.past.name): (str(kept.present.name), kept.sizes) for kept in signature.kept}

    def logits(self, tokens: NDArray[np.int64]) -> Iterator[NDArray[np.float32]]:
        try:
            session = open_provider("cpu").open_model(self._path, self._path.name, self._path.parent).inference
        except BundleError as e:
            raise ExportError(f"{self._path} cannot be run: {on_one_line(e)}.") from None
        sizes = {name: sizes for name, (_, sizes) in self._kept.items()}
        past = {name: np.zeros((1, heads, 0, dim), np.float32) for name, (heads, dim) in sizes.items()}
        start, names = 0, [LOGITS, *(present for present, _ in self._kept.values())]
        for piece in pieces(tokens, self._chunk or len(tokens)):
            size, total = len(piece), start + len(piece)
            try:
                made, *kept = session.run(names, self._fed(piece, start) | past)
            except Exception as e:  # onnxruntime raises a dozen types without a common base
                raise ExportError(
                    f"{self._path} cannot be run on {size} tokens after {start}: {on_one_line(e)}."
                ) from None
            past = dict(zip(self._kept, kept, strict=True))
            shapes = [(1, heads, total, dim) for heads, dim in sizes.values()]
            if made.shape != (1, size, self.vocab_size) or [each.shape for each in kept] != shapes:
                raise ExportError(
                    f"{self._path} makes logits of the shape {list(made.shape)} of {size} tokens, and keys of "
                    f"{list(kept[0].shape)}; expected were {[1, size, self.vocab_size]} and {list(shapes[0])}."
                )
            start = total
            yield from pieces(made[0].astype(np.float32))

    def _fed(self, tokens: NDArray[np.int64], start: int) -> dict[str, NDArray[Any]]:
        size = len(tokens)
        given: dict[str, NDArray[Any]] = {
            IDS: tokens[None],
            MASK: np.ones((1, start + size)),
            POSITIONS: np.arange(start, start + size)[None],
            BRANCH: np.array([start > 0]),
            KEPT_LOGITS: np.array([size]),
        }
        return {
            name: given[name].astype(dtype).reshape(given[name].shape if sizes else ())
            for name, (dtype, sizes) in self._inputs.items()
        }


def _refuse_odd(found: Agreement, path: Path) -> None:
    """Raise ExportError where a graph answers in another way when it reads a text step by step. Activations that are
    rounded over all rows together differ a little."""
    if found.kl_mean <= MAX_ODD:
        return
    raise ExportError(
        f"{path} does not read a text in steps as it reads it in one piece (mean KL divergence {found.kl_mean:.3g}, "
        f"top-1 agreement {found.top1:.1%}), so that no answer of it can be relied on; nothing was written."
    )


def _refuse_other(found: Agreement, manifest: Manifest, path: Path) -> None:
    """Raise ExportError where a bundle does not answer as its graph did."""
    if found.kl_mean <= MAX_KL:
        return
    raise ExportError(
        f"The bundle of {manifest.name} does not answer as onnxruntime does with {path.name} (mean KL divergence "
        f"{found.kl_mean:.3g}, top-1 agreement {found.top1:.1%}), so nothing was written; report it."
    )
