"""Tiny random encoder-decoders, and their graphs run by the engine, for the tests of edge.export.graph."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from graph_harness import TinyCheckpoint, tiny_manifest
from transformers import AutoModelForSeq2SeqLM, PreTrainedConfig

from edge.bundle import Bundle, BundleWriter
from edge.export.graph.encoder_decoder import build_encoder_decoder
from edge.manifest import TextFormat, Tokens
from edge.runtime.cache import KVCache
from edge.runtime.engine import Engine


def tiny_model(config: PreTrainedConfig, seed: int = 0, auto: Any = AutoModelForSeq2SeqLM) -> Any:
    """A random model whose every weight matters: norms, biases and position tables too, and scores far from uniform."""
    model = auto.from_config(config, dtype=torch.float32).eval()
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        if hasattr(model, "final_logits_bias"):
            model.final_logits_bias.copy_(torch.randn(model.final_logits_bias.shape, generator=generator))
        for name, p in model.named_parameters():
            if not p.requires_grad:  # sines that transformers computes
                continue
            noise = torch.randn(p.shape, generator=generator)
            if "relative_attention_bias" in name or "embed_positions" in name:
                p.copy_(noise)
            elif p.ndim >= 2:
                p.copy_(noise / p[0].numel() ** 0.5)
            elif name.endswith("bias"):
                p.copy_(0.3 * noise)
            else:
                p.copy_(0.2 * noise + 1.0)
    return model


class Pair:
    """A model's graphs beside the model: what an engine over the written bundle answers."""

    def __init__(self, target: Path, model: Any, weights: Mapping[str, Any], max_context: int = 64) -> None:
        self.model = model
        self.writer = writer = BundleWriter(target)
        built = build_encoder_decoder(TinyCheckpoint(model), weights, writer, max_context)
        writer.flush()
        own = {"encoder": built.encoder, "cross": built.cross, "text": TextFormat(decoder_start=[0])}
        manifest = tiny_manifest(built, "encoder-decoder", max_context, Tokens(None, [1], 0, False), **own)
        self.engine = Engine(Bundle(writer.staging, manifest))

    def encode(self, ids: np.ndarray) -> KVCache:
        assert self.engine.encoder is not None
        return self.engine.new_cache(cross=self.engine.encoder.encode_text(ids))

    def logits(self, source: np.ndarray, target: np.ndarray, chunks: list[int]) -> np.ndarray:
        """All rows' logits [S, V] of `target`, forced, its tokens taken in steps of `chunks`."""
        assert sum(chunks) == len(target)
        cache = self.encode(source)
        steps = []
        for n in chunks:
            piece = target[cache.length : cache.length + n]
            steps.append(self.engine.step(cache, piece, np.arange(n)).copy())
        return np.concatenate(steps)

    def torch_logits(self, source: np.ndarray, target: np.ndarray) -> np.ndarray:
        with torch.no_grad():
            out = self.model(
                input_ids=torch.from_numpy(source)[None],
                decoder_input_ids=torch.from_numpy(target)[None],
                use_cache=False,
            )
        return out.logits[0].numpy()
