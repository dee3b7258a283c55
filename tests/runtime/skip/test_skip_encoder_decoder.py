"""Decoders of encoder-decoders skip as others do: with relative positions, trees, and norms before or behind blocks."""

from __future__ import annotations

import copy
import itertools
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from encoder_decoder_harness import Exported, tiny_model
from fake_drafters import AllOfIt, Guesser
from graph_harness import TinyCheckpoint, float_matrices
from skip_models import in_units
from transformers import BartConfig, M2M100Config, PreTrainedConfig, T5Config, UMT5Config
from with_drafts import drafted

from edge.runtime.decode.beam import beam_search, new_cache
from edge.runtime.decode.beam_options import BeamOptions
from edge.runtime.decode.draft import Draft
from edge.runtime.engine.engine import Engine
from edge.runtime.engine.graphs.segment_cache import SegmentedCache
from edge.runtime.engine.tree import BLOCKED, Tree
from edge.runtime.engine.variant import Variant
from edge.runtime.skip import first
from edge.runtime.skip.ffn import FeedForward
from edge.runtime.skip.skip_policy import AllLayers
from edge.runtime.skip.skipdecode import SkipDecode
from edge.runtime.speculate.drafter import Budget
from edge.runtime.speculate.speculation import Speculation

SIZES = dict(
    vocab_size=97,
    d_model=48,
    d_kv=16,
    d_ff=80,
    num_layers=1,
    num_decoder_layers=4,
    num_heads=3,
    relative_attention_num_buckets=8,
    relative_attention_max_distance=12,
    decoder_start_token_id=0,
)
T5, UMT5 = T5Config(**SIZES), UMT5Config(**SIZES)
SHAPE = dict(
    vocab_size=97,
    d_model=48,
    encoder_layers=1,
    decoder_layers=4,
    encoder_attention_heads=3,
    decoder_attention_heads=3,
    encoder_ffn_dim=80,
    decoder_ffn_dim=72,
    max_position_embeddings=64,
    decoder_start_token_id=2,
    forced_eos_token_id=None,
)
CONFIGS = {"t5": T5, "umt5": UMT5, "bart": BartConfig(**SHAPE), "m2m100": M2M100Config(**SHAPE)}
SOURCE = np.arange(5, 20)


def exported(folder: Path, config: PreTrainedConfig) -> Exported:
    model = tiny_model(config)
    return Exported(folder / "whole", model, float_matrices(TinyCheckpoint(model)))


def segmented(made: Exported, unit: int | str) -> Engine:
    bundle = in_units(made.engine.bundle, unit)
    return Engine(bundle, Variant(policy=AllLayers(bundle)))


def read(engine: Engine) -> SegmentedCache:
    assert engine.encoder is not None
    return engine.new_cache(cross=engine.encoder.encode_text(SOURCE))


def siblings(length: int) -> Tree:
    """Two tokens at one place behind `length` others, that do not see each other."""
    bias = np.zeros((2, length + 2), np.float32)
    bias[0, length + 1] = bias[1, length] = BLOCKED
    return Tree(np.array([length, length]), bias)


@pytest.mark.parametrize("name", CONFIGS)
def test_all_segments_are_the_whole_decoder_bit_for_bit(tmp_path: Path, name: str) -> None:
    made = exported(tmp_path, CONFIGS[name])
    for unit in (1, 2, "ffn"):
        engine = segmented(made, unit)
        a, b = made.encode(SOURCE), read(engine)
        for tokens in ([0, 7, 9], [11], [4, 5, 6], [8]):
            ids, rows = np.array(tokens), np.arange(len(tokens))
            assert np.array_equal(made.engine.step(a, ids, rows), engine.step(b, ids, rows))
        tree, ids = siblings(8), np.array([20, 30])
        expected = made.engine.step(a, ids, np.arange(2), tree=tree)
        assert np.array_equal(expected, engine.step(b, ids, np.arange(2), tree=tree))
        a.truncate(9)
        b.truncate(9)
        assert np.array_equal(made.engine.step(a, ids, np.arange(2)), engine.step(b, ids, np.arange(2))), "no tree"


