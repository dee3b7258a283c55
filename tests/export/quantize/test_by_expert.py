"""Bits for each expert: what is measured of them."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from edge.export.facts.experts import DOWN, EXPERT_PROJECTIONS, GATE, UP, expert_name
from edge.export.facts.tensors import Format
from edge.export.quantize.by_expert import Measuring
from edge.export.reference.mixture import Routed
from edge.export.request.choices import bits_within

BLOCK, COUNT, WIDTH, WIDE, TOKENS = "model.layers.0.mlp", 4, 32, 64, 40
FORMS = [Format(bits, 32) for bits in (2, 4, 8)]
Harms = dict[int, dict[Format, float]]


class Weights:
    """A checkpoint of which there are only experts."""

    def __init__(self) -> None:
        rng = np.random.default_rng(0)
        shapes = {GATE: (WIDE, WIDTH), UP: (WIDE, WIDTH), DOWN: (WIDTH, WIDE)}
        self.values = {
            expert_name(BLOCK, i, member): rng.standard_normal(shapes[member]).astype(np.float32)
            for i in range(COUNT)
            for member in EXPERT_PROJECTIONS
        }

    def read(self, name: str) -> np.ndarray:
        return self.values[name]

    def shape(self, name: str) -> tuple[int, ...]:
        return self.values[name].shape


def measured(chosen: np.ndarray, share: float = 0.5, stream: float = 1.0) -> Harms:
    """The harms of experts, by their numbers, of which tokens choose those of `chosen` [T, 2]."""
    x = np.random.default_rng(1).standard_normal((len(chosen), WIDTH)).astype(np.float32)

    def compute(expert: int, rows: np.ndarray, weights: Any) -> tuple[np.ndarray, np.ndarray]:
        inner = (x[rows] @ weights[GATE].T) * (x[rows] @ weights[UP].T)
        return inner, inner @ weights[DOWN].T

    measuring = Measuring(Weights(), FORMS, [])  # type: ignore[arg-type]
    measuring.experts(BLOCK, x, Routed(COUNT, chosen, np.full(chosen.shape, share, np.float32), compute))
    measuring.stream(np.full((len(chosen), WIDTH), stream, np.float32))
    return {i: dict(unit.harms) for i, unit in enumerate(measuring.units())}


@pytest.fixture(scope="module")
def chosen() -> np.ndarray:
    """The experts of each token: 0 and 1 of most, 2 of some, 3 of none."""
    made = np.tile([0, 1], (TOKENS, 1))
    made[::8, 1] = 2
    return made


def test_experts_that_are_chosen_more_often_do_more_harm_and_more_bits_less(chosen: np.ndarray) -> None:
    harms = measured(chosen)
    for form in FORMS:
        assert harms[0][form] > harms[2][form] > harms[3][form] > 0, "a tenth of the tokens may choose any expert"
    for harm in harms.values():
        few, usual, many = (harm[form] for form in FORMS)
        assert few > 5 * usual > 25 * many


def test_harm_grows_with_the_square_of_weights_and_is_relative_to_the_residual_stream(chosen: np.ndarray) -> None:
    plain, twice, larger = measured(chosen), measured(chosen, share=1.0), measured(chosen, stream=2.0)
    for expert, harm in plain.items():
        for form in FORMS:
            assert twice[expert][form] == pytest.approx(4 * harm[form], rel=0.01)
            assert larger[expert][form] == pytest.approx(harm[form] / 4)


def test_a_size_leaves_room_for_few_tensors_however_many_experts_there_are() -> None:
    def bits(count: int) -> float:
        shapes = {
            expert_name(f"model.layers.{layer}.mlp", i, member): (64, 64)
            for layer in range(2)
            for i in range(count)
            for member in EXPERT_PROJECTIONS
        }
        config = {"hidden_size": 64, "num_attention_heads": 2}
        tokenizer = SimpleNamespace(json="{}")
        model: Any = SimpleNamespace(
            name="x", config=config, tokenizer=tokenizer, names=lambda: list(shapes), shape=shapes.__getitem__
        )
        weights = count * 2 * 3 * 64 * 64
        return bits_within(6_000_000 + weights, model, 64, prefill=False)

    assert bits(4) > bits(64) > 8
