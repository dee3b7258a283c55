"""A LoRA adapter is merged into its base as peft computes it, and what would not be exact is refused by name."""

from __future__ import annotations

import json
import os
import random
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import quantized_folders as forms
import torch
from peft import LoraConfig, PeftModel, get_peft_model
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM

from edge.errors import CatalogError, CheckpointError
from edge.export.checkpoint import open_checkpoint
from edge.export.reference.in_torch import load_torch

IDS = torch.arange(24)[None] * 5 % 300
CONFIG, WEIGHTS = "adapter_config.json", "adapter_model.safetensors"


def trained(base: Path, folder: Path, *, seed: int = 0, **options: Any) -> torch.Tensor:
    """Write an adapter whose every tensor matters; the logits of the model that peft makes of it and its base."""
    model = AutoModelForCausalLM.from_pretrained(base)
    options = {"r": 4, "lora_alpha": 6, "target_modules": ["q_proj", "v_proj", "down_proj"], **options}
    adapted = get_peft_model(model, LoraConfig(task_type="CAUSAL_LM", **options)).eval()
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, parameter in adapted.named_parameters():
            if parameter.requires_grad:
                noise = torch.randn(parameter.shape, generator=generator)
                factor = "lora" in name and "magnitude" not in name
                parameter.copy_(0.3 * noise if factor else parameter + 0.05 * noise)
        adapted.save_pretrained(str(folder))
        again = PeftModel.from_pretrained(AutoModelForCausalLM.from_pretrained(base), str(folder)).eval()
        return torch.as_tensor(again(IDS).logits)


KINDS: dict[str, dict[str, Any]] = {
    "plain": {},
    "rslora": {"use_rslora": True},
    "dora": {"use_dora": True},
    "all linear": {"target_modules": "all-linear"},
    "ranks by module": {"rank_pattern": {"q_proj": 2, "layers.1.mlp.down_proj": 7}, "alpha_pattern": {"v_proj": 1}},
    "a fan that is no linear's": {"fan_in_fan_out": True},
    "an embedding": {"target_modules": ["q_proj", "embed_tokens"]},
    "a head": {"target_modules": ["q_proj", "lm_head"]},
    "a norm saved whole": {"modules_to_save": ["norm"]},
    "embedding and head saved whole": {"modules_to_save": ["embed_tokens", "lm_head"]},
    "an embedding saved whole": {"modules_to_save": ["embed_tokens"]},
    "gaussian": {"init_lora_weights": "gaussian"},
}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.filterwarnings("ignore")
def test_an_adapter_and_its_base_are_the_model_that_peft_makes_of_them(
    kind: str, tmp_path: Path, tiny_checkpoint: Path
) -> None:
    expected = trained(tiny_checkpoint, tmp_path / "adapter", **KINDS[kind])
    said: list[str] = []
    checkpoint = open_checkpoint(str(tmp_path / "adapter"), say=said.append)
    with torch.no_grad():
        found = load_torch(checkpoint)(IDS).logits
    assert torch.allclose(found, expected, rtol=1e-4, atol=1e-4)
    assert not torch.allclose(found, AutoModelForCausalLM.from_pretrained(tiny_checkpoint)(IDS).logits, atol=0.1)
    assert said[-1].startswith("The adapter adapter (LoRA of rank ") and said[-1].endswith("into its base tiny-llama.")
    for name in checkpoint.names():
        whole = checkpoint.read(name)
        assert whole.shape == checkpoint.shape(name)
        assert np.allclose(checkpoint.read(name, slice(3, 9)), whole[3:9], rtol=1e-5, atol=1e-6)
    assert checkpoint.tokenizer.json == open_checkpoint(str(tiny_checkpoint)).tokenizer.json


@pytest.mark.filterwarnings("ignore")
def test_an_adapters_bundle_answers_as_both_together(tmp_path: Path, tiny_checkpoint: Path) -> None:
    import edge

    trained(tiny_checkpoint, tmp_path / "adapter")
    bundle = edge.export(tmp_path / "adapter", tmp_path / "a.edge", effort="quick")
    assert bundle.manifest.name == "adapter"
    assert bundle.manifest.quality["kl_mean"] < 0.1


