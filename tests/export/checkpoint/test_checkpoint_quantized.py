"""Weights that others have quantized are what their quantizer means by them, integers that fit stay as they are, and
what does not fit together is refused in a sentence."""

from __future__ import annotations

import json
import random
import shutil
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import quantized_folders as forms
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM

from edge.errors import CheckpointError
from edge.export.checkpoint import open_checkpoint
from edge.export.facts.tensors import QTensor
from edge.export.quantize import quantize
from edge.export.quantize.method import Options
from edge.export.reference.in_torch import load_torch

GPTQ = {"quant_method": "gptq", "bits": 4, "group_size": 32, "desc_act": False}
AWQ = {"quant_method": "awq", "bits": 4, "group_size": 32, "version": "gemm", "zero_point": True}
BNB = {"quant_method": "bitsandbytes", "load_in_8bit": True}
BITNET = {"quant_method": "bitnet", "quantization_mode": "offline"}
FP8 = {"quant_method": "fp8", "activation_scheme": "dynamic", "weight_block_size": [32, 32]}


def compressed(form: str, **weights: Any) -> dict[str, Any]:
    return {
        "quant_method": "compressed-tensors",
        "format": form,
        "config_groups": {"group_0": {"targets": ["Linear"], "weights": weights}},
    }


CASES: dict[str, tuple[Callable[[np.ndarray], forms.Made], dict[str, Any], tuple[int, int] | None]] = {
    # name: how a matrix is written, what config.json says, bits and block that it keeps
    "GPTQ": (forms.gptq, GPTQ, (4, 32)),
    "GPTQ v2": (partial(forms.gptq, v2=True), {**GPTQ, "checkpoint_format": "gptq_v2"}, (4, 32)),
    "GPTQ with act-order": (partial(forms.gptq, act_order=True), {**GPTQ, "desc_act": True}, None),
    "GPTQ without a g_idx": (partial(forms.gptq, with_index=False), GPTQ, (4, 32)),
    "GPTQ by rows": (partial(forms.gptq, group=-1), {**GPTQ, "group_size": -1}, (4, 128)),
    "GPTQ in groups of 16": (partial(forms.gptq, group=16), {**GPTQ, "group_size": 16}, (4, 16)),
    "GPTQ in groups of 8": (partial(forms.gptq, group=8), {**GPTQ, "group_size": 8}, None),
    "GPTQ, symmetric": (partial(forms.gptq, symmetric=True), {**GPTQ, "sym": True}, (4, 32)),
    "GPTQ in 2 bits": (partial(forms.gptq, bits=2), {**GPTQ, "bits": 2}, (4, 32)),
    "GPTQ in 3 bits": (partial(forms.gptq, bits=3), {**GPTQ, "bits": 3}, (4, 32)),
    "GPTQ in 8 bits": (partial(forms.gptq, bits=8), {**GPTQ, "bits": 8}, (8, 32)),
    "GPTQ with other bits than most": (partial(forms.gptq, bits=8), GPTQ, (8, 32)),
    "AWQ": (forms.awq, AWQ, (4, 32)),
    "AWQ as llm-awq says it": (forms.awq, {"quant_method": "awq", "w_bit": 4, "q_group_size": 32}, (4, 32)),
    "AWQ by rows": (partial(forms.awq, group=-1), {**AWQ, "group_size": -1}, (4, 128)),
    "packed": (forms.packed_integers, compressed("pack-quantized", num_bits=4, group_size=32), (4, 32)),
    "packed with zero points": (
        partial(forms.packed_integers, symmetric=False),
        compressed("pack-quantized", num_bits=4, group_size=32), (4, 32),
    ),
    "packed by rows": (partial(forms.packed_integers, group=-1), compressed("pack-quantized", num_bits=4), (4, 128)),
    "packed in 8 bits": (
        partial(forms.packed_integers, bits=8), compressed("pack-quantized", num_bits=8, group_size=32), (8, 32)
    ),
    "packed in 3 bits": (
        partial(forms.packed_integers, bits=3, symmetric=False),
        compressed("pack-quantized", num_bits=3, group_size=32), (4, 32),
    ),
    "packed with act-order": (
        partial(forms.packed_integers, act_order=True), compressed("pack-quantized", num_bits=4, group_size=32), None
    ),
    "int8 by rows": (forms.int8, compressed("int-quantized", num_bits=8), (8, 64)),
    "int8 with zero points": (partial(forms.int8, symmetric=False), compressed("int-quantized", num_bits=8), (8, 64)),
    "int8 with one scale": (partial(forms.int8, per_tensor=True), compressed("naive-quantized", num_bits=8), (8, 64)),
    "FP8 in blocks": (partial(forms.fp8, block=(32, 32)), FP8, None),
    "FP8 in blocks that do not divide it": (
        partial(forms.fp8, block=(48, 40)), {**FP8, "weight_block_size": [48, 40]}, None
    ),
    "FP8 by rows": (partial(forms.fp8, name="weight_scale"), {"quant_method": "fbgemm_fp8"}, None),
    "FP8 of llm-compressor": (partial(forms.fp8, name="weight_scale"), compressed("float-quantized", num_bits=8), None),
    "FP8 of llm-compressor in blocks": (
        partial(forms.fp8, block=(64, 32), name="weight_scale"),
        compressed("float-quantized", num_bits=8, block_structure=[64, 32]), None,
    ),
    "BitNet": (forms.bitnet, {**BITNET, "linear_class": "autobitlinear"}, (2, 128)),
    "BitNet whose scales divide": (partial(forms.bitnet, divides=True), BITNET, (2, 128)),
    "bitsandbytes' int8": (forms.bnb8, BNB, (8, 64)),
    "nf4": (forms.nf4, {"quant_method": "bitsandbytes", "load_in_4bit": True}, None),
    "nf4 with nested scales": (
        partial(forms.nf4, nested=True), {"quant_method": "bitsandbytes", "load_in_4bit": True}, None
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_a_quantized_weight_is_read_as_its_quantizer_means_it(name: str, tmp_path: Path, tiny_checkpoint: Path) -> None:
    make, config, kept = CASES[name]
    weights = forms.write_quantized(tmp_path / "q", tiny_checkpoint, make, config)
    checkpoint = open_checkpoint(str(tmp_path / "q"))
    for weight, expected in weights.items():
        found = checkpoint.read(weight)
        assert checkpoint.shape(weight) == expected.shape
        np.testing.assert_allclose(found, expected, rtol=1e-6, atol=1e-7)
        for rows in (slice(0, 1), slice(3, 17), slice(len(found) - 5, None)):
            assert np.array_equal(checkpoint.read(weight, rows), found[rows])
        blocks, form = checkpoint.blocks(weight), checkpoint.form(weight)
        assert (blocks is None) is (form is None) is (kept is None)
        if blocks is not None:
            assert form is not None
            assert (blocks.bits, blocks.block_size) == (form.bits, form.block_size) == kept
            np.testing.assert_array_equal(blocks.dequantize(), found)
    model = AutoModelForCausalLM.from_pretrained(tiny_checkpoint)
    with torch.no_grad():
        for weight, expected in weights.items():
            model.get_parameter(weight).copy_(torch.tensor(expected))
        ids = torch.arange(24)[None] * 5 % 300
        assert torch.allclose(load_torch(checkpoint)(ids).logits, model(ids).logits, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(
    "name", ["GPTQ", "GPTQ by rows", "AWQ", "packed with zero points", "int8 by rows", "nf4", "BitNet"]
)
def test_a_bundle_keeps_integers_that_fit_and_answers_as_the_dequantized_model(
    name: str, tmp_path: Path, tiny_checkpoint: Path
) -> None:
    import edge

    make, config, kept = CASES[name]
    weights = forms.write_quantized(tmp_path / "q", tiny_checkpoint, make, config)
    said: list[str] = []
    bundle = edge.export(tmp_path / "q", tmp_path / "q.edge", effort="quick", say=said.append)
    assert bundle.manifest.weights == ("keep" if kept else "int8")
    assert bundle.manifest.quality["kl_mean"] < 0.05
    assert any("quantized anew" in each for each in said) is (kept is None)
    if kept:
        checkpoint = open_checkpoint(str(tmp_path / "q"))
        stored = quantize(checkpoint, "keep", Options(effort="quick"))
        for weight in weights:
            matrix = stored[weight]
            assert isinstance(matrix, QTensor)
            np.testing.assert_array_equal(matrix.dequantize(), checkpoint.read(weight))


def test_without_an_effort_integers_are_kept_too_unless_more_is_asked_for(
    tmp_path: Path, tiny_checkpoint: Path
) -> None:
    from edge.export.request.choices import choose

    forms.write_quantized(tmp_path / "q", tiny_checkpoint, forms.gptq, GPTQ)
    checkpoint = open_checkpoint(str(tmp_path / "q"))
    chosen = {
        (quick, anew): choose(checkpoint, None, None, None, quick=quick, anew=anew).weights
        for quick in (False, True)
        for anew in (False, True)
    }
    assert chosen == {(False, False): "keep", (True, False): "keep", (False, True): "int4", (True, True): "int8"}


def test_matrices_of_one_product_share_the_narrowest_block_and_the_most_bits(
    tmp_path: Path, tiny_checkpoint: Path
) -> None:
    """As where a quantizer gave keys other bits and groups than queries."""
    parts = iter([partial(forms.gptq, group=64), partial(forms.gptq, bits=8, group=16), forms.gptq] * 100)
    weights = forms.write_quantized(tmp_path / "q", tiny_checkpoint, lambda w: next(parts)(w), GPTQ)
    checkpoint = open_checkpoint(str(tmp_path / "q"))
    stored = quantize(checkpoint, "keep", Options())
    for layer in range(2):
        for members in (("q_proj", "k_proj", "v_proj"), ("gate_proj", "up_proj")):
            names = [name for name in weights if f"layers.{layer}." in name and any(m in name for m in members)]
            matrices = [stored[name] for name in names]
            assert len({(matrix.bits, matrix.block_size) for matrix in matrices}) == 1  # type: ignore[union-attr]
            for name, matrix in zip(names, matrices, strict=True):
                np.testing.assert_array_equal(matrix.dequantize(), checkpoint.read(name))  # type: ignore[union-attr]


@pytest.mark.parametrize(("file", "case", "said"), [
    ("quantize_config.json", "GPTQ", {"bits": 4, "group_size": 32, "desc_act": False}),
    ("quant_config.json", "AWQ", {"w_bit": 4, "q_group_size": 32, "version": "GEMM", "zero_point": True}),
])  # fmt: skip
def test_a_description_next_to_config_json_is_one(
    file: str, case: str, said: dict[str, Any], tmp_path: Path, tiny_checkpoint: Path
) -> None:
    weights = forms.write_quantized(tmp_path / "q", tiny_checkpoint, CASES[case][0], None)
    (tmp_path / "q" / file).write_text(json.dumps(said))
    checkpoint = open_checkpoint(str(tmp_path / "q"))
    for weight, expected in weights.items():
        np.testing.assert_allclose(checkpoint.read(weight), expected, rtol=1e-6, atol=1e-7)


def test_biases_of_zeros_that_a_quantizer_added_are_passed_over(tmp_path: Path, tiny_checkpoint: Path) -> None:
    def with_bias(w: np.ndarray) -> forms.Made:
        tensors, weight = forms.gptq(w)
        return {**tensors, "bias": torch.zeros(len(w)).half()}, weight

    forms.write_quantized(tmp_path / "q", tiny_checkpoint, with_bias, GPTQ)
    assert not any(name.endswith("bias") for name in open_checkpoint(str(tmp_path / "q")).names())
    change(tmp_path / "q", "model.layers.1.mlp.up_proj.bias", torch.ones(128).half())
    assert "for which its configuration has no place" in refusal(tmp_path / "q")


def change(folder: Path, name: str, tensor: torch.Tensor | None) -> None:
    """Replace a tensor of a folder, or take it out."""
    tensors = load_file(folder / "model.safetensors")
    tensors.pop(name, None)
    save_file({**tensors, **({} if tensor is None else {name: tensor})}, folder / "model.safetensors")


def refusal(folder: Path) -> str:
    """The sentence that refuses a folder, or what is read of it."""
    with pytest.raises(CheckpointError) as caught:
        checkpoint = open_checkpoint(str(folder))
        for name in checkpoint.names():
            checkpoint.read(name)
            checkpoint.blocks(name)
    said = str(caught.value)
    assert "\n" not in said and len(said) < 1000
    return said


LEFT = {  # by what the quantizer is known
    "GPTQ": "GPTQ", "AWQ": "GPTQ or AWQ", "packed": "compressed-tensors", "int8 by rows": "FP8 or compressed-tensors",
    "FP8 in blocks": "FP8 in blocks", "bitsandbytes' int8": "bitsandbytes (8 bits)", "nf4": "bitsandbytes (4 bits)",
}  # fmt: skip


@pytest.mark.parametrize("name", LEFT)
def test_tensors_that_no_configuration_describes_are_named_with_their_quantizer(
    name: str, tmp_path: Path, tiny_checkpoint: Path
) -> None:
    forms.write_quantized(tmp_path / "q", tiny_checkpoint, CASES[name][0], None)
    said = refusal(tmp_path / "q")
    assert f"which {LEFT[name]} leaves in the place of a weight, and config.json does not describe it" in said


@pytest.mark.parametrize(("end", "method"), [
    ("mlp.up_proj.weight_scale_2", "NVFP4"), ("mlp.up_proj.W_q", "HQQ"), ("mlp.up_proj.codebooks", "AQLM"),
    ("mlp.up_proj.Qidxs", "QuIP#"), ("mlp.up_proj.q_invperm", "EXL2"), ("mlp.up_proj.trellis", "EXL3"),
    ("mlp.up_proj.weight._data", "quanto or torchao"), ("mlp.experts.down_proj_blocks", "MXFP4"),
    ("mlp.up_proj.weight_scale", "FP8 or compressed-tensors"),
])  # fmt: skip
def test_what_other_quantizers_leave_is_named_even_next_to_whole_weights(
    end: str, method: str, tmp_path: Path, tiny_checkpoint: Path
) -> None:
    """A float weight next to scales is not the weight that was trained."""
    shutil.copytree(tiny_checkpoint, tmp_path / "q")
    change(tmp_path / "q", f"model.layers.0.{end}", torch.ones(3))
    assert f"which {method} leaves" in refusal(tmp_path / "q")


@pytest.mark.parametrize(("config", "part"), [
    ({"quant_method": "aqlm"}, "already quantized by aqlm, and read are awq, bitnet, bitsandbytes, compressed-tensors"),
    ({"quant_method": "bitnet", "quantization_mode": "online"}, "by BitNet with quantization_mode 'online'"),
    ({"quant_method": "bitnet", "use_rms_norm": True}, "by BitNet with use_rms_norm 'True'"),
    ({"bits": 4}, "already quantized by an unnamed method"),
    ({**GPTQ, "bits": 5}, "by GPTQ with bits '5', and known are 2, 3, 4, 8"),
    ({**GPTQ, "bits": "4"}, "gives bits of its GPTQ weights as '4', which is not a whole number"),
    ({**GPTQ, "checkpoint_format": "marlin"}, "with checkpoint_format 'marlin'"),
    ({**AWQ, "version": "gemv"}, "by AWQ with version 'gemv', and gemm is known"),
    ({**AWQ, "bits": 3}, "by AWQ with bits '3'"),
    (compressed("nvfp4-pack-quantized"), "with format 'nvfp4-pack-quantized'"),
    (compressed("marlin-24"), "with format 'marlin-24'"),
    ({**compressed("int-quantized"), "sparsity_config": {"format": "sparse-24-bitmask"}}, "'sparse-24-bitmask'"),
    ({**compressed("int-quantized"), "transform_config": {"a": 1}}, "'transform_config'"),
    ({**compressed("int-quantized"), "config_groups": [1]}, "gives config_groups as '[1]'"),
    ({"quant_method": "fp8", "fmt": "e5m2"}, "by FP8 with fmt 'e5m2'"),
    ({"quant_method": "modelopt", "quant_algo": "NVFP4"}, "with quant_algo 'NVFP4'"),
])  # fmt: skip
def test_what_is_not_known_is_refused_by_name(
    config: dict[str, Any], part: str, tmp_path: Path, tiny_checkpoint: Path
) -> None:
    shutil.copytree(tiny_checkpoint, tmp_path / "q")
    path = tmp_path / "q" / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "quantization_config": config}))
    assert part in refusal(tmp_path / "q")


