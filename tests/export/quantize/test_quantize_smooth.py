"""Smoothing changes what is rounded, never what is computed."""

from __future__ import annotations

import shutil
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from graph_harness import Graph, tiny_model, torch_logits
from transformers import AutoConfig, AutoModelForCausalLM

from edge.bundle import BundleWriter
from edge.errors import ExportError
from edge.export.checkpoint import open_checkpoint
from edge.export.facts.tensors import FloatTensor, LazyWeights, matrices
from edge.export.graph.families import FAMILIES, norms_of
from edge.export.quantize import quantize
from edge.export.quantize.method import Options
from edge.export.quantize.prefill import prefill_weights
from edge.export.quantize.rtn import INT8_BLOCK, round_to_nearest
from edge.export.quantize.smooth import Smoothing
from edge.export.targets.cpu.decoder import build_decoder

SMALL = {
    "vocab_size": 323,
    "hidden_size": 128,
    "intermediate_size": 160,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 32,
    "mlp_bias": True,
    "max_position_embeddings": 64,
    "pad_token_id": 0,
}
OUTLIER = 77

_QKV = [f"self_attn.{p}_proj.weight" for p in "qkv"]
_MLP = [f"mlp.{p}_proj.weight" for p in ("gate", "up", "down")]
_NORM_BIASES = ["input_layernorm.bias", "post_attention_layernorm.bias"]
_SUB_NORMS = ["self_attn.attn_sub_norm.weight", "mlp.ffn_sub_norm.weight"]
_NORMS = ["input_layernorm.weight", "post_attention_layernorm.weight"]
CHANGED = {
    "llama": [*_NORMS, *_QKV, *_MLP, "mlp.up_proj.bias"],
    "gemma3_text": ["input_layernorm.weight", "pre_feedforward_layernorm.weight", *_QKV, *_MLP],
    "phi3": [*_NORMS, "self_attn.qkv_proj.weight", "mlp.gate_up_proj.weight", "mlp.down_proj.weight"],
}


@pytest.fixture(scope="module", params=["llama", "gemma3_text", "phi3"])
def directory(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, tiny_checkpoint: Path) -> Path:
    """A model one of whose channels is 60 times as large as the others where layers read it, but says little."""
    path = tmp_path_factory.mktemp("checkpoint")
    shutil.copy(tiny_checkpoint / "tokenizer.json", path)
    model = tiny_model(AutoConfig.for_model(request.param, **SMALL))
    with torch.no_grad():
        for layer in model.model.layers:
            gates = getattr(layer, "pre_feedforward_layernorm", layer.post_attention_layernorm)
            for norm, readers in ((layer.input_layernorm, layer.self_attn), (gates, layer.mlp)):
                norm.weight[OUTLIER] = 60.0
                for name, p in readers.named_parameters():
                    if name.endswith("_proj.weight") and name not in ("o_proj.weight", "down_proj.weight"):
                        p[:, OUTLIER] /= 60.0
            up = getattr(layer.mlp, "up_proj", None) or layer.mlp.gate_up_proj
            up.weight[OUTLIER - SMALL["intermediate_size"]] *= 60.0
            layer.mlp.down_proj.weight[:, OUTLIER] /= 60.0
    model.save_pretrained(path)
    return path


def torch_model(directory: Path) -> Any:
    return AutoModelForCausalLM.from_pretrained(directory, dtype=torch.float32).eval()


def tokens() -> np.ndarray:
    return np.random.default_rng(3).integers(0, SMALL["vocab_size"], 24)


def test_smoothed_weights_compute_the_same(directory: Path) -> None:
    checkpoint = open_checkpoint(str(directory))
    smoothing = Smoothing(checkpoint, matrices(checkpoint), Options())
    model = torch_model(directory)
    expected = torch_logits(model, tokens())
    changed = []
    with torch.no_grad():
        for name, p in model.named_parameters():
            values = torch.from_numpy(smoothing.read(name))
            if not torch.equal(values, p):
                changed.append(name.split(".", 3)[-1])
            p.copy_(values)
    assert Counter(changed) == dict.fromkeys(CHANGED[checkpoint.config["model_type"]], 2)  # in both layers
    assert np.abs(torch_logits(model, tokens()) - expected).max() < 1e-4 * np.abs(expected).max()


@pytest.mark.parametrize(
    ("model_type", "changed"),
    [
        ("cohere2", ["input_layernorm.weight", *_QKV, "mlp.gate_proj.weight", "mlp.up_proj.weight"]),
        ("starcoder2", [*_NORMS, *_NORM_BIASES, *_QKV, "mlp.c_fc.weight"]),
        ("stablelm", [*_NORMS, *_NORM_BIASES, *_QKV, "mlp.gate_proj.weight", "mlp.up_proj.weight"]),
        ("bitnet", [*_NORMS, *_SUB_NORMS, *_QKV, "self_attn.o_proj.weight", *_MLP]),
    ],
)
def test_layers_of_other_layouts_compute_the_same_too(
    tmp_path: Path, tiny_checkpoint: Path, model_type: str, changed: list[str]
) -> None:
    """One norm for both blocks, norms with biases, no gate, norms before the last matrices."""
    shutil.copy(tiny_checkpoint / "tokenizer.json", tmp_path)
    tiny_model(AutoConfig.for_model(model_type, **SMALL)).save_pretrained(tmp_path)
    checkpoint, model = open_checkpoint(str(tmp_path)), torch_model(tmp_path)
    smoothing = Smoothing(checkpoint, [n for n in matrices(checkpoint) if "mlp.down" not in n], Options())
    expected, found = torch_logits(model, tokens()), set[str]()
    with torch.no_grad():
        for name, p in model.named_parameters():
            values = torch.from_numpy(smoothing.read(name))
            if not torch.equal(values, p):
                found.add(name.split(".", 3)[-1])
            p.copy_(values)
    assert found == {name for name in changed if "mlp.down" not in name and "ffn_sub" not in name}
    assert np.abs(torch_logits(model, tokens()) - expected).max() < 1e-4 * np.abs(expected).max()


