"""Trees of drafted tokens in a decoder's step: each path is checked as if it stood alone."""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

import edge
from edge.bundle import Bundle
from edge.errors import ExportError
from edge.runtime.decode.draft import Draft, keep, tree_step
from edge.runtime.decode.generate_options import GenerateOptions
from edge.runtime.load import load, open_engine
from edge.runtime.memory.footprint import Demand, MemoryModel
from edge.runtime.model import Model
from edge.runtime.speculate import cascade, recycle
from edge.runtime.speculate.base import Budget, Drafter, Setting
from edge.runtime.speculate.planner import GAIN, Planner, StepCosts

PROMPTS = ("The moon changes", "la la la la la la la la", "def largest(a, b, c): return max(a, b, c)")


@pytest.fixture(scope="module")
def with_trees(tmp_path_factory: pytest.TempPathFactory, tiny_checkpoint: Path) -> Bundle:
    out = tmp_path_factory.mktemp("trees") / "trees.edge"
    return edge.export(tiny_checkpoint, out, weights="fp32", trees=True, check=False)


def random_tree(rng: random.Random, size: int) -> Draft:
    parents = [rng.randrange(-1, node) for node in range(size)]
    tokens = [rng.randrange(3, 200) for _ in range(size)]
    return Draft(tokens, [0] * size, parents)


@pytest.mark.parametrize("seed", range(4))
def test_every_node_has_the_logits_of_its_own_path(with_trees: Bundle, seed: int) -> None:
    """And what is kept of a tree is what the path alone would have left in the cache."""
    whole, trees = open_engine(with_trees, context=200), open_engine(with_trees, context=200, speculate="recycle")
    assert trees.takes_trees and not whole.takes_trees
    rng = random.Random(seed)
    text = [rng.randrange(3, 200) for _ in range(30 + seed)]
    draft = random_tree(rng, 9)
    assert draft.parents is not None
    cache, other = trees.new_cache(), whole.new_cache()
    for engine, each in ((trees, cache), (whole, other)):
        engine.step(each, np.array(text[:-1], np.int64))
    start = cache.length
    step = np.array([text[-1], *draft.tokens], np.int64)
    logits = trees.step(cache, step, np.arange(10), tree=tree_step(draft, start)).copy()
    paths: dict[int, list[int]] = {-1: []}
    for node, parent in enumerate(draft.parents):
        path = paths[node] = [*paths[parent], node]
        chain = np.array([text[-1], *(draft.tokens[i] for i in path)], np.int64)
        expected = whole.step(other, chain)[-1]
        np.testing.assert_allclose(logits[node + 1], expected, atol=2e-4)
        other.truncate(start)
    deepest = max(paths.values(), key=len)
    keep(cache, start, draft, deepest)
    whole.step(other, np.array([text[-1], *(draft.tokens[i] for i in deepest)], np.int64))
    assert cache.length == other.length
    for mine, alone in zip(cache.buffers, other.buffers, strict=True):
        for a, b in zip(mine, alone, strict=True):
            np.testing.assert_allclose(a[:, :, : cache.length], b[:, :, : cache.length], atol=2e-4)
    after = np.array([7, 8], np.int64)
    np.testing.assert_allclose(trees.step(cache, after), whole.step(other, after), atol=2e-4)


def test_a_chain_sees_all_of_the_text_after_trees_of_other_sizes(with_trees: Bundle) -> None:
    """Steps of all sizes share what says who attends to what."""
    trees, rng = open_engine(with_trees, context=200, speculate="recycle"), random.Random(0)
    text = np.array([rng.randrange(3, 200) for _ in range(40)], np.int64)
    fresh, cache = trees.new_cache(), trees.new_cache()
    expected = trees.step(fresh, text, np.arange(40)).copy()
    trees.step(cache, text[:20])
    for size in (9, 3, 6):
        start, draft = cache.length, random_tree(rng, size - 1)
        trees.step(cache, np.array([5, *draft.tokens], np.int64), np.arange(size), tree=tree_step(draft, start))
        cache.truncate(start)
        for count in (1, 4):  # fewer rows than the tree had, then some that it had and the first chain had not
            got = trees.step(cache, text[start : start + count], np.arange(count)).copy()
            np.testing.assert_allclose(got, expected[start : start + count], atol=2e-4)
            cache.truncate(start)
        trees.step(cache, text[start : start + 2])


