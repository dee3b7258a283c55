"""A model is found under whatever names wrappers and trainers left its tensors, and a head is tied where only a
rounding tells it from the embedding."""

from __future__ import annotations

import json
import random
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from encoder_decoder_configs import CONFIGS, model_of
from gguf_files import tiny_model
from safetensors.torch import load_file, save_file

from edge.errors import CheckpointError
from edge.export.checkpoint import open_checkpoint

PREFIXES = ["_orig_mod.", "module.", "base_model.model.", "language_model.", "model.", "0.auto_model.", "net.module."]
DECODERS = ["llama", "qwen3", "phi3", "gemma2", "gemma3_text"]


def renamed(folder: Path, rename: dict[str, str] | None = None, prefix: str = "") -> None:
    tensors = load_file(folder / "model.safetensors")
    names = rename or {name: prefix + name for name in tensors}
    save_file({names[name]: tensor for name, tensor in tensors.items()}, folder / "model.safetensors")


def same_model(folder: Path, expected: dict[str, np.ndarray]) -> None:
    checkpoint = open_checkpoint(str(folder))
    assert set(checkpoint.names()) == set(expected)
    for name, values in expected.items():
        assert np.array_equal(checkpoint.read(name), values)


def values_of(folder: Path) -> dict[str, np.ndarray]:
    checkpoint = open_checkpoint(str(folder))
    return {name: checkpoint.read(name) for name in checkpoint.names()}


def some_prefix(seed: int) -> str:
    """A few names that a wrapper may have, joined."""
    choose = random.Random(seed)
    words = ["module", "model", "_orig_mod", "base_model", "language_model", "student", "0", "transformer", "net_1"]
    return "".join(f"{choose.choice(words)}." for _ in range(choose.randint(1, 4)))


@pytest.mark.parametrize("prefix", [*PREFIXES, *map(some_prefix, range(8))])
@pytest.mark.parametrize("tied", [True, False])
def test_a_prefix_that_all_tensors_share_is_left_out(prefix: str, tied: bool, tmp_path: Path) -> None:
    tiny_model("llama", tie_word_embeddings=tied, num_hidden_layers=2).save_pretrained(tmp_path)
    expected = values_of(tmp_path)
    renamed(tmp_path, prefix=prefix)
    same_model(tmp_path, expected)


@pytest.mark.parametrize("model_type", [*DECODERS[1:], *CONFIGS])
def test_every_familys_prefix_is_left_out(model_type: str, tmp_path: Path) -> None:
    small = {"head_dim": 32} if model_type.startswith("gemma") else {}
    model = tiny_model(model_type, num_hidden_layers=2, **small) if model_type in DECODERS else model_of(model_type)
    model.save_pretrained(tmp_path)
    expected = values_of(tmp_path)
    renamed(tmp_path, prefix=random.Random(model_type).choice(PREFIXES))
    same_model(tmp_path, expected)


@pytest.mark.parametrize("wrapper", ["_orig_mod", "_fsdp_wrapped_module", "_checkpoint_wrapped_module"])
def test_what_wraps_layers_is_left_out_wherever_it_is(wrapper: str, tmp_path: Path) -> None:
    tiny_model("llama", num_hidden_layers=2).save_pretrained(tmp_path)
    expected = values_of(tmp_path)
    names = load_file(tmp_path / "model.safetensors")
    renamed(tmp_path, {name: name.replace(".mlp.", f".{wrapper}.mlp.{wrapper}.") for name in names})
    same_model(tmp_path, expected)


def test_a_base_model_under_a_prefix_is_found(tmp_path: Path) -> None:
    model = tiny_model("llama", tie_word_embeddings=True, num_hidden_layers=2)
    model.save_pretrained(tmp_path)
    expected = values_of(tmp_path)
    names = {name: name.replace("model.", "module.", 1) for name in load_file(tmp_path / "model.safetensors")}
    renamed(tmp_path, names)
    same_model(tmp_path, expected)


