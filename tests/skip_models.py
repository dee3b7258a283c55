"""What Torch makes of a decoder whose tokens skip layers, and tiny decoders in segments."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np

from edge.bundle import Bundle
from edge.manifest import Tokens


def torch_model(folder: Path) -> Any:
    from transformers import AutoModelForCausalLM

    return AutoModelForCausalLM.from_pretrained(folder, dtype="float32", attn_implementation="eager").eval()


def skipping_logits(model: Any, ids: np.ndarray, ran: np.ndarray) -> np.ndarray:
    """Torch's logits [S, V] of `ids` [S] where token t goes through layer l only if `ran` [layers, S] says so.

    A layer sees the tokens that run through it, at their own positions, as if there were no others.
    """
    import torch

    with torch.no_grad():
        x = model.model.embed_tokens(torch.from_numpy(ids)[None])
        for layer, mask in zip(model.model.layers, ran, strict=True):
            taken = np.flatnonzero(mask)
            if not len(taken):
                continue
            places = torch.from_numpy(taken)[None]
            rotations = model.model.rotary_emb(x, places)
            blocked = torch.full((len(taken), len(taken)), -1e9).triu(1)[None, None]
            out = layer(x[:, taken], attention_mask=blocked, position_ids=places, position_embeddings=rotations)
            x[:, taken] = out[0] if isinstance(out, tuple) else out
        return model.lm_head(model.model.norm(x))[0].numpy()


def windowed_skipping_logits(model: Any, ids: np.ndarray, ran: np.ndarray) -> np.ndarray:
    """As `skipping_logits`, of a Gemma 3, whose windows count the tokens that run through the layer."""
    import torch

    config = model.config
    with torch.no_grad():
        x = model.model.embed_tokens(torch.from_numpy(ids)[None])
        for layer, kind, mask in zip(model.model.layers, config.layer_types, ran, strict=True):
            taken = np.flatnonzero(mask)
            if not len(taken):
                continue
            places = torch.from_numpy(taken)[None]
            rotations = model.model.rotary_emb(x, places, kind)
            blocked = torch.full((len(taken), len(taken)), -1e9)
            seen = blocked.triu(1)[None, None]
            if kind == "sliding_attention":
                seen = seen + blocked.tril(-config.sliding_window)[None, None]
            out = layer(x[:, taken], attention_mask=seen, position_ids=places, position_embeddings=rotations)
            x[:, taken] = out[0] if isinstance(out, tuple) else out
        return model.lm_head(model.model.norm(x))[0].numpy()


def segmented(target: Path, model: Any, unit: int | str, max_context: int = 64) -> Bundle:
    """A decoder's graph with its segments, in float32 and without a tokenizer."""
    from graph_harness import TinyCheckpoint, float_matrices, tiny_manifest

    from edge.bundle import BundleWriter
    from edge.export.graph import build_decoder
    from edge.export.graph.segments import write_segments

    checkpoint, writer = TinyCheckpoint(model), BundleWriter(target)
    built = build_decoder(checkpoint, float_matrices(checkpoint), writer, max_context)
    writer.flush()
    manifest = tiny_manifest(built, "decoder", max_context, Tokens(1, [2], 0, False))
    segments = write_segments(writer, manifest, unit)
    return Bundle(writer.staging, dataclasses.replace(manifest, segments=segments))