class Branches(Drafter):
    """A drafter that knows the answer, and hides each token of it among wrong ones, at a random place."""

    name, reads_logits, cost, priors = "branches", False, 0.0, (0.9,)

    def __init__(self, known: Sequence[int]) -> None:
        self._known, self._rng = known, random.Random(5)

    def begin(self, tokens: Sequence[int], source: Sequence[int] = ()) -> None: ...

    def accept(self, tokens: Sequence[int]) -> None: ...

    def propose(self, context: Sequence[int], budget: Budget) -> Draft:
        right = list(self._known[len(context) : len(context) + 3])
        tokens, parents, at = list[int](), list[int](), -1
        for token in right:
            wrong = [t for t in self._rng.sample(range(3, 200), 3) if t != token][:2]
            siblings = [token, *wrong]
            self._rng.shuffle(siblings)
            places = range(len(tokens), len(tokens) + len(siblings))
            tokens += siblings
            parents += [at] * len(siblings)
            at = next(place for place in places if tokens[place] == token)
        return Draft(tokens[: budget.tokens], [0] * len(tokens[: budget.tokens]), parents[: budget.tokens])


def answers(bundle: Bundle, model: Model, tokens: int = 60) -> list[list[int]]:
    return [model.generate(prompt, GenerateOptions(max_tokens=tokens)).token_ids for prompt in PROMPTS]


def test_a_greedy_answer_is_the_same_with_trees(with_trees: Bundle, monkeypatch: pytest.MonkeyPatch) -> None:
    """Weights are floats here, so that last bits make no other word."""
    monkeypatch.setattr(Planner, "cut", lambda self, draft: draft)
    plain = load(with_trees.root, context=200, threads=2, speculate="off", exact=False)
    assert isinstance(plain, Model)
    wanted = answers(with_trees, plain)
    for prompt, said in zip(PROMPTS, wanted, strict=True):
        model = load(with_trees.root, context=200, threads=2, speculate="recycle", exact=False)
        assert isinstance(model, Model) and model.engine.takes_trees and model.speculation is not None
        model.speculation.drafter = Branches([*model.prompt_ids(prompt), *said])
        result = model.generate(prompt, GenerateOptions(max_tokens=60))
        did = result.speculation
        assert result.token_ids == said and did is not None
        assert did["accepted"] > 0.5 * len(said), "branches held, wherever they stood"


@pytest.mark.parametrize("name", ["recycle", "cascade"])
def test_trees_are_drafted_where_a_bundle_takes_them(
    name: str, with_trees: Bundle, monkeypatch: pytest.MonkeyPatch
) -> None:
    shapes = []

    def cut(self: Planner, draft: Draft) -> Draft:
        shapes.append(draft.parents)
        return draft

    monkeypatch.setattr(Planner, "cut", cut)
    plain = load(with_trees.root, context=200, threads=2, speculate="off", exact=False)
    drafted = load(with_trees.root, context=200, threads=2, speculate=name, exact=False)
    assert isinstance(plain, Model) and isinstance(drafted, Model)
    assert answers(with_trees, plain) == answers(with_trees, drafted)
    assert any(parents is not None and list(parents) != list(range(-1, len(parents) - 1)) for parents in shapes)


def test_reproducible_answers_take_the_other_graph_and_chains(
    with_trees: Bundle, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Planner, "cut", lambda self, draft: draft)
    plain = load(with_trees.root, context=200, threads=2, speculate="off", exact=True)
    drafted = load(with_trees.root, context=200, threads=2, speculate="recycle", exact=True)
    assert isinstance(plain, Model) and isinstance(drafted, Model) and not drafted.engine.takes_trees
    assert answers(with_trees, plain) == answers(with_trees, drafted)


