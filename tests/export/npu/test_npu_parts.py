"""Graphs that are cut into parts say what the whole ones say."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import numpy as np
import onnx_ir as ir
import pytest
from decoder_configs import VOCABULARY
from npu_models import CONTEXT, NAME, bundle_of, checkpoint_of, encoder_decoder_of, needs_simulator, static, walk

from edge.bundle import Bundle
from edge.export.targets import npu as target_writer
from edge.export.targets.npu.graphs import Shape, StaticModel
from edge.export.targets.npu.parts import parts_of
from edge.targets import read_target

SIZES = [16, 8, 3, *[1] * 5, 8]
TOKENS = np.random.default_rng(3).integers(3, VOCABULARY, CONTEXT)


def weights_of(model: ir.Model) -> int:
    return sum(value.const_value.size for value in model.graph.initializers.values() if value.const_value is not None)


@pytest.mark.parametrize("family", ["llama", "gemma3_text", "olmo2"])
def test_a_part_is_as_large_as_it_may_be(family: str) -> None:
    build = partial(StaticModel(checkpoint_of(family), CONTEXT).build, Shape(8, 8, CONTEXT))
    whole = weights_of(build())
    assert len(parts_of(build, whole)) == 1
    halves = parts_of(build, whole // 2)
    assert len(halves) == 3 and max(map(weights_of, halves)) <= whole // 2
    smallest = parts_of(build, 1)  # of which no half-layer has so few
    assert len(smallest) == 5
    for parts in (halves, smallest):
        names = [value.name for part in parts for value in part.graph.outputs]
        passed = {value.name for part in parts[1:] for value in part.graph.inputs} & set(names)
        assert sorted(set(names) - passed) == sorted(value.name or "" for value in build().graph.outputs)
        assert len(passed) == len(parts) - 1


@pytest.fixture(params=["llama", "t5"])
def bundles(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[Bundle, Bundle]:
    """One of whole graphs, and one of graphs in parts."""
    made = []
    for part in (target_writer.PART, 20_000):
        monkeypatch.setattr(target_writer, "PART", part)
        folder = tmp_path / str(part)
        folder.mkdir()
        make = (
            encoder_decoder_of if request.param == "t5" else lambda name, folder: bundle_of(checkpoint_of(name), folder)
        )
        made.append(make(request.param, folder))
    return made[0], made[1]


def said(bundle: Bundle, provider: str) -> np.ndarray:
    source = None if bundle.manifest.encoder is None else TOKENS[:30]
    return walk(static(bundle, provider), TOKENS, SIZES[1:] if source is not None else SIZES, source)


def test_parts_say_what_the_whole_says(bundles: tuple[Bundle, Bundle]) -> None:
    whole, cut = bundles
    assert [len(graph.paths) for graph in read_target(whole, NAME).graphs][:2] == [1, 1]
    counts = {len(graph.paths) for graph in read_target(cut, NAME).graphs}
    assert len(counts) == 1 and counts.pop() > 1
    np.testing.assert_array_equal(said(cut, "cpu"), said(whole, "cpu"))
    costs = [[graph.cost.products for graph in read_target(each, NAME).graphs if graph.cost] for each in bundles]
    assert costs[0] == costs[1]


def test_the_simulator_runs_every_part(bundles: tuple[Bundle, Bundle]) -> None:
    needs_simulator()
    _, cut = bundles
    engine = static(cut, "qnn")
    for session in engine.sessions.values():
        assert set(engine.provider.placement(session)) == {"QNNExecutionProvider"}
    assert any(", part 2 of " in name for name in engine.sessions)
    np.testing.assert_allclose(said(cut, "qnn"), said(cut, "cpu"), atol=0.05)


def test_a_chip_gets_a_binary_for_each_part(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    needs_simulator()
    monkeypatch.setattr(target_writer, "PART", 20_000)
    made = bundle_of(checkpoint_of("llama"), tmp_path, ["sm8550"])
    target = read_target(made, NAME)
    (found,) = target.compiled
    binaries = [file.path for file in made.manifest.files if "sm8550/" in file.path and file.path.endswith(".bin")]
    assert len(found.paths) == len(target.graph_paths) and len(binaries) == len(target.graphs[0].paths) > 1
