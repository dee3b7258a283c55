"""A quick export of a GGUF file needs neither PyTorch nor transformers, and answers as their model does."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnx_ir as ir
import pytest
import torch
from gguf import GGMLQuantizationType as Type
from gguf_files import tiny_model, write_gguf
from gguf_t5 import tiny_t5, write_t5

import edge
from edge.bundle import Bundle, open_bundle
from edge.cli.main import main
from edge.export.checkpoint import open_checkpoint
from edge.export.graph.families import FAMILIES
from edge.export.reference.in_numpy import Reference
from edge.export.reference.in_torch import TorchLogits, load_torch
from edge.extras import EXTRAS, install
from edge.golden import read_golden
from edge.runtime.check.golden import replay_golden
from edge.runtime.check.perplexity import EngineLogits, compare
from edge.runtime.load import open_engine

# A script that exports each file it is given in an interpreter which has the plain install and the extra gguf alone.
ALONE = """
import json, sys
from importlib.abc import MetaPathFinder

ABSENT = {"torch", "transformers", "safetensors", "huggingface_hub", "sentencepiece", "peft", "scipy", "sklearn"}

class Absent(MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in ABSENT:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

sys.meta_path.insert(0, Absent())
import edge
said = []
for source, target in zip(sys.argv[1::2], sys.argv[2::2]):
    edge.export(source, target, effort="quick", max_context=64, say=said.append)
edge.export(sys.argv[1], sys.argv[2] + "4", weights="int4", effort="quick", max_context=64)
print(json.dumps(said))
"""
SLIDING = {"sliding_window": 16, "query_pre_attn_scalar": 32, "head_dim": 32, "tie_word_embeddings": True}
WHOLE_BLOCKS = {"hidden_size": 192, "intermediate_size": 128}
GRANITE = {
    **{"num_local_experts": 4, "num_experts_per_tok": 2, "attention_multiplier": 64**-0.5, **WHOLE_BLOCKS},
}
DELTA = {
    "head_dim": 32,
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
    "linear_key_head_dim": 32,
    "linear_value_head_dim": 32,
    "layer_types": ["linear_attention", "full_attention"] * 2,
}
DELTA_EXPERTS = {  # all are chosen: of two in four, what is rounded chooses others
    **{"num_experts": 4, "num_experts_per_tok": 4, "moe_intermediate_size": 64, "shared_expert_intermediate_size": 64},
    **{**DELTA, **WHOLE_BLOCKS},
}
MODELS: dict[str, dict[str, Any]] = {
    "llama": {"attention_bias": True},
    "mistral": {"sliding_window": None, "head_dim": 32},
    "qwen2": {},
    "qwen3": {"head_dim": 32, "tie_word_embeddings": True},
    "smollm3": {"tie_word_embeddings": True},
    "olmo2": {},
    "granite": {"attention_multiplier": 32**-0.5},
    "phi3": {},
    "gemma2": SLIDING,
    "gemma3_text": SLIDING,
    "ministral3": {"head_dim": 32},
    "olmo3": {"sliding_window": 16},
    "exaone4": {"sliding_window": 16},
    "ernie4_5": {"head_dim": 32, "tie_word_embeddings": True},
    "hunyuan_v1_dense": {"head_dim": 32},
    "cohere2": {"sliding_window": 16, "logit_scale": 0.25, "tie_word_embeddings": True},
    "olmoe": {"num_experts": 4, "num_experts_per_tok": 2, **WHOLE_BLOCKS},
    "qwen3_moe": {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 64, **WHOLE_BLOCKS},
    "gpt_oss": {
        **{"num_local_experts": 4, "num_experts_per_tok": 2, "sliding_window": 16, "head_dim": 64, **WHOLE_BLOCKS},
        "rope_parameters": {
            **{"rope_type": "yarn", "rope_theta": 1e4, "factor": 4.0, "beta_fast": 32.0, "beta_slow": 1.0},
            **{"truncate": False, "original_max_position_embeddings": 64},
        },
    },
    "granitemoe": GRANITE,
    "granitemoeshared": GRANITE | {"shared_intermediate_size": 64},
    "starcoder2": {"sliding_window": None},
    "stablelm": {"partial_rotary_factor": 0.5},
    "bitnet": {"hidden_act": "silu", "tie_word_embeddings": True},
    "qwen3_5_text": DELTA,
    "qwen3_next": DELTA_EXPERTS,
    "qwen3_5_moe_text": DELTA_EXPERTS,
    "lfm2": {"layer_types": ["conv", "full_attention"] * 2, "block_auto_adjust_ff_dim": False},
    "lfm2_moe": {
        **{"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 64, "num_dense_layers": 1},
        **{"layer_types": ["conv", "full_attention"] * 2, "tie_word_embeddings": True, **WHOLE_BLOCKS},
    },
    "granitemoehybrid": GRANITE
    | {
        "layer_types": ["linear_attention", "full_attention"] * 2,
        **{"mamba_n_heads": 6, "mamba_d_state": 16, "mamba_n_groups": 2, "shared_intermediate_size": 64},
        "position_embedding_type": "rope",
    },
    "falcon_h1": {
        **{"head_dim": 32, "mamba_d_ssm": 128, "mamba_n_heads": 8, "mamba_d_head": 16, "mamba_n_groups": 2},
        **{"mamba_d_state": 16, "mamba_rms_norm": True},
    },
}


@pytest.fixture(scope="module")
def exports(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with KIND.gguf and the KIND.edge that was made of it, of each architecture."""
    folder = tmp_path_factory.mktemp("quick")
    floats = {"sinks": Type.F32, "exps.bias": Type.F32, "ffn_gate_inp": Type.F32}
    types = floats | {"ffn_down": Type.Q4_1, "ffn_gate": Type.Q8_0, "ffn_up": Type.Q8_0, "attn": Type.Q4_0}
    paths = list[str]()
    for kind, settings in MODELS.items():
        stored = {"ffn": Type.Q8_0, "attn": Type.Q4_0} if kind == "phi3" else types  # whose gate and up are one matrix
        path = write_gguf(folder / f"{kind}.gguf", tiny_model(kind, **settings), types=stored)
        paths += [str(path), str(path.with_suffix(".edge"))]
    paths += [str(write_t5(folder / "t5.gguf", tiny_t5(), Type.Q8_0)), str(folder / "t5.edge")]
    done = subprocess.run([sys.executable, "-c", ALONE, *paths], capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    assert any("Q4_1 are dequantized" in sentence for sentence in json.loads(done.stdout))
    return folder


def test_every_architecture_that_gguf_files_have_is_tried() -> None:
    known = {name for name, entry in FAMILIES.items() if "gguf" in entry.traits}
    unread = {"gemma3n_text", "gemma4_text"}  # which the reference in numpy does not know
    assert {*MODELS, "t5", "mt5"} == (known | {"mistral"}) - unread  # whose files have the architectures llama and t5


@pytest.mark.parametrize("kind", MODELS)
def test_what_was_made_without_pytorch_answers_as_pytorch_does(exports: Path, kind: str) -> None:
    bundle = open_bundle(exports / f"{kind}.edge")
    bundle.check_files()
    engine = open_engine(bundle)
    assert replay_golden(engine, read_golden(bundle)).ok
    torch_logits = TorchLogits(load_torch(open_checkpoint(str(exports / f"{kind}.gguf"))))
    text = np.random.default_rng(0).integers(0, 250, 60)
    found = compare(torch_logits, EngineLogits(engine, 60), [text])
    assert found.kl_mean < 0.02
    assert bundle.manifest.quality["check_tokens"] == 63 and bundle.manifest.quality["kl_mean"] < 0.02
    assert found.reference == pytest.approx(found.candidate, rel=0.05)


@pytest.mark.parametrize("kind", MODELS)
def test_its_graph_and_weights_are_those_of_the_road_with_pytorch(exports: Path, tmp_path: Path, kind: str) -> None:
    made, source = open_bundle(exports / f"{kind}.edge"), exports / f"{kind}.gguf"
    again = edge.export(
        source, tmp_path / "x.edge", weights="keep", max_context=64, candidates=False, draft_text=0
    )  # checked against PyTorch
    for name in ("graphs/decoder.onnx", "weights.bin", "tokenizer.json"):
        assert made.path(name).read_bytes() == again.path(name).read_bytes()
    torch_model = load_torch(open_checkpoint(str(source)))
    tables = rope_tables(made)
    assert tables
    for (layer_type, part), table in tables.items():
        told = {"layer_type": layer_type} if layer_type else {}
        rotary = getattr(torch_model.model, "pos_emb" if kind == "lfm2_moe" else "rotary_emb")
        cos, sin = rotary(torch.zeros(1), torch.arange(64)[None], **told)
        both = (cos if part == "cos" else sin)[0].numpy()
        expected = both[:, ::2] if kind == "cohere2" else both[:, : table.shape[1]]  # whose pairs are neighbours
        assert np.abs(table - expected).max() <= 1e-6


def rope_tables(bundle: Bundle) -> dict[tuple[str, str], np.ndarray]:
    """Cosines and sines [64, D / 2] of a decoder's graph, by the type of layers where types have their own."""
    found = {}
    for value in ir.load(bundle.path("graphs/decoder.onnx")).graph.initializers.values():
        tensor = value.const_value
        if match := re.fullmatch(r"(\w+)_rope\.(cos|sin)", value.name or ""):
            offset, shape = tensor.offset, tensor.shape.numpy()
            with bundle.path("weights.bin").open("rb") as f:
                values = np.fromfile(f, np.float32, int(np.prod(shape)), offset=offset)
            found["" if match[1] == "rope" else match[1], match[2]] = values.reshape(shape)
    return found


def test_four_bits_were_calibrated_without_pytorch_too(exports: Path) -> None:
    bundle = open_bundle(exports / f"{next(iter(MODELS))}.edge4")
    bundle.check_files()
    assert bundle.manifest.weights == "int4" and 0 < bundle.manifest.quality["kl_mean"] < 0.3
    assert bundle.manifest.bits_per_weight < 8


def test_t5_was_made_without_pytorch_too_and_writes_as_pytorch_does(exports: Path, tmp_path: Path) -> None:
    bundle, source = open_bundle(exports / "t5.edge"), exports / "t5.gguf"
    assert bundle.manifest.quality["check_tokens"] > 60
    assert not any("perplexity" in figure for figure in bundle.manifest.quality), "of answers that it did not give"
    assert replay_golden(open_engine(bundle), read_golden(bundle)).ok
    edge.export(source, tmp_path / "x.edge", effort="quick", weights="fp32", max_context=64)
    model, text = load_torch(open_checkpoint(str(source))), "Ein Mann fährt Fahrrad."
    with edge.load(tmp_path / "x.edge", kind=edge.Text2Text) as made:
        ids = torch.tensor([[*made.text.encode(text), 1]])
        expected = model.generate(ids, max_new_tokens=12, use_cache=False)[0, 1:].tolist()
        assert made.generate(text, max_tokens=12).token_ids == expected


def test_a_broken_graph_is_refused_without_pytorch_too(
    exports: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def another(self: Reference, hidden: np.ndarray) -> Iterator[np.ndarray]:
        yield np.outer(np.ones(len(hidden)), 9.0 * np.arange(272)).astype(np.float32)

    monkeypatch.setattr(Reference, "predictions", another)
    with pytest.raises(edge.ExportError, match="does not answer as the model in float32 does"):
        edge.export(exports / "llama.gguf", tmp_path / "x.edge", effort="quick")
    assert list(tmp_path.iterdir()) == []


def test_what_checks_a_quick_export_loads_nothing_that_writes_graphs() -> None:
    script = "import sys, edge.export.pipeline.apart; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert not {"onnx", "onnx_ir", "onnxscript", "gguf", "rich", "torch"} & set(done.stdout.split())


@pytest.mark.parametrize("package", ["gguf", "onnxscript"])
def test_what_is_missing_is_named_with_the_small_extra(exports: Path, tmp_path: Path, package: str) -> None:
    script = ALONE.replace('"peft"', f'"peft", "{package}"')
    arguments = str(exports / "llama.gguf"), str(tmp_path / "x.edge")
    done = subprocess.run([sys.executable, "-c", script, *arguments], capture_output=True, text=True, timeout=60)
    assert re.search(rf"MissingExtraError: Exporting needs {package}.*; .*\[gguf\]'$", done.stderr.strip())


def test_normal_effort_says_that_it_needs_pytorch(
    exports: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in EXTRAS["export"]:
        monkeypatch.setitem(sys.modules, name, None)
    assert main(["export", str(exports / "llama.gguf"), "-o", str(tmp_path / "x.edge")]) == 2
    assert f"{install('export')}, or for a .gguf file choose --effort quick" in capsys.readouterr().err