MODULE = "model.layers.1.mlp.down_proj"  # of 64 outputs and 128 inputs


def wrong_parts() -> dict[str, tuple[str, str, Callable[[torch.Tensor], torch.Tensor | None]]]:
    """name: the case, the part, and what becomes of it."""

    def like(shape: tuple[int, ...]) -> Callable[[torch.Tensor], torch.Tensor]:
        return lambda tensor: torch.ones(shape).to(tensor.dtype)

    def first(value: float) -> Callable[[torch.Tensor], torch.Tensor]:
        def changed(tensor: torch.Tensor) -> torch.Tensor:
            tensor = tensor.clone()
            tensor.view(-1)[0] = value
            return tensor

        return changed

    def said(**changes: Any) -> Callable[[torch.Tensor], torch.Tensor]:
        def changed(tensor: torch.Tensor) -> torch.Tensor:
            state = {**json.loads(bytes(tensor.tolist())), **changes}
            return torch.tensor(list(json.dumps(state).encode()), dtype=torch.uint8)

        return changed

    state = "weight.quant_state.bitsandbytes__nf4"
    found: dict[str, tuple[str, str, Callable[[torch.Tensor], torch.Tensor | None]]] = {
        "a group too high": ("GPTQ with act-order", "g_idx", first(4)),
        "a group below zero": ("GPTQ", "g_idx", first(-1)),
        "a group far too high": ("packed with act-order", "weight_g_idx", first(2**31 - 1)),
        "a short list of groups": ("GPTQ", "g_idx", like((64,))),
        "no zero points": ("GPTQ", "qzeros", lambda _: None),
        "zero points of others": ("GPTQ", "qzeros", like((4, 7))),
        "words that are floats": ("GPTQ", "qweight", lambda tensor: tensor.float()),
        "scales of others": ("AWQ", "scales", like((4, 72))),
        "scales that are integers": ("AWQ", "scales", lambda tensor: tensor.int()),
        "no scales": ("packed", "weight_scale", lambda _: None),
        "a huge shape": ("packed", "weight_shape", lambda _: torch.tensor([1 << 40, 1 << 40])),
        "a negative shape": ("packed", "weight_shape", lambda _: torch.tensor([64, -128])),
        "no shape": ("packed", "weight_shape", lambda _: None),
        "blocks of others": ("FP8 in blocks", "weight_scale_inv", like((2, 5))),
        "FP8 without scales": ("FP8 in blocks", "weight_scale_inv", lambda _: None),
        "rows of others": ("bitsandbytes' int8", "SCB", like((65,))),
        "a table of 15": ("nf4", "weight.quant_map", like((15,))),
        "few scales": ("nf4", "weight.absmax", like((3,))),
        "a state that is none": ("nf4", state, lambda _: torch.ones(30, dtype=torch.uint8)),
        "a state of a huge weight": ("nf4", state, said(shape=[1 << 30, 1 << 30])),
        "a state of endless blocks": ("nf4", state, said(blocksize=1 << 50)),
        "a state without blocks": ("nf4", state, said(blocksize=0)),
        "a state of nested blocks": ("nf4", state, said(nested_blocksize=1 << 50)),
    }
    scales = {
        "GPTQ": "scales", "AWQ": "scales", "packed": "weight_scale", "int8 by rows": "weight_scale",
        "FP8 by rows": "weight_scale", "bitsandbytes' int8": "SCB", "nf4": "weight.absmax",
    }  # fmt: skip
    for case, part in scales.items():
        for value in (float("nan"), float("inf")):
            found[f"{value} in {case}"] = (case, part, first(value))
    return found


