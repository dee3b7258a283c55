"""Tiny random models, and their graphs run by onnxruntime, for the tests of edge.export.graph."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime as ort
import torch
from transformers import AutoModelForCausalLM, PreTrainedConfig

from edge.bundle import BundleWriter
from edge.export.graph import DecoderGraph, build_decoder
from edge.export.quantize.base import FloatTensor, QTensor
from edge.manifest import FORMAT_VERSION, Manifest, Source, Tokens
from edge.runtime.providers import cpu


def tiny_manifest(built: Any, kind: str, context: int, tokens: Tokens, **others: Any) -> Manifest:
    """The manifest of a tiny model's float32 graphs, which have no tokenizer. others: further fields."""
    fields = {"graphs": built.graphs, "kv": built.kv, "groups": built.groups, "dims": built.dims, **others}
    return Manifest(
        format_version=FORMAT_VERSION,
        producer="test",
        name="tiny",
        family=built.family,
        kind=kind,
        weights="fp32",
        context=context,
        tokens=tokens,
        chat_template=None,
        source=Source("tiny", "directory"),
        **fields,
    )


@dataclass
class TinyCheckpoint:
    """The part of a checkpoint that graphs read, over a Torch model.

    `config` is the text of config.json, which may spell settings otherwise than the model's own configuration.
    """

    model: Any
    config: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.config = self.config or self.model.config.to_dict()
        tensors = [*self.model.named_parameters(), *self.model.named_buffers()]
        self._tensors = {n: t.detach().numpy() for n, t in tensors}

    def names(self) -> list[str]:
        return list(self._tensors)

    def read(self, name: str) -> np.ndarray:
        return self._tensors[name].copy()

    def shape(self, name: str) -> tuple[int, ...]:
        return self._tensors[name].shape

    def matrices(self) -> dict[str, np.ndarray]:
        return {n: self.read(n) for n, t in self._tensors.items() if t.ndim == 2 and n.endswith(".weight")}


def tiny_model(config: PreTrainedConfig, seed: int = 0) -> Any:
    """A random model whose every weight matters: norms and biases too, and scores far from uniform."""
    model = AutoModelForCausalLM.from_config(config, dtype=torch.float32).eval()
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, p in model.named_parameters():
            noise = torch.randn(p.shape, generator=generator)
            if p.ndim == 2:
                sharpen = 2.0 if any(part in name for part in ("q_proj", "k_proj", "qkv_proj")) else 1.0
                p.copy_(noise * sharpen / p.shape[1] ** 0.5)
            elif name.endswith("bias"):
                p.copy_(0.3 * noise)
            else:
                p.copy_(0.2 * noise + (0.0 if config.model_type == "gemma3_text" else 1.0))
    return model


def float_matrices(checkpoint: TinyCheckpoint, dtype: Any = np.float32) -> dict[str, FloatTensor]:
    return {n: FloatTensor(w.astype(dtype)) for n, w in checkpoint.matrices().items()}


def torch_logits(model: Any, ids: np.ndarray) -> np.ndarray:
    """Logits [S, V] of all rows, in one pass."""
    with torch.no_grad():
        return model(torch.from_numpy(ids)[None], use_cache=False).logits[0].numpy()


def session_options() -> ort.SessionOptions:
    """Options of a session on the one thread pool: once an engine has made it, no session may have its own."""
    cpu.share_thread_pool(None)
    options = ort.SessionOptions()
    options.use_per_session_threads = False
    options.log_severity_level = 3
    return options


class Graph:
    """A written bundle's decoder, stepped with numpy buffers that are bound in place."""

    def __init__(self, root: Path, built: DecoderGraph, capacity: int, profile: Path | None = None) -> None:
        options = session_options()
        if profile is not None:
            options.enable_profiling = True
            options.profile_file_prefix = str(profile)
        options.add_session_config_entry("session.model_external_initializers_file_folder_path", str(root))
        path = root / built.graphs[0].path
        self.session = ort.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
        self.built = built
        self.arrays: dict[str, np.ndarray] = {}
        for i, layer in enumerate(built.kv.layers):
            for part in ("key", "value"):
                # what was never written must not matter
                shape = (1, layer.heads, capacity, layer.head_dim)
                self.arrays[f"{i}.{part}"] = np.full(shape, 1e3, np.float32)
        self.length = 0

    def step(self, ids: np.ndarray, rows: list[int]) -> np.ndarray:
        """Append `ids` [S]; the logits [R, V] of `rows`."""
        end = self.length + len(ids)
        binding = self.session.io_binding()
        inputs = {
            "input_ids": ids[None].astype(np.int64),
            "position_ids": np.arange(self.length, end, dtype=np.int64)[None],
            "seqlens_k": np.array([end - 1], np.int32),
            "total_sequence_length": np.array(end, np.int32),
            "logit_rows": np.array(rows, np.int64),
        }
        for name, value in inputs.items():
            binding.bind_cpu_input(name, value)
        binding.bind_output("logits")
        for name, array in self.arrays.items():
            value = ort.OrtValue.ortvalue_from_numpy(array)
            binding.bind_ortvalue_input(f"past.{name}", value)
            binding.bind_ortvalue_output(f"present.{name}", value)
        self.session.run_with_iobinding(binding)
        self.length = end
        return binding.get_outputs()[0].numpy()[0]

    def logits(self, ids: np.ndarray, chunks: list[int]) -> np.ndarray:
        """All rows' logits [S, V], the tokens taken in steps of `chunks`."""
        assert sum(chunks) == len(ids)
        steps = []
        for n in chunks:
            steps.append(self.step(ids[self.length : self.length + n], list(range(n))))
        return np.concatenate(steps)


def build(
    target: Path, checkpoint: TinyCheckpoint, weights: Mapping[str, Any], max_context: int
) -> tuple[DecoderGraph, Path]:
    """Build the graph and keep what was written without a manifest; returns the folder too."""
    writer = BundleWriter(target)
    built = build_decoder(checkpoint, weights, writer, max_context)
    writer.flush()
    return built, writer.staging


def relative_error(a: np.ndarray, b: np.ndarray) -> float:
    return float(np.abs(a - b).max() / np.abs(b).max())


def random_blocks(
    rows: int,
    columns: int,
    bits: int,
    block_size: int,
    zero_points: bool,
    *,
    like: np.ndarray | None = None,
    seed: int = 0,
) -> QTensor:
    """An integer matrix whose scales and zero points differ from block to block; near `like` where it is given."""
    rng = np.random.default_rng(seed)
    w = rng.standard_normal((rows, columns)).astype(np.float32) if like is None else like
    blocks = -(-columns // block_size)
    padded = np.pad(w, ((0, 0), (0, blocks * block_size - columns)), mode="edge").reshape(rows, blocks, block_size)
    top, middle = 2**bits - 1, 2 ** (bits - 1)
    if zero_points:
        low, high = np.minimum(padded.min(-1), 0), np.maximum(padded.max(-1), 0)
        scales = (high - low) / top
        zeros = np.rint(-low / scales).astype(np.uint8)
    else:
        scales = np.abs(padded).max(-1) / (middle - 1)
        zeros = np.full((rows, blocks), middle, np.uint8)
    scales = scales.astype(np.float32)
    q = np.clip(np.rint(padded / scales[..., None]) + zeros[..., None], 0, top).astype(np.uint8)
    q = q.reshape(rows, -1)[:, :columns]
    return QTensor(bits, block_size, q, scales, zeros if zero_points else None, "random")
