"""Models with experts, from their directories to answers: each the same however it is computed."""

from __future__ import annotations

import dataclasses
import json
import math
import shutil
from collections import defaultdict
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import torch
from graph_harness import relative_error, tiny_model, torch_logits
from safetensors.torch import load_file, save_file
from transformers import AutoConfig

import edge
from edge.bundle import Bundle
from edge.errors import CheckpointError, ExportError, InputError
from edge.export.checkpoint import open_checkpoint
from edge.export.facts.tensors import Format, matrices
from edge.export.quantize.calibration import calibration_windows
from edge.export.reference.in_torch import TorchLogits, load_torch
from edge.export.tune.network import Network
from edge.runtime.check.perplexity import EngineLogits, compare
from edge.runtime.engine.engine import Engine
from edge.runtime.kernels.graph import kernel_graph
from edge.runtime.kernels.library import find_kernels, without_kernels
from edge.runtime.load import open_engine
from edge.runtime.memory.footprint import Demand, MemoryModel

CONTEXT = 96
KERNELS = find_kernels()
TEXT = np.random.default_rng(5).integers(3, 300, 80)
BASE = {
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 256,
    "num_experts_per_tok": 2,
}
MODELS: dict[str, dict[str, Any]] = {
    "olmoe": {"num_experts": 8},
    "qwen3_moe": {
        "num_experts": 8,
        "head_dim": 16,
        "moe_intermediate_size": 64,
        "norm_topk_prob": True,
        "mlp_only_layers": [1],
    },
    "granitemoe": {"num_local_experts": 8, "residual_multiplier": 0.5, "attention_multiplier": 0.06},
    "granitemoeshared": {
        **{"num_local_experts": 8, "shared_intermediate_size": 96},
        **{"embedding_multiplier": 2.0, "attention_multiplier": 0.06},
    },
    "lfm2_moe": {
        "num_experts": 8,
        "moe_intermediate_size": 64,
        "num_dense_layers": 1,
        "routed_scaling_factor": 1.5,
        "layer_types": ["conv", "full_attention", "conv"],
    },
    "granitemoehybrid": {
        **{"num_local_experts": 8, "shared_intermediate_size": 96, "layer_types": ["mamba", "attention", "mamba"]},
        **{
            "mamba_n_heads": 8,
            "mamba_d_head": 16,
            "mamba_d_state": 16,
            "attention_multiplier": 0.06,
            "logits_scaling": 2.0,
        },
    },
    "gpt_oss": {
        **{"head_dim": 16, "intermediate_size": 64, "num_local_experts": 8, "sliding_window": 16, "swiglu_limit": 1.5},
        "rope_parameters": {
            **{"rope_type": "yarn", "rope_theta": 1e4, "factor": 4.0, "beta_fast": 32.0, "beta_slow": 1.0},
            **{"truncate": False, "original_max_position_embeddings": 64},
        },
    },
}
PROMPTS = ["Hello there", "What is a river?", "Name three of them, and say where they end."]
TOKENS = 16


def saved(folder: Path, kind: str, tokenizer: Path, **changes: Any) -> Any:
    """A tiny random model, which is written to the folder with the tokenizer of another checkpoint."""
    tiny = json.loads((tokenizer / "config.json").read_text())
    tokens = {name: tiny[name] for name in ("vocab_size", "bos_token_id", "eos_token_id", "pad_token_id")}
    model = tiny_model(AutoConfig.for_model(kind, **BASE | tokens | MODELS[kind] | changes))
    model.save_pretrained(folder)
    for file in tokenizer.glob("*token*"):
        shutil.copy(file, folder)
    return model


@pytest.fixture(scope="module", params=MODELS)
def folder(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, tiny_checkpoint: Path) -> Path:
    folder = tmp_path_factory.mktemp("experts") / str(request.param)
    saved(folder, request.param, tiny_checkpoint)
    return folder


@pytest.fixture(scope="module")
def floats(folder: Path) -> tuple[Engine, np.ndarray]:
    """The engine of the float32 bundle, and Torch's logits [S, V] of TEXT."""
    bundle = edge.export(folder, folder.with_suffix(".fp32.edge"), weights="fp32", candidates=False)
    model = load_torch(open_checkpoint(str(folder)))
    return open_engine(bundle, context=CONTEXT), torch_logits(model, TEXT)


@pytest.fixture(scope="module")
def bundle(folder: Path) -> Bundle:
    """In 8 bits, checked against Torch."""
    return edge.export(folder, folder.with_suffix(".edge"), weights="int8")


def logits(engine: Engine, sizes: list[int]) -> np.ndarray:
    """The logits of TEXT, in steps of these sizes."""
    cache, made = engine.new_cache(), []
    for size in sizes:
        at = cache.length
        made.append(engine.step(cache, TEXT[at : at + size], np.arange(size)).copy())
    return np.concatenate(made)


