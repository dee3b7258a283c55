"""From a model directory on disk, through weight formats, to the graph's logits."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from graph_harness import Graph, relative_error, tiny_model, torch_logits
from transformers import AutoConfig, AutoModelForCausalLM

from edge.bundle import BundleWriter
from edge.export.checkpoint import open_checkpoint
from edge.export.facts.tensors import FloatTensor
from edge.export.quantize import quantize
from edge.export.targets.cpu.decoder import build_decoder

SMALL = {
    "vocab_size": 323,  # odd, and more than the tokenizer has
    "hidden_size": 96,
    "intermediate_size": 160,
    "num_hidden_layers": 2,
    "num_attention_heads": 3,
    "num_key_value_heads": 1,
    "head_dim": 32,
    "max_position_embeddings": 64,
    "pad_token_id": 0,
}
FAMILIES = [
    *("llama", "mistral", "qwen2", "qwen3", "gemma2", "gemma3_text", "phi3", "smollm3", "ministral3", "olmo3"),
    *("exaone4", "ernie4_5", "hunyuan_v1_dense", "cohere2", "starcoder2", "stablelm", "bitnet"),
    *("qwen3_5_text", "lfm2", "granitemoehybrid", "falcon_h1"),
]
SCAN = {"mamba_n_heads": 4, "mamba_d_state": 16}
NO_EXPERTS = {"num_local_experts": 0, "shared_intermediate_size": 160}
SETTINGS: dict[str, dict[str, Any]] = {
    "stablelm": {"partial_rotary_factor": 0.5, "use_parallel_residual": True},
    "qwen3_5_text": {
        "linear_num_key_heads": 2,
        "linear_num_value_heads": 4,
        "linear_key_head_dim": 16,
        "linear_value_head_dim": 16,
        "layer_types": ["linear_attention", "full_attention"],
    },
    "lfm2": {"layer_types": ["conv", "full_attention"]},
    "granitemoehybrid": {**SCAN, **NO_EXPERTS, "layer_types": ["mamba", "attention"]},
    "falcon_h1": {**SCAN, "mamba_d_ssm": 96, "mamba_rms_norm": True},
}


@pytest.fixture(scope="module", params=FAMILIES)
def directory(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, tiny_checkpoint: Path) -> Path:
    path = tmp_path_factory.mktemp("checkpoint")
    shutil.copy(tiny_checkpoint / "tokenizer.json", path)  # calibration reads a text
    tiny_model(AutoConfig.for_model(request.param, **SMALL, **SETTINGS.get(request.param, {}))).save_pretrained(path)
    return path


@pytest.mark.parametrize(
    ("weights", "tolerance"),
    [("fp32", 1e-4), ("fp16", 1e-4), ("int8", 0.06), pytest.param("int4", 0.06, marks=pytest.mark.slow)],
)
def test_logits_of_a_saved_model_are_those_of_its_stored_weights(
    tmp_path: Path, directory: Path, weights: str, tolerance: float
) -> None:
    checkpoint = open_checkpoint(str(directory))
    matrices = quantize(checkpoint, weights)
    with BundleWriter(tmp_path / "x.edge") as writer:
        built = build_decoder(checkpoint, matrices, writer, 64)
        writer.flush()
        ids = np.random.default_rng(3).integers(0, SMALL["vocab_size"], 14)
        logits = Graph(writer.staging, built, capacity=14).logits(ids, [6, 1, 7])
    model: Any = AutoModelForCausalLM.from_pretrained(directory, dtype=torch.float32).eval()
    with torch.no_grad():
        for name, p in model.named_parameters():
            if name in matrices:
                matrix = matrices[name]
                values = matrix.values if isinstance(matrix, FloatTensor) else matrix.dequantize()
                p.copy_(torch.from_numpy(values.astype(np.float32)))
    expected = torch_logits(model, ids)
    if tolerance < 1e-3:
        assert relative_error(logits, expected) <= tolerance
    else:  # activations are rounded to 8 bits
        assert np.linalg.norm(logits - expected) <= tolerance * np.linalg.norm(expected)
