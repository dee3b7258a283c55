"""Units: together they are the whole graph; of those that are skipped no token leaves a trace."""

from __future__ import annotations

import dataclasses
import random
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from decoder_configs import BASE, LONG, PREFILL, rope
from graph_harness import tiny_model
from skip_models import segmented, skipping_logits, torch_model, windowed_skipping_logits
from transformers import AutoConfig

import edge
from edge.bundle import Bundle, open_bundle
from edge.errors import BundleError, ExportError, InputError
from edge.manifest import KVLayer, KVLayout, sealed
from edge.runtime.engine.engine import Engine
from edge.runtime.engine.graphs.segment_cache import SegmentedCache
from edge.runtime.engine.variant import Variant
from edge.runtime.engine.want import TOKENS
from edge.runtime.load import open_engine
from edge.runtime.providers import open_provider
from edge.runtime.skip import make_policy
from edge.runtime.skip.skip_policy import AllLayers

LAYERS = 6  # of the small model
STEPS = [37, 1, 1, 5, 1, 2, 16]


def over(bundle: Bundle, context: int = 64) -> Engine:
    return Engine(bundle, Variant(policy=AllLayers(bundle), context=context))


def assert_units_are_the_whole_graph(bundle: Bundle) -> None:
    """Bit for bit, in steps of many sizes, each with all rows of logits, with all likeliest tokens, and with the last
    row."""
    whole, parts = open_engine(bundle, context=64), over(bundle)
    a, b = whole.new_cache(), parts.new_cache()
    rng = np.random.default_rng(0)
    for size in STEPS:
        tokens = rng.integers(3, bundle.manifest.dims.vocab_size, size)
        for rows in (np.arange(size), None):
            expected, found = whole.step(a, tokens, rows), parts.step(b, tokens, rows)
            assert np.array_equal(expected, found), (bundle.root.name, size)
            if rows is not None:
                a.truncate(a.length - size)
                b.truncate(b.length - size)
                chosen = parts.step(b, tokens, rows, want=TOKENS)
                assert parts.chooses and np.array_equal(chosen, expected.argmax(axis=1))
                b.truncate(b.length - size)


def test_all_units_are_the_whole_graph_bit_for_bit(by_layer: Bundle, by_half: Bundle) -> None:
    for bundle in (by_layer, by_half):
        assert_units_are_the_whole_graph(bundle)


def test_all_units_are_the_whole_quantized_graph_bit_for_bit(quantized: list[Bundle]) -> None:
    for bundle in quantized[1:]:
        assert_units_are_the_whole_graph(bundle)


FIVE: dict[str, Any] = {**BASE, "num_hidden_layers": 5, "max_position_embeddings": 128}
FULL, SLIDING = "full_attention", "sliding_attention"
GEMMA3: dict[str, Any] = {
    **FIVE,
    "model_type": "gemma3_text",
    "layer_types": [SLIDING, SLIDING, FULL, SLIDING, FULL],
    "sliding_window": 6,
    "query_pre_attn_scalar": 24,
}
FAMILIES: dict[str, dict[str, Any]] = {
    "gemma3": GEMMA3,
    "gemma3-softcap": {**GEMMA3, "final_logit_softcapping": 2.0, "tie_word_embeddings": False},
    "mistral": {**FIVE, "model_type": "mistral", "sliding_window": 5},
    "qwen2": {**FIVE, "model_type": "qwen2", "tie_word_embeddings": False},
    "qwen3": {**FIVE, "model_type": "qwen3", "use_sliding_window": True, "sliding_window": 5, "max_window_layers": 2},
    "phi3": {**FIVE, "model_type": "phi3", "sliding_window": 5, "head_dim": None},
    "phi3-longrope": {
        **{**FIVE, **PREFILL},
        "model_type": "phi3",
        "original_max_position_embeddings": 8,
        "rope_parameters": rope("longrope", original_max_position_embeddings=8, **LONG),
    },
    "cohere2": {**FIVE, "model_type": "cohere2", "sliding_window": 5, "head_dim": None},
    "hunyuan": {**FIVE, "model_type": "hunyuan_v1_dense"},
    "ministral3": {
        **FIVE,
        "model_type": "ministral3",
        "rope_parameters": rope("yarn", factor=4.0, original_max_position_embeddings=8, llama_4_scaling_beta=0.3),
    },
    "starcoder2": {**FIVE, "model_type": "starcoder2", "sliding_window": None, "head_dim": None},
    "smollm3": {**FIVE, "model_type": "smollm3", "no_rope_layers": [1, 0, 1, 0, 1], "attention_bias": True},
}