@pytest.mark.parametrize("name", CONFIGS)
def test_a_layer_that_no_token_runs_through_might_not_be_there(tmp_path: Path, name: str) -> None:
    made = exported(tmp_path, CONFIGS[name])
    engine = segmented(made, 1)
    shorter = copy.deepcopy(made.model)
    del (shorter.decoder.block if name.endswith("t5") else shorter.model.decoder.layers)[2]
    target = np.array([0, 7, 9, 11, 4, 5])
    cache, route, steps = read(engine), engine.routes.leaving_out([2]), []
    with engine.routes.through(cache, route):
        for piece in (target[:3], target[3:4], target[4:]):
            steps.append(engine.step(cache, piece, np.arange(len(piece))).copy())
    made.model = shorter
    np.testing.assert_allclose(np.concatenate(steps), made.torch_logits(SOURCE, target), atol=1e-3)


@pytest.mark.parametrize("name", CONFIGS)
def test_a_tree_behind_skipped_tokens_sees_what_its_branches_would(tmp_path: Path, name: str) -> None:
    engine = segmented(exported(tmp_path, CONFIGS[name]), 1)
    route = engine.routes.leaving_out([1])
    given = np.array([0, 7, 9, 11])

    def prompt() -> SegmentedCache:
        cache = read(engine)
        engine.step(cache, given[:2])
        with engine.routes.through(cache, route):
            engine.step(cache, given[2:])  # layer 1 does not see these
        return cache

    cache = prompt()
    tree = engine.step(cache, np.array([20, 30]), np.arange(2), tree=siblings(4)).copy()
    assert cache.held.tolist() == [6, 4, 6, 6]
    for i, token in enumerate((20, 30)):
        alone = engine.step(prompt(), np.array([token, token]), np.arange(1))
        np.testing.assert_allclose(tree[i], alone[0], atol=1e-4)
    cache.copy_rows([0, 1, 2, 3, 5])  # the second branch goes on
    assert cache.held.tolist() == [5, 3, 5, 5]
    after = engine.step(cache, np.array([8, 8]), np.arange(1))
    straight = prompt()
    engine.step(straight, np.array([30]))
    np.testing.assert_allclose(after[0], engine.step(straight, np.array([8, 8]), np.arange(1))[0], atol=1e-4)


@pytest.mark.parametrize("name", CONFIGS)
def test_routers_decide_for_a_decoder_behind_an_encoder(tmp_path: Path, name: str) -> None:
    """By the decoder's prompt, which has read the encoder's text: what they say hangs on both."""
    made = exported(tmp_path, CONFIGS[name])
    bundle, prompt, said = made.engine.bundle, np.array([2, 30, 31]), list[np.ndarray]()
    units = [1, 2]
    routers = np.random.default_rng(1).standard_normal((len(units), bundle.manifest.dims.hidden_size + 1))
    routers[:, -1] = 0
    parts = in_units(bundle, 1, routers)
    engine = Engine(parts, Variant(policy=first.make(parts, "skip=1")))
    apart = Engine(parts, Variant(policy=AllLayers(parts)))
    for seed in range(4):
        source = np.random.default_rng(seed).integers(3, 97, 9)
        caches = []
        for each in (engine, apart):
            assert each.encoder is not None
            caches.append(each.new_cache(cross=each.encoder.encode_text(source)))
            caches[-1].prompt = len(prompt)
            each.step(caches[-1], prompt)
        run = engine.routes.policy.route(caches[0], 1)
        (left,) = set(engine.routes.everything) - set(run)
        found = engine.step(caches[0], np.array([40]))
        with apart.routes.through(caches[1], apart.routes.leaving_out([left])):
            wanted = apart.step(caches[1], np.array([40]))
        np.testing.assert_allclose(found, wanted, atol=1e-5)
        said.append(engine.routes.policy.means(caches[0]))  # type: ignore[attr-defined]
        assert left == units[int(said[-1].argmin())]
    assert np.ptp(said, axis=0).min() > 1e-3


