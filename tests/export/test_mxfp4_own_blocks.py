"""A folder's experts in MXFP4 stay in 4 bits with `--weights gguf`: the blocks of a GGUF file of the same weights."""

from __future__ import annotations

import json
import os
import subprocess
import sys
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
from edge.errors import ExportError
from edge.export.checkpoint import open_checkpoint
from edge.export.facts.experts import EXPERT_PROJECTIONS, expert_name, stack_name
from edge.export.facts.tensors import GgufTensor, QTensor, matrices
from edge.export.quantize import quantize
from edge.export.quantize.method import Options
from edge.export.reference.in_torch import TorchLogits, load_torch
from edge.export.request import choices
from edge.export.request.choices import choose_weights
from edge.gguf_parts import GGUF
from edge.runtime.check.perplexity import EngineLogits, compare
from edge.runtime.kernels.library import Kernels
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


def default_of(folder: Path, tmp_path: Path, **options: Any) -> tuple[str, list[str]]:
    """The weights of an export that names none, and what it says of them."""
    said: list[str] = []
    bundle = edge.export(
        folder, tmp_path / "x.edge", max_context=64, force=True, say=said.append, check=False, draft_text=0, **options
    )
    return bundle.manifest.weights, [line for line in said if line.startswith("The bundle has")]


@pytest.mark.usefixtures("library")
@pytest.mark.parametrize("effort", ["quick", "normal"])
def test_own_blocks_are_the_default_of_a_large_folder(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, effort: str
) -> None:
    weights, (sentence,) = default_of(folder, tmp_path, effort=effort)
    assert weights == "keep" and "every host computes; --weights gguf keeps the folder's own blocks" in sentence
    monkeypatch.setattr(choices, "LARGE", 100_000)
    weights, (sentence,) = default_of(folder, tmp_path, effort=effort)
    assert weights == GGUF
    assert sentence.startswith("The bundle has the folder's own blocks, as 8-bit blocks would take 0.0 GB instead of ")
    assert sentence.endswith("--weights keep makes one for every host.")


def test_a_large_folder_is_kept_in_8_bits_where_kernels_are_absent(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, onnxruntimes_kernels: None
) -> None:
    monkeypatch.setattr(choices, "LARGE", 100_000)
    monkeypatch.setattr(choices, "our_kernels_run", lambda **_: False)
    weights, (sentence,) = default_of(folder, tmp_path, effort="quick")
    assert weights == "keep" and "where edge-lm-kernels are installed, --weights gguf keeps the folder's" in sentence


def test_kernels_of_before_gpt_oss_leave_a_large_folder_in_8_bits(
    folder: Path, library: Kernels, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(choices, "LARGE", 100_000)
    monkeypatch.setattr(Kernels, "biased_experts", False)
    checkpoint = open_checkpoint(str(folder))
    assert choose_weights(checkpoint, None, quick=True, anew=False) == "keep"
    assert "; where edge-lm-kernels are installed" in str(choices.described_default(checkpoint, "keep"))


@pytest.mark.usefixtures("library")
def test_run_makes_a_bundle_for_our_kernels_and_another_where_they_are_absent(folder: Path, own_cache: Path) -> None:
    script = "import sys; from edge.cli.main import main; sys.exit(main(sys.argv[1:]))"
    command = [sys.executable, "-c", script, "run", str(folder), "hello", "--raw", "--max-tokens", "2"]
    for kernels, said in (("", f"{folder}, once.\n"), ("off", "; edge export --weights int4 makes a smaller")):
        variables = {**os.environ, "EDGE_KERNELS": kernels}
        done = subprocess.run(command, env=variables, capture_output=True, text=True, check=False)
        assert done.returncode == 0 and said in done.stderr, done.stderr
    assert len([*(own_cache / "bundles").glob("*.edge")]) == 2


def test_the_sizes_of_both_are_said(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    checkpoint = open_checkpoint(str(folder))
    monkeypatch.setattr(checkpoint, "shape", lambda name: (10**4, 10**4))  # 0.1 billion weights of each tensor
    sentence = choices.described_default(checkpoint, GGUF)
    experts = LAYERS * EXPERTS * len(EXPERT_PROJECTIONS)
    others = len(checkpoint.names()) - experts
    eight, own = 0.10625 * (experts + others), 0.053125 * experts + 0.10625 * others
    assert sentence is not None and f"8-bit blocks would take {eight:.1f} GB instead of {own:.1f} GB" in sentence


@pytest.mark.usefixtures("library")
def test_what_needs_new_integers_or_another_device_gets_no_own_blocks(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(choices, "LARGE", 100_000)
    checkpoint = open_checkpoint(str(folder))
    assert choose_weights(checkpoint, None, quick=True, anew=False) == GGUF
    assert choose_weights(checkpoint, None, quick=True, anew=False, device=True) == "keep"
    assert choose_weights(checkpoint, None, quick=False, anew=True) == "int4"
    adapter = tmp_path / "adapter"
    adapter.mkdir()
    (adapter / "adapter_config.json").write_text(
        json.dumps({"peft_type": "LORA", "base_model_name_or_path": str(folder), "r": 2, "lora_alpha": 2})
    )
    rows = {"A": (2, 256), "B": (256, 2)}
    module = "base_model.model.model.layers.0.self_attn.q_proj"
    save_file(
        {f"{module}.lora_{part}.weight": torch.ones(shape) for part, shape in rows.items()},
        adapter / "adapter_model.safetensors",
    )
    assert choose_weights(open_checkpoint(str(adapter)), None, quick=True, anew=False) == "keep"
    with pytest.raises(ExportError, match="for folders with experts in MXFP4, and adapter is neither"):
        export(adapter, tmp_path / "x.edge")
