"""A GGUF file's own blocks in graphs: the values of the file, whether they stay in it or are in the bundle."""

from __future__ import annotations

import dataclasses
import os
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from gguf import GGMLQuantizationType as Type
from gguf import quants
from gguf_files import GPT_OSS, tiny_model, write_gguf

import edge
from edge.bundle import Bundle, open_bundle
from edge.cli.main import main
from edge.errors import BundleError, ExportError
from edge.export.checkpoint import open_checkpoint
from edge.export.facts.experts import OF_EXPERT, stack_name
from edge.export.facts.tensors import matrices
from edge.export.reference.in_torch import TorchLogits, load_torch
from edge.gguf_parts import GGUF
from edge.golden import read_golden
from edge.manifest import INT8, KV8
from edge.runtime.check.golden import replay_golden
from edge.runtime.check.perplexity import EngineLogits, compare
from edge.runtime.kernels.library import find_kernels
from edge.runtime.load import open_engine

if find_kernels() is None:
    pytest.skip("edge-lm-kernels do not run here", allow_module_level=True)

SLIDING = {"sliding_window": 16, "query_pre_attn_scalar": 32, "head_dim": 32, "tie_word_embeddings": True}
SHARING = {
    "head_dim": 32,
    "sliding_window": 16,
    "layer_types": ["sliding_attention", "full_attention"] * 2,
    "num_kv_shared_layers": 2,
    "hidden_size_per_layer_input": 32,
    "vocab_size_per_layer_input": 272,
    "final_logit_softcapping": 3.0,
    "tie_word_embeddings": True,
}
DELTA = {
    "head_dim": 32,
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 2,
    "linear_key_head_dim": 32,
    "linear_value_head_dim": 32,
    "layer_types": ["linear_attention", "full_attention", "linear_attention", "linear_attention"],
    "tie_word_embeddings": True,
}
DELTA_EXPERTS = DELTA | {
    **{"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 64, "shared_expert_intermediate_size": 64},
}
CONVOLUTIONS = {
    "layer_types": ["conv", "full_attention", "conv", "full_attention"],
    "block_auto_adjust_ff_dim": False,
    "tie_word_embeddings": True,
}
OF_32 = {"ffn_down.w": Type.Q4_1, "ffn_gate.w": Type.Q8_0, "ffn_up.w": Type.Q8_0, "attn_q.w": Type.Q4_0,
         "attn_k.w": Type.Q5_0, "attn_v.w": Type.Q5_1, "attn_qkv.w": Type.Q4_0, "attn_output.w": Type.Q4_0,
         "token_embd.w": Type.Q8_0, "output.w": Type.Q4_0}  # fmt: skip
OF_256 = {"ffn_down.w": Type.Q3_K, "ffn_gate.w": Type.Q4_K, "ffn_up.w": Type.Q4_K, "attn_q.w": Type.Q5_K,
          "attn_k.w": Type.Q4_K, "attn_v.w": Type.Q6_K, "attn_output.w": Type.Q2_K, "token_embd.w": Type.Q6_K,
          "output.w": Type.Q4_K}  # fmt: skip
BY_TABLES = {"attn_q.w": Type.IQ4_XS, "attn_output.w": Type.IQ4_NL, "ffn_up.w": Type.TQ2_0, "ffn_down.w": Type.TQ1_0}
FLOATS = {"token_embd.w": Type.BF16, "attn_q.w": Type.F16, "attn_output.w": Type.BF16, "ffn_up.w": Type.F16,
          "ffn_down.w": Type.F16}  # fmt: skip
WIDE = {"hidden_size": 256, "intermediate_size": 512, "num_attention_heads": 4, "num_key_value_heads": 2}
EXPERTS = {"num_experts": 4, "num_experts_per_tok": 2}
MIXED = EXPERTS | {"head_dim": 32, "moe_intermediate_size": 64, "norm_topk_prob": True}
WIDE_EXPERTS = MIXED | WIDE | {"head_dim": 64, "moe_intermediate_size": 256}
GRANITE = {
    **{"num_local_experts": 4, "num_experts_per_tok": 2, "intermediate_size": 128},
    **{"attention_multiplier": 32**-0.5, "residual_multiplier": 0.5},
}
SCANNED = GRANITE | {
    "layer_types": ["linear_attention", "full_attention", "linear_attention", "linear_attention"],
    **{"mamba_n_heads": 6, "mamba_d_state": 16, "mamba_n_groups": 2, "shared_intermediate_size": 128},
}
OF_SCAN = {"ssm_in.w": Type.Q8_0, "ssm_out.w": Type.Q4_0, "ffn_gate_shexp.w": Type.Q4_0, "ffn_up_shexp.w": Type.Q5_0,
           "ffn_down_shexp.w": Type.Q4_1}  # fmt: skip
EXPERTS_OF_32 = OF_32 | {"ffn_gate_exps": Type.Q4_0, "ffn_up_exps": Type.Q5_1, "ffn_down_exps": Type.MXFP4}
OF_DELTA = {"attn_gate.w": Type.Q8_0, "ssm_in": Type.Q4_0, "ssm_out.w": Type.Q4_0, "ssm_ba": Type.Q8_0,
            "ssm_alpha": Type.Q8_0, "ssm_beta": Type.Q8_0, "ffn_gate_shexp.w": Type.Q4_0, "ffn_up_shexp.w": Type.Q5_0,
            "ffn_down_shexp.w": Type.Q4_1}  # fmt: skip
EXPERTS_OF_256 = OF_256 | {"ffn_gate_exps": Type.Q4_K, "ffn_up_exps": Type.IQ4_XS, "ffn_down_exps": Type.Q6_K}
MODELS: dict[str, tuple[str, dict[str, Any], dict[str, Type]]] = {
    "llama": ("llama", {"attention_bias": True}, OF_32),
    "qwen2": ("qwen2", {}, OF_32),
    "qwen3": ("qwen3", {"head_dim": 32, "tie_word_embeddings": True}, OF_32),
    "olmo2": ("olmo2", {}, OF_32),
    "granite": ("granite", {"attention_multiplier": 32**-0.5}, OF_32),
    "phi3": ("phi3", {}, OF_32 | {"ffn_down.w": Type.Q8_0}),
    "gemma2": ("gemma2", SLIDING, OF_32),
    "gemma3": ("gemma3_text", SLIDING, OF_32),
    "gemma3n": ("gemma3n_text", SHARING | {"laurel_rank": 32}, OF_32 | {"altup_proj.w": Type.Q8_0}),
    "gemma4": ("gemma4_text", SHARING | {"global_head_dim": 64}, OF_32 | {"inp_gate.w": Type.Q8_0}),
    "exaone4": ("exaone4", {"sliding_window": 16}, OF_32),
    "ernie4_5": ("ernie4_5", {"head_dim": 32, "tie_word_embeddings": True, "use_bias": True}, OF_32),
    "hunyuan": ("hunyuan_v1_dense", {"head_dim": 32, "tie_word_embeddings": True}, OF_32),
    "cohere2": ("cohere2", {"sliding_window": 16, "logit_scale": 0.25, "tie_word_embeddings": True}, OF_32),
    "starcoder2": ("starcoder2", {"sliding_window": None}, OF_32),
    "stablelm": ("stablelm", {"partial_rotary_factor": 0.5, "use_parallel_residual": True}, OF_32),
    "bitnet": (
        "bitnet",
        WIDE | {"hidden_act": "silu", "tie_word_embeddings": True},
        {"attn": Type.TQ2_0, "ffn": Type.TQ1_0, "token_embd.w": Type.Q6_K},
    ),
    "qwen3.5": ("qwen3_5_text", DELTA, OF_32 | {"attn_gate.w": Type.Q8_0, "ssm_out.w": Type.Q4_0}),
    "qwen3.5 with several values of a key": (
        "qwen3_5_text",
        DELTA | {"linear_num_value_heads": 4},
        OF_32 | {"attn_gate.w": Type.Q8_0, "ssm_out.w": Type.Q4_0},
    ),
    "qwen3-next": ("qwen3_next", DELTA_EXPERTS | {"linear_num_value_heads": 4}, EXPERTS_OF_32 | OF_DELTA),
    "qwen3-next, an older file": ("qwen3_next", DELTA_EXPERTS | {"layer_types": None}, EXPERTS_OF_32 | OF_DELTA),
    "qwen3.5 with experts and several values of a key": (  # all chosen: else what is rounded chooses others
        "qwen3_5_moe_text",
        DELTA_EXPERTS | {"linear_num_value_heads": 4, "num_experts_per_tok": 4},
        EXPERTS_OF_32 | OF_DELTA,
    ),
    "wide qwen3.5 with several values of a key": (
        "qwen3_5_text",
        DELTA | WIDE | {"head_dim": 64, "linear_num_value_heads": 4, "linear_value_head_dim": 64},
        OF_256 | {"attn_qkv.w": Type.Q4_K, "attn_gate.w": Type.Q4_K, "ssm_out.w": Type.Q6_K},
    ),
    "lfm2": ("lfm2", CONVOLUTIONS, OF_32 | {"in_proj.w": Type.Q8_0, "out_proj.w": Type.Q4_0}),
    "olmoe": ("olmoe", EXPERTS | {"num_key_value_heads": 3}, EXPERTS_OF_32),
    "qwen3moe": ("qwen3_moe", MIXED, EXPERTS_OF_32),
    "gpt-oss": ("gpt_oss", GPT_OSS, EXPERTS_OF_32),
    "granitemoe": ("granitemoe", GRANITE, EXPERTS_OF_32),
    "granitemoe with a shared expert": ("granitemoeshared", GRANITE | {"shared_intermediate_size": 128}, EXPERTS_OF_32),
    "lfm2moe": (
        "lfm2_moe",
        CONVOLUTIONS | EXPERTS | {"moe_intermediate_size": 64, "num_dense_layers": 1},
        EXPERTS_OF_32 | {"in_proj.w": Type.Q8_0, "out_proj.w": Type.Q4_0},
    ),
    "granite 4": ("granitemoehybrid", SCANNED | {"num_local_experts": 0}, OF_32 | OF_SCAN),
    "granite 4 with experts": ("granitemoehybrid", SCANNED, EXPERTS_OF_32 | OF_SCAN),
    "granite 4 some in floats": ("granitemoehybrid", SCANNED, EXPERTS_OF_32 | OF_SCAN | {"ffn_up_shexp": Type.F32}),
    "wide experts": ("qwen3_moe", WIDE_EXPERTS, EXPERTS_OF_256),
    "experts, some in floats": (
        "qwen3_moe",
        WIDE_EXPERTS,
        EXPERTS_OF_256 | {"ffn_up_exps": Type.F32},
    ),
    "wide llama": ("llama", WIDE, OF_256),
    "wide and tied": ("qwen2", WIDE | {"tie_word_embeddings": True}, OF_256),
    "ternary and by tables": ("llama", WIDE, OF_256 | BY_TABLES),
    "some in floats": ("llama", {}, {"attn_k.w": Type.F16, "ffn_up.w": Type.Q8_0, "output.w": Type.Q8_0}),
    "floats of all types": ("llama", {}, OF_32 | FLOATS | {"attn_v.w": Type.F32}),
    "F16": ("qwen2", {"tie_word_embeddings": True}, {".weight": Type.F16}),
    "BF16": ("llama", {}, {".weight": Type.BF16}),
    "MXFP4": ("llama", {}, OF_32 | {"ffn": Type.MXFP4, "attn_output.w": Type.MXFP4}),
    "some unknown": ("llama", WIDE, OF_256 | {"attn_v.w": Type.IQ3_S, "ffn_gate.w": Type.IQ3_S}),
}


def export(source: Path, target: Path, **options: Any) -> Bundle:
    return edge.export(source, target, weights=GGUF, effort="quick", max_context=64, **options)


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a file and its two bundles of each model."""
    folder = tmp_path_factory.mktemp("own")
    for name, (kind, settings, types) in MODELS.items():
        path = write_gguf(folder / f"{name}.gguf", tiny_model(kind, **settings), types=types, older="older" in name)
        export(path, folder / f"{name}.edge")
        export(path, folder / f"{name} in place.edge", in_place=True)
    return folder


@pytest.mark.parametrize("name", MODELS)
def test_it_answers_as_the_floats_of_the_file_do(made: Path, name: str) -> None:
    bundle = open_bundle(made / f"{name}.edge")
    assert bundle.manifest.weights == GGUF
    engine = open_engine(bundle)
    assert replay_golden(engine, read_golden(bundle)).ok
    reference = TorchLogits(load_torch(open_checkpoint(str(made / f"{name}.gguf"))))
    text = np.random.default_rng(0).integers(0, 250, 60)
    found = compare(reference, EngineLogits(engine, 60), [text])
    assert found.kl_mean < 2e-3, "activations alone are rounded"
    assert found.reference == pytest.approx(found.candidate, rel=0.01)


@pytest.mark.parametrize("name", [name for name in MODELS if "qwen3.5" in name or "qwen3-next" in name])
def test_rows_and_blocks_that_stand_in_another_order_keep_the_bits_of_the_file(made: Path, name: str) -> None:
    checkpoint = open_checkpoint(str(made / f"{name}.gguf"))
    for matrix in matrices(checkpoint):
        expert = OF_EXPERT.fullmatch(matrix)
        if checkpoint.stored_type(matrix) == "F32" or (expert and expert[2] != "0"):
            continue
        own, values = stack_name(expert[1], expert[3]) if expert else matrix, checkpoint.read(matrix)
        found = checkpoint.gguf_tensor(own, in_place=False)
        assert found is not None
        in_file = quants.dequantize(found.raw[: len(values)], Type(found.type)).reshape(values.shape)
        assert np.array_equal(in_file if found.inputs is None else in_file[:, found.inputs], values)
        if (exact := checkpoint.blocks(matrix)) is not None:
            assert np.array_equal(exact.dequantize(), values)


@pytest.mark.parametrize("name", ["F16", "BF16"])
def test_where_all_weights_are_floats_nothing_is_rounded(made: Path, name: str) -> None:
    bundle = open_bundle(made / f"{name}.edge")
    assert {group.method for group in bundle.manifest.groups} == {name, "float32"}
    engine, text = open_engine(bundle), np.random.default_rng(0).integers(0, 250, 40)
    rows = engine.step(engine.new_cache(), text, np.arange(40))
    reference = TorchLogits(load_torch(open_checkpoint(str(made / f"{name}.gguf"))))
    np.testing.assert_allclose(rows, np.concatenate([*reference.logits(text)]), atol=1e-4)


@pytest.mark.parametrize("name", MODELS)
def test_where_the_weights_lie_makes_no_difference(made: Path, name: str) -> None:
    inside, outside = open_bundle(made / f"{name}.edge"), open_bundle(made / f"{name} in place.edge")
    file = made / f"{name}.gguf"
    assert not inside.manifest.external
    assert [each.path for each in outside.manifest.external] == [str(file)]
    assert outside.size("weights.bin") < inside.size("weights.bin")
    text = np.random.default_rng(1).integers(0, 250, 40)
    in_bytes = any(graph.role == KV8 for graph in inside.manifest.graphs)  # else layers share keys and values
    assert in_bytes == (name not in ("gemma3n", "gemma4"))
    for kv in ("float32", INT8) if in_bytes else ("float32",):
        rows = []
        for bundle in (inside, outside):
            engine = open_engine(bundle, kv=kv)
            rows.append(engine.step(engine.new_cache(), text, np.arange(40)).copy())
        assert np.array_equal(*rows)


@pytest.mark.parametrize("name", ["llama", "wide llama in place"])
def test_it_is_verified(made: Path, name: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["verify", str(made / f"{name}.edge")]) == 0
    assert "kv8" in capsys.readouterr().out


def test_rows_do_not_depend_on_steps(made: Path) -> None:
    engine, text = open_engine(open_bundle(made / "wide llama.edge")), np.random.default_rng(2).integers(0, 250, 33)
    whole = engine.step(engine.new_cache(), text, np.arange(33)).copy()
    cache, start = engine.new_cache(), 0
    for size in (1, 2, 3, 17, 10):
        part = engine.step(cache, text[start : start + size], np.arange(size))
        assert np.array_equal(part, whole[start : start + size])
        start += size


def test_layers_are_skipped_as_in_any_bundle(made: Path) -> None:
    with edge.load(made / "wide llama.edge", skip="unified:0.5", skip_anyway=True) as model:
        assert model.generate("hello world", edge.GenerateOptions(max_tokens=8), raw=True).generated_tokens > 0


def test_where_kernels_are_absent_it_says_what_to_do(made: Path, onnxruntimes_kernels: None) -> None:
    with pytest.raises(BundleError, match=r"pip install edge-lm-kernels.*--weights keep"):
        open_engine(open_bundle(made / "llama.edge"))


def test_no_other_checkpoint_has_such_weights(tiny_checkpoint: Path, tmp_path: Path) -> None:
    with pytest.raises(ExportError, match="--weights gguf is for GGUF files"):
        export(tiny_checkpoint, tmp_path / "x.edge")
    floats = write_gguf(tmp_path / "floats.gguf", tiny_model("llama"))
    with pytest.raises(ExportError, match=r"no weights that --weights gguf could keep \(F32\)"):
        export(floats, tmp_path / "x.edge")
    assert not (tmp_path / "x.edge").exists()


@pytest.fixture
def outside(made: Path, tmp_path: Path) -> Bundle:
    """A bundle of its own file."""
    shutil.copy(made / "qwen2.gguf", tmp_path / "m.gguf")
    return export(tmp_path / "m.gguf", tmp_path / "m.edge", in_place=True)


def test_a_file_that_was_touched_is_the_same(outside: Bundle) -> None:
    os.utime(outside.manifest.external[0].path, ns=(1, 1))
    open_engine(outside)


@pytest.mark.parametrize("change", ["gone", "a folder", "longer", "another beginning", "another end"])
def test_a_file_that_changed_is_named(outside: Bundle, change: str) -> None:
    path = Path(outside.manifest.external[0].path)
    content = bytearray(path.read_bytes())
    path.unlink()
    if change == "a folder":
        path.mkdir()
    elif change != "gone":
        content[-1 if change == "another end" else 100] ^= 1
        path.write_bytes(content + b"!" * (change == "longer"))
    for use in (open_engine, Bundle.check_files, Bundle.check_files_once):
        with pytest.raises(BundleError, match=r"m\.gguf.*edge run, which makes it again"):
            use(outside)


def test_scales_that_are_no_numbers_are_refused(made: Path, tmp_path: Path) -> None:
    path, header = tmp_path / "m.gguf", open_checkpoint(str(made / "wide llama.gguf"))
    place = header.gguf_tensor("model.layers.1.mlp.up_proj.weight", in_place=True)
    assert place is not None and place.place is not None
    content = bytearray((made / "wide llama.gguf").read_bytes())
    content[place.place[1] : place.place[1] + 2] = np.float16(np.nan).tobytes()
    path.write_bytes(content)
    for in_place in (False, True):
        with pytest.raises((BundleError, ExportError), match="no numbers"):
            export(path, tmp_path / "m.edge", in_place=in_place)
    assert not (tmp_path / "m.edge").exists()


@pytest.fixture(scope="module")
def experts(tmp_path_factory: pytest.TempPathFactory) -> Bundle:
    folder = tmp_path_factory.mktemp("experts")
    model = tiny_model("olmoe", num_hidden_layers=1, num_key_value_heads=3, **EXPERTS)
    return export(write_gguf(folder / "m.gguf", model, types=EXPERTS_OF_32), folder / "m.edge", check=False)


@pytest.mark.parametrize(
    "changes",
    [{"k": 5}, {"k": 0}, {"experts": 0}, {"experts": 3}, {"experts": 1 << 40}, {"gate.parts": 2}, {"down.parts": 0},
     {"up.N": 64}, {"gate.part.0.N": 320}, {"down.K": 32}, {"gate.matrix": 1}, {"what": 1}, {"input": 1}],
    ids=str,
)  # fmt: skip
def test_experts_that_are_not_as_exports_write_them_are_refused(experts: Bundle, changes: dict[str, int]) -> None:
    path = experts.path("graphs/decoder.onnx")
    before = path.read_bytes()
    model = onnx.load_from_string(before)
    node = next(node for node in model.graph.node if node.op_type == "GgufExperts")
    for name, value in changes.items():
        if name == "input":  # a bias of gate and up alone
            node.input.append(node.input[0])
            continue
        for attribute in [each for each in node.attribute if each.name == name]:
            node.attribute.remove(attribute)
        node.attribute.add(name=name, i=value, type=onnx.AttributeProto.INT)
    try:
        path.write_bytes(model.SerializeToString())
        with pytest.raises(BundleError):
            open_engine(experts)
    finally:
        path.write_bytes(before)


def test_a_manifest_that_names_odd_files_is_refused(outside: Bundle) -> None:
    file = outside.manifest.external[0]
    for odd in ({"path": ""}, {"path": "a\0b"}, {"size": -1}, {"sha256": "x"}):
        wrong = dataclasses.replace(outside.manifest, external=[dataclasses.replace(file, **odd)])
        (outside.root / "edge.json").write_text(wrong.to_json())
        with pytest.raises(BundleError, match="external"):
            open_bundle(outside.root)