def test_a_head_outside_the_prefix_is_found(tmp_path: Path) -> None:
    tiny_model("llama", num_hidden_layers=2).save_pretrained(tmp_path)
    expected = values_of(tmp_path)
    tensors = load_file(tmp_path / "model.safetensors")
    renamed(tmp_path, {name: name if name == "lm_head.weight" else f"backbone.{name}" for name in tensors})
    same_model(tmp_path, expected)


def test_two_models_in_one_file_are_refused(tmp_path: Path) -> None:
    tiny_model("llama", num_hidden_layers=2).save_pretrained(tmp_path)
    tensors = load_file(tmp_path / "model.safetensors")
    both = {f"{who}.{name}": tensor.clone() for who in ("student", "teacher") for name, tensor in tensors.items()}
    save_file(both, tmp_path / "model.safetensors")
    with pytest.raises(CheckpointError, match=r"holds the model twice, under 'student\.' and under 'teacher\.'"):
        open_checkpoint(str(tmp_path))


def test_a_tensor_that_is_missing_under_a_prefix_is_named(tmp_path: Path) -> None:
    tiny_model("llama", num_hidden_layers=2).save_pretrained(tmp_path)
    renamed(tmp_path, prefix="module.")
    tensors = load_file(tmp_path / "model.safetensors")
    del tensors["module.model.layers.1.mlp.up_proj.weight"]
    save_file(tensors, tmp_path / "model.safetensors")
    with pytest.raises(CheckpointError, match=r"lacks the tensor 'model\.layers\.1\.mlp\.up_proj\.weight'"):
        open_checkpoint(str(tmp_path))


@pytest.mark.parametrize("stored", [torch.bfloat16, torch.float16])
def test_a_head_that_is_another_rounding_of_the_embedding_stays_tied_and_that_is_said(
    stored: torch.dtype, tmp_path: Path
) -> None:
    tiny_model("llama", tie_word_embeddings=True).save_pretrained(tmp_path)
    tensors = load_file(tmp_path / "model.safetensors")
    head = tensors["model.embed_tokens.weight"].to(stored)
    save_file({**tensors, "lm_head.weight": head}, tmp_path / "model.safetensors")
    said: list[str] = []
    checkpoint = open_checkpoint(str(tmp_path), say=said.append)
    assert "lm_head.weight" not in checkpoint.names()
    assert checkpoint.config["tie_word_embeddings"] is True
    assert len(said) == 1 and said[0].startswith("The head lm_head.weight differs from the embedding")
    assert "by a rounding alone" in said[0]


def test_a_head_that_was_trained_is_one_of_its_own(tmp_path: Path) -> None:
    tiny_model("llama", tie_word_embeddings=True).save_pretrained(tmp_path)
    tensors = load_file(tmp_path / "model.safetensors")
    head = tensors["model.embed_tokens.weight"].clone()
    head[-1, -1] *= 1.02
    save_file({**tensors, "lm_head.weight": head}, tmp_path / "model.safetensors")
    said: list[str] = []
    checkpoint = open_checkpoint(str(tmp_path), say=said.append)
    assert np.array_equal(checkpoint.read("lm_head.weight"), head.numpy())
    assert (checkpoint.config["tie_word_embeddings"], said) == (False, [])


def test_an_adapter_that_was_saved_with_its_base_is_refused_by_name(tmp_path: Path, tiny_checkpoint: Path) -> None:
    shutil.copytree(tiny_checkpoint, tmp_path / "m")
    tensors = load_file(tmp_path / "m" / "model.safetensors")
    prefix = "base_model.model."
    changed = {prefix + name.replace("q_proj.", "q_proj.base_layer."): tensor for name, tensor in tensors.items()}
    changed[f"{prefix}model.layers.0.self_attn.q_proj.lora_A.default.weight"] = torch.zeros(4, 64)
    save_file(changed, tmp_path / "m" / "model.safetensors")
    assert json.loads((tmp_path / "m" / "config.json").read_text())["model_type"] == "llama"
    with pytest.raises(CheckpointError, match="of a LoRA adapter next to its base; merge the two"):
        open_checkpoint(str(tmp_path / "m"))
