"""Where the time goes: what is read of the graph, what a node's run takes, and the operators of real engines."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import numpy as np
import onnx
import pytest

from edge.bundle import Bundle
from edge.errors import BundleError, InputError
from edge.runtime.costs.record import Op
from edge.runtime.kernels.library import find_kernels
from edge.runtime.profile import node_costs as costs
from edge.runtime.profile import ops, peaks
from edge.runtime.profile.graph_file import Node, read_graph
from edge.runtime.profile.graph_runs import Event
from edge.runtime.profile.ops import Measured, layers, without_profiler

FLOATS = "float"


@pytest.fixture(scope="module")
def measured(pristine_tiny_bundle: Bundle) -> Measured:
    return ops.measure(pristine_tiny_bundle, context=100, sizes=(1, 16), seconds=0.5)


def test_the_graph_is_read_as_onnx_reads_it(tiny_bundle: Bundle) -> None:
    path = tiny_bundle.path(tiny_bundle.manifest.graph("decoder").path)
    graph = onnx.load(path, load_external_data=False).graph
    sizes = {t.name: int(np.prod(t.dims)) * onnx.helper.tensor_dtype_to_np_dtype(t.data_type).itemsize
             for t in graph.initializer}  # fmt: skip
    found = read_graph(path)
    assert set(found) == {node.name for node in graph.node}
    for node in graph.node:
        numbers = {a.name: a.i for a in node.attribute if a.type == onnx.AttributeProto.INT}
        weights = {name: sizes[name] for name in node.input if name in sizes}
        assert found[node.name] == Node(node.op_type, weights, numbers), node.name


@pytest.mark.parametrize("content", [b"", b"\x3a\xff", b"\x3a\x00\x3a\x00", b"\x80", b"\x0b", b"\x0d\x00"])
def test_a_file_that_holds_no_graph_is_refused(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "x.onnx").write_bytes(content)
    with pytest.raises(BundleError, match="x.onnx is no ONNX file"):
        read_graph(tmp_path / "x.onnx")


def shape(*dims: int, kind: str = FLOATS) -> costs.Shape:
    return costs.Shape(kind, dims)


def test_a_packed_product_moves_its_packed_weights() -> None:
    weights = {"b": 960 * 288, "scales": 960 * 9 * 4, "zeros": 960 * 5}
    node = Node("MatMulNBits", weights, {"bits": 4, "accuracy_level": 4})
    found = costs.cost("MatMulNBits", [shape(1, 7, 576), shape(960, 9)], [shape(1, 7, 960)], node)
    assert found == costs.Cost(7 * 576 * 4 + sum(weights.values()) + 7 * 960 * 4, 2 * 7 * 576 * 960, "int4")
    eight = Node("MatMulNBits", {"b": 1}, {"bits": 8, "accuracy_level": 4})
    assert costs.cost("MatMulNBits", [shape(1, 7, 576)], [shape(1, 7, 960)], eight).arithmetic == "int8"
    floats = Node("MatMulNBits", {"b": 1}, {"bits": 4})
    assert costs.cost("MatMulNBits", [shape(1, 7, 576)], [shape(1, 7, 960)], floats).arithmetic == "float32"


def test_a_product_that_onnxruntime_made_has_the_weights_its_shapes_say() -> None:
    found = costs.cost("Gemm", [shape(3000, 240), shape(512)], [shape(3000, 512)], None)
    assert found == costs.Cost(4 * (3000 * 240 + 240 * 512 + 3000 * 512), 2 * 3000 * 240 * 512, "float32")
    turned = costs.cost("FusedMatMul", [shape(8, 64, 50), shape(8, 64, 3)], [shape(8, 50, 3)], None)
    assert turned.flops == 2 * 8 * 50 * 64 * 3
    whole = costs.cost("MatMulIntegerToFloat", [shape(1, 5, 32, kind="uint8")], [shape(1, 5, 64)], None)
    assert whole == costs.Cost(5 * 32 + 32 * 64 + 5 * 64 * 4, 2 * 5 * 32 * 64, "int8")


def test_attention_reads_the_rows_that_it_attends_to() -> None:
    inputs = [shape(1, 2, 960), shape(1, 3, 600, 64), shape(1, 3, 600, 64)]
    found = costs.cost("GroupQueryAttention", inputs, [shape(1, 2, 576)], None, rows=100)
    rows = 2 * 3 * 64 * 4 * (102 + 2)
    assert found == costs.Cost(4 * 2 * (960 + 576) + rows, 4 * 576 * (101 + 102), "float32")
    narrow = costs.cost("GroupQueryAttention", inputs, [shape(1, 2, 576)], None, rows=100, window=32)
    assert narrow.flops == 4 * 576 * (32 + 32)
    across = [shape(1, 4, 192), shape(1, 4, 50, 48), shape(1, 4, 48, 50)]
    assert costs.cost("MultiHeadAttention", across, [shape(1, 4, 192)], None).flops == 4 * 4 * 192 * 50


def test_what_only_renames_moves_nothing_and_what_is_unknown_is_not_counted() -> None:
    assert costs.cost("Reshape", [shape(4, 4)], [shape(16)], None) == costs.Cost(0, 0, None)
    assert costs.cost("Gather", [shape(50000, 64), shape(1, 2)], [shape(2, 64)], None) == costs.Cost(1024, 0, None)
    assert costs.cost("Conv", [shape(4, 4)], [shape(4, 4)], None).flops is None
    assert costs.cost("Mul", [], [], None) == costs.Cost(None, None, None)


def test_what_the_profiler_adds_is_taken_off_each_node_alike() -> None:
    found = without_profiler(np.array([4.0, 5.0, 30.0, 61.0]), 88.0)
    assert found == pytest.approx([1, 2, 27, 58], abs=1e-6)
    assert without_profiler(np.array([4.0, 4.0, 100.0]), 50.0) == pytest.approx([50 / 123, 50 / 123, 6050 / 123])
    assert without_profiler(np.array([4.0, 4.0]), 50.0).tolist() == [4.0, 4.0]


def test_a_node_that_lost_its_name_belongs_where_the_one_before_it_does() -> None:
    names = ["Cast_1", "embed_tokens/Gather_2", "layers.0/mlp/fc1/MatMul_3", "BiasGelu", "layers.11/Add_4", "norm/N_5"]
    events = [Event(name, "Op", 0, 1, [], [], {}) for name in names]
    assert layers(events) == ["inputs", "embed_tokens", "0", "0", "11", "norm"]


def test_every_node_of_a_decoder_is_measured_at_every_size(measured: Measured, pristine_tiny_bundle: Bundle) -> None:
    nodes = read_graph(pristine_tiny_bundle.path("graphs/decoder.onnx"))
    for size in (1, 16):
        found = [op for op in measured.ops if op.size == size]
        types, wanted = Counter(op.op_type for op in found), Counter(node.op_type for node in nodes.values())
        if find_kernels() is None:
            assert types == wanted
        else:  # they take several nodes together
            assert all(types[name] == wanted[name] for name in ("MatMulNBits", "GroupQueryAttention"))
            assert types.total() < wanted.total()
        assert {op.context for op in found} == {100} and {op.graph for op in found} == {"decoder"}
        assert all(op.us > 0 and op.count >= ops.LEAST and op.bytes is not None for op in found)
        assert {"0", "1"} <= {op.layer for op in found}
    assert "is subtracted from the times of operators" in measured.notes[0]


def products(found: list[Op], size: int) -> int:
    return sum(op.flops or 0 for op in found if op.size == size and "MatMul" in op.op_type)


def test_products_take_two_operations_a_weight_and_token(measured: Measured, pristine_tiny_bundle: Bundle) -> None:
    groups = {group.name: group.parameters for group in pristine_tiny_bundle.manifest.groups}
    body = groups["attention"] + groups["feed_forward"]
    head = 64 * pristine_tiny_bundle.manifest.dims.vocab_size
    last_layer = products(measured.ops, 16) - 2 * head  # of which only the rows that need logits may be run
    assert products(measured.ops, 1) == 2 * (body + head)
    assert 16 * body < last_layer <= 2 * 16 * body


def test_the_story_is_a_prompt_and_its_answer_on_one_clock(measured: Measured) -> None:
    assert [(step.size, step.context) for step in measured.story] == [(16, 100), *((1, 100 + i) for i in range(6))]
    ends = [step.run.start_us + step.run.us for step in measured.story]
    assert all(end <= step.run.start_us for end, step in zip(ends, measured.story[1:], strict=False))
    first = measured.story[0]
    assert len(first.layers) == len(first.run.events)
    assert all(first.run.start_us <= event.start_us <= ends[0] for event in first.run.events)


def test_encoders_and_frontends_are_measured_too(tmp_path: Path) -> None:
    from whisper_speaker import Speaker

    found = ops.measure(Speaker(tmp_path / "ear.edge").engine.bundle, seconds=0.3)
    assert {(op.graph, op.size, op.context) for op in found.ops} >= {("frontend", 50, None), ("encoder", 50, None)}
    assert [step.graph for step in found.story][:3] == ["frontend", "encoder", "decoder"]
    assert all(op.flops is not None for op in found.ops if op.op_type in costs.PRODUCTS | costs.ATTENTION)


def test_the_profiler_leaves_no_files(tiny_bundle: Bundle, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr("tempfile.tempdir", None)
    before = sorted(tmp_path.iterdir())
    ops.measure(tiny_bundle, sizes=(1,), seconds=0.01)
    assert sorted(tmp_path.iterdir()) == before


def test_a_profile_that_was_cut_off_is_one_sentence(tiny_bundle: Bundle, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = Path.read_bytes
    monkeypatch.setattr(Path, "read_bytes", lambda self: whole(self)[: -1000 if self.suffix == ".json" else None])
    with pytest.raises(InputError, match=r"needs temporary files: the profile .* is not whole .*; set TMPDIR to a"):
        ops.measure(tiny_bundle, sizes=(1,), seconds=0.01)


def test_a_context_beyond_the_bundle_is_one_sentence(tiny_bundle: Bundle) -> None:
    with pytest.raises(InputError, match="at 0 to 496 tokens of context with this bundle, not 500"):
        ops.measure(tiny_bundle, context=500, sizes=(1, 16))


def test_peaks_are_those_of_a_machine() -> None:
    found = peaks.measure(seconds=0.05, width=256)
    assert found.memory_gb_per_s > 0.5 and found.cache_gb_per_s is not None and found.cache_gb_per_s > 0.5
    assert set(found.gemm_gflop_per_s) == {"float32", "int8", "int4"}
    assert all(rate > 0.1 for rate in found.gemm_gflop_per_s.values())
