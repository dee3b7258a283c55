"""A model for vectors, or a reranker, on its way into a bundle: weights, graph, the check against Torch, golden
vectors."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import TYPE_CHECKING

from tokenizers import Tokenizer

from edge.bundle import TOKENIZER, Bundle, BundleWriter
from edge.embedding_format import EMBEDDER, RERANKER, EmbeddingFormat, PairFormat
from edge.errors import ExportError
from edge.export.check import of_embedder as check
from edge.export.facts.progress import Progress
from edge.export.manifest.text_format import around, around_pair
from edge.export.manifest.tokenizer import compact, fitted
from edge.export.manifest.written import RecordedWeights, manifest_of, say_what_changed
from edge.export.pipeline.settle import Plan
from edge.export.quantize.vectors import check_weights, quantize_embedder
from edge.export.targets.cpu.embedder import build_embedder, width_of
from edge.golden_vectors import GoldenVectors
from edge.manifest import Manifest
from edge.runtime.check.vectors import record_vectors
from edge.runtime.embed.encoded import Encoded, paired
from edge.runtime.load import open_embedder

if TYPE_CHECKING:
    from edge.export.facts.checkpoint import Checkpoint

GOLDEN_TEXTS = 4


def write_embedder(
    plan: Plan, writer: BundleWriter, progress: Progress, say: Callable[[str], None]
) -> tuple[Manifest, GoldenVectors]:
    """Write tensors, graph and tokenizer, and check them against the model in float32, where that is asked for. Returns
    the manifest and golden vectors.

    Raises:
        ExportError: weights that such a model cannot have, or vectors that are not the model's.
    """
    request, checkpoint, weights = plan.request, plan.checkpoint, plan.chosen.weights
    context = plan.chosen.context
    check_weights(weights, plan.chosen.block_size)
    tokenizer = fitted(checkpoint, say)
    form = _format(checkpoint)
    texts = _texts(checkpoint, form, context)
    recorded = check.reference(checkpoint, texts, progress) if request.check else None
    recording = RecordedWeights(
        quantize_embedder(checkpoint, weights, plan.chosen.block_size), progress, "writing weights"
    )
    pair = form.pair
    built = build_embedder(checkpoint, recording, writer, context, types=pair is not None and pair.types)
    say_what_changed(checkpoint, recording, say)
    writer.write_file(TOKENIZER, compact(tokenizer))
    kind = EMBEDDER if pair is None else RERANKER
    manifest = manifest_of(checkpoint, built, plan.name, kind, weights, context, embedding=form, chat_template=None)
    writer.flush()
    embedder = open_embedder(Bundle(writer.staging, manifest), checked=True)
    if recorded is not None:
        progress(0, 0, "checking against the model in float32")
        manifest = dataclasses.replace(manifest, quality=check.check(embedder, recorded))
    progress(0, 0, "recording golden vectors")
    return manifest, record_vectors(embedder, texts[:GOLDEN_TEXTS])


def _tokenizer(checkpoint: Checkpoint) -> Tokenizer:
    """The tokenizer, which fills nothing up and cuts nothing."""
    tokenizer = Tokenizer.from_str(checkpoint.tokenizer.json)
    tokenizer.no_padding()
    tokenizer.no_truncation()
    return tokenizer


def _format(checkpoint: Checkpoint) -> EmbeddingFormat:
    pooling = checkpoint.pooling
    assert pooling is not None
    tokenizer, pair = _tokenizer(checkpoint), None
    if pooling.pairs:
        prefix, pair, suffix = around_pair(tokenizer)
        pair = PairFormat(pair.between, pair.types and pooling.types)
    else:
        prefix, suffix = around(tokenizer)
    prompts = {name: text for name, text in pooling.prompts.items() if text}
    return EmbeddingFormat(
        width_of(checkpoint),
        pooling.mode,
        pooling.normalized,
        prefix,
        suffix,
        prompts,
        pooling.prompt if pooling.prompt in prompts else None,
        pooling.lowercase,
        pair,
    )


def _texts(checkpoint: Checkpoint, form: EmbeddingFormat, context: int) -> list[Encoded]:
    """Token ids of the check's texts, or of pairs of them."""
    tokenizer, room = _tokenizer(checkpoint), context - form.frame
    if room < 2:
        raise ExportError(f"A context of {context} tokens has no room for a text of {checkpoint.name}.")
    texts = [text.lower() if form.lowercase else text for text in check.TEXTS]
    ids = [tokenizer.encode(text, add_special_tokens=False).ids for text in texts]
    if form.pair is None:
        return [Encoded([*form.prefix, *each[:room], *form.suffix]) for each in ids]
    pairs = [(query, document) for query in ids[: check.QUERIES] for document in ids]
    return [paired(form, query[: room // 2], document, context) for query, document in pairs]
