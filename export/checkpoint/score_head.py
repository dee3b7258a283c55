"""The head of a model that scores pairs of texts: transformers' ...ForSequenceClassification with one label."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edge.embedding_format import CLS, MEAN
from edge.errors import CheckpointError
from edge.export.checkpoint.pooling import is_bare
from edge.export.checkpoint.stored import Tensor
from edge.export.checkpoint.tokenizer_files import read_json
from edge.export.facts.family import HeadLayer
from edge.export.facts.pooling import Dense, DenseNorm, Pooling
from edge.export.graph.families import FAMILIES, find_family
from edge.export.graph.step import configuration

CLASSIFIER = "ForSequenceClassification"
MOST_LENGTH = 1 << 24  # tokenizers that know no limit state one of 30 digits


def read_score_head(
    root: Path, raw: Mapping[str, Any], config: dict[str, Any], found: Mapping[str, Tensor]
) -> Pooling | None:
    """The way to a pair's score of a model that config.json calls a classifier, with one label; None for others.

    raw: config.json's content; config: the same, complete. found: the tensors by the names in their files.

    Raises:
        CheckpointError: its head is not whole.
    """
    names, kind = raw.get("architectures"), str(config.get("model_type"))
    name = names[0] if isinstance(names, list) and names else None
    if not isinstance(name, str) or not name.endswith(CLASSIFIER) or kind not in FAMILIES or not is_bare(root):
        return None
    _, family = find_family(kind)
    if family.scores is None:
        return None
    head = family.scores(configuration(config))
    layers = [_dense(root, found, layer) for layer in head.layers]
    if len(layers[-1].weight) != 1:
        return None
    if head.pooling not in (CLS, MEAN):
        raise CheckpointError(
            f"{root} pools by {str(head.pooling)[:60]!r} before its head; known are {CLS} and {MEAN}."
        )
    settings = root / "tokenizer_config.json"
    stated = read_json(settings) if settings.is_file() else {}
    length, given = stated.get("model_max_length"), stated.get("model_input_names")
    known = isinstance(length, int) and not isinstance(length, bool) and 1 <= length < MOST_LENGTH
    return Pooling(
        mode=head.pooling,
        max_length=length if known else None,
        dense=layers,
        pairs=True,
        types=int(config.get("type_vocab_size") or 0) > 1 and (given is None or "token_type_ids" in given),
    )


def _dense(root: Path, found: Mapping[str, Tensor], layer: HeadLayer) -> Dense:
    def read(name: str, rank: int) -> NDArray[np.float32] | None:
        tensor = next((each for stored, each in found.items() if f".{stored}".endswith(f".{name}")), None)
        if tensor is not None and len(tensor.shape) != rank:
            raise CheckpointError(f"{root} holds {name} of shape {list(tensor.shape)}; fetch the checkpoint again.")
        return None if tensor is None else tensor.read()

    def of_width(name: str, width: int) -> NDArray[np.float32] | None:
        vector = read(name, 1)
        if vector is not None and len(vector) != width:
            raise CheckpointError(f"{root} holds {name} of {len(vector)} numbers, and {width} are needed.")
        return vector

    weight = read(f"{layer.name}.weight", 2)
    if weight is None:
        raise CheckpointError(f"{root} lacks {layer.name}.weight, which its head for scores needs; fetch it again.")
    norm, width = None, len(weight)
    if layer.norm is not None:
        scale, shift = of_width(f"{layer.norm}.weight", width), of_width(f"{layer.norm}.bias", width)
        if scale is None:
            raise CheckpointError(f"{root} lacks {layer.norm}.weight, which its head for scores needs; fetch it again.")
        norm = DenseNorm(scale, np.zeros(width, np.float32) if shift is None else shift, layer.eps)
    return Dense(weight, of_width(f"{layer.name}.bias", width), layer.activation, norm)
