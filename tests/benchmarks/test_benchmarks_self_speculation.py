"""The benchmarks of self-speculation, and of drafters of which nothing is accepted."""

from __future__ import annotations

import itertools
import random
from typing import Any

import numpy as np
import pytest
import rejected
import self_speculation
from self_speculation import Asked, Said, never_wrong, replay

from edge.bundle import Bundle
from edge.runtime.decode.draft import Draft
from edge.runtime.load import open_engine
from edge.runtime.speculate.base import DRAFTERS

COSTS = [0.0, 1.0, 1.2, 1.3, 1.4, 1.5, 1.8, 2.1, 2.4, 2.7]  # of steps by size


def test_a_replay_counts_what_drafting_and_checking_takes() -> None:
    right, wrong = Said([True] * 9, [0.9] * 9), Said([False] * 9, [0.1] * 9)
    assert replay([right], 0.5, COSTS, 2, 0.0) == pytest.approx(9 / (3 * (2 * 0.5 + 1.3)))
    assert replay([wrong], 0.5, COSTS, 1, 0.0) == pytest.approx(9 / (8 * (0.5 + 1.2) + 1)), "the last has none to draft"
    assert replay([wrong], 0.5, COSTS, 4, 0.2) == pytest.approx(9 / (8 * (0.5 + 1.0) + 1)), "what is unsure is not run"
    assert never_wrong([wrong], 0.5, COSTS) == 1.0
    assert never_wrong([right], 0.9, COSTS) == pytest.approx(1.0), "where drafting costs more, nothing is drafted"


def test_nothing_is_faster_than_drafts_that_are_never_wrong() -> None:
    dice = random.Random(4)
    for _ in range(30):
        chance, share = dice.random(), dice.uniform(0.2, 1)
        said = [Said([dice.random() < chance for _ in range(60)], [dice.random() for _ in range(60)]) for _ in range(2)]
        best = never_wrong(said, share, COSTS)
        for length in self_speculation.LENGTHS:
            assert replay(said, share, COSTS, length, dice.choice(self_speculation.SURE)) <= best + 1e-9


def test_a_model_without_some_layers_is_asked_at_each_token_of_an_answer(by_layer: Bundle) -> None:
    engine = open_engine(by_layer, speculate="self", context=200)
    assert engine.routes is not None
    asked, prompt, answer = Asked(engine), [5, 6, 7, 8], list[int]()
    cache = engine.new_cache()
    logits = engine.step(cache, np.array(prompt))
    for _ in range(20):
        answer.append(int(logits[-1].argmax()))
        logits = engine.step(cache, np.array(answer[-1:]))
    asked.add(prompt, answer)
    assert asked.right(()) == 1.0, "with all layers it says what it said"
    route, wanted = engine.routes.leaving_out([2, 3]), list[bool]()
    cache.truncate(len(prompt))
    for token, following in itertools.pairwise(answer):
        with engine.routes.through(cache, route):
            wanted.append(int(engine.step(cache, np.array([token]))[-1].argmax()) == following)
        cache.truncate(cache.length - 1)
        engine.step(cache, np.array([token]))
    assert asked.said((1, 2))[0].right == wanted and asked.said((1, 2), limit=5)[0].right == wanted
    assert asked.said((0, 3), limit=5)[0].right == asked.said((0, 3))[0].right[:5]
    assert len(self_speculation.searched(asked, 2, [0, 1, 2, 3], tries=3)) == 2


@pytest.mark.parametrize("draft", [Draft([101, 102], [0, 0]), Draft((), ())])
def test_a_foe_says_nothing_that_was_drafted(draft: Draft) -> None:
    foe = rejected.Foe()
    for _ in range(30):
        foe.proposed = draft
        assert foe(None) not in draft.tokens[:1]


def test_every_drafter_is_timed_where_nothing_is_accepted(by_layer: Bundle, capsys: pytest.CaptureFixture[Any]) -> None:
    assert rejected.main(["--bundle", str(by_layer.root), "--tokens", "12", "--rounds", "1", "--threads", "1"]) == 0
    out = capsys.readouterr().out
    assert all(f"| {name} " in out for name in DRAFTERS if name != "model") and "wanted of each" in out
