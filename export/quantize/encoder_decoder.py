"""Weights of encoder-decoders: the encoder's for products of many rows, the decoder's for a few."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import TYPE_CHECKING

from edge.errors import ExportError
from edge.export.facts.family import Family
from edge.export.facts.tensors import FloatTensor, LazyWeights, QTensor, Weight, matrices
from edge.export.graph.families import find_family
from edge.export.quantize import check_block_size, methods_with
from edge.export.quantize.rows import rows_to_nearest
from edge.export.quantize.rtn import INT8_BLOCK, round_to_nearest

if TYPE_CHECKING:
    from edge.export.facts.checkpoint import Checkpoint

INT4_BLOCK = 32

_ENCODER = re.compile(r"(^|\.)encoder\.")
_VOCABULARY = re.compile(r"(^|\.)(shared|embed_tokens|lm_head|lm_head\.out_proj|proj_out)\.weight$")


def check_weights(encoder: str, decoder: str, block_size: int | None) -> None:
    """Raise ExportError if the encoder or the decoder cannot have these weights, or the decoder's no blocks of this
    size."""
    for part, weights in (("encoder", encoder), ("decoder", decoder)):
        if weights not in (known := methods_with(part)):
            raise ExportError(f"--{part}-weights {weights} is unknown; choose one of {', '.join(known)}.")
    check_block_size(block_size, decoder)


def quantize_encoder_decoder(
    checkpoint: Checkpoint,
    encoder: str,
    decoder: str,
    block_size: int | None = None,
    calibrated: Mapping[str, QTensor] | None = None,
) -> Mapping[str, Weight]:
    """All matrices by name: the encoder's in `encoder` weights, the others in `decoder` weights. Embedding and head are
    in 8 bits where the decoder is quantized.

    calibrated: the matrices of the decoder's layers in 4 bits; those that it lacks are rounded to nearest.
    """
    _, family = find_family(str(checkpoint.config.get("model_type")))
    solved = calibrated or {}

    def make(name: str) -> Weight:
        w = checkpoint.read(name)
        if is_encoders(name, family):
            if encoder == "fp32":
                return FloatTensor(w)
            return rows_to_nearest(w, precise=family.precise is not None and bool(re.search(family.precise, name)))
        if decoder == "fp32":
            return FloatTensor(w)
        if decoder == "int8" or _VOCABULARY.search(name):
            return round_to_nearest(w, 8, block_size or INT8_BLOCK)
        return solved[name] if name in solved else round_to_nearest(w, 4, block_size or INT4_BLOCK)

    return LazyWeights(matrices(checkpoint), make)


def is_encoders(name: str, family: Family) -> bool:
    """True if the tensor `name` belongs to the encoder's graph. That graph also projects the decoder's keys and values,
    once for every input."""
    return bool(_ENCODER.search(name) or re.search(family.cross, name)) and not _VOCABULARY.search(name)


def of_layers(checkpoint: Checkpoint) -> list[str]:
    """The matrices of the decoder's layers."""
    _, family = find_family(str(checkpoint.config.get("model_type")))
    return [name for name in matrices(checkpoint) if not (is_encoders(name, family) or _VOCABULARY.search(name))]
