"""Integer and float16 weights reach the kernels as they were quantized, and lie in the bundle once."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime as ort
import pytest
import torch
from graph_harness import (
    Graph,
    TinyCheckpoint,
    build,
    float_matrices,
    random_blocks,
    session_options,
    tiny_model,
    torch_logits,
)
from onnxscript import nn
from transformers import AutoConfig

from edge.bundle import BundleWriter
from edge.export.facts.tensors import FloatTensor, QTensor, Weight
from edge.export.graph.linear import Embedding, Linear, Projections
from edge.export.graph.step import new_graph
from edge.export.graph.weights import StoredBlocks, Weights, pack_bits
from edge.export.targets.cpu.lowering import CPU

LLAMA = {
    "model_type": "llama",
    "vocab_size": 97,
    "hidden_size": 96,
    "intermediate_size": 160,
    "num_hidden_layers": 2,
    "num_attention_heads": 3,
    "num_key_value_heads": 1,
    "max_position_embeddings": 64,
    "tie_word_embeddings": True,
}
FORMATS = [
    (bits, block_size, zero_points, columns)
    for bits in (4, 8)
    for block_size, columns in ((16, 96), (32, 80), (64, 96))
    for zero_points in (False, True)
]


def run_module(tmp_path: Path, module: nn.Module, writer: BundleWriter, x: np.ndarray) -> list[np.ndarray]:
    """The module's outputs for one input."""
    builder, op = new_graph("module", CPU)
    value = builder.input("x", ir.DataType.from_numpy(x.dtype), list(x.shape))
    result = module(op, value)
    outputs = result if isinstance(result, list) else [result]
    for i, output in enumerate(outputs):
        output.type = ir.TensorType(ir.DataType.FLOAT)
        builder.add_output(output, f"y{i}")
    writer.flush()
    ir.save(ir.Model(builder.graph, ir_version=10), tmp_path / "module.onnx")
    options = session_options()
    options.add_session_config_entry("session.model_external_initializers_file_folder_path", str(writer.staging))
    return ort.InferenceSession(str(tmp_path / "module.onnx"), options).run(None, {"x": x})


class Source:
    """Norms and biases that are never asked for."""

    def read(self, name: str) -> np.ndarray:
        raise AssertionError(name)


def weights_of(tmp_path: Path, matrices: dict[str, Weight]) -> tuple[Weights, BundleWriter]:
    writer = BundleWriter(tmp_path / "module.edge")
    return Weights(Source(), matrices, writer), writer