@pytest.mark.parametrize("name", wrong_parts())
def test_parts_that_do_not_fit_are_refused_before_anything_large_is_made(
    name: str, tmp_path: Path, tiny_checkpoint: Path
) -> None:
    case, part, damage = wrong_parts()[name]
    make, config, _ = CASES[case]
    forms.write_quantized(tmp_path / "q", tiny_checkpoint, make, config)
    tensor = load_file(tmp_path / "q" / "model.safetensors")[f"{MODULE}.{part}"]
    change(tmp_path / "q", f"{MODULE}.{part}", damage(tensor))
    said = refusal(tmp_path / "q")
    assert MODULE in said
    reasons = ("does not fit", "lacks the tensor", "NaN or infinity", "does not say", "without")
    assert any(words in said for words in reasons)


@pytest.mark.parametrize("seed", range(20))
def test_whatever_becomes_of_parts_and_settings_is_an_answer_or_a_sentence(
    seed: int, tmp_path: Path, tiny_checkpoint: Path
) -> None:
    choose = random.Random(seed)
    make, config, _ = CASES[choose.choice(sorted(CASES))]
    numbers = [-1, 0, 1, 3, 7, 16, 33, 1 << 31, 1 << 62, 0.5, True, "8", None, [], [1, 2], [1 << 50, 1], {"a": 1}]

    def damaged(value: Any, chance: float) -> Any:
        if choose.random() < chance:
            return choose.choice(numbers)
        return {k: damaged(v, chance) for k, v in value.items()} if isinstance(value, dict) else value

    said = {key: damaged(value, 0.15) for key, value in config.items()} | {"quant_method": config["quant_method"]}
    forms.write_quantized(tmp_path / "q", tiny_checkpoint, make, said)
    tensors = load_file(tmp_path / "q" / "model.safetensors")
    for name in [name for name in tensors if "_proj." in name and choose.random() < 0.05]:
        tensor = tensors.pop(name)
        kind = choose.randrange(5)
        if kind == 1:
            tensors[name] = tensor[: len(tensor) // 2] if tensor.ndim else tensor
        elif kind == 2:
            tensors[name] = tensor.reshape(-1)
        elif kind == 3:
            tensors[name] = tensor.to(choose.choice([torch.int32, torch.float16, torch.uint8, torch.float32]))
        elif kind == 4:
            tensors[name] = torch.full(tensor.shape, -1, dtype=torch.int16).to(tensor.dtype)
    save_file({name: each.contiguous() for name, each in tensors.items()}, tmp_path / "q" / "model.safetensors")
    try:
        checkpoint = open_checkpoint(str(tmp_path / "q"))
        for name in checkpoint.names():
            assert checkpoint.read(name).shape == checkpoint.shape(name)
            blocks = checkpoint.blocks(name)
            assert (blocks is None) is (checkpoint.form(name) is None)
    except CheckpointError as e:
        assert "\n" not in str(e)