@pytest.mark.parametrize("sizes", [[80], [33, 2, 45], [1] * 80], ids=["whole", "chunks", "tokens"])
def test_logits_are_torchs_however_a_text_is_cut(floats: tuple[Engine, np.ndarray], sizes: list[int]) -> None:
    engine, expected = floats
    assert relative_error(logits(engine, sizes), expected) < 1e-4


def test_a_draft_that_was_not_accepted_leaves_nothing(floats: tuple[Engine, np.ndarray]) -> None:
    engine, expected = floats
    cache = engine.new_cache()
    engine.step(cache, TEXT[:30])
    engine.step(cache, TEXT[50:55])
    left = cache.truncate(30)  # fewer where a layer keeps a state
    made = engine.step(cache, TEXT[left:34], np.arange(34 - left))[-4:]
    assert relative_error(made, expected[30:34]) < 1e-4


def test_texts_side_by_side_are_those_alone(floats: tuple[Engine, np.ndarray]) -> None:
    engine, expected = floats
    slots = engine.new_slots(CONTEXT, 3)
    for length in (20, 5, 41):
        cache = engine.new_cache(CONTEXT)
        engine.step(cache, TEXT[:length])
        slots.join(cache)
    lengths = [cache.length for cache in slots.caches]
    made = engine.step_all(slots, TEXT[lengths]).reshape(len(lengths), -1)
    assert relative_error(made, expected[lengths]) < 1e-4


@pytest.mark.parametrize(("weights", "effort", "most"), [("int8", "quick", 0.02), ("int4", "normal", 0.5)])
def test_rounded_weights_are_near_the_floats(
    folder: Path, tmp_path: Path, weights: str, effort: str, most: float
) -> None:
    bundle = edge.export(folder, tmp_path / "x.edge", weights=weights, effort=effort)
    reference = TorchLogits(load_torch(open_checkpoint(str(folder))))
    found = compare(reference, EngineLogits(open_engine(bundle, context=CONTEXT), 80), [TEXT])
    assert found.kl_mean < most


def bits_of_experts(bundle: Bundle) -> list[dict[int, int]]:
    """The bits of each layer's experts by their numbers, of layers whose experts have several."""
    graph = onnx.load(bundle.path("graphs/decoder.onnx"), load_external_data=False).graph
    made = {name: node for node in graph.node for name in node.output}
    layers = defaultdict[str, dict[int, int]](dict)
    for node in (node for node in graph.node if node.op_type == "QMoE" and node.input[14]):
        bits = next(attribute.i for attribute in node.attribute if attribute.name == "expert_weight_bits")
        if (gather := made[made[node.input[1]].input[0]]).op_type == "Gather":
            members = made[gather.input[1]].attribute[0].ints
            layers[gather.input[0]] |= dict.fromkeys(members, bits)
    return list(layers.values())


@pytest.fixture(scope="module")
def by_expert(folder: Path) -> tuple[Bundle, Bundle]:
    """In 4 bits for all experts, and in about as many with a budget."""
    options: dict[str, Any] = {"weights": "int4", "check": False}
    plain = edge.export(folder, folder.with_suffix(".plain.edge"), **options)
    checkpoint = open_checkpoint(str(folder))
    shapes = {name: checkpoint.shape(name) for name in matrices(checkpoint)}
    forms = {name: Format(4, 32) if ".experts." in name else Format(8, 32, symmetric=True) for name in shapes}
    bits = sum(forms[name].size(*shape) for name, shape in shapes.items()) / sum(map(math.prod, shapes.values()))
    return plain, edge.export(folder, folder.with_suffix(".bits.edge"), bits=bits - 0.02, **options)


def test_under_a_budget_experts_have_bits_of_their_own_and_are_nearer_to_the_floats(
    folder: Path, by_expert: tuple[Bundle, Bundle]
) -> None:
    plain, budget = (sum(group.bytes for group in bundle.manifest.groups) for bundle in by_expert)
    assert budget < plain
    several = [any(len({*layer.values()}) > 1 for layer in bits_of_experts(bundle)) for bundle in by_expert]
    assert several == [False, True]
    checkpoint = open_checkpoint(str(folder))
    texts = [window[:CONTEXT] for window in calibration_windows(checkpoint, None)[-3:]]
    reference = TorchLogits(load_torch(checkpoint))
    found = [
        compare(reference, EngineLogits(open_engine(bundle, context=CONTEXT), CONTEXT), texts).kl_mean
        for bundle in by_expert
    ]
    assert found[1] < found[0]


