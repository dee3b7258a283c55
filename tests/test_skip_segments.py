"""Segments: together they are the whole graph; of those that are skipped no token leaves a trace."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from skip_models import skipping_logits, torch_model

import edge
from edge.bundle import Bundle
from edge.errors import BundleError, ExportError, InputError
from edge.manifest import KVLayer, KVLayout, sealed
from edge.runtime.engine import Engine
from edge.runtime.skip.apart import Apart
from edge.runtime.skip.base import grouped, skippable
from edge.runtime.skip.cache import SegmentedCache
from edge.runtime.skip.engine import SegmentedEngine

LAYERS = 6  # of the small model
STEPS = [37, 1, 1, 5, 1, 2, 16]


def halves_and_layers(by_layer: Bundle, by_half: Bundle) -> list[tuple[Bundle, list[tuple[int, ...]]]]:
    """Bundles and ways to group their segments: all together, all apart, some apart."""
    layers, halves = skippable(by_layer.manifest.segments), skippable(by_half.manifest.segments)
    each = [(i,) for unit in halves for i in unit]
    return [
        (by_layer, []),
        (by_layer, layers),
        (by_layer, [(2, 3)]),
        (by_half, []),
        (by_half, halves),
        (by_half, each),
        (by_half, each[1::2]),
    ]


def test_all_segments_are_the_whole_graph_bit_for_bit(by_layer: Bundle, by_half: Bundle) -> None:
    for bundle, apart in halves_and_layers(by_layer, by_half):
        whole, parts = Engine(bundle, context=128), SegmentedEngine(bundle, Apart(bundle, apart), context=128)
        a, b = whole.new_cache(), parts.new_cache()
        rng = np.random.default_rng(len(apart))
        for size in STEPS:
            tokens = rng.integers(3, 300, size)
            for rows in (np.arange(size), None):
                expected, found = whole.step(a, tokens, rows), parts.step(b, tokens, rows)
                assert np.array_equal(expected, found), (bundle.root.name, apart, size)
                if rows is not None:
                    a.truncate(a.length - size)
                    b.truncate(b.length - size)


def test_skipped_layers_hold_no_row_and_no_later_step_reads_one(by_layer: Bundle, six_layers: Path) -> None:
    """Random schedules, steps of many sizes, and roll-backs, beside Torch."""
    model, apart = torch_model(six_layers), skippable(by_layer.manifest.segments)
    engine = SegmentedEngine(by_layer, Apart(by_layer, apart), context=128)
    for seed in range(6):
        rng = np.random.default_rng(seed)
        cache, ids, ran = engine.new_cache(), np.zeros(0, np.int64), np.zeros((LAYERS, 0), bool)
        for _ in range(12):
            if rng.random() < 0.3 and cache.length > 3:
                kept = int(rng.integers(1, cache.length))
                cache.truncate(kept)
                ids, ran = ids[:kept], ran[:, :kept]
            size = int(rng.choice([1, 1, 1, 2, 5, 9]))
            out = [i for i in range(1, LAYERS - 1) if rng.random() < 0.5]
            tokens = rng.integers(3, 300, size)
            ids = np.concatenate([ids, tokens])
            ran = np.concatenate([ran, np.repeat([[i not in out] for i in range(LAYERS)], size, axis=1)], axis=1)
            logits = engine.step(cache, tokens, np.arange(size), route=engine.leaving_out(out))
            expected = skipping_logits(model, ids, ran)[-size:]
            np.testing.assert_allclose(logits, expected, atol=2e-4, err_msg=f"seed {seed}, {len(ids)} tokens")
            assert cache.held.tolist() == ran.sum(axis=1).tolist()


def test_a_layer_that_joins_late_rotates_by_the_place_in_the_text(by_layer: Bundle, six_layers: Path) -> None:
    engine = SegmentedEngine(by_layer, Apart(by_layer, [(3,)]), context=64)
    cache, ids = engine.new_cache(), np.arange(20, 31)
    engine.step(cache, ids[:9], route=engine.leaving_out([3]))
    found = [engine.step(cache, ids[i : i + 1])[0].copy() for i in (9, 10)]
    ran = np.ones((LAYERS, 11), bool)
    ran[3, :9] = False
    np.testing.assert_allclose(found, skipping_logits(torch_model(six_layers), ids, ran)[9:], atol=2e-4)


def test_rolling_back_leaves_what_was_there_before(by_layer: Bundle) -> None:
    engine = SegmentedEngine(by_layer, Apart(by_layer, [(2,), (4,)]), context=64)
    straight, wandering = engine.new_cache(), engine.new_cache()
    prompt, draft, route = np.arange(30, 40), np.arange(50, 55), engine.leaving_out([2])
    for cache in (straight, wandering):
        engine.step(cache, prompt)
    for token in draft:  # a drafter that leaves a layer out, whose tokens are dropped again
        engine.step(wandering, np.array([token]), route=route)
    wandering.truncate(len(prompt))
    for token in draft[:3]:
        expected = engine.step(straight, np.array([token])).copy()
        assert np.array_equal(expected, engine.step(wandering, np.array([token])))


def test_what_runs_together_cannot_be_left_out_alone(by_layer: Bundle) -> None:
    engine = SegmentedEngine(by_layer, Apart(by_layer, [(2, 3)]), context=16)
    assert engine.leaving_out([2, 3]) == (0, 2)
    for segments in ([2], [0], [1, 2, 3], [5]):
        with pytest.raises(InputError, match="cannot be left out"):
            engine.leaving_out(segments)


def test_compacting_moves_each_layers_own_rows() -> None:
    layout = KVLayout("float32", [KVLayer(1, 8)] * 3)
    cache = SegmentedCache(layout, 10, [[0], [1, 2]])
    for token, route in enumerate([(0, 1), (0,), (0, 1), (1,), (0, 1), (0, 1)]):
        cache.append(np.array([token]), route, alike=False)
    for group, layers in enumerate(cache.layers):
        for layer in layers:
            for buffer in cache.buffers[layer]:
                buffer[0, 0, : cache.held[group], 0] = np.flatnonzero(cache.ran[group, :6])
    cache.compact([0, 2, 3, 5])
    assert (cache.length, cache.held.tolist()) == (4, [3, 4])
    for layer, tokens in ((0, [0, 2, 5]), (1, [0, 2, 3, 5]), (2, [0, 2, 3, 5])):
        assert cache.buffers[layer][0][0, 0, : len(tokens), 0].tolist() == tokens
    assert cache.places[0, :3].tolist() == [0, 2, 5]


def test_groups_join_whatever_always_runs() -> None:
    assert grouped(6, []) == [(0, 1, 2, 3, 4, 5)]
    assert grouped(6, [(2,), (3,)]) == [(0, 1), (2,), (3,), (4, 5)]
    assert grouped(6, [(2, 3)], never=[1, 4]) == [(0,), (2, 3), (5,)]
    assert grouped(6, [], never=[2, 3]) == [(0, 1, 4, 5)]


def test_segments_share_the_weights(by_layer: Bundle, by_half: Bundle) -> None:
    sizes = {file.path: file.size for file in by_layer.manifest.files}
    assert {file.path: file.size for file in by_half.manifest.files}["weights.bin"] == sizes["weights.bin"]
    assert sum(size for path, size in sizes.items() if "segments" in path) < 3 * sizes["graphs/decoder.onnx"]


def test_a_model_too_shallow_to_skip_is_refused(tiny_checkpoint: Path, tmp_path: Path) -> None:
    with pytest.raises(ExportError, match="has 2 decoder layers.*nothing to skip"):
        edge.export(tiny_checkpoint, tmp_path / "x.edge", weights="fp32", segments=1, check=False)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("segments", [0, -1, "half", ""])
def test_segments_of_no_size_are_refused(tiny_checkpoint: Path, tmp_path: Path, segments: int | str) -> None:
    with pytest.raises(InputError, match="neither of a number of layers"):
        edge.export(tiny_checkpoint, tmp_path / "x.edge", segments=segments)


def test_segments_that_do_not_make_a_decoder_are_refused(by_layer: Bundle, tmp_path: Path) -> None:
    import json

    text = json.loads(by_layer.manifest.to_json())
    del text["segments"][2]
    (tmp_path / "edge.json").write_text(sealed(text))
    with pytest.raises(BundleError, match="segments have the layers"):
        edge.bundle.open_bundle(tmp_path)
