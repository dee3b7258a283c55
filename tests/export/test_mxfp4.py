"""MXFP4 experts of gpt-oss, in a folder and in a GGUF file, are what transformers makes of them, in bundles that keep
them, too."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from gguf import GGMLQuantizationType as Type
from gguf import quants
from gguf_files import GPT_OSS, tiny_model, write_gguf
from mxfp4_folders import write_mxfp4
from safetensors.torch import load_file, save_file
from transformers.integrations.mxfp4 import convert_moe_packed_tensors

import edge
from edge.errors import CheckpointError
from edge.export.checkpoint import open_checkpoint
from edge.export.facts.experts import STACKED, WHOLE, expert_name, member_of, stack_name
from edge.export.facts.tensors import GgufTensor, QTensor
from edge.export.quantize import quantize
from edge.export.quantize.method import Options


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory, tiny_checkpoint: Path) -> Path:
    folder = tmp_path_factory.mktemp("mxfp4") / "oss"
    shutil.copytree(tiny_checkpoint, folder)
    tokens = json.loads((folder / "config.json").read_text())
    named = {name: tokens[name] for name in ("vocab_size", "bos_token_id", "eos_token_id", "pad_token_id")}
    return write_mxfp4(folder, tiny_model("gpt_oss", **GPT_OSS | named))


def test_experts_are_those_that_transformers_makes(folder: Path) -> None:
    checkpoint, tensors = open_checkpoint(str(folder)), load_file(folder / "model.safetensors")
    for name in (name.removesuffix("_blocks") for name in tensors if name.endswith("_blocks")):
        made = convert_moe_packed_tensors(tensors[f"{name}_blocks"], tensors[f"{name}_scales"], dtype=torch.float32)
        match = WHOLE.fullmatch(name)
        assert match
        members = STACKED[match[2]]
        for i, expert in enumerate(made.numpy()):
            for place, member in enumerate(members):
                weight = expert_name(match[1], i, member)
                expected = member_of(expert, place, len(members), turned=True)
                assert np.array_equal(checkpoint.read(weight), expected)
                assert np.array_equal(checkpoint.read(weight, slice(3, 9)), expected[3:9])
                blocks = checkpoint.blocks(weight)
                assert blocks is not None and np.array_equal(blocks.dequantize(), expected)


def test_a_bundle_keeps_them_and_int4_rounds_them(folder: Path, tmp_path: Path) -> None:
    bundle = edge.export(folder, tmp_path / "x.edge")
    assert bundle.manifest.weights == "keep" and bundle.manifest.quality["kl_mean"] < 0.02
    group = next(group for group in bundle.manifest.groups if group.name == "experts")
    assert (group.method, int(group.bits), group.block_size) == ("MXFP4", 8, 32)  # and some for biases
    four = edge.export(folder, tmp_path / "y.edge", weights="int4")
    assert four.manifest.quality["kl_mean"] < 0.5


def test_those_of_a_gguf_file_are_kept_bit_for_bit(tmp_path: Path) -> None:
    model = tiny_model("gpt_oss", **GPT_OSS)
    types = {"exps.weight": Type.MXFP4, "attn_output.w": Type.Q8_0}
    file = open_checkpoint(str(write_gguf(tmp_path / "m.gguf", model, types=types)))
    down = model.model.layers[2].mlp.experts.down_proj[1].detach().T.contiguous().numpy()
    expected = quants.dequantize(quants.quantize(down, Type.MXFP4), Type.MXFP4)
    matrix = quantize(file, "keep", Options())[expert_name("model.layers.2.mlp", 1, "down_proj")]
    assert isinstance(matrix, QTensor) and np.array_equal(matrix.dequantize(), expected)
    matrix = quantize(file, "gguf", Options())[stack_name("model.layers.2.mlp", "down_proj")]
    assert isinstance(matrix, GgufTensor) and np.array_equal(
        quants.dequantize(matrix.raw[96:192], Type.MXFP4), expected
    )


@pytest.mark.parametrize(
    ("exponent", "largest", "held"),
    [(252, 7, True), (253, 7, False), (253, 5, True), (254, 5, False), (254, 3, True), (255, 15, False)],
)
def test_a_block_of_a_gguf_file_that_no_float_holds_is_refused(
    tmp_path: Path, exponent: int, largest: int, held: bool
) -> None:
    """The largest of a block's values is one of 16, by its number."""
    block = np.array([exponent, largest, *[0x11] * 15], np.uint8)
    model = tiny_model("gpt_oss", **GPT_OSS)
    path = write_gguf(tmp_path / "m.gguf", model, types={"exps.weight": Type.MXFP4})
    name = expert_name("model.layers.2.mlp", 1, "down_proj")
    place = open_checkpoint(str(path)).header.tensors["blk.2.ffn_down_exps.weight"].offset  # type: ignore[attr-defined]
    with path.open("r+b") as file:
        file.seek(place + 96 * 2 * 17)  # the second expert's first block
        file.write(block.tobytes())
    file = open_checkpoint(str(path))
    if not held:
        with pytest.raises(CheckpointError, match="holds NaN or infinity"):
            file.blocks(name)
        return
    blocks = file.blocks(name)
    assert blocks is not None and np.array_equal(blocks.dequantize(), file.read(name))


@pytest.mark.parametrize(
    ("part", "change", "reason"),
    [
        ("scales", None, "lacks the tensor"),
        ("blocks", lambda t: t[..., :8].contiguous(), "of shape"),
        ("scales", lambda t: t[:, :-1].contiguous(), "of shape"),
        ("scales", lambda t: torch.full_like(t, 255), "no numbers"),
        ("scales", lambda t: torch.full_like(t, 254), "too large"),
        ("scales", lambda t: torch.full_like(t, 253), "too large"),
        ("blocks", lambda t: t.float(), "F32"),
    ],
)
def test_parts_that_do_not_fit_are_refused(
    folder: Path, tmp_path: Path, part: str, change: object, reason: str
) -> None:
    for file in folder.iterdir():
        (tmp_path / file.name).write_bytes(file.read_bytes())
    tensors = load_file(folder / "model.safetensors")
    name = f"model.layers.0.mlp.experts.down_proj_{part}"
    tensor = tensors.pop(name)
    if callable(change):
        tensors[name] = change(tensor)
    save_file(tensors, tmp_path / "model.safetensors")
    with pytest.raises(CheckpointError, match=reason):
        checkpoint = open_checkpoint(str(tmp_path))
        checkpoint.read(expert_name("model.layers.0.mlp", 0, "down_proj"))
    with pytest.raises(CheckpointError, match=reason):
        checkpoint = open_checkpoint(str(tmp_path))
        checkpoint.gguf_tensor(stack_name("model.layers.0.mlp", "down_proj"), in_place=False)