@pytest.mark.parametrize("family", FAMILIES)
def test_all_units_of_every_family_are_the_whole_graph_bit_for_bit(tmp_path: Path, family: str) -> None:
    config = AutoConfig.for_model(**{k: v for k, v in FAMILIES[family].items() if v is not None})
    model = tiny_model(config)
    for unit in (1, 2, "ffn"):
        assert_units_are_the_whole_graph(segmented(tmp_path / str(unit), model, unit))


def test_a_sliding_window_counts_the_rows_that_a_layer_has(tmp_path: Path) -> None:
    """Random schedules over a Gemma 3, beside Torch: a window reaches behind the tokens that skipped its layer."""
    model = tiny_model(AutoConfig.for_model(**GEMMA3))
    bundle = segmented(tmp_path / "gemma", model, 1)
    engine = over(bundle)
    for seed in range(4):
        rng = np.random.default_rng(seed)
        cache, ids, ran = engine.new_cache(), np.zeros(0, np.int64), np.zeros((5, 0), bool)
        while len(ids) < 40:
            size = int(rng.choice([1, 1, 2, 5, 9]))
            out = [i for i in (1, 2, 3) if rng.random() < 0.5]
            tokens = rng.integers(3, 97, size)
            ids = np.concatenate([ids, tokens])
            ran = np.concatenate([ran, np.repeat([[i not in out] for i in range(5)], size, axis=1)], axis=1)
            with engine.routes.through(cache, engine.routes.leaving_out(out)):
                logits = engine.step(cache, tokens, np.arange(size))
            expected = windowed_skipping_logits(model, ids, ran)[-size:]
            np.testing.assert_allclose(logits, expected, atol=1e-3, err_msg=f"seed {seed}, {len(ids)} tokens")


def test_skipped_layers_hold_no_row_and_no_later_step_reads_one(by_layer: Bundle, six_layers: Path) -> None:
    """Random schedules, steps of many sizes, and roll-backs, beside Torch."""
    model, engine = torch_model(six_layers), over(by_layer, 128)
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
            with engine.routes.through(cache, engine.routes.leaving_out(out)):
                logits = engine.step(cache, tokens, np.arange(size))
            expected = skipping_logits(model, ids, ran)[-size:]
            np.testing.assert_allclose(logits, expected, atol=2e-4, err_msg=f"seed {seed}, {len(ids)} tokens")
            assert cache.held.tolist() == ran.sum(axis=1).tolist()


def test_a_layer_that_joins_late_rotates_by_the_place_in_the_text(by_layer: Bundle, six_layers: Path) -> None:
    engine = over(by_layer)
    cache, ids = engine.new_cache(), np.arange(20, 31)
    with engine.routes.through(cache, engine.routes.leaving_out([3])):
        engine.step(cache, ids[:9])
    found = [engine.step(cache, ids[i : i + 1])[0].copy() for i in (9, 10)]
    ran = np.ones((LAYERS, 11), bool)
    ran[3, :9] = False
    np.testing.assert_allclose(found, skipping_logits(torch_model(six_layers), ids, ran)[9:], atol=2e-4)


def test_likeliest_tokens_are_asked_of_a_route(by_layer: Bundle) -> None:
    engine = over(by_layer)
    cache, tokens, rows = engine.new_cache(), np.arange(30, 41), np.arange(11)
    said = dict[tuple[int, ...], list[int]]()
    for out in ([], [2], [2, 4]):
        route = engine.routes.leaving_out(out)
        with engine.routes.through(cache, route):
            wanted = engine.step(cache, tokens, rows).argmax(axis=1)
            cache.truncate(0)
            found = engine.step(cache, tokens, rows, want=TOKENS)
        assert np.array_equal(found, wanted)
        assert cache.held.tolist() == [11 if unit in route else 0 for unit in engine.routes.everything]
        cache.truncate(0)
        said[tuple(out)] = found.tolist()
    assert said[()] != said[2,] != said[2, 4], "the routes differ, and so do these"
    assert engine.step(cache, tokens, rows, want=TOKENS).tolist() == said[()], "the next step is the policy's again"


