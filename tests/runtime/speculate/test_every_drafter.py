"""With every drafter the sampled distribution is the model's, and what ends or shapes an answer does as without."""

from __future__ import annotations

import functools
import itertools
import math
import shutil
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from fake_engine import CPU, fake_model, says, with_table
from path_engine import LAYOUT, PathEngine
from with_drafts import drafted

from edge.bundle import Bundle
from edge.manifest import TensorGroup
from edge.runtime.decode import loop
from edge.runtime.decode.draft import Draft
from edge.runtime.decode.generate_options import GenerateOptions
from edge.runtime.decode.loop import generate
from edge.runtime.decode.sampling import SamplingOptions, greedy, make_sampler
from edge.runtime.engine.cache import KVCache
from edge.runtime.engine.graphs.segment_cache import SegmentedCache
from edge.runtime.load import load, open_engine
from edge.runtime.model import Model
from edge.runtime.speculate.blend import SAID, SCORES, Blend
from edge.runtime.speculate.drafter import Budget, Drafter, Setting, find
from edge.runtime.speculate.layers import Choice
from edge.runtime.speculate.model import DraftModel
from edge.runtime.speculate.planner import Planner, StepCosts
from edge.runtime.speculate.speculation import Figures, Speculation
from edge.runtime.speculate.successors import Context, Successors
from edge.runtime.text.tokenizer import Text

VOCAB = 16  # a row of `recycle` has 8 candidates
USED = 5  # tokens that come
TABLE = np.random.default_rng(8).standard_normal((USED, USED)).astype(np.float32) * 1.5
PROMPT = np.random.default_rng(9).integers(0, USED, 30).tolist()
NAMES = [
    *("blend", "blend, table", "lookup", "recycle", "trigram", "model", "self", "cascade"),
]
SAMPLINGS = [(1.0, 1.0), (0.7, 0.95), (1.6, 0.8)]  # temperature, top-p
ANSWERS, TOKENS = 50, 60


def follows(path: Sequence[int], blur: float = 1.0) -> np.ndarray:
    """Logits [V] of what comes behind the last token; `blur` makes them another model's."""
    return np.concatenate([blur * TABLE[path[-1] % USED], np.full(VOCAB - USED, -50, np.float32)])


class Parts(PathEngine):
    """An engine of three parts, of which the one in the middle may be left out: then it is less sure."""

    groups = ((0,), (1,), (2,))
    everything = 0, 1, 2

    def __init__(self) -> None:
        super().__init__(lambda path: follows(path, 0.6 if self.short else 1.0))
        self.short, self.routes = False, self
        group = TensorGroup("attention", 1, 1, 8.0, 32, "x")
        self.bundle = SimpleNamespace(
            manifest=SimpleNamespace(kv=LAYOUT, dims=SimpleNamespace(num_layers=3), groups=[group])
        )

    def new_cache(self, capacity: int | None = None, cross: object = None) -> SegmentedCache:
        return SegmentedCache(CPU, LAYOUT, capacity or self.context, [[0], [], []])

    def weight(self, group: int) -> float:
        return 1.0

    def leaving_out(self, segments: Sequence[int]) -> tuple[int, ...]:
        return 0, 2

    @contextmanager
    def through(self, cache: object, route: tuple[int, ...]) -> Iterator[None]:
        self.short, known = True, self._known
        self._known = {}
        try:
            yield
        finally:
            self.short, self._known = False, known


def drafter(name: str, folder: Path, engine: PathEngine) -> Drafter:
    if name == "model":
        return DraftModel(PathEngine(lambda path: follows(path, 0.6)), VOCAB, 0.0)  # type: ignore[arg-type]
    if name == "self":
        from edge.runtime.speculate.self import SelfDraft

        return SelfDraft(engine, Choice([(1,)]))  # type: ignore[arg-type]
    bundle = fake_model(folder, says("x"))[0].bundle
    if name == "blend, table":
        return Blend(256, Successors(with_table(bundle, {(token,): (token % 3, 8) for token in range(USED)})))
    return find(name.partition(",")[0])[0].make(Setting(bundle, 200))


class Eager(Planner):
    """Runs every draft as it is."""

    def budget(self, most: int, context: int, forced: int = 0) -> Budget:
        return Budget(min(most, 5), 0.0)

    def cut(self, draft: Draft) -> Draft:
        return draft