def test_a_prompt_that_is_observed_sees_all_of_itself_behind_a_tree(tmp_path: Path) -> None:
    made = exported(tmp_path, T5)
    parts = in_units(made.engine.bundle, "ffn")
    engine = Engine(parts, Variant(policy=FeedForward(parts, 1)))
    given, found = np.arange(30, 42), []
    for trees in (False, True):
        cache = read(engine)
        if trees:
            cache.prompt = 3
            engine.step(cache, given[:3])
            engine.step(cache, given[:2], np.arange(2), tree=siblings(3))
            cache.truncate(0)
        cache.prompt = len(given)
        engine.step(cache, given[:6])
        found.append(engine.step(cache, given[6:], np.arange(6)).copy())
        assert engine.routes.policy.route(cache, 1) != engine.routes.everything
    assert np.array_equal(*found)


@pytest.mark.parametrize("start", [1, 12])
def test_an_answers_drafted_tokens_run_through_its_own_layers(tmp_path: Path, start: int) -> None:
    """Those of the first step too, which holds a prompt of one token."""
    made = exported(tmp_path, T5)
    parts = in_units(made.engine.bundle, "ffn")
    engine = Engine(parts, Variant(policy=FeedForward(parts, 1)))
    rows = list[np.ndarray]()

    def greedy(logits: np.ndarray) -> int:
        rows.append(logits.copy())
        return int(logits.argmax())

    prompt, cache = np.arange(30, 30 + start), read(engine)
    cache.prompt = len(prompt)
    said = [greedy(engine.step(cache, prompt)[0])]
    for _ in range(9):
        said.append(greedy(engine.step(cache, np.array(said[-1:]))[0]))
    plain, rows[:] = list(rows), []
    known = [*prompt.tolist(), *said]

    def guess(context: Sequence[int], budget: Budget) -> Draft:
        tokens = known[len(context) :][: min(budget.tokens, 3)]
        return Draft(tokens, [0] * len(tokens))

    speculation = Speculation(Guesser(guess), AllOfIt())
    drafts = drafted(speculation, engine, read(engine), prompt.tolist(), greedy, most=10)
    assert list(itertools.islice(drafts, 10)) == said
    np.testing.assert_allclose(rows[:10], plain, atol=1e-4)


def test_beams_search_under_a_route_as_over_the_whole_decoder(tmp_path: Path) -> None:
    made = exported(tmp_path, T5)
    engine = segmented(made, 1)
    options, found = BeamOptions(beams=3, max_tokens=8), []
    for own in (made.engine, engine):
        assert own.encoder is not None
        cache = new_cache(own, 1, options, own.encoder.encode_text(SOURCE))
        found.append([each.token_ids for each in beam_search(own, cache, (0,), options, eos=(1,))])
    assert found[0] == found[1]


def test_layers_fall_by_the_place_in_the_text_not_by_the_rows_of_beams(tmp_path: Path) -> None:
    """Rows of dead beams are given up now and then; no layer comes back by that, which would miss rows."""
    made = exported(tmp_path, T5)
    parts = in_units(made.engine.bundle, 1)
    engine, routes, lengths = Engine(parts, Variant(policy=SkipDecode(parts, 2, 4))), list[int](), list[int]()
    route = engine.routes.policy.route

    def noted(cache: SegmentedCache, size: int) -> tuple[int, ...]:
        found = route(cache, size)
        routes.append(len(found))
        lengths.append(cache.length)
        return found

    engine.routes.policy.route = noted  # type: ignore[method-assign]
    options = BeamOptions(beams=4, max_tokens=60)
    assert engine.encoder is not None
    cache = new_cache(engine, 1, options, engine.encoder.encode_text(SOURCE))
    beam_search(engine, cache, (0,), options, eos=())
    assert any(after < before for before, after in itertools.pairwise(lengths)), "rows were given up"
    assert routes == sorted(routes, reverse=True) and len(set(routes)) > 1
    falls = [at for at, (before, after) in enumerate(itertools.pairwise(routes), 1) if after < before]
    assert falls == [20 + 1, 40 + 1], "in thirds of the answer, behind the prompt"