def test_experts_of_several_formats_compute_the_same_however_a_text_is_cut(
    by_expert: tuple[Bundle, Bundle], request: pytest.FixtureRequest
) -> None:
    engine = open_engine(by_expert[1], context=CONTEXT)
    assert engine.independent == open_engine(by_expert[0], context=CONTEXT).independent
    whole = logits(engine, [80])
    for sizes in ([33, 2, 45], [1] * 80):
        cut = logits(engine, sizes)
        assert not engine.independent or np.array_equal(cut, whole)
        assert relative_error(cut, whole) < 2e-2
    request.getfixturevalue("onnxruntimes_kernels")
    others = logits(open_engine(by_expert[1], context=CONTEXT), [80])
    assert np.median(np.abs(others - whole)) < 0.02 * np.abs(whole).max()  # a token may choose other experts


def test_experts_that_no_token_chooses_have_the_fewest_bits(tmp_path: Path, tiny_checkpoint: Path) -> None:
    saved(tmp_path / "x", "lfm2_moe", tiny_checkpoint)
    tensors = load_file(tmp_path / "x" / "model.safetensors")
    biases = [name for name in tensors if name.endswith("expert_bias")]
    for name in biases:
        tensors[name] = torch.tensor([9.0, 0, 0, 0, 0, 9.0, 0, 0])  # sigmoids are up to 1
    save_file(tensors, tmp_path / "x" / "model.safetensors", metadata={"format": "pt"})
    bundle = edge.export(tmp_path / "x", tmp_path / "x.edge", weights="int4", bits=6.1, check=False)
    layers = bits_of_experts(bundle)
    assert len(layers) == len(biases)
    for layer in layers:
        chosen = layer.pop(0), layer.pop(5)
        assert min(chosen) > max(layer.values())


def test_a_text_has_the_same_logits_however_it_is_cut(bundle: Bundle) -> None:
    engine = open_engine(bundle, context=CONTEXT)
    whole = logits(engine, [80])
    for sizes in ([33, 2, 45], [1] * 80):
        cut = logits(engine, sizes)
        if engine.independent:
            assert np.array_equal(cut, whole)
        assert relative_error(cut, whole) < 1e-2  # activations in 8 bits, which a last bit may round otherwise


@pytest.mark.skipif(KERNELS is None or not KERNELS.experts, reason="edge_kernels is not installed, or older")
def test_with_our_kernels_rows_depend_on_nothing_else_and_experts_are_mapped(bundle: Bundle) -> None:
    if bundle.manifest.family == "gpt_oss" and not (KERNELS and KERNELS.biased_experts):
        pytest.skip("edge_kernels are older than biases of experts")
    engine = open_engine(bundle, context=CONTEXT)
    assert engine.independent
    group = next(group for group in bundle.manifest.groups if group.name == "experts")
    packed = MemoryModel(bundle).footprint(Demand(CONTEXT, 16)).kinds["packed weights"]
    assert packed < group.bytes  # which the system may take back, expert by expert


class Older:
    """The library before biases of experts."""

    def __init__(self, calls: Any) -> None:
        self._calls = calls

    def __getattr__(self, name: str) -> Any:
        return getattr(self._calls, name)

    def edge_experts(self) -> int:
        return 1


