"""The check that ends the export of a model for vectors: the written graph next to Torch, on a few texts."""

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
from edge.runtime.check.vectors import distance
from edge.runtime.embed.embedder import Embedder
from edge.runtime.memory.process import release_freed

if TYPE_CHECKING:
    from edge.export.facts.checkpoint import Checkpoint
    from edge.export.facts.pooling import Pooling

TEXTS = [*SENTENCES, "lighthouse", *TEXT.split("\n\n")]
# The mean cosine distance from Torch's vectors that no sound export comes near.
MOST = {"fp32": 1e-4, "int8": 0.03, "int4": 0.15}


@dataclass(frozen=True)
class RecordedVectors:
    """Token ids of texts, and their vectors by the model in float32."""

    texts: list[list[int]]
    vectors: NDArray[np.float32]


def reference(checkpoint: Checkpoint, texts: list[list[int]], progress: Progress) -> RecordedVectors:
    """Torch's vectors. The Torch model is freed before this returns."""
    import torch

    assert checkpoint.pooling is not None
    model = load_torch(checkpoint, progress=progress)
    model = getattr(model, "model", model)  # without a head for tokens
    made = []
    for done, ids in enumerate(texts):
        progress(done, len(texts), "running Torch on the check's inputs")
        with torch.no_grad():
            hidden = model(input_ids=torch.tensor([ids])).last_hidden_state[0]
            made.append(pooled(hidden, checkpoint.pooling).numpy())
    del model
    gc.collect()  # a model's modules point at each other
    release_freed()
    return RecordedVectors(texts, np.stack(made))


def pooled(hidden: Any, pooling: Pooling) -> Any:
    """The vector [W] of a text's hidden states [T, H] in Torch."""
    import torch
    from torch.nn import functional

    x = {CLS: hidden[0], LAST: hidden[-1], MEAN: hidden.mean(0)}.get(pooling.mode, hidden.amax(0))
    for each in pooling.dense:
        bias = None if each.bias is None else torch.from_numpy(each.bias)
        x = functional.linear(x, torch.from_numpy(each.weight), bias)
        if each.activation != "identity":
            x = {"tanh": torch.tanh, "gelu": functional.gelu, "relu": functional.relu}[each.activation](x)
    return functional.normalize(x, dim=0) if pooling.normalized else x


def check(embedder: Embedder, recorded: RecordedVectors) -> dict[str, float]:
    """Compare the bundle's vectors with Torch's; figures of the manifest.

    Raises:
        ExportError: they are not those of the model.
    """
    manifest: Manifest = embedder.bundle.manifest
    made = embedder.vectors(recorded.texts)
    apart = [distance(a, b) for a, b in zip(made, recorded.vectors, strict=True)]
    if not float(np.mean(apart)) <= MOST[manifest.weights]:
        raise ExportError(
            f"The exported {manifest.name} does not make the vectors of the model in float32 (mean cosine "
            f"{1 - np.mean(apart):.4f}), so nothing was written; try more precise --weights than {manifest.weights}, "
            "and report it where fp32 fails too."
        )
    return {
        "check_tokens": float(sum(map(len, recorded.texts))),
        "check_texts": float(len(apart)),
        "cosine_mean": round(1 - float(np.mean(apart)), 6),
        "cosine_min": round(1 - float(np.max(apart)), 6),
    }
