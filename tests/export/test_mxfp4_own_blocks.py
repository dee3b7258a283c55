"""A folder's experts in MXFP4 stay in 4 bits with `--weights gguf`: the blocks of a GGUF file of the same weights."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gguf_files
import numpy as np
import pytest
import torch
from gguf import GGMLQuantizationType as Type
from gguf import quants
from gguf_files import GPT_OSS, tiny_model, write_gguf
from mxfp4_folders import write_mxfp4
from safetensors.torch import load_file, save_file

import edge
from edge.bundle import Bundle
from edge.export.checkpoint import open_checkpoint
from edge.export.facts.experts import EXPERT_PROJECTIONS, expert_name, stack_name
from edge.export.facts.tensors import GgufTensor, QTensor, matrices
from edge.export.quantize import quantize
from edge.export.quantize.method import Options
from edge.export.reference.in_torch import TorchLogits, load_torch
from edge.gguf_parts import GGUF
from edge.runtime.check.perplexity import EngineLogits, compare
from edge.runtime.load import open_engine

EXPERTS, LAYERS = 4, 2
SIZES = GPT_OSS | {
    **{"hidden_size": 256, "num_attention_heads": 4, "head_dim": 64, "num_hidden_layers": LAYERS},
    **{"num_local_experts": EXPERTS, "intermediate_size": 96},
}
# Of what is no expert's, a type that the kernels do not know: the file's becomes 8-bit blocks, too.
OTHERS = ("attn_q.w", "attn_k.w", "attn_v.w", "attn_output.w", "token_embd.w", "output.w")
TYPES = {"exps.weight": Type.MXFP4} | dict.fromkeys(OTHERS, Type.IQ3_S)
BLOCK = "model.layers.1.mlp"


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(gguf_files.SIZES, Type.IQ3_S, 5e-4)  # of scales, for weights as large as the model's
        return write_gguf(tmp_path_factory.mktemp("mxfp4") / "m.gguf", tiny_model("gpt_oss", **SIZES), types=TYPES)


@pytest.fixture(scope="module")
def folder(file: Path) -> Path:
    """A folder with the weights of the file."""
    read, folder = open_checkpoint(str(file)), file.with_name("oss")
    plain = (name for name in matrices(read) if ".experts." not in name)
    write_mxfp4(folder, tiny_model("gpt_oss", **SIZES), {name: torch.from_numpy(read.read(name)) for name in plain})
    (folder / "tokenizer.json").write_text(read.tokenizer.json)
    return folder


def export(source: Path, target: Path, weights: str = GGUF, **options: Any) -> Bundle:
    return edge.export(source, target, weights=weights, max_context=64, **{"effort": "quick"} | options)


def test_the_blocks_are_those_of_the_file_and_have_the_weights_of_the_folder(file: Path, folder: Path) -> None:
    one, other = open_checkpoint(str(folder)), open_checkpoint(str(file))
    for member in EXPERT_PROJECTIONS:
        name = stack_name(BLOCK, member)
        found, expected = (each.gguf_tensor(name, in_place=False) for each in (one, other))
        assert found is not None and expected is not None
        assert np.array_equal(found.raw, expected.raw)
        assert (found.columns, found.type, found.method, found.bits) == (
            expected.columns, expected.type, expected.method, expected.bits,
        )  # fmt: skip
        assert (found.block_size, found.heads, found.place) == (32, 0, None)
        values = quants.dequantize(found.raw, Type.MXFP4)
        assert np.array_equal(values, np.concatenate([one.read(expert_name(BLOCK, i, member)) for i in range(EXPERTS)]))


@pytest.mark.usefixtures("library")
def test_a_bundle_of_the_folder_answers_as_that_of_the_file_and_as_torch_does(
    file: Path, folder: Path, tmp_path: Path
) -> None:
    bundles = [export(source, tmp_path / f"{source.name}.edge") for source in (folder, file)]
    assert [bundle.manifest.weights for bundle in bundles] == [GGUF, GGUF] and not bundles[0].manifest.external
    engines = [open_engine(bundle) for bundle in bundles]
    text = np.random.default_rng(0).integers(0, 250, 60)
    rows = [engine.step(engine.new_cache(), text, np.arange(60)).copy() for engine in engines]
    assert np.array_equal(*rows)
    reference = TorchLogits(load_torch(open_checkpoint(str(folder))))
    assert compare(reference, EngineLogits(engines[0], 60), [text]).kl_mean < 2e-3


@pytest.mark.usefixtures("library")
def test_experts_take_half_of_what_they_take_in_8_bits_and_the_rest_the_same(folder: Path, tmp_path: Path) -> None:
    said: list[str] = []
    own = export(folder, tmp_path / "own.edge", effort="normal", draft_text=0, say=said.append)
    assert own.manifest.quality["kl_mean"] < 0.02 and not [line for line in said if "quantized anew" in line]
    eight = export(folder, tmp_path / "eight.edge", "keep")
    bits = []
    for bundle in (own, eight):
        groups = {group.name: group for group in bundle.manifest.groups}
        experts, biases = groups["experts"], LAYERS * EXPERTS * (2 * 96 + 256)
        assert (experts.method, experts.block_size) == ("MXFP4", 32)
        bits.append(8 * (experts.bytes - 4 * biases) / (experts.parameters - biases))
        assert {groups[name].method for name in ("attention", "embedding", "head")} == {"rtn"}
    assert bits == [4.25, 9]
    assert own.size("weights.bin") < eight.size("weights.bin")


def test_a_layer_that_is_not_all_in_mxfp4_is_stored_in_8_bits(folder: Path, tmp_path: Path) -> None:
    for path in folder.iterdir():
        (tmp_path / path.name).write_bytes(path.read_bytes())
    tensors, name = load_file(folder / "model.safetensors"), f"{BLOCK}.experts.down_proj"
    tensors[name] = 0.1 * torch.randn(EXPERTS, 96, 256)
    for part in ("blocks", "scales"):
        del tensors[f"{name}_{part}"]
    save_file(tensors, tmp_path / "model.safetensors")
    made = quantize(open_checkpoint(str(tmp_path)), GGUF, Options())
    assert isinstance(made[stack_name("model.layers.0.mlp", "down_proj")], GgufTensor)
    assert stack_name(BLOCK, "gate_proj") not in made
    for member in EXPERT_PROJECTIONS:
        matrix = made[expert_name(BLOCK, 3, member)]
        assert isinstance(matrix, QTensor) and matrix.bits == 8