def test_an_outlier_costs_less_than_without(tmp_path: Path, directory: Path) -> None:
    checkpoint = open_checkpoint(str(directory))
    plain = LazyWeights(matrices(checkpoint), lambda n: round_to_nearest(checkpoint.read(n), 8, INT8_BLOCK))
    expected = torch_logits(torch_model(directory), tokens())
    errors = []
    for name, weights in (("plain", plain), ("smoothed", quantize(checkpoint, "int8"))):
        with BundleWriter(tmp_path / f"{name}.edge") as writer:
            built = build_decoder(checkpoint, weights, writer, 64)
            writer.flush()
            logits = Graph(writer.staging, built, capacity=24).logits(tokens(), [24])
        errors.append(np.linalg.norm(logits - expected) / np.linalg.norm(expected))
    assert errors[1] < 0.7 * errors[0]


def test_a_site_whose_blocks_are_kept_stays_as_it_is(directory: Path) -> None:
    checkpoint = open_checkpoint(str(directory))
    names = matrices(checkpoint)
    kept = [n for n in names if "layers.0.self_attn" in n or "layers.1.mlp.down" in n]
    smoothing = Smoothing(checkpoint, set(names) - set(kept), Options())
    changed = {n for n in checkpoint.names() if not np.array_equal(smoothing.read(n), checkpoint.read(n))}
    assert not changed & {*kept, "model.layers.0.input_layernorm.weight"}
    assert {n for n in changed if "down" in n} == {"model.layers.0.mlp.down_proj.weight"}
    assert "model.layers.1.input_layernorm.weight" in changed


def test_norms_and_biases_that_change_are_among_the_weights(directory: Path) -> None:
    weights = quantize(open_checkpoint(str(directory)), "int8")
    norm = weights["model.layers.0.input_layernorm.weight"]
    assert isinstance(norm, FloatTensor) and norm.values.shape == (128,)
    assert "model.norm.weight" not in weights
    bias = "model.layers.0.mlp.up_proj.bias"
    assert (bias in weights) == (bias in open_checkpoint(str(directory)).names())


@pytest.mark.parametrize("known_as", ["itself", "llama", "gemma3_text"])
@pytest.mark.parametrize("model_type", ["glm4", "cohere", "mixtral", "olmo", "nemotron"])
def test_layers_of_an_unknown_layout_are_refused(
    tmp_path: Path, tiny_checkpoint: Path, model_type: str, known_as: str
) -> None:
    """Norms after a block, one norm for two blocks, a router, norms without weights, no gate: whatever it is called."""
    shutil.copy(tiny_checkpoint / "tokenizer.json", tmp_path)
    config = AutoConfig.for_model(model_type, **SMALL, num_local_experts=2)
    AutoModelForCausalLM.from_config(config).save_pretrained(tmp_path)
    checkpoint = open_checkpoint(str(tmp_path))
    if known_as != "itself":
        checkpoint.config = AutoConfig.for_model(known_as, **SMALL).to_dict()
    why = f"of the type '{model_type}' cannot be exported; `edge models families` lists"
    if known_as != "itself":
        why = r"because model\.layers\.0 has .*; choose --weights int4 or fp32"
    for refused in (lambda: quantize(checkpoint, "int8"), lambda: prefill_weights(checkpoint, Options())):
        with pytest.raises(ExportError, match=why):
            refused()
    Smoothing(checkpoint, ["model.embed_tokens.weight"], Options())  # keep may round nothing else


def test_norms_that_are_stored_in_another_way_are_refused(tmp_path: Path, tiny_checkpoint: Path) -> None:
    """Those of the first Gemma have Llama's names, and weights less one."""
    shutil.copy(tiny_checkpoint / "tokenizer.json", tmp_path)
    AutoModelForCausalLM.from_config(AutoConfig.for_model("gemma", **SMALL)).save_pretrained(tmp_path)
    with pytest.raises(ExportError, match="of the type 'gemma' cannot be exported"):
        quantize(open_checkpoint(str(tmp_path)), "int8")


def test_every_family_of_decoders_says_which_norms_it_has() -> None:
    families = {name: entry.load().FAMILY for name, entry in FAMILIES.items()}
    decoders = {name for name, family in families.items() if family.layers is not None}
    assert {"llama", "gemma3_text"} <= decoders
    assert decoders == {name for name, family in families.items() if family.norms is not None}


def test_a_family_that_does_not_say_is_refused() -> None:
    with pytest.raises(ExportError, match="Smoothing needs to know which norms .* the family t5 does not say"):
        norms_of("t5", "Smoothing")