@pytest.mark.parametrize(("bits", "block_size", "zero_points", "columns"), FORMATS)
def test_a_product_with_unit_vectors_gives_the_dequantized_weights(
    tmp_path: Path, bits: int, block_size: int, zero_points: bool, columns: int
) -> None:
    matrix = random_blocks(24, columns, bits, block_size, zero_points)
    weights, writer = weights_of(tmp_path, {"w": matrix})
    (y,) = run_module(tmp_path, Linear(weights.matrix("w", "attention")), writer, np.eye(columns, dtype=np.float32))
    np.testing.assert_allclose(y.T, matrix.dequantize(), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(("bits", "block_size", "zero_points", "columns"), FORMATS)
def test_embedding_rows_are_the_dequantized_rows(
    tmp_path: Path, bits: int, block_size: int, zero_points: bool, columns: int
) -> None:
    matrix = random_blocks(24, columns, bits, block_size, zero_points)
    weights, writer = weights_of(tmp_path, {"embed.weight": matrix})
    ids = np.array([[23, 0, 7, 7]])
    (y,) = run_module(tmp_path, Embedding(weights, "embed"), writer, ids)
    np.testing.assert_allclose(y[0], matrix.dequantize()[ids[0]], rtol=1e-6, atol=1e-7)


def test_scales_are_stored_as_the_kernels_read_them(tmp_path: Path) -> None:
    weights, _ = weights_of(tmp_path, {"w": random_blocks(24, 64, 4, 32, True)})
    stored = weights.matrix("w", "attention")
    assert isinstance(stored, StoredBlocks)
    assert stored.scales.dtype == ir.DataType.FLOAT  # anything else is converted at every load, and held twice


@pytest.mark.parametrize("dtype", [np.float32, np.float16])
def test_float_weights_are_computed_with_in_float32(tmp_path: Path, dtype: Any) -> None:
    w = np.random.default_rng(0).standard_normal((24, 40)).astype(dtype)
    weights, writer = weights_of(tmp_path, {"w": FloatTensor(w)})
    (y,) = run_module(tmp_path, Linear(weights.matrix("w", "attention")), writer, np.eye(40, dtype=np.float32))
    assert np.array_equal(y.T, w.astype(np.float32))


def test_projections_of_one_format_become_one_product(tmp_path: Path) -> None:
    parts = {f"m.{n}.weight": random_blocks(8, 64, 4, 32, n == "b", seed=i) for i, n in enumerate("abc")}
    weights, writer = weights_of(tmp_path, parts)
    module = Projections(weights, "m", list("abc"), "abc", "attention")
    outputs = run_module(tmp_path, module, writer, np.eye(64, dtype="f"))
    assert len(outputs) == 1
    expected = np.concatenate([p.dequantize() for p in parts.values()])
    np.testing.assert_allclose(outputs[0].T, expected, rtol=1e-5, atol=1e-6)


def test_projections_of_different_formats_stay_apart(tmp_path: Path) -> None:
    parts = {
        f"m.{n}.weight": random_blocks(8, 64, 8 if n == "b" else 4, 32, False, seed=i) for i, n in enumerate("abc")
    }
    weights, writer = weights_of(tmp_path, parts)
    module = Projections(weights, "m", list("abc"), "abc", "attention")
    outputs = run_module(tmp_path, module, writer, np.eye(64, dtype="f"))
    assert len(outputs) == 3
    for y, part in zip(outputs, parts.values(), strict=True):
        np.testing.assert_allclose(y.T, part.dequantize(), rtol=1e-5, atol=1e-6)


def test_the_first_of_several_packed_values_lies_in_the_low_bits() -> None:
    values = np.array([[1, 2, 3]], np.uint8)
    assert pack_bits(values, 4).tolist() == [[0x21, 0x03]]
    assert pack_bits(values, 2).tolist() == [[0b111001]]
    assert pack_bits(values, 8).tolist() == [[1, 2, 3]]


def quantized(checkpoint: TinyCheckpoint, formats: dict[str, tuple[int, int, bool]]) -> dict[str, QTensor]:
    """The checkpoint's matrices in blocks; `formats` by a part of the name, "" for the others."""
    result = {}
    for name, w in checkpoint.matrices().items():
        bits, block_size, zero_points = next(f for part, f in formats.items() if part in name)
        result[name] = random_blocks(*w.shape, bits, block_size, zero_points, like=w)
    return result


def with_weights(model: Any, matrices: dict[str, QTensor]) -> Any:
    """The same Torch model over the dequantized weights."""
    with torch.no_grad():
        for name, p in model.named_parameters():
            if name in matrices:
                p.copy_(torch.from_numpy(matrices[name].dequantize()))
    return model


@pytest.mark.parametrize(
    "formats",
    [
        {"": (8, 32, False)},
        {"embed": (8, 32, False), "": (4, 32, True)},
        {"k_proj": (8, 16, True), "up_proj": (8, 32, False), "": (4, 16, True)},
        {"embed": (4, 64, True), "": (4, 64, False)},
    ],
    ids=["int8", "int4", "mixed", "padded"],
)
@pytest.mark.parametrize("model_type", ["llama", "qwen3", "gemma3_text", "phi3"])
def test_quantized_logits_are_those_of_the_dequantized_weights(
    tmp_path: Path, model_type: str, formats: dict[str, tuple[int, int, bool]]
) -> None:
    options: dict[str, Any] = {**LLAMA, "model_type": model_type, "head_dim": 32, "pad_token_id": 0}
    model = tiny_model(AutoConfig.for_model(**options))
    checkpoint = TinyCheckpoint(model)
    matrices = quantized(checkpoint, formats)
    built, root = build(tmp_path / "tiny.edge", checkpoint, matrices, 32)
    ids = np.random.default_rng(2).integers(0, 97, 12)
    expected = torch_logits(with_weights(model, matrices), ids)
    logits = Graph(root, built, capacity=16).logits(ids, [5, 1, 6])
    # activations are rounded to 8 bits, which costs about 2%; a wrong scale or zero point costs all
    assert np.linalg.norm(logits - expected) < 0.06 * np.linalg.norm(expected)


def offsets(root: Path, path: str) -> dict[str, list[int]]:
    """Where in weights.bin the inputs of each node type lie."""
    graph = onnx.load(root / path, load_external_data=False).graph
    places = {t.name: int(e.value) for t in graph.initializer for e in t.external_data if e.key == "offset"}
    found: dict[str, list[int]] = {}
    for node in graph.node:
        found.setdefault(node.op_type, []).extend(places[i] for i in node.input if i in places)
    return found


def test_a_tied_embedding_is_stored_once_and_read_by_both_ends(tmp_path: Path) -> None:
    checkpoint = TinyCheckpoint(tiny_model(AutoConfig.for_model(**LLAMA)))
    matrices = quantized(checkpoint, {"": (8, 32, True)})
    built, root = build(tmp_path / "tied.edge", checkpoint, matrices, 32)
    found = offsets(root, built.graphs[0].path)
    shared = set(found["GatherBlockQuantized"]) & set(found["MatMulNBits"])
    assert len(shared) == len(set(found["GatherBlockQuantized"])) == 3  # integers, scales and zero points
    assert [g.name for g in built.groups] == ["embedding", "norm", "attention", "feed_forward"]


def test_a_tied_float_embedding_is_stored_once(tmp_path: Path) -> None:
    checkpoint = TinyCheckpoint(tiny_model(AutoConfig.for_model(**LLAMA)))
    built, root = build(tmp_path / "tied.edge", checkpoint, float_matrices(checkpoint), 32)
    found = offsets(root, built.graphs[0].path)
    assert set(found["Gather"]) <= set(found["FusedMatMul"])


def test_float16_logits_equal_torch_over_the_rounded_weights(tmp_path: Path) -> None:
    model = tiny_model(AutoConfig.for_model(**LLAMA))
    checkpoint = TinyCheckpoint(model)
    matrices = float_matrices(checkpoint, np.float16)
    built, root = build(tmp_path / "half.edge", checkpoint, matrices, 32)
    with torch.no_grad():
        for p in model.parameters():
            if p.ndim == 2:
                p.copy_(p.half().float())
    ids = np.arange(9)
    logits = Graph(root, built, capacity=9).logits(ids, [9])
    np.testing.assert_allclose(logits, torch_logits(model, ids), rtol=0, atol=1e-4 * np.abs(logits).max())
    assert {g.bits for g in built.groups if g.name != "norm"} == {16.0}


def test_groups_add_up_to_the_whole_model(tmp_path: Path) -> None:
    model = tiny_model(AutoConfig.for_model(**{**LLAMA, "tie_word_embeddings": False, "attention_bias": True}))
    checkpoint = TinyCheckpoint(model)
    matrices = quantized(checkpoint, {"": (4, 32, True)})
    built, _ = build(tmp_path / "groups.edge", checkpoint, matrices, 32)
    groups = {g.name: g for g in built.groups}
    assert set(groups) == {"embedding", "attention", "feed_forward", "head", "norm"}
    assert sum(g.parameters for g in built.groups) == sum(p.numel() for p in model.parameters())
    feed_forward = groups["feed_forward"]
    assert feed_forward.bits == 4 and feed_forward.block_size == 32 and feed_forward.method == "random"
    blocks = feed_forward.parameters // 32
    zero_points = 2 * (2 * 160 * 2 + 96 * 3)  # two layers; 3 and 5 zero points a row take 2 and 3 bytes
    assert feed_forward.bytes == blocks * (16 + 4) + zero_points
    assert 4 < groups["attention"].bits < 5  # its biases are float32
