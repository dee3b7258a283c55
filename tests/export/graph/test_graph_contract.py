"""What every host relies on: the step graph's inputs and outputs, small graphs, errors that say what is wrong."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import onnx
import pytest
from decoder_configs import checkpoint_of, rope
from graph_harness import Graph, TinyCheckpoint, build, float_matrices, relative_error, torch_logits

from edge.errors import ExportError
from edge.export.graph.families import known_families


@pytest.fixture
def checkpoint() -> TinyCheckpoint:
    return checkpoint_of()


def test_inputs_and_outputs_are_the_contract(tmp_path: Path, checkpoint: TinyCheckpoint) -> None:
    built, root = build(tmp_path / "x.edge", checkpoint, float_matrices(checkpoint), 64)
    session = Graph(root, built, capacity=8).session
    kv = {f"{i}.{part}": ("tensor(float)", ["B", 2, "C", 32]) for i in range(3) for part in ("key", "value")}
    assert {i.name: (i.type, i.shape) for i in session.get_inputs()} == {
        "input_ids": ("tensor(int64)", ["B", "S"]),
        "position_ids": ("tensor(int64)", ["B", "S"]),
        "seqlens_k": ("tensor(int32)", ["B"]),
        "total_sequence_length": ("tensor(int32)", []),
        "logit_rows": ("tensor(int64)", ["R"]),
        **{f"past.{k}": v for k, v in kv.items()},
    }
    assert {o.name: (o.type, o.shape) for o in session.get_outputs()} == {
        "logits": ("tensor(float)", ["B", "R", 331]),
        "tokens": ("tensor(int64)", ["B", "R"]),
        **{f"present.{k}": v for k, v in kv.items()},
    }


PART = {"head_dim": 40, "pad_token_id": 0, "rope_parameters": rope("default", partial_rotary_factor=0.5)}


@pytest.mark.parametrize("family", ["gemma3_text", "llama", "phi3", "qwen3"])
def test_a_step_takes_a_token_of_each_of_several_sequences(tmp_path: Path, family: str) -> None:
    """Those of three lengths say what each says alone, behind its own rows: logits and the likeliest tokens."""
    checkpoint = checkpoint_of(model_type=family, pad_token_id=0)
    built, root = build(tmp_path / "x.edge", checkpoint, float_matrices(checkpoint), 64)
    assert built.graphs[0].batch and built.graphs[0].tokens and not built.graphs[0].trees
    graphs, prompts = [Graph(root, built, capacity=16) for _ in range(3)], [np.arange(5), np.arange(20, 31), [7]]
    for graph, prompt in zip(graphs, prompts, strict=True):
        graph.step(np.array(prompt), [0])
    lengths = np.array([graph.length for graph in graphs])
    given = {
        "input_ids": np.array([[50], [60], [70]]),
        "position_ids": lengths[:, None],
        "seqlens_k": lengths.astype(np.int32),
        "total_sequence_length": np.array(lengths.max() + 1, np.int32),
        "logit_rows": np.zeros(1, np.int64),
        **{f"past.{name}": np.concatenate([graph.arrays[name] for graph in graphs]) for name in graphs[0].arrays},
    }
    logits, tokens = graphs[0].session.run(["logits", "tokens"], given)
    assert logits.shape == (3, 1, 331) and np.array_equal(tokens, logits.argmax(-1))
    for i, graph in enumerate(graphs):
        np.testing.assert_allclose(logits[i], graph.step(given["input_ids"][i], [0]), atol=1e-4)


def test_the_manifest_learns_dims_and_cache_from_the_graph(tmp_path: Path, checkpoint: TinyCheckpoint) -> None:
    built, _ = build(tmp_path / "x.edge", checkpoint, float_matrices(checkpoint), 64)
    assert built.family == "qwen3"
    assert (built.dims.num_layers, built.dims.head_dim, built.dims.vocab_size) == (3, 32, 331)
    assert [layer.window for layer in built.kv.layers] == [None, None, 7]
    assert {(layer.heads, layer.head_dim) for layer in built.kv.layers} == {(2, 32)}


def test_the_graph_holds_no_weights(tmp_path: Path, checkpoint: TinyCheckpoint) -> None:
    built, root = build(tmp_path / "x.edge", checkpoint, float_matrices(checkpoint), 64)
    graph = onnx.load(root / built.graphs[0].path, load_external_data=False).graph
    inside = [t for t in graph.initializer if not t.external_data]
    assert sum(np.prod(t.dims) for t in inside) < 50  # shapes and scalars
    locations = {e.value for t in graph.initializer for e in t.external_data if e.key == "location"}
    assert locations == {"weights.bin"}


def test_the_stream_is_added_up_and_normed_by_one_operator(tmp_path: Path, checkpoint: TinyCheckpoint) -> None:
    built, root = build(tmp_path / "x.edge", checkpoint, float_matrices(checkpoint), 64)
    nodes = onnx.load(root / built.graphs[0].path, load_external_data=False).graph.node
    fused = [node for node in nodes if node.op_type == "SkipSimplifiedLayerNormalization"]
    assert len(fused) == 2 * 3  # two norms a layer, of which the very first has nothing to add, and the last one
    assert {node.domain for node in fused} == {"com.microsoft"}


def test_one_row_of_logits_makes_nothing_of_the_size_of_all(tmp_path: Path, checkpoint: TinyCheckpoint) -> None:
    built, root = build(tmp_path / "x.edge", checkpoint, float_matrices(checkpoint), 64)
    graph = Graph(root, built, capacity=16, profile=tmp_path / "profile")
    graph.step(np.arange(13), [12])
    events = json.loads(Path(graph.session.end_profiling()).read_text())
    shapes = [
        (event["name"], shape)
        for event in events
        for output in event.get("args", {}).get("output_type_shape", [])
        for shape in output.values()
    ]
    assert [1, 1, 331] in [shape for _, shape in shapes]
    assert [1, 13, 96 * 2] in [shape for _, shape in shapes]  # the feed-forward of all but the last layer
    assert not [name for name, shape in shapes if 13 in shape and 331 in shape]
    assert not [name for name, shape in shapes if 13 in shape and "layers.2/mlp" in name]


def test_no_row_of_logits_may_be_asked_for(tmp_path: Path, checkpoint: TinyCheckpoint) -> None:
    built, root = build(tmp_path / "x.edge", checkpoint, float_matrices(checkpoint), 64)
    with_rows, without = Graph(root, built, capacity=16), Graph(root, built, capacity=16)
    with_rows.step(np.arange(8), [7])
    assert without.step(np.arange(8), []).shape == (0, 331)
    assert np.array_equal(with_rows.step(np.arange(2), [1]), without.step(np.arange(2), [1]))


def test_cached_keys_and_values_are_written_in_place(tmp_path: Path, checkpoint: TinyCheckpoint) -> None:
    built, root = build(tmp_path / "x.edge", checkpoint, float_matrices(checkpoint), 64)
    graph = Graph(root, built, capacity=16)
    before = graph.arrays["1.key"].copy()
    graph.step(np.arange(5), [4])
    after = graph.arrays["1.key"]
    assert not np.any(after[:, :, :5] == before[:, :, :5])
    assert np.array_equal(after[:, :, 5:], before[:, :, 5:])


def test_two_builds_are_byte_for_byte_the_same(tmp_path: Path) -> None:
    checkpoint = checkpoint_of(model_type="gemma3_text", pad_token_id=0)
    files = []
    for name in ("a", "b"):
        built, root = build(tmp_path / f"{name}.edge", checkpoint, float_matrices(checkpoint), 64)
        files.append([(root / path).read_bytes() for path in (built.graphs[0].path, "weights.bin")])
    assert files[0] == files[1]


def test_families_are_found_by_their_files() -> None:
    assert {"gemma3", "llama", "mistral", "phi3", "qwen2", "qwen3", "smollm3", "t5"} <= set(known_families())


@pytest.mark.parametrize("model_type", ["mamba", "no_such_model"])
def test_an_unknown_family_is_refused_with_the_command_that_lists_the_known_ones(
    tmp_path: Path, checkpoint: TinyCheckpoint, model_type: str
) -> None:
    checkpoint.config = {"model_type": model_type}
    with pytest.raises(ExportError, match=rf"'{model_type}' cannot be exported; `edge models families` lists"):
        build(tmp_path / "x.edge", checkpoint, {}, 64)


def test_an_unknown_activation_is_refused(tmp_path: Path, checkpoint: TinyCheckpoint) -> None:
    checkpoint.config["hidden_act"] = "relu6"
    with pytest.raises(ExportError, match="'relu6'"):
        build(tmp_path / "x.edge", checkpoint, float_matrices(checkpoint), 64)


def test_a_missing_weight_is_named(tmp_path: Path, checkpoint: TinyCheckpoint) -> None:
    matrices = float_matrices(checkpoint)
    del matrices["model.layers.1.mlp.up_proj.weight"]
    with pytest.raises(ExportError, match=r"model\.layers\.1\.mlp\.up_proj\.weight"):
        build(tmp_path / "x.edge", checkpoint, matrices, 64)


def test_heads_that_attention_cannot_rotate_are_rotated_before_it(tmp_path: Path) -> None:
    """After their norms, and heads of which but a part is rotated, too."""
    for name, options in {
        "whole": {"head_dim": 24},
        "part": {"model_type": "phi3", "hidden_size": 160, **PART},
    }.items():
        checkpoint = checkpoint_of(**options)
        built, root = build(tmp_path / f"{name}.edge", checkpoint, float_matrices(checkpoint), 64)
        ids, graph = np.arange(20), Graph(root, built, capacity=20)
        assert relative_error(graph.logits(ids, [11, 9]), torch_logits(checkpoint.model, ids)) <= 1e-4