@pytest.fixture
def adapter(tmp_path: Path, tiny_checkpoint: Path) -> Path:
    """An adapter of two matrices, written without peft, that the test may harm. Its base is next to it."""
    shutil.copytree(tiny_checkpoint, tmp_path / "base")
    folder = tmp_path / "adapter"
    folder.mkdir()
    generator = torch.Generator().manual_seed(1)
    tensors = {}
    for layer in range(2):
        start = f"base_model.model.model.layers.{layer}.self_attn.q_proj"
        tensors[f"{start}.lora_A.weight"] = torch.randn(4, 64, generator=generator)
        tensors[f"{start}.lora_B.weight"] = torch.randn(64, 4, generator=generator)
    save_file(tensors, folder / WEIGHTS)
    said = {"peft_type": "LORA", "r": 4, "lora_alpha": 8, "base_model_name_or_path": str(tmp_path / "base")}
    (folder / CONFIG).write_text(json.dumps(said))
    return folder


def tell(folder: Path, **changes: Any) -> None:
    path = folder / CONFIG
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))


def change(folder: Path, name: str, tensor: torch.Tensor | None) -> None:
    tensors = load_file(folder / WEIGHTS)
    tensors.pop(name, None)
    save_file({**tensors, **({} if tensor is None else {name: tensor})}, folder / WEIGHTS)


Q = "base_model.model.model.layers.0.self_attn.q_proj"


def merged(folder: Path, tiny: Path) -> np.ndarray:
    """What the first matrix must be."""
    tensors, name = load_file(folder / WEIGHTS), "model.layers.0.self_attn.q_proj"
    a, b = (next(t for n, t in tensors.items() if f"{name}.lora_{part}" in n) for part in "AB")
    return (load_file(tiny / "model.safetensors")[f"{name}.weight"] + 2 * b @ a).numpy()


@pytest.mark.parametrize("seed", range(6))
def test_an_adapter_is_found_under_whatever_names_it_was_saved(seed: int, adapter: Path, tiny_checkpoint: Path) -> None:
    choose = random.Random(seed)
    expected = merged(adapter, tiny_checkpoint)
    prefix = choose.choice(["", "base_model.model.", "module.base_model.model.", "_orig_mod.base_model.", "x.y.z."])
    middle = choose.choice(["", ".default", ".my_adapter"])
    tensors = {}
    for name, tensor in load_file(adapter / WEIGHTS).items():
        own = name.removeprefix("base_model.model.")
        tensors[prefix + own.replace(".weight", f"{middle}.weight")] = tensor
    if seed % 2:
        (adapter / WEIGHTS).unlink()
        torch.save(tensors, adapter / "adapter_model.bin")
    else:
        save_file(tensors, adapter / WEIGHTS)
    found = open_checkpoint(str(adapter)).read("model.layers.0.self_attn.q_proj.weight")
    assert np.allclose(found, expected, atol=1e-5)