def test_cascade_grows_other_words_beside_its_chain(with_trees: Bundle) -> None:
    drafter = cascade.make(Setting(with_trees, 200))
    text = [5, 6, 7, 8, 9, 4, 5, 6, 7]
    drafter.begin(text)
    logits = np.full((2, with_trees.manifest.dims.vocab_size), -9.0, np.float32)
    logits[0, [8, 40, 41]] = 9, 8, 7  # behind 7
    logits[1, [50, 51]] = 9, 8  # behind 40
    budget = Budget(12, trees=True)
    drafter.propose(text, budget)
    drafter.verified(np.array([7, 40]), logits)
    draft = drafter.propose(text, budget)
    assert draft.parents is not None and len(draft.tokens) <= 12
    paths: dict[int, tuple[int, ...]] = {-1: ()}
    for node, (token, parent) in enumerate(zip(draft.tokens, draft.parents, strict=True)):
        paths[node] = (*paths[parent], token)
    assert {(8,), (8, 9), (8, 9, 4), (40,)} <= set(paths.values()), "lookup's and recycle's"
    assert len(set(paths.values())) == len(paths), "what both have is there once"
    few = drafter.propose(text, Budget(3, trees=True))
    assert len(few.tokens) == 3 and few.tokens[0] == 8 and few.parents is not None
    assert all(parent < node for node, parent in enumerate(few.parents))
    assert drafter.propose(text, Budget(3)).parents is None, "chains where steps take no trees"


def test_others_load_the_graph_without_them(with_trees: Bundle) -> None:
    for name in ("off", "auto", "lookup", "trigram"):
        assert not open_engine(with_trees, context=50, speculate=name).takes_trees


@pytest.mark.parametrize("seed", range(20))
def test_the_planner_takes_the_tree_that_brings_the_most_per_millisecond(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Against all subtrees there are, where an answer may lose whatever it takes."""
    monkeypatch.setattr("edge.runtime.speculate.planner.STAKE", math.inf)
    rng = random.Random(seed)
    costs = StepCosts(lambda: None, 8, slope=rng.choice([0.02, 0.1, 0.25]))
    costs.begin()
    planner = Planner(tuple(sorted(rng.random() for _ in range(4))), costs, 8, trees=True)
    parents = [rng.randrange(-1, node) for node in range(7)]
    draft = Draft(list(range(7)), [rng.randrange(4) for _ in range(7)], parents)

    def rate(nodes: Sequence[int]) -> float:
        holds = {-1: 1.0}
        for node in sorted(nodes):
            if parents[node] not in holds:
                return 0.0
            holds[node] = holds[parents[node]] * planner.acceptance.chances[draft.grades[node]]
        return sum(holds.values()) / costs.ratios[len(nodes) + 1]

    best = max(rate(nodes) for count in range(1, 8) for nodes in itertools.combinations(range(7), count))
    kept = planner.cut(draft)
    assert rate(kept.tokens) == pytest.approx(best) if best > GAIN else not kept.tokens


def test_the_file_costs_nothing_that_is_not_loaded(with_trees: Bundle, tiny_bundle: Bundle) -> None:
    demand = Demand(200, 64)
    both = MemoryModel(with_trees).footprint(demand).running["graphs"]
    alone = MemoryModel(tiny_bundle).footprint(demand).running["graphs"]
    assert abs(both - alone) < 200_000
    more = recycle.nbytes(Setting(with_trees, 200)) - recycle.nbytes(Setting(tiny_bundle, 200))
    assert more >= 2 * 128 * 200 * 4, "what tokens attend to is known beforehand"


def test_windows_are_refused_in_a_sentence(tmp_path: Path, tiny_checkpoint: Path) -> None:
    import json
    import shutil

    folder = Path(shutil.copytree(tiny_checkpoint, tmp_path / "windowed"))
    config = json.loads((folder / "config.json").read_text())
    config |= {"model_type": "mistral", "architectures": ["MistralForCausalLM"], "sliding_window": 16}
    (folder / "config.json").write_text(json.dumps(config))
    with pytest.raises(ExportError, match="attend to a window of tokens, which trees would shift; leave out --trees"):
        edge.export(folder, tmp_path / "w.edge", weights="fp32", trees=True, check=False)
    assert not (tmp_path / "w.edge").exists()