def excess(name: str, temperature: float, top_p: float, folder: Path) -> tuple[float, int]:
    """By how many standard deviations chi-square lies above what it should be, over which token follows which in many
    answers; and how many drafted tokens held."""
    engine = Parts() if name == "self" else PathEngine(follows)
    made = drafter(name, folder, engine)
    speculation = Speculation(made, Eager(made.priors, StepCosts(lambda: None, 8), 8))
    figures, counts = Figures(name), Counter[tuple[int, int]]()
    for seed in range(ANSWERS):
        options = SamplingOptions(temperature=temperature, top_p=top_p, seed=seed)
        sampler = make_sampler(options, PROMPT)
        cache = engine.new_cache(len(PROMPT) + TOKENS)
        said = drafted(speculation, engine, cache, PROMPT, sampler, most=TOKENS, figures=figures)
        counts.update(itertools.pairwise([PROMPT[-1], *itertools.islice(said, TOKENS)]))
    square = freedom = 0.0
    for before in range(USED):
        total = sum(count for (first, _), count in counts.items() if first == before)
        for after, chance in enumerate(chances(before, temperature, top_p)):
            expected = total * chance
            assert expected > 0 or counts[before, after] == 0, "a token outside of the nucleus was drawn"
            if expected > 0:
                square += (counts[before, after] - expected) ** 2 / expected
                freedom += 1
        freedom -= 1
    return (square - freedom) / math.sqrt(2 * freedom), figures.accepted


def chances(before: int, temperature: float, top_p: float) -> np.ndarray:
    p = np.exp(TABLE[before].astype(np.float64) / temperature)
    p /= p.sum()
    order = np.argsort(-p)
    p[order[np.searchsorted(np.cumsum(p[order]), top_p) + 1 :]] = 0
    return p / p.sum()


@pytest.mark.parametrize(("temperature", "top_p"), SAMPLINGS)
@pytest.mark.parametrize("name", NAMES)
def test_sampling_has_the_models_distribution(name: str, temperature: float, top_p: float, tmp_path: Path) -> None:
    found, accepted = excess(name, temperature, top_p, tmp_path)
    assert found < 3.5 and accepted > 200