@pytest.mark.skipif(KERNELS is None or not KERNELS.biased_experts, reason="edge_kernels is not installed, or older")
def test_experts_that_kernels_leave_to_onnxruntime_count_and_a_line_says_so(
    bundle: Bundle, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    assert KERNELS is not None
    demand, without_biases = Demand(CONTEXT, 16), bundle.manifest.family != "gpt_oss"
    before = MemoryModel(bundle).footprint(demand).kinds["packed weights"]
    older = dataclasses.replace(KERNELS, calls=Older(KERNELS.calls))
    monkeypatch.setattr("edge.runtime.kernels.graph.find_kernels", lambda: older)
    without_kernels.cache_clear()
    made = kernel_graph(bundle, bundle.path("graphs/decoder.onnx"), older)
    assert made is not None and ("does not compute experts" in caplog.text) != without_biases
    packed = MemoryModel(bundle).footprint(demand).kinds["packed weights"]
    group = next(group for group in bundle.manifest.groups if group.name == "experts")
    assert packed == before if without_biases else packed - before > group.bytes


def test_answers_are_the_same_in_a_batch_with_drafts_and_again(bundle: Bundle) -> None:
    options = edge.GenerateOptions(max_tokens=TOKENS)
    with edge.load(bundle.root, speculate="off") as model:
        alone = [model.generate(prompt, options).token_ids for prompt in PROMPTS]
        assert [each.token_ids for each in model.generate_all(PROMPTS, max_tokens=TOKENS)] == alone
    with edge.load(bundle.root, speculate="lookup") as model:
        assert [model.generate(prompt, options).token_ids for prompt in PROMPTS] == alone


def test_experts_in_one_tensor_are_those_one_by_one(folder: Path, tmp_path: Path) -> None:
    other = Path(shutil.copytree(folder, tmp_path / "together"))
    one_by_one = open_checkpoint(str(folder))
    model = load_torch(one_by_one)
    save_file({name: tensor.clone() for name, tensor in model.state_dict().items()}, other / "model.safetensors")
    together = open_checkpoint(str(other))
    assert any(name.endswith("experts.gate_up_proj") for name in load_file(other / "model.safetensors"))
    assert together.names() == one_by_one.names()
    assert all(np.array_equal(together.read(name), one_by_one.read(name)) for name in together.names())


def parameter_name(stored: str) -> str:
    """An expert's matrix by the name that all families have for it."""
    for other, name in (("w1", "gate_proj"), ("w2", "down_proj"), ("w3", "up_proj")):
        stored = stored.replace(f".{other}.", f".{name}.")
    return stored


@pytest.mark.parametrize(("number", "reason"), [("3", "lacks the tensor"), ("8", "has no place")])
def test_an_expert_that_is_missing_or_too_many_is_refused_by_name(
    folder: Path, tmp_path: Path, number: str, reason: str
) -> None:
    other = Path(shutil.copytree(folder, tmp_path / "other"))
    tensors = load_file(folder / "model.safetensors")
    if (stored := next((name for name in tensors if ".experts.3." in name), None)) is None:
        stored = next(name for name in tensors if name.endswith(("moe.output_linear.weight", "experts.down_proj")))
        block = stored.removesuffix("output_linear.weight").removesuffix("experts.down_proj")
        name = f"{block}experts.{'0' if number == '3' else number}.down_proj.weight"
        tensor = tensors.pop(stored)
        if number == "8":
            tensors[stored] = torch.cat([tensor, tensor[:1]])
    else:
        name = parameter_name(stored).replace(".3.", f".{number}.")
        tensor = tensors.pop(stored)
        if number == "8":
            tensors |= {stored.replace(".3.", ".8."): tensor.clone(), stored: tensor}
    save_file(tensors, other / "model.safetensors")
    with pytest.raises(CheckpointError, match=reason) as refused:
        open_checkpoint(str(other))
    assert name in str(refused.value)


@pytest.mark.parametrize("target", ["npu-qualcomm", "cuda"])
def test_other_targets_refuse_experts_in_a_sentence(folder: Path, tmp_path: Path, target: str) -> None:
    with pytest.raises((ExportError, InputError), match="has experts, which only graphs for the CPU compute yet"):
        edge.export(folder, tmp_path / "x.edge", target=target)
    assert not any(tmp_path.iterdir())


def test_options_that_need_other_layers_refuse_experts_before_anything_is_measured(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("edge.export.quantize.by_expert.Reference", lambda *_: pytest.fail("it was run"))
    for options, reason in (
        ({"weights": "int4", "perplexity": 1.05}, "they have experts.*; leave out --perplexity"),
        ({"weights": "int4", "bits": 2.0}, "with 2 bits for every expert, and 2 were asked for; name .* or more with"),
        ({"weights": "int4", "bits": 5.5, "block_size": 128}, "blocks of 128 do not divide|rows of one block of 128"),
        ({"prefill_weights": "int8"}, "has experts"),
        ({"block_size": 128}, "which blocks of 128 do not divide"),
    ):
        with pytest.raises((ExportError, InputError), match=reason):
            edge.export(folder, tmp_path / "x.edge", check=False, **options)


@pytest.mark.parametrize(
    ("kind", "field", "value", "reason"),
    [
        ("olmoe", "clip_qkv", 8.0, "clip_qkv is 8"),
        ("olmoe", "n_shared_experts", 2, "sets n_shared_experts to 2"),
        ("granitemoe", "shared_intermediate_size", 64, "sets shared_intermediate_size to 64"),
        ("qwen3_moe", "routed_scaling_factor", 2.5, "sets routed_scaling_factor to 2.5"),
    ],
)
def test_what_changes_the_mathematics_is_refused_by_name(
    tmp_path: Path, tiny_checkpoint: Path, kind: str, field: str, value: float, reason: str
) -> None:
    saved(tmp_path / "x", kind, tiny_checkpoint, **{field: value})
    with pytest.raises((CheckpointError, ExportError), match=reason):
        edge.export(tmp_path / "x", tmp_path / "x.edge", weights="fp32", check=False)


def test_tuning_refuses_experts(folder: Path) -> None:
    with pytest.raises(ExportError, match="have experts, for which nothing is trained here"):
        Network(open_checkpoint(str(folder)), rank=4, seed=1, device="cpu", bf16=False)
