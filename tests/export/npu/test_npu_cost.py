"""What a step costs is what its graph has: counted by hand for tiny models."""

from __future__ import annotations

import dataclasses
import json
import math
from pathlib import Path

import onnx_ir as ir
import pytest
from npu_models import CONTEXT, NAME, bundle_of, checkpoint_of, encoder_decoder_of

from edge.bundle import Bundle
from edge.cli.inspect_targets import ESTIMATE, UNKNOWN, show, summary
from edge.cli.tables import console
from edge.export.targets.npu.cost import multiply_adds
from edge.targets import SOCS, Compiled, Cost, Target, path_of, read_target


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> Bundle:
    return bundle_of(checkpoint_of("llama"), tmp_path_factory.mktemp("cost"))


@pytest.fixture(scope="module")
def target(bundle: Bundle) -> Target:
    return read_target(bundle, NAME)


def test_a_step_reads_all_weights_and_the_whole_cache_once(bundle: Bundle, target: Target) -> None:
    kv = bundle.manifest.kv.layers
    parameters = sum(group.parameters for group in bundle.manifest.groups)  # the head is the embedding here
    for graph in target.graphs:
        assert graph.cost is not None
        assert graph.cost.kv == sum(2 * layer.heads * layer.head_dim * CONTEXT * 2 for layer in kv)
        assert parameters < graph.cost.weights < 2 * parameters  # 8 bits each, and scales
        model = ir.load(bundle.path(graph.paths[0]))
        given = [value for value in model.graph.inputs if not str(value.name).startswith("past.")]
        passed = [*given, *model.graph.outputs]
        assert graph.cost.rest == sum(math.prod(value.shape.numpy()) * value.dtype.itemsize for value in passed)
        assert graph.cost.bytes == graph.cost.weights + graph.cost.kv + graph.cost.rest


def test_products_are_those_of_matrices_and_of_attention(bundle: Bundle, target: Target) -> None:
    checkpoint, dims = checkpoint_of("llama"), bundle.manifest.dims
    sizes = {name: math.prod(checkpoint.shape(name)) for name in checkpoint.names() if name.endswith("_proj.weight")}
    last = sum(size for name, size in sizes.items() if ".layers.1." in name and ("mlp" in name or "o_proj" in name))
    head = dims.vocab_size * dims.hidden_size
    for graph in target.graphs:
        scores = dims.num_layers * dims.num_heads * dims.head_dim * graph.size * (CONTEXT + graph.size)
        assert graph.cost is not None
        # After the last attention only the rows that have logits go on.
        rows = graph.size * (sum(sizes.values()) - last) + graph.rows * (last + head)
        assert graph.cost.products == rows + 2 * scores


def test_an_encoder_s_output_is_read_in_each_step(tmp_path: Path) -> None:
    made = encoder_decoder_of("t5", tmp_path)
    target, cross = read_target(made, NAME), made.manifest.cross
    assert target.encoder is not None and target.encoder.cost is not None and cross is not None
    of_encoder, step = target.encoder.cost, target.graphs[0].cost
    assert step is not None and of_encoder.kv == 0 and of_encoder.products > 64 * step.products / 4
    layers = [*made.manifest.kv.layers, *cross.layers]
    assert step.kv == sum(2 * layer.heads * layer.head_dim * CONTEXT * 2 for layer in layers)


def test_convolutions_are_counted() -> None:
    x, factor = (ir.val(name, ir.DataType.FLOAT, shape) for name, shape in (("x", [1, 4, 20]), ("w", [6, 2, 3])))
    node = ir.node("Conv", [x, factor], attributes={"group": 2})
    node.outputs[0].shape = ir.Shape([1, 6, 18])
    assert multiply_adds(ir.Graph([x, factor], node.outputs, nodes=[node])) == 6 * 18 * 2 * 3


# What `edge inspect` says of it


def with_costs(target: Target, cost: Cost | None, **others: object) -> Target:
    return dataclasses.replace(
        target, graphs=[dataclasses.replace(graph, cost=cost) for graph in target.graphs], **others
    )


def test_an_estimate_is_bytes_over_bandwidth_and_says_that_it_is_one(
    target: Target, capsys: pytest.CaptureFixture[str]
) -> None:
    cost = Cost(weights=60_000_000, kv=7_000_000, rest=200_000, products=150_000_000)
    compiled = [Compiled("sm8550", 73, "x 1", [])]
    one, eight, _ = summary(with_costs(target, cost, compiled=compiled))["graphs"]
    assert one["bytes"] == {"weights": 60_000_000, "kv": 7_000_000, "rest": 200_000}
    assert one["products"] == 150_000_000 and one["tokens"] == 1
    assert one["estimates"] == {
        "sm8550": {"ms_at_least": pytest.approx(1.0), "tokens_per_s_at_most": pytest.approx(1000)}
    }
    assert eight["estimates"]["sm8550"]["tokens_per_s_at_most"] is None  # of drafts, none of which may be accepted
    show(with_costs(target, cost, compiled=compiled), console())
    out = capsys.readouterr().out
    assert ESTIMATE in out and "nobody has measured it" in out
    assert "at most, in tokens/s: 1,000 on sm8550." in out and "sm8650" not in out


def test_without_compiled_graphs_all_chips_are_shown(target: Target, capsys: pytest.CaptureFixture[str]) -> None:
    assert all(list(graph["estimates"]) == list(SOCS) for graph in summary(target)["graphs"])
    show(target, console())
    out = capsys.readouterr().out
    assert all(name in out for name in SOCS)


def test_a_chip_of_unknown_bandwidth_has_no_estimate(
    target: Target, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(SOCS, "sm8550", dataclasses.replace(SOCS["sm8550"], bandwidth=None))
    alone = dataclasses.replace(target, compiled=[Compiled("sm8550", 73, "x 1", [])])
    found = summary(alone)["graphs"][0]["estimates"]["sm8550"]
    assert found == {"ms_at_least": None, "tokens_per_s_at_most": None}
    show(alone, console())
    out = capsys.readouterr().out
    assert "?" in out and "tokens/s" not in out


def test_an_older_target_is_read_and_its_costs_are_unknown(
    bundle: Bundle, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = bundle.path(path_of(NAME))
    content = json.loads(path.read_text())
    for graph in content["graphs"]:
        del graph["cost"]
    older = Bundle(tmp_path, bundle.manifest)
    older.path(path_of(NAME)).parent.mkdir(parents=True)
    older.path(path_of(NAME)).write_text(json.dumps(content))
    found = read_target(older, NAME)
    assert [graph.cost for graph in found.graphs] == [None, None, None]
    assert [graph["bytes"] for graph in summary(found)["graphs"]] == [None] * 3
    show(found, console())
    out = capsys.readouterr().out
    assert UNKNOWN in out and "tokens/s" not in out