@pytest.mark.parametrize("name", NAMES)
def test_the_test_fails_where_likely_drafts_are_simply_accepted(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(logits: np.ndarray, draft: Draft, sampler: Callable[[Any], int]) -> list[int]:
        said = list[int]()
        for token in draft.tokens:
            p = np.exp(logits[len(said)] - logits[len(said)].max())
            if p[token] / p.sum() <= 0.2:
                break
            said.append(token)
        return [*said, sampler(logits[len(said)])]

    monkeypatch.setattr(loop, "accept", broken)
    assert excess(name, 1.0, 1.0, tmp_path)[0] > 5


PROMPTS = ("The moon changes. The moon changes.", "la la la la la la la la")
SHAPES = {
    "stop": GenerateOptions(max_tokens=80),  # and a stop string, of the answer
    "penalty": GenerateOptions(max_tokens=80, repetition_penalty=1.3),
    "context": GenerateOptions(max_tokens=500),
}


@pytest.fixture(scope="module")
def with_successors(tmp_path_factory: pytest.TempPathFactory, by_layer: Bundle) -> Bundle:
    """The bundle of `by_layer` with a table of what it says to `PROMPTS`, of which every fourth entry is wrong."""
    table: dict[Context, tuple[int, int]] = {}
    for prompt in PROMPTS:
        text = [*plain(by_layer).prompt_ids(prompt), *plain(by_layer).generate(prompt).token_ids]
        for at in range(3, len(text)):
            table[tuple(text[at - 3 : at])] = table[text[at - 1],] = (text[at] if at % 4 else 5, 9)
    root = shutil.copytree(by_layer.root, tmp_path_factory.mktemp("table") / "six.edge")
    return with_table(Bundle(root, by_layer.manifest), table)


@pytest.fixture
def speculating(by_layer: Bundle, with_successors: Bundle) -> Callable[[str, int], Model]:
    """Makes the model with a drafter, by its name."""

    def make(name: str, context: int) -> Model:
        word, _, more = name.partition(", ")
        if more == "table":
            engine = open_engine(with_successors, context=context, threads=2, exact=True)
            return Model(with_successors, engine, Text(with_successors), speculate=word)
        asked = f"model={by_layer.root}" if word == "model" else word
        model = load(by_layer.root, context=context, threads=2, speculate=asked)
        assert isinstance(model, Model)
        return model

    return make


@pytest.fixture
def runs(monkeypatch: pytest.MonkeyPatch) -> list[tuple[Draft, int]]:
    """Every draft is run as it is; each, with how many tokens of it held."""
    seen: list[tuple[Draft, int]] = []
    accept = loop.accept

    def watched(rows: Any, draft: Draft, sampler: Callable[[Any], int]) -> list[int]:
        said = accept(rows, draft, sampler)
        if draft.tokens:
            seen.append((draft, len(said) - 1))
        return said

    monkeypatch.setattr(loop, "accept", watched)
    monkeypatch.setattr(Planner, "cut", lambda self, draft: draft)
    monkeypatch.setattr(Planner, "budget", lambda self, most, context, forced: Budget(min(most, 5), 0.0))
    return seen


@pytest.mark.parametrize("name", NAMES)
def test_what_shapes_and_ends_an_answer_does_as_without_drafts(
    name: str,
    by_layer: Bundle,
    speculating: Callable[[str, int], Model],
    runs: list[tuple[Draft, int]],
) -> None:
    """Piece by piece, as it streams."""
    drafted = speculating(name, 120)
    tokens = 0
    for (shape, options), prompt in itertools.product(SHAPES.items(), PROMPTS):
        if shape == "stop":
            options = GenerateOptions(max_tokens=80, stop=[plain(by_layer).generate(prompt, options).text[40:47]])
        wanted, got = ([*model.stream(prompt, options)] for model in (plain(by_layer), drafted))
        assert [(p.text, p.token_id, p.finish_reason) for p in got] == [
            (p.text, p.token_id, p.finish_reason) for p in wanted
        ]
        if shape != "penalty":
            assert wanted[-1].finish_reason == shape
        assert got[-1].timings.speculation is not None
        tokens += got[-1].timings.speculation.drafted
    assert tokens > 100
    if name == "blend, table":
        said = [(draft, held) for draft, held in runs if draft.grades[0] // SCORES >= SAID]
        held, all_of_it = sum(each for _, each in said), sum(len(draft.tokens) for draft, _ in said)
        assert 50 < held < 0.9 * all_of_it, "what the table says was right, and wrong"


@pytest.mark.parametrize("name", ["blend, table", "recycle", "cascade", "self=2,3"])
@pytest.mark.usefixtures("runs")
def test_a_chat_goes_on_after_an_interruption_in_a_step_with_a_draft(
    name: str, by_layer: Bundle, speculating: Callable[[str, int], Model], monkeypatch: pytest.MonkeyPatch
) -> None:
    """As Ctrl-C does it: nothing of the draft that was just run stays, and the next turn is that of a fresh run."""
    model = speculating(name, 300)
    run, verified = model.engine.graphs.run, list[int]()

    def watched(cache: KVCache, tokens: np.ndarray, wanted: np.ndarray, *rest: Any) -> np.ndarray:
        if len(wanted) > 2:
            verified.append(len(wanted))
        return run(cache, tokens, wanted, *rest)

    monkeypatch.setattr(model.engine.graphs, "run", watched)
    chat = model.chat()
    said = [*chat.stream(PROMPTS[0], GenerateOptions(max_tokens=80, interrupted=lambda: len(verified) == 3))]
    assert said[-1].finish_reason == "interrupted" and said[-1].timings.generated_tokens > 1
    assert chat.cached_tokens == chat._cache.length, "no row of the draft is left"
    result = chat.generate(PROMPTS[1], GenerateOptions(max_tokens=30))
    assert result.speculation is not None and result.speculation["drafted"] > 0
    engine, ids = plain(by_layer).engine, chat._cached[: result.prompt_tokens]
    tokens = generate(engine, engine.new_cache(), np.array(ids), greedy, chunk=128, interrupted=lambda: False)
    assert result.token_ids == [*itertools.islice(tokens, len(result.token_ids))]


@functools.cache
def _plain(root: Path) -> Model:
    model = load(root, context=120, threads=2, speculate="off", exact=True)
    assert isinstance(model, Model)
    return model


def plain(bundle: Bundle) -> Model:
    return _plain(bundle.root)
