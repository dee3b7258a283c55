"""The check that ends the export of a model for vectors, or of a reranker: the written graph next to Torch, on a few
texts."""

from __future__ import annotations

import gc
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from edge.embedding_format import CLS, LAST, MEAN
from edge.errors import ExportError
from edge.export.check.of_decoder import TEXT
from edge.export.check.of_encoder_decoder import SENTENCES
from edge.export.facts.progress import Progress
from edge.export.reference.in_torch import load_torch
from edge.manifest import Manifest
from edge.runtime.check.vectors import distance_of
from edge.runtime.embed.encoded import Encoded
from edge.runtime.embed.text_model import TextModel
from edge.runtime.memory.process import release_freed

if TYPE_CHECKING:
    from edge.export.facts.checkpoint import Checkpoint
    from edge.export.facts.pooling import Pooling

TEXTS = [*SENTENCES, "lighthouse", *TEXT.split("\n\n")]
QUERIES = 2  # of them, with each of which each is a pair of a reranker's
# The mean cosine distance from Torch's vectors that no sound export comes near.
MOST = {"fp32": 1e-4, "int8": 0.03, "int4": 0.15}


# The same of scores, by `score_distance`.
MOST_OF_SCORES = {"fp32": 1e-3, "int8": 0.1, "int4": 0.5}


@dataclass(frozen=True)
class RecordedVectors:
    """Token ids of texts, and their vectors by the model in float32, or the scores [texts, 1] of pairs."""

    texts: list[Encoded]
    vectors: NDArray[np.float32]


def reference(checkpoint: Checkpoint, texts: list[Encoded], progress: Progress) -> RecordedVectors:
    """Torch's vectors. The Torch model is freed before this returns."""
    import torch

    assert checkpoint.pooling is not None
    model = load_torch(checkpoint, progress=progress)
    model = getattr(model, "model", model)  # without a head for tokens
    made = []
    for done, text in enumerate(texts):
        progress(done, len(texts), "running Torch on the check's inputs")
        with torch.no_grad():
            given = {"input_ids": torch.tensor([text.ids])}
            if checkpoint.pooling.types:
                given["token_type_ids"] = (torch.arange(len(text.ids)) >= text.second).long()[None]
            hidden = model(**given).last_hidden_state[0]
            made.append(pooled(hidden, checkpoint.pooling).numpy())
    del model
    gc.collect()  # a model's modules point at each other
    release_freed()
    return RecordedVectors(texts, np.stack(made))


def pooled(hidden: Any, pooling: Pooling) -> Any:
    """The vector [W] of a text's hidden states [T, H] in Torch."""
    import torch
    from torch.nn import functional
    from transformers.activations import ACT2FN

    x = {CLS: hidden[0], LAST: hidden[-1], MEAN: hidden.mean(0)}.get(pooling.mode, hidden.amax(0))
    for each in pooling.dense:
        bias = None if each.bias is None else torch.from_numpy(each.bias)
        x = functional.linear(x, torch.from_numpy(each.weight), bias)
        if each.activation != "identity":
            x = ACT2FN[each.activation](x)
        if each.norm is not None:
            weight, shift = torch.from_numpy(each.norm.weight), torch.from_numpy(each.norm.bias)
            x = functional.layer_norm(x, weight.shape, weight, shift, each.norm.eps)
    return functional.normalize(x, dim=0) if pooling.normalized else x


def check(model: TextModel, recorded: RecordedVectors) -> dict[str, float]:
    """Compare the bundle's vectors, or its scores of pairs, with Torch's; figures of the manifest.

    Raises:
        ExportError: they are not those of the model.
    """
    manifest: Manifest = model.bundle.manifest
    made, scores = model.run(recorded.texts), model.format.pair is not None
    apart = [*map(distance_of(model.format), made, recorded.vectors)]
    mean, largest = float(np.mean(apart)), float(np.max(apart))
    if not mean <= (MOST_OF_SCORES if scores else MOST)[manifest.weights]:
        what = f"scores (mean difference {mean:.4f})" if scores else f"vectors (mean cosine {1 - mean:.4f})"
        raise ExportError(
            f"The exported {manifest.name} does not make the {what} of the model in float32, so nothing was written; "
            f"try more precise --weights than {manifest.weights}, and report it where fp32 fails too."
        )
    found = {"check_tokens": float(sum(len(text.ids) for text in recorded.texts)), "check_texts": float(len(apart))}
    if scores:
        return found | {"score_difference_mean": round(mean, 6), "score_difference_max": round(largest, 6)}
    return found | {"cosine_mean": round(1 - mean, 6), "cosine_min": round(1 - largest, 6)}
