"""Weights of models that make vectors: products of many rows, and a word embedding that is read row by row."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import TYPE_CHECKING

from edge.errors import ExportError
from edge.export.checkpoint.model_config import embeds
from edge.export.facts.tensors import FloatTensor, LazyWeights, Weight, matrices
from edge.export.quantize import check_block_size, methods_with
from edge.export.quantize.rows import rows_to_nearest
from edge.export.quantize.rtn import INT8_BLOCK, round_to_nearest

if TYPE_CHECKING:
    from edge.export.facts.checkpoint import Checkpoint

INT4_BLOCK = 32
_VOCABULARY = re.compile(r"(^|\.)(word_embeddings|embed_tokens|tok_embeddings)\.weight$")


def check_weights(weights: str, block_size: int | None) -> None:
    """Raise ExportError if such a model cannot have these weights, or no blocks of this size."""
    if weights not in (known := methods_with("embedder")):
        raise ExportError(f"--weights {weights} is not for models that make vectors; choose one of {', '.join(known)}.")
    if block_size is not None and weights != "int4":
        raise ExportError(
            f"--block-size {block_size} does not apply to {weights} weights of models for vectors; omit it."
        )
    check_block_size(block_size, weights)


def quantize_embedder(checkpoint: Checkpoint, weights: str, block_size: int | None = None) -> Mapping[str, Weight]:
    """All matrices by name. The word embedding is in 8 bits where the layers are quantized."""

    by_rows = embeds(checkpoint.config)  # rows of decoders have a few numbers that are far larger than the others

    def make(name: str) -> Weight:
        w = checkpoint.read(name)
        if weights == "fp32":
            return FloatTensor(w)
        if _VOCABULARY.search(name):
            return round_to_nearest(w, 8, INT8_BLOCK)
        if weights == "int8":
            return rows_to_nearest(w) if by_rows else round_to_nearest(w, 8, INT8_BLOCK)
        return round_to_nearest(w, 4, block_size or INT4_BLOCK, symmetric=False)

    return LazyWeights(matrices(checkpoint), make)