def test_a_route_is_of_one_cache_in_turns_and_in_threads(by_layer: Bundle) -> None:
    engine = over(by_layer)
    ids, outs = np.arange(30, 42), [[2], [3, 4], []]
    turn = threading.Barrier(len(outs))

    def answer(out: list[int]) -> Iterator[np.ndarray]:
        cache = engine.new_cache()
        with engine.routes.through(cache, engine.routes.leaving_out(out)) if out else nullcontext():
            for token in ids:
                yield engine.step(cache, np.array([token]))[0].copy()

    def in_a_thread(out: list[int]) -> list[np.ndarray]:
        steps = []
        for logits in answer(out):
            steps.append(logits)
            turn.wait(60)
        return steps

    alone = [list(answer(out)) for out in outs]
    assert not np.allclose(alone[0], alone[1]) and not np.allclose(alone[1], alone[2])
    in_turns = zip(*zip(*map(answer, outs), strict=True), strict=True)
    assert np.array_equal(list(in_turns), alone)
    with ThreadPoolExecutor(len(outs)) as threads:
        assert np.array_equal(list(threads.map(in_a_thread, outs)), alone)


def test_rolling_back_leaves_what_was_there_before(by_layer: Bundle) -> None:
    engine = over(by_layer)
    straight, wandering = engine.new_cache(), engine.new_cache()
    prompt, draft, route = np.arange(30, 40), np.arange(50, 55), engine.routes.leaving_out([2])
    for cache in (straight, wandering):
        engine.step(cache, prompt)
    with engine.routes.through(cache, route):
        for token in draft:  # a drafter that leaves a layer out, whose tokens are dropped again
            engine.step(wandering, np.array([token]))
    wandering.truncate(len(prompt))
    for token in draft[:3]:
        expected = engine.step(straight, np.array([token])).copy()
        assert np.array_equal(expected, engine.step(wandering, np.array([token])))


def test_the_first_and_the_last_unit_cannot_be_left_out(by_layer: Bundle) -> None:
    engine = over(by_layer, 16)
    assert engine.routes.leaving_out([2, 3]) == (0, 1, 4, 5)
    for units in ([0], [2, 5], [6]):
        with pytest.raises(InputError, match="cannot be left out"):
            engine.routes.leaving_out(units)


def test_compacting_moves_each_layers_own_rows() -> None:
    layout = KVLayout("float32", [KVLayer(1, 8)] * 3)
    cache = SegmentedCache(open_provider("cpu"), layout, 10, [[0], [1, 2]])
    for token, route in enumerate([(0, 1), (0,), (0, 1), (1,), (0, 1), (0, 1)]):
        cache.append(np.array([token]), route, alike=False)
    for unit, layers in enumerate(cache.layers):
        for layer in layers:
            for buffer in cache.buffers[layer]:
                buffer[0, 0, : cache.held[unit], 0] = np.flatnonzero(cache.ran[unit, :6])
    cache.copy_rows([0, 2, 3, 5])
    assert (cache.length, cache.held.tolist(), cache.last.tolist()) == (4, [3, 4], [2, 3])
    for layer, tokens in ((0, [0, 2, 5]), (1, [0, 2, 3, 5]), (2, [0, 2, 3, 5])):
        assert cache.buffers[layer][0][0, 0, : len(tokens), 0].tolist() == tokens
    assert cache.places[0, :3].tolist() == [0, 2, 5]


def test_rows_are_counted_as_tokens_come_and_go(by_layer: Bundle) -> None:
    """Whatever was appended and dropped, in whatever pieces: as many as `ran` says."""
    rng, cache = np.random.default_rng(3), over(by_layer).make_cache(40)
    for _ in range(300):
        route = (0, *(int(unit) for unit in np.flatnonzero(rng.random(4) < 0.5) + 1), 5)
        size = int(rng.integers(1, 6))
        if cache.room < size:
            cache.truncate(int(rng.integers(0, cache.capacity - size + 1)))
        cache.sync()
        cache.append(np.arange(cache.length, cache.length + size), route, alike=False)
        assert cache.held.tolist() == cache.ran[:, : cache.length].sum(axis=1).tolist()
        assert np.array_equal(cache.last, cache.held - 1)