@pytest.mark.parametrize("given", ["absolute", "from the adapter's folder", "from the current folder"])
def test_a_base_is_found_where_the_adapter_says(
    given: str, adapter: Path, tiny_checkpoint: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if given == "from the adapter's folder":
        tell(adapter, base_model_name_or_path="../base")
    elif given == "from the current folder":
        monkeypatch.chdir(adapter.parent)
        tell(adapter, base_model_name_or_path="base")
    found = open_checkpoint(str(adapter)).read("model.layers.0.self_attn.q_proj.weight")
    assert np.allclose(found, merged(adapter, tiny_checkpoint), atol=1e-5)


def test_a_base_and_an_adapter_of_a_hub_are_asked_for_by_their_ids(
    adapter: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folders = {"me/adapter": adapter, "org/base@abc": adapter.parent / "base"}
    asked = []

    def snapshot(hub_id: str, *wanted: object) -> Path:
        asked.append(hub_id)
        return folders[hub_id]

    monkeypatch.setattr("edge.fetch.snapshot", snapshot)
    tell(adapter, base_model_name_or_path="org/base", revision="abc")
    checkpoint = open_checkpoint("me/adapter")
    assert asked == ["me/adapter", "org/base@abc"]
    assert (checkpoint.name, checkpoint.kind) == ("me/adapter", "hub")
    assert checkpoint.notes[-1].endswith("is merged into its base org/base@abc.")


def test_a_base_that_cannot_be_had_is_named(adapter: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def snapshot(hub_id: str, *wanted: object) -> Path:
        raise CatalogError("org/base cannot be fetched from the hub: the hub cannot be reached.")

    monkeypatch.setattr("edge.fetch.snapshot", snapshot)
    tell(adapter, base_model_name_or_path="org/base")
    with pytest.raises(CatalogError, match="is an adapter of 'org/base' .*, which is needed, too: .*cannot be reached"):
        open_checkpoint(str(adapter))
    tell(adapter, base_model_name_or_path="/nowhere/at all")
    with pytest.raises(CheckpointError, match="an adapter of '/nowhere/at all' .* is needed, too: There is no model"):
        open_checkpoint(str(adapter))


@pytest.mark.parametrize(
    "address",
    ["http://127.0.0.1:8765/x.gguf", "https://example.org/x.gguf", "https://huggingface.co/org/base", "ftp://x/y"],
)
def test_an_adapter_leads_to_no_address(adapter: Path, monkeypatch: pytest.MonkeyPatch, address: str) -> None:
    for place in ("edge.download.open_address", "edge.fetch.snapshot"):
        monkeypatch.setattr(place, lambda *_: pytest.fail("something was asked for"))
    tell(adapter, base_model_name_or_path=address)
    with pytest.raises(CheckpointError, match="names the address .* as its base; fetch it"):
        open_checkpoint(str(adapter))


def test_a_base_that_is_quantized_is_dequantized_where_it_changes_and_kept_elsewhere(
    adapter: Path, tiny_checkpoint: Path
) -> None:
    config = {"quant_method": "gptq", "bits": 4, "group_size": 32}
    weights = forms.write_quantized(adapter.parent / "q", tiny_checkpoint, forms.gptq, config)
    expected = merged(adapter, tiny_checkpoint)
    tell(adapter, base_model_name_or_path=str(adapter.parent / "q"))
    checkpoint = open_checkpoint(str(adapter))
    name = "model.layers.0.self_attn.q_proj.weight"
    delta = expected - load_file(tiny_checkpoint / "model.safetensors")[name].numpy()
    assert np.allclose(checkpoint.read(name), weights[name] + delta, atol=1e-5)
    assert checkpoint.form(name) is None and checkpoint.stored_type(name) == "F32"
    assert checkpoint.blocks("model.layers.0.self_attn.k_proj.weight") is not None


def test_a_vocabulary_that_was_made_larger_is(adapter: Path, tiny_checkpoint: Path) -> None:
    before = load_file(tiny_checkpoint / "model.safetensors")["model.embed_tokens.weight"]
    larger = torch.cat([before, torch.ones(7, 64)])
    for name in ("base_model.model.model.embed_tokens.weight", "base_model.model.lm_head.weight"):
        change(adapter, name, larger.clone())
    checkpoint = open_checkpoint(str(adapter))
    assert checkpoint.config["vocab_size"] == len(larger) == checkpoint.shape("model.embed_tokens.weight")[0]
    assert "lm_head.weight" not in checkpoint.names()
    assert load_torch(checkpoint)(IDS).logits.shape[-1] == len(larger)


def test_a_whole_models_folder_with_a_configuration_that_is_left_over_is_a_model(adapter: Path) -> None:
    shutil.copy(adapter / CONFIG, adapter.parent / "base")
    checkpoint = open_checkpoint(str(adapter.parent / "base"))
    assert checkpoint.notes == []


def test_a_bundle_of_an_adapter_is_made_again_when_its_base_changes(adapter: Path) -> None:
    from edge.cli.run.contents import contents_of

    before = contents_of(adapter).sha256
    assert contents_of(adapter).sha256 == before
    path = adapter.parent / "base" / "model.safetensors"
    tensors = load_file(path)
    tensors["model.norm.weight"] += 1
    save_file(tensors, path)
    assert contents_of(adapter).sha256 != before


def refusal(folder: Path) -> str:
    with pytest.raises(CheckpointError) as caught:
        checkpoint = open_checkpoint(str(folder))
        for name in checkpoint.names():
            checkpoint.read(name)
    said = str(caught.value)
    assert "\n" not in said and len(said) < 1000
    return said


@pytest.mark.parametrize(("changes", "part"), [
    ({"peft_type": "LOHA"}, "describes an adapter of LOHA, and LORA is read"),
    ({"peft_type": None}, "an adapter of an unnamed kind"),
    ({"init_lora_weights": "pissa"}, "says init_lora_weights: pissa"),
    ({"init_lora_weights": "olora"}, "says init_lora_weights: olora"),
    ({"init_lora_weights": "loftq"}, "says init_lora_weights: loftq"),
    ({"lora_bias": True}, "says lora_bias: True"),
    ({"layer_replication": [[0, 2], [1, 2]]}, "says layer_replication"),
    ({"alora_invocation_tokens": [1, 2]}, "says alora_invocation_tokens"),
    ({"trainable_token_indices": [3]}, "says trainable_token_indices"),
    ({"target_parameters": ["x"]}, "says target_parameters"),
    ({"use_qalora": True}, "says use_qalora"),
    ({"of_tomorrow": {"a": 1}}, "says of_tomorrow"),
    ({"base_model_name_or_path": None}, "names no base (base_model_name_or_path)"),
    ({"base_model_name_or_path": 7}, "names no base"),
    ({"base_model_name_or_path": "."}, "which is an adapter, too"),
    ({"lora_alpha": "8"}, "gives lora_alpha as '8', which is no number above 0"),
    ({"lora_alpha": float("nan")}, "gives lora_alpha as 'nan'"),
    ({"r": 8}, "are no pair of the rank 8"),
    ({"rank_pattern": {"q_proj": 2}}, "are no pair of the rank 2"),
    ({"rank_pattern": {"(q|k)+$": 2}}, "gives rank_pattern as"),
    ({"alpha_pattern": [1]}, "gives alpha_pattern as [1]"),
    ({"use_dora": True}, "lacks a magnitude of DoRA"),
])  # fmt: skip
def test_what_would_not_be_exact_is_refused_by_name(
    changes: dict[str, Any], part: str, adapter: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(adapter)
    tell(adapter, **changes)
    assert part in refusal(adapter)


@pytest.mark.parametrize(("name", "tensor", "part"), [
    (f"{Q}.lora_B.weight", None, "for which LoRA has no place"),
    (f"{Q}.lora_A.weight", torch.ones(4, 65), "change a matrix of shape [64, 65], and that of the base has [64, 64]"),
    (f"{Q}.lora_A.weight", torch.ones(3, 64), "are no pair of the rank"),
    (f"{Q}.lora_A.weight", torch.ones(64), "are no pair of the rank"),
    (f"{Q}.lora_A.weight", torch.full((4, 64), float("nan")), "holds NaN or infinity"),
    (f"{Q}.lora_A.weight", torch.ones(4, 64, dtype=torch.int32), "is stored as torch.int32"),
    (f"{Q}.lora_A.other.weight", torch.ones(4, 64), "for which LoRA has no place"),
    (f"{Q}.lora_B.bias", torch.ones(64), "for which LoRA has no place"),
    (f"{Q}.lora_magnitude_vector", torch.ones(64), "has a magnitude of DoRA"),
    (f"{Q.replace('0', '7')}.lora_A.weight", torch.ones(4, 64), "for which LoRA has no place"),
    ("base_model.model.score.weight", torch.ones(2, 64), "for which LoRA has no place"),
    ("base_model.model.model.norm.weight", torch.ones(65), "has shape [65], and that of the base [64]"),
    ("base_model.model.lm_head.weight", torch.ones(9, 65), "has shape [9, 65]"),
    ("base_model.model.lm_head.weight", torch.ones(9, 64), "gives embedding and head 9 and"),
    ("base_model.model.model.embed_tokens.token_adapter.trainable_tokens_delta", torch.ones(1, 64), "has no place"),
])  # fmt: skip
def test_tensors_that_are_no_adapter_of_the_base_are_refused(
    name: str, tensor: torch.Tensor | None, part: str, adapter: Path
) -> None:
    change(adapter, name, tensor)
    assert part in refusal(adapter)


def test_an_adapter_without_weights_or_of_nothing_is_refused(adapter: Path) -> None:
    save_file({}, adapter / WEIGHTS)
    assert "holds no tensors of an adapter" in refusal(adapter)
    (adapter / WEIGHTS).unlink()
    assert "holds no weights of its adapter" in refusal(adapter)
    (adapter / CONFIG).write_text("[")
    assert "is not valid JSON" in refusal(adapter)
    os.remove(adapter / CONFIG)  # noqa: PTH107
    assert "holds no config.json" in refusal(adapter)
