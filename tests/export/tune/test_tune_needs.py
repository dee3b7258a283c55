"""Routers are fitted to what answers need: what is measured, what is guessed, and that the runtime then chooses so."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from decoder_configs import BASE
from graph_harness import tiny_model
from transformers import AutoConfig

from edge.errors import ExportError
from edge.export.tune.data import Batch
from edge.export.tune.first import First
from edge.export.tune.gates import Gates
from edge.export.tune.needs import Needs, _sets, guess, measure
from edge.export.tune.network import Network, Tensors, divergence
from edge.export.tune.policy import make_policy
from edge.export.tune.settings import Settings

LAYERS, WIDTH = 6, 64  # of the small model


def answers(count: int, seed: int = 2) -> Batch:
    draw = np.random.default_rng(seed)
    prompts, lengths = draw.integers(5, 12, count), draw.integers(14, 24, count)
    return Batch(draw.integers(5, 300, (count, int(lengths.max()))), prompts, lengths)


def lost(network: Network, one: Tensors, out: set[int]) -> list[float]:
    """Of each answer, without these layers."""
    kept = (~one.answer).float()[..., None]
    with torch.no_grad():
        whole = network.logits(one, None, adapted=False)
        student = network.logits(one, lambda layer, stream: kept if layer in out else 1.0)
    counts = one.answer.sum(1).tolist()
    return [float(divergence(*pair)) for pair in zip(whole.split(counts), student.split(counts), strict=True)]


def test_blocks_that_read_the_same_stream_are_refused() -> None:
    model = tiny_model(AutoConfig.for_model(**BASE | {"model_type": "cohere2", "head_dim": 16}))
    with pytest.raises(ExportError, match="those of cohere2 read what attention reads"):
        Gates(model)


def test_a_unit_costs_what_the_sets_without_it_lose_more(network: Network) -> None:
    one = network.tensors(answers(3))
    found = measure(network, [(1,), (2, 3), (4,)], 1, [one])
    each = np.array([lost(network, one, out) for out in ({1}, {2, 3}, {4})]).T  # [N, R]
    np.testing.assert_allclose(found.costs, each - each.mean(1, keepdims=True), atol=1e-5)
    assert found.seen.shape == (3, 3, WIDTH)
    two = measure(network, [(1,), (2, 3), (4,)], 2, [one])
    pairs = np.array([lost(network, one, out) for out in ({2, 3, 4}, {1, 4}, {1, 2, 3})]).T  # without all but each
    np.testing.assert_allclose(two.costs, pairs.mean(1, keepdims=True) - pairs, atol=1e-5)


@pytest.mark.parametrize(("units", "out"), [(2, 1), (4, 2), (4, 3), (6, 3), (7, 4), (11, 6), (28, 4)])
def test_sets_tell_apart_what_each_unit_costs(units: int, out: int) -> None:
    sets = _sets(units, out)
    assert set(sets.sum(1)) == {out} and len(sets) <= 2 * units
    draw = np.random.default_rng(6)
    costs = draw.standard_normal(units)
    losses = sets @ costs
    np.testing.assert_allclose(np.linalg.pinv(sets - sets.mean(0)) @ (losses - losses.mean()), costs - costs.mean())


def test_what_a_prompt_shows_of_an_answers_needs_is_found() -> None:
    draw = np.random.default_rng(3)
    seen, true = draw.standard_normal((80, 3, 20)), draw.standard_normal((3, 20))
    costs = np.einsum("nrh,rh->nr", seen, true) + np.arange(3) + 0.5 * draw.standard_normal((80, 3))
    found = guess(Needs(costs[:60], seen[:60]))
    assert 0.7 < found.explained < 1
    wrong = np.square(found.costs(seen[60:]) - costs[60:]).sum()
    assert wrong < 0.3 * np.square(costs[60:] - costs[:60].mean(0)).sum()


def test_where_prompts_show_nothing_all_answers_are_taken_alike() -> None:
    draw = np.random.default_rng(4)
    for count in (1, 12, 24, 60, 100, 128):
        costs = draw.standard_normal((count, 3)) + np.arange(3)
        found = guess(Needs(costs, draw.standard_normal((count, 3, 20))))
        assert found.explained == 0 and not found.weights.any()
        np.testing.assert_allclose(found.bias, costs.mean(0))


def test_routers_leave_out_what_each_answer_needs_least(network: Network, monkeypatch: pytest.MonkeyPatch) -> None:
    """Costs that hang on what is seen of each prompt: routers choose by them, as many units as the target says."""
    policy = make_policy(Settings("first", ratio=0.34, candidates=3), LAYERS, WIDTH)
    assert isinstance(policy, First)
    with torch.no_grad():
        policy.bias[:3] = 0.0
    draw = np.random.default_rng(5).standard_normal((3, WIDTH))

    def measured(*given: object) -> Needs:
        found = measure(*given)  # type: ignore[arg-type]
        return Needs(np.einsum("nrh,rh->nr", found.seen - found.seen.mean(0), draw), found.seen)

    monkeypatch.setattr("edge.export.tune.first.measure", measured)
    batches = [network.tensors(answers(20, seed)) for seed in range(4)]
    assert policy.finish(network, batches)["explained"] > 0.5
    wanted = guess(measured(network, policy.units[:3], 2, batches))
    assert len(np.unique(wanted.costs(measured(network, policy.units[:3], 2, batches).seen).argmax(1))) == 3
    agreed, left_out = 0, list[float]()
    for one in batches:
        policy.begin(network, one, np.random.default_rng(0))
        network.logits(one, policy.gate)
        needed = torch.stack(policy._needed, dim=1).detach().numpy()  # [N, R]
        costs = wanted.costs(measured(network, policy.units[:3], 2, [one]).seen)
        agreed += int((needed.argmax(1) == costs.argmax(1)).sum())
        left_out += (needed < 0.5).sum(1).tolist()
    assert agreed >= 76  # of 80: tokens' probabilities are averaged, not their logits
    assert np.mean(left_out) == pytest.approx(2, abs=0.3)


def test_where_all_are_left_out_there_is_nothing_to_choose(network: Network) -> None:
    policy = make_policy(Settings("first", ratio=0.34, candidates=2), LAYERS, WIDTH)
    assert isinstance(policy, First)
    with torch.no_grad():
        policy.bias[:2] = -1.0
    assert policy.finish(network, iter(())) == {}
    assert policy.bias[:2].tolist() == [-1.0, -1.0]