@pytest.mark.parametrize("seed", range(8))
def test_tokens_that_ran_through_everything_are_counted_by_unit_once_some_did_not(seed: int) -> None:
    """Routes, roll-backs, trials and branches in any order: as if each token were noted by itself."""
    rng, layout = random.Random(seed), KVLayout("float32", [KVLayer(1, 1)] * 4)
    cache, units = SegmentedCache(open_provider("cpu"), layout, 60, [[0], [1, 2], [], [3]]), 4
    noted = list[tuple[int, tuple[int, ...]]]()  # the position and the route of each token
    for _ in range(200):
        kind = rng.random()
        if kind < 0.2 and noted:
            noted = noted[: rng.randrange(len(noted) + 1)]
            cache.truncate(len(noted))
            if rng.random() < 0.5:
                continue  # several in turn
        elif kind < 0.3 and noted:
            kept = sorted(rng.sample(range(len(noted)), rng.randrange(len(noted) + 1)))
            cache.copy_rows(kept)
            noted = [noted[i] for i in kept]
        elif kind < 0.4 and noted and all(len(route) == units for _, route in noted):
            start = rng.randrange(len(noted))
            aside = cache.snapshot(start)
            cache.truncate(start)
            cache.sync()
            trial = np.array([at for at, _ in noted[start:]])
            cache.append(trial, (0, 3), alike=False)
            cache.restore(aside)
        else:
            size = min(rng.choice([1, 1, 1, 4]), cache.room)
            route = tuple(range(units)) if rng.random() < 0.7 else (0, *(u for u in (1, 2) if rng.random() < 0.5), 3)
            cache.sync()
            cache.append(np.arange(cache.length, cache.length + size), route, alike=False)
            noted += [(at, route) for at in range(len(noted), len(noted) + size)]
        cache.sync()
        held = [sum(unit in route for _, route in noted) for unit in range(units)]
        assert (cache.length, cache.held.tolist(), cache.last.tolist()) == (len(noted), held, [n - 1 for n in held])
        if rng.random() < 0.5:
            ran = [[unit in route for unit in range(units)] for _, route in noted]
            assert cache.ran[:, : len(noted)].T.tolist() == ran
            for unit, count in enumerate(held):
                assert cache.places[unit, :count].tolist() == [at for at, route in noted if unit in route]


def test_a_step_of_the_whole_model_counts_nothing_by_unit(by_layer: Bundle) -> None:
    engine = over(by_layer)
    cache = engine.new_cache()
    cache._ran = cache._runs = None  # type: ignore[assignment]
    for size in (12, 1, 1, 4):
        engine.step(cache, np.arange(3, 3 + size))
    cache.truncate(15)
    engine.step(cache, np.array([5]))
    assert cache.held.tolist() == [16] * len(engine.routes.everything)


LAYER_OF_135M = 81_270_000 / 30  # bytes of SmolLM2-135M's bundle in int4, for each of its layers


def test_units_add_a_file_and_change_none(quantized: list[Bundle]) -> None:
    """A model with the weights of a real one grows by less than 1%: what is added does not hang on their size."""
    whole, *segmented = ({f.path: f for f in open_bundle(each.root).manifest.files} for each in quantized)
    for bundle, files in zip(quantized[1:], segmented, strict=True):
        parts = {bundle.manifest.graph("skip").path}
        assert {path: files[path].sha256 for path in files if path not in parts} == {
            path: file.sha256 for path, file in whole.items()
        }
        grown = sum(f.stat().st_size for f in bundle.root.rglob("*") if f.is_file())
        grown -= sum(f.stat().st_size for f in quantized[0].root.rglob("*") if f.is_file())
        assert sum(files[path].size for path in parts) < grown < 0.01 * LAYER_OF_135M * LAYERS


def test_segments_share_the_weights(by_layer: Bundle, by_half: Bundle) -> None:
    sizes = {file.path: file.size for file in by_layer.manifest.files}
    assert {file.path: file.size for file in by_half.manifest.files}["weights.bin"] == sizes["weights.bin"]
    assert sizes["graphs/skip.onnx"] < 2 * sizes["graphs/decoder.onnx"]


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


def test_segments_of_a_bundle_that_was_exported_earlier_run_as_a_whole_alone(by_layer: Bundle) -> None:
    """Each was a file of its own, and there was no graph of all."""
    graphs = [graph for graph in by_layer.manifest.graphs if graph.role != "skip"]
    earlier = dataclasses.replace(by_layer, manifest=dataclasses.replace(by_layer.manifest, graphs=graphs))
    open_engine(earlier, context=16)
    for skip in ("unified:0.2", "skipdecode:2-4"):
        with pytest.raises(InputError, match="as edge wrote them earlier; export the model again"):
            make_policy(skip, earlier)
