"""Graphs for several contexts: a text begins in the smallest, and goes on in the next when that is full."""

from __future__ import annotations

import numpy as np
import pytest
from decoder_configs import VOCABULARY
from npu_models import CONTEXT, NAME, bundle_of, checkpoint_of, divergence, plain, static, walk

from edge.bundle import Bundle
from edge.cli.inspect_targets import summary
from edge.runtime.engine.graphs.fixed_cache import FixedCache
from edge.runtime.engine.tree import BLOCKED, Tree
from edge.runtime.profile.subject import Subject
from edge.targets import read_target

CONTEXTS = [16, 32, CONTEXT]
TOKENS = np.random.default_rng(3).integers(3, VOCABULARY, CONTEXT)


@pytest.fixture(scope="module")
def several(tmp_path_factory: pytest.TempPathFactory) -> Bundle:
    return bundle_of(checkpoint_of("llama"), tmp_path_factory.mktemp("several"), contexts=CONTEXTS)


@pytest.fixture(scope="module")
def one(tmp_path_factory: pytest.TempPathFactory) -> Bundle:
    return bundle_of(checkpoint_of("llama"), tmp_path_factory.mktemp("one"))


def test_the_target_has_graphs_for_each_over_the_same_weights(several: Bundle, one: Bundle) -> None:
    target, alone = read_target(several, NAME), read_target(one, NAME)
    assert list(target.by_context) == CONTEXTS and target.context == CONTEXT and alone.shorter == []
    assert [graph.paths for graph in target.graphs] == [graph.paths for graph in alone.graphs]
    assert len(set(target.graph_paths)) == 9 and target.graph_paths[:3] == alone.graph_paths
    sizes = [bundle.path(f"targets/{NAME}/weights.bin").stat().st_size for bundle in (several, one)]
    assert sizes[0] == sizes[1]
    kv = [graphs[0].cost.kv for graphs in target.by_context.values() if graphs[0].cost is not None]
    assert kv == [rows * kv[-1] // CONTEXT for rows in CONTEXTS]


def test_a_prompt_that_needs_the_largest_has_the_same_bits(several: Bundle, one: Bundle) -> None:
    ours, theirs = (walk(static(bundle), TOKENS, [40, *[1] * 20]) for bundle in (several, one))
    np.testing.assert_array_equal(ours, theirs)


@pytest.mark.parametrize("sizes", [[1] * CONTEXT, [10, 8, 8, 8, *[3] * 10], [16, 16, 1, 15, 8, 8]])
def test_an_answer_that_grows_goes_on_as_with_the_largest(several: Bundle, one: Bundle, sizes: list[int]) -> None:
    ours, theirs, exact = (walk(engine, TOKENS, sizes) for engine in (static(several), static(one), plain(one)))
    np.testing.assert_allclose(ours, theirs, atol=0.01)
    assert divergence(ours, exact) < 0.015
    decided = np.sort(theirs)[:, -1] - np.sort(theirs)[:, -2] > 0.02
    assert decided.mean() > 0.8
    np.testing.assert_array_equal(ours.argmax(axis=1)[decided], theirs.argmax(axis=1)[decided])


def test_a_cache_is_as_large_as_it_must_be(several: Bundle) -> None:
    engine = static(several)
    cache = engine.new_cache(CONTEXT)
    assert isinstance(cache, FixedCache)
    rows = []
    for size in (10, 6, 1, 15, 8):
        engine.step(cache, TOKENS[:size])
        rows.append(cache.rows)
    assert rows == [16, 16, 32, 32, 64]
    cache.truncate(5)
    engine.step(cache, TOKENS[:1])
    assert cache.rows == 64  # what a rejected draft made it
    cache.reset()
    engine.step(cache, TOKENS[:1])
    assert cache.rows == 16


def test_graphs_are_opened_when_they_are_needed(several: Bundle) -> None:
    engine = static(several)
    engine.step(engine.new_cache(CONTEXT), TOKENS[:8])
    assert len(engine.graphs._opened) == 3
    engine.step(engine.new_cache(CONTEXT), TOKENS[:17])
    assert len(engine.graphs._opened) == 4
    assert len(engine.sessions) == 9 and f"{NAME}, steps of 8, context 32" in engine.sessions
    assert engine.path(f"{NAME}, steps of 8, context 32").name == "step-8-of-32.onnx"


def test_a_tree_that_does_not_fit_moves_the_cache(several: Bundle, one: Bundle) -> None:
    made = []
    for engine in (static(several), static(one)):
        cache = engine.new_cache(CONTEXT)
        engine.step(cache, TOKENS[:30])
        bias = np.zeros((4, 34), np.float32)
        bias[:, 30:] = np.where(np.eye(4, dtype=bool), 0, BLOCKED)
        tree = Tree(np.array([30, 30, 30, 30]), bias)
        found = [engine.step(cache, TOKENS[30:34], np.arange(4), tree=tree).copy()]
        cache.copy_rows(np.array([*range(30), 32]))
        found.append(engine.step(cache, TOKENS[40:41]).copy())
        made.append(np.concatenate(found))
    np.testing.assert_allclose(made[0], made[1], atol=0.01)


def test_a_measured_step_has_the_graph_of_its_context(several: Bundle) -> None:
    subject = Subject(static(several), CONTEXT)
    subject.fill(16)
    rows = []
    for context in (8, 40, 20, 8):
        subject.step(4, context)
        assert isinstance(subject._cache, FixedCache)
        rows.append(subject._cache.rows)
    assert rows == [16, 64, 32, 16]


def test_a_measured_cache_is_full_of_what_was_run(one: Bundle) -> None:
    subject = Subject(static(one), CONTEXT)
    subject.fill(20)
    for key, value in subject._cache.buffers:
        np.testing.assert_array_equal(key[..., 40:60], key[..., :20])
        np.testing.assert_array_equal(value[:, :, 40:60], value[:, :, :20])
        assert key.any() and value.any()


def test_inspect_has_a_row_for_each(several: Bundle) -> None:
    names = [graph["name"] for graph in summary(read_target(several, NAME))["graphs"]]
    assert names[:4] == ["steps of 1, 16", "steps of 8, 16", "steps of 64, 16", "steps of 1, 32"]
