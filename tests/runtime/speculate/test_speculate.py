"""Speculative decoding: drafts change how many steps an answer takes, and nothing else about it."""

from __future__ import annotations

import dataclasses
import math
import random
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import pytest
from fake_drafters import AllOfIt, Guesser
from fake_engine import fake_model, says
from path_engine import PathEngine, hashed
from profile_example import example_profile, int8_ms
from with_drafts import drafted

from edge.bundle import Bundle
from edge.errors import InputError
from edge.manifest import FLOAT32, INT8, KV8_STEP
from edge.runtime.costs import machine
from edge.runtime.costs.curve import store
from edge.runtime.decode import loop
from edge.runtime.decode.draft import NOTHING, Draft
from edge.runtime.decode.generate_options import GenerateOptions
from edge.runtime.decode.loop import generate
from edge.runtime.decode.sampling import SamplingOptions, make_sampler
from edge.runtime.engine.engine import Engine
from edge.runtime.load import load, open_engine
from edge.runtime.model import Model
from edge.runtime.profile.profile import bundle_info
from edge.runtime.speculate.drafter import Budget, find
from edge.runtime.speculate.planner import DRAWN_RISK, GUESSED_SLOPE, RISK, STAKE, Acceptance, Planner, StepCosts
from edge.runtime.speculate.speculation import Figures, Speculation
from edge.runtime.text.tokenizer import Text

VOCAB = 12
PROMPT = [3, 1, 4, 1, 5]


def chains(seed: int, right: float, continues: Callable[[Sequence[int]], int]) -> Callable[..., Draft]:
    """Chains whose tokens are those of the model in a share of cases."""
    rng = random.Random(seed)

    def guess(context: Sequence[int], budget: Budget) -> Draft:
        text, count = list(context), rng.randrange(budget.tokens + 1)
        for _ in range(count):
            text.append(continues(text) if rng.random() < right else rng.randrange(VOCAB))
        return Draft(text[len(context) :], [0] * count) if count else NOTHING

    return guess


def run(engine: PathEngine, sampling: SamplingOptions, speculation: Speculation | None, most: int = 40) -> list[int]:
    """The tokens of one answer to `PROMPT`; on the way, what the cache holds is checked."""
    cache = engine.new_cache(len(PROMPT) + most - 1)
    sampler = make_sampler(sampling, PROMPT)
    if speculation is None:
        return list(
            generate(engine, cache, np.array(PROMPT), sampler, chunk=3, interrupted=lambda: False)  # type: ignore[arg-type]
        )
    said: list[int] = []
    for token in drafted(speculation, engine, cache, PROMPT, sampler, chunk=3, most=most):
        said.append(token)
        assert cache.length == len(PROMPT) + len(said) - 1, "the last token yielded is never in the cache"
        assert cache.buffers[0][0][0, 0, : cache.length, 0].astype(int).tolist() == [*PROMPT, *said[:-1]]
        assert cache.positions[: cache.length].tolist() == list(range(cache.length))
    return said


SAMPLINGS = [
    SamplingOptions(),
    SamplingOptions(repetition_penalty=1.3),
    SamplingOptions(temperature=0.8, seed=5),
    SamplingOptions(temperature=1.5, top_k=5, top_p=0.9, min_p=0.02, repetition_penalty=1.2, seed=6),
]


@pytest.mark.parametrize("sampling", SAMPLINGS, ids=["greedy", "penalty", "sampled", "everything"])
@pytest.mark.parametrize("right", [0.0, 0.6, 1.0])
def test_an_answer_is_the_same_token_for_token_with_any_drafts(sampling: SamplingOptions, right: float) -> None:
    model = hashed(VOCAB, None, seed=2)
    plain = PathEngine(model)
    wanted = run(plain, sampling, None)
    drafted = PathEngine(model)

    def continues(text: Sequence[int]) -> int:
        known = [*PROMPT, *wanted]
        return known[len(text)] if len(text) < len(known) else 0

    speculation = Speculation(Guesser(chains(1, right, continues)), AllOfIt())
    assert run(drafted, sampling, speculation) == wanted
    assert max(drafted.steps) > 3, "drafts were verified"
    if right == 1.0:
        assert len(drafted.steps) < 0.6 * len(plain.steps), "right drafts save steps"


def test_a_full_context_ends_the_answer_where_it_would_without_drafts() -> None:
    model = hashed(VOCAB, None, seed=3)
    for most in (1, 2, 3, 10):
        wanted = run(PathEngine(model), SamplingOptions(), None, most)
        speculation = Speculation(Guesser(chains(4, 0.0, lambda text: 0)), AllOfIt())
        assert run(PathEngine(model), SamplingOptions(), speculation, most) == wanted and len(wanted) == most


def distribution(rule: Callable[..., object], monkeypatch: pytest.MonkeyPatch, runs: int = 3000) -> float:
    """Chi-square over the degrees of freedom, of the second and third token of many answers against the model's own
    probabilities, with drafts of the likeliest tokens, accepted by `rule`."""
    monkeypatch.setattr(loop, "accept", rule)
    small = 5
    table = np.random.default_rng(8).standard_normal((small, small)).astype(np.float32) * 1.5

    def logits(path: tuple[int, ...]) -> np.ndarray:
        return np.concatenate([table[path[-1] % small], np.full(VOCAB - small, -50, np.float32)])

    def guess(context: Sequence[int], budget: Budget) -> Draft:
        first = int(table[context[-1] % small].argmax())
        return Draft([first, int(table[first].argmax())][: budget.tokens], [0, 0][: budget.tokens])

    engine, counts = PathEngine(logits), Counter[tuple[int, int]]()
    speculation = Speculation(Guesser(guess), AllOfIt())
    first = None
    for seed in range(runs):
        said = run(engine, SamplingOptions(temperature=0.7, top_p=0.95, seed=seed), speculation, 4)
        first = said[0] if first is None else first
        if said[0] == first:
            counts[said[1], said[2]] += 1

    def chances(token: int) -> np.ndarray:
        p = np.exp(table[token].astype(np.float64) / 0.7)
        p /= p.sum()
        order = np.argsort(-p)
        p[order[np.searchsorted(np.cumsum(p[order]), 0.95) + 1 :]] = 0
        return p / p.sum()

    total, square, cells = sum(counts.values()), 0.0, 0
    for second, p in enumerate(chances(first)):  # type: ignore[arg-type]
        for third, q in enumerate(chances(second)):
            expected = total * p * q
            assert expected > 0 or counts[second, third] == 0, "a token outside of the nucleus was drawn"
            if expected >= 5:
                square += (counts[second, third] - expected) ** 2 / expected
                cells += 1
    assert cells >= 5
    freedom = cells - 1
    return (square - freedom) / math.sqrt(2 * freedom)


def test_sampling_with_drafts_has_the_models_distribution(monkeypatch: pytest.MonkeyPatch) -> None:
    assert distribution(loop.accept, monkeypatch) < 3.5


def test_the_test_of_the_distribution_fails_where_likely_drafts_are_simply_accepted(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def broken(logits: np.ndarray, draft: Draft, sampler: Callable[..., int]) -> list[int]:
        sampled: list[int] = []
        for row, token in enumerate(draft.tokens):
            p = np.exp(logits[row] - logits[row].max())
            if p[token] / p.sum() < 0.2:
                break
            sampled.append(token)
        return [*sampled, sampler(logits[len(sampled)])]

    assert distribution(broken, monkeypatch) > 10


@pytest.mark.parametrize("seed", range(12))
def test_lookup_finds_the_longest_match_and_the_latest_of_equals(seed: int) -> None:
    from edge.runtime.speculate.lookup import LONGEST, Lookup

    rng = random.Random(seed)
    words = rng.choice([20, 200])
    text = [rng.randrange(words) for _ in range(rng.choice([1, 5, 100, 700]))]
    lookup = Lookup(256)
    lookup.begin(text)
    for _ in range(60):
        draft, end, first = lookup.propose(text, Budget(8)), len(text), max(0, len(text) - 256)
        lengths = []
        for place in range(first + 1, end):
            length = 0
            while length < min(LONGEST, place - first) and text[place - 1 - length] == text[end - 1 - length]:
                length += 1
            lengths.append(length)
        assert (draft.grades[0] if draft.tokens else 0) >= max(lengths, default=0), "or more, from before the window"
        if draft.tokens:
            found = text[-draft.grades[0] :] + list(draft.tokens[:1])
            assert any(text[i : i + len(found)] == found for i in range(end)), "that is what followed there"
        text.append(draft.tokens[0] if draft.tokens and rng.random() < 0.6 else rng.randrange(words))
        lookup.accept(text[-1:])


def test_lookup_drafts_a_repetition_beyond_the_end_of_the_text() -> None:
    from edge.runtime.speculate.lookup import Lookup

    lookup = Lookup(256)
    lookup.begin([9, 1, 2, 3, 1, 2, 3, 1, 2])
    assert lookup.propose([], Budget(7)).tokens == [3, 1, 2, 3, 1, 2, 3]
    assert lookup.propose([], Budget(7)).grades == [5, 6, 7, 8, 9, 10, 11]


def test_lookup_takes_the_memory_that_it_says_and_keeps_to_a_limit(tmp_path: Path) -> None:
    from edge.runtime.speculate import drafter, lookup

    model, _ = fake_model(tmp_path, says("x"))
    for limit in (None, 200_000):
        setting = drafter.Setting(model.bundle, 5000, limit=limit)
        index = lookup.make(setting)
        index.begin(list(range(9000)))
        held = sum(v.itemsize * len(v) for v in vars(index).values() if hasattr(v, "itemsize"))
        assert held == lookup.nbytes(setting) and held <= (limit or held)


def plain_tokens(planner: Planner, count: int) -> None:
    """An answer goes on with so many plain steps."""
    for _ in range(count):
        planner.observe(NOTHING, [1])


def test_a_draft_is_as_long_as_pays() -> None:
    costs = StepCosts(lambda: None, 9)
    costs.begin()
    planner = Planner((0.1, 0.6, 0.95), costs, 9)
    plain_tokens(planner, 50)
    draft = Draft([7] * 8, [2] * 8)
    assert len(planner.cut(draft).tokens) == 8, "likely tokens are worth their time"
    assert planner.cut(Draft([7] * 8, [0] * 8)) == NOTHING, "unlikely ones are not"
    middle = planner.cut(Draft([7] * 8, [1] * 8))
    assert 1 <= len(middle.tokens) <= 3, "and of chances in between the first ones are"
    for _ in range(60):
        planner.observe(draft, [1])
    assert planner.cut(draft) == NOTHING, "a grade that fails is not trusted any longer"


def test_a_cheap_drafter_may_stop_where_a_token_cannot_pay() -> None:
    """Well below: what is learnt of a grade may be more than the drafter knows."""
    costs = StepCosts(lambda: None, 9, slope=0.24)
    costs.begin()
    assert Planner((0.5,), costs, 9).budget(8, 100).min_chance == pytest.approx(0.12)
    assert Planner((0.5,), costs, 9, cost=0.3).budget(8, 100).min_chance == pytest.approx(0.54)


@pytest.mark.parametrize(("drawn", "risk"), [(False, RISK), (True, DRAWN_RISK)])
@pytest.mark.parametrize("tokens", [4, 35, 110])
def test_an_answer_of_which_no_draft_holds_is_hardly_slower_than_plain(tokens: int, drawn: bool, risk: float) -> None:
    """However sure the drafter is, and however little it has learnt: each draft has a grade of its own."""
    costs = StepCosts(lambda: None, 16, slope=0.2)
    costs.begin()
    planner, taken, drafted = Planner([0.99] * tokens, costs, 16), 0.0, 0
    planner.begin(drawn)
    for at in range(tokens):
        planner.budget(15, 100)
        draft = planner.cut(Draft([7] * 15, [at] * 15))
        planner.observe(draft, [1])
        taken += costs.ratios[1 + len(draft.tokens)]
        drafted += len(draft.tokens)
    assert drafted > 0 and taken <= tokens * (1 + risk) + STAKE


def test_what_steps_take_counts_from_the_next_answer_on() -> None:
    costs = StepCosts(lambda: None, 4)
    costs.begin()
    before = list(costs.ratios)
    for _ in range(100):
        costs.took(1, 0.010)
        costs.took(4, 0.011)
    assert costs.ratios == before, "the first answer of a process does not depend on the clock"
    costs.begin()
    assert costs.ratios[4] == pytest.approx(1.1, rel=0.05) and costs.ratios[2] <= costs.ratios[4]


def test_what_was_learnt_early_in_a_text_counts_beside_what_the_curve_says_of_every_context() -> None:
    class Curve:
        def ms(self, size: int, context: int) -> float:
            return 5.0 * (1 + (size - 1) * (0.2 if context < 500 else 0.4))

    costs = StepCosts(lambda: Curve(), 4)  # type: ignore[arg-type, return-value]
    costs.begin()
    for _ in range(100):
        costs.took(1, 0.005)
        costs.took(2, 0.005 * 1.3)
    costs.begin()
    assert costs.ratios[2] == pytest.approx(1.3, rel=0.02)
    costs.at(1000)
    assert costs.ratios[2] == pytest.approx(1.5, rel=0.02)


def test_a_step_that_the_curve_has_no_slower_than_a_plain_one_is_found_to_be() -> None:
    class Curve:
        def ms(self, size: int, context: int) -> float:
            return {1: 5.0, 2: 4.9, 3: 6.5, 4: 7.5}[size]

    costs = StepCosts(lambda: Curve(), 4)  # type: ignore[arg-type, return-value]
    costs.begin()
    assert costs.ratios[2] == 1
    for _ in range(100):
        costs.took(1, 0.005)
        costs.took(2, 0.005 * 1.2)
    costs.begin()
    assert costs.ratios[2] == pytest.approx(1.2, rel=0.02)


def test_proposals_of_a_cheap_drafter_that_were_not_run_do_not_use_up_what_drafts_may_lose() -> None:
    costs = StepCosts(lambda: None, 16)
    costs.begin()
    planner = Planner((0.05, 0.99), costs, 16)
    planner.drafted(1, 0.0001)
    costs.plain = 0.01
    planner.begin(drawn=True)
    for _ in range(100):
        planner.budget(15, 100)
        draft = Draft([7] * 15, [0] * 15)
        assert not planner.cut(draft).tokens
        planner.observe(draft, [1])
    planner.budget(15, 100)
    assert planner.cut(Draft([7] * 4, [1] * 4)).tokens


def test_a_machine_that_is_busy_at_times_hardly_moves_what_a_wider_step_is_known_to_cost() -> None:
    """Times differ by half from step to step, and all of them by as much from answer to answer."""
    costs, rng = StepCosts(lambda: None, 4, slope=0.2), random.Random(1)
    known = []
    for _ in range(40):
        costs.begin()
        known.append(costs.ratios[2])
        speed = rng.uniform(0.008, 0.012)
        for _ in range(20):
            costs.took(1, speed * rng.uniform(0.8, 1.2))
            costs.took(2, 1.4 * speed * rng.uniform(0.8, 1.2))
    assert all(each == pytest.approx(1.4, rel=0.12) for each in known[5:])


def test_a_slow_drafter_is_asked_only_where_it_is_likely_to_pay() -> None:
    costs = StepCosts(lambda: None, 9)
    costs.begin()
    planner, asked = Planner((0.9,), costs, 9, cost=0.3), list[int]()
    planner._mean = 0.95
    assert planner.budget(8, 100).tokens == 0, "an answer that has just begun cannot lose as much"
    plain_tokens(planner, 50)
    assert planner.budget(8, 100).tokens >= 2
    for _ in range(600):
        asked.append(planner.budget(8, 100).tokens)
        planner.observe(Draft([1] * asked[-1], [0] * asked[-1]), [2])
    assert 0 < sum(n > 0 for n in asked[200:]) < 20, "tried again now and then"


def test_a_drafter_that_runs_a_model_is_refused_a_step_that_the_answer_cannot_lose() -> None:
    costs = StepCosts(lambda: None, 9, slope=0.2)
    costs.begin()
    planner = Planner((0.9,), costs, 9, cost=0.5)
    plain_tokens(planner, 52)  # of which 3% can be lost after what planning takes, 1.56 plain steps, and 0.3
    budget = planner.budget(8, 100)
    assert not budget.afford(0.5, 16), "the ninth token of a step and those after it cost as much as others: 2.0"
    assert budget.afford(0.5, 9) and not budget.afford(0.5, 4), "1.3, and 0.8"
    assert budget.afford(0.5, 1), "0.5"
    assert not planner.cut(Draft([7], [0])).tokens, "what drafting took is missing for the step that checks it"
    planner.observe(Draft([7], [0]), [7])
    assert planner._left() == pytest.approx(1.86 - 1.3 - 0.5 + 0.03)


def test_what_planning_takes_counts_as_lost_from_the_next_answer_on() -> None:
    costs = StepCosts(lambda: None, 9)
    costs.plain = 0.010
    planner = Planner((0.9,), costs, 9)
    for seconds, wanted in ((0.0002, 0.02), (0.001, 0.03), (0.0, 0.0)):
        for _ in range(300):
            planner.rounded(seconds, 0.0)
        planner.begin()
        plain_tokens(planner, 10)
        assert planner._left() == pytest.approx(0.3 + 10 * (0.04 - wanted), abs=0.01)


def test_what_a_drafters_own_steps_take_counts_from_the_next_answer_on() -> None:
    costs = StepCosts(lambda: None, 9)
    planner = Planner((0.9,), costs, 9, cost=0.5)
    planner.begin()
    for _ in range(400):
        costs.took(1, 0.010)
        planner.observe(NOTHING, [1])
        if planner.budget(8, 100).afford(0.5, 1):
            planner.drafted(1, 0.008)  # instead of 0.005
    assert planner._cost == 0.5
    planner.begin()
    assert planner._cost == pytest.approx(0.8, rel=0.05)


def test_a_cheap_drafter_with_nothing_to_say_is_asked_again_at_once() -> None:
    costs = StepCosts(lambda: None, 9)
    costs.plain = 0.005
    planner = Planner((0.5,), costs, 9)
    for _ in range(100):
        planner.drafted(0, 0.0002)
    planner.drafted(8, 0.0002)
    planner.begin()
    assert all(planner.budget(8, 100).tokens == 8 for _ in range(50))


def test_what_was_learnt_in_an_answer_weighs_less_in_the_next() -> None:
    acceptance = Acceptance((0.5,))
    for _ in range(50):
        acceptance.observe(0, True)
    after = acceptance.chances[0]
    acceptance.begin()
    assert 0.5 < acceptance.chances[0] < after


def test_what_is_learnt_of_tokens_drawn_at_random_is_kept_apart() -> None:
    planner = Planner((0.8,), StepCosts(lambda: None, 8), 8)
    planner.begin(drawn=True)
    assert planner.acceptance.chances[0] < 0.6
    for _ in range(100):
        planner.observe(Draft([1], [0]), [2])
    assert planner.acceptance.chances[0] < 0.1
    planner.begin(drawn=False)
    assert planner.acceptance.chances[0] == pytest.approx(0.8)


def leave_curve(bundle: Bundle, threads: int, ms: Callable[[int, int], float]) -> None:
    """As `edge profile` leaves it; over a KV cache in int8 that of `int8_ms`."""
    profile = example_profile()
    curve = [dataclasses.replace(point, ms=ms(point.size, point.context)) for point in profile.curve]
    device = machine.describe("cpu", threads)
    store(dataclasses.replace(profile, device=device, bundle=bundle_info(bundle), curve=curve))


def load_speculating(bundle: Bundle, kv: str = FLOAT32, exact: bool = False) -> tuple[Model, Planner]:
    model = load(bundle.root, context=200, threads=2, speculate="lookup", kv=kv, exact=exact)
    assert isinstance(model, Model) and model.speculation is not None
    return model, model.speculation.planner


@pytest.mark.usefixtures("onnxruntimes_kernels")
@pytest.mark.parametrize(("kv", "exact"), [(FLOAT32, False), (FLOAT32, True), (INT8, False)])
def test_a_loaded_model_plans_by_the_cost_curve_of_the_device(
    kv: str, exact: bool, pristine_tiny_bundle: Bundle
) -> None:
    """From the next time on that it is loaded; until one was measured, by a guess."""
    width = KV8_STEP if kv == INT8 else 16

    def late_is_steep(size: int, context: int) -> float:
        return 3.0 + (0.1 + context / 1000) * (size - 1)

    def wanted(ms: Callable[[int, int], float], context: int) -> list[float]:
        """Of steps as the engine runs them: by twos, where answers are exact."""
        sizes = [size + (size % 2 if exact else 0) for size in range(1, width + 1)]
        return [0.0, *(ms(size, context) / ms(sizes[0], context) for size in sizes)]

    model, planner = load_speculating(pristine_tiny_bundle, kv, exact)
    planner.begin(exact=exact)
    assert planner.costs.ratios == pytest.approx(wanted(lambda size, _: 1 + GUESSED_SLOPE * (size - 1), 0))

    leave_curve(pristine_tiny_bundle, model.engine.threads, late_is_steep)
    _, planner = load_speculating(pristine_tiny_bundle, kv, exact)
    measured = int8_ms if kv == INT8 else late_is_steep
    planner.begin(exact=exact)
    assert planner.costs.ratios == pytest.approx(wanted(measured, 16)), "the shortest context that was measured"
    planner.budget(width - 1, 512)
    assert planner.costs.ratios == pytest.approx(wanted(measured, 512)), "as the text grows"


def test_nothing_is_drafted_on_a_device_that_takes_as_long_for_each_token_of_a_step(
    pristine_tiny_bundle: Bundle,
) -> None:
    """And the same text is on another one."""
    threads = load_speculating(pristine_tiny_bundle)[0].engine.threads
    for slope, drafts in ((1.0, False), (0.02, True)):
        leave_curve(pristine_tiny_bundle, threads, lambda size, _, slope=slope: 3.0 * (1 + slope * (size - 1)))
        model, _ = load_speculating(pristine_tiny_bundle)
        did = model.generate("la la la la la la la la", GenerateOptions(max_tokens=60)).speculation
        assert did is not None and (did["drafted"] > 0) == drafts


SONG = "la la la la, la la la la, la la la la, la la la la."
COUNT = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZ"  # no token twice, and none that the chat template or a question has


def songs(folder: Path, speculate: str, song: str = SONG) -> tuple[Model, object]:
    model, engine = fake_model(folder / speculate, says(song, song))
    return Model(model.bundle, engine, Text(model.bundle), speculate=speculate), engine  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "options",
    [
        GenerateOptions(circles="allow"),
        GenerateOptions(max_tokens=23),
        GenerateOptions(stop=["la, la la la la, la l"]),
        GenerateOptions(stop=["a."], circles="allow"),
    ],
    ids=["end", "length", "stop string", "late stop string"],
)
def test_what_ends_an_answer_ends_it_with_drafts_as_well(tmp_path: Path, options: GenerateOptions) -> None:
    plain, engine = songs(tmp_path, "off")
    drafted, other = songs(tmp_path, "auto")
    a, b = plain.generate("sing", options), drafted.generate("sing", options)
    assert (a.text, a.token_ids, a.finish_reason) == (b.text, b.token_ids, b.finish_reason)
    assert len(other.steps) < len(engine.steps)  # type: ignore[attr-defined]
    assert a.speculation is None and b.speculation is not None
    assert b.speculation["accepted"] > 5 and b.speculation["steps"] < b.generated_tokens
    assert b.speculation["accepted_per_step"] == b.speculation["accepted"] / b.speculation["steps"]


def test_a_chat_keeps_only_what_was_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(StepCosts, "took", lambda *_: None)  # a fake engine's times mean nothing
    plain, engine = songs(tmp_path, "off")
    drafted, other = songs(tmp_path, "auto")
    for model in (plain, drafted):
        chat = model.chat()
        stream = chat.stream("sing", GenerateOptions(max_tokens=30))
        assert "".join(piece.text for piece in stream) == SONG[:30]
        assert chat.cached_tokens == len(model.prompt_ids("sing")) + 29
        assert chat.generate("again").text == SONG
    assert len(other.steps) < 0.6 * len(engine.steps)  # type: ignore[attr-defined]


@pytest.mark.parametrize("name", ["auto", "lookup"])
def test_a_chat_drafts_from_earlier_turns(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An answer that never repeats itself: when it is said again, only the turn before has it."""
    monkeypatch.setattr(StepCosts, "took", lambda *_: None)  # a fake engine's times mean nothing
    model, _ = songs(tmp_path, name, COUNT)
    chat = model.chat()
    first, second = chat.generate("sing"), chat.generate("again")
    assert first.text == second.text == COUNT
    assert first.speculation is not None and first.speculation["accepted"] == 0
    assert second.speculation is not None and second.speculation["accepted"] > 0.6 * len(COUNT)


def test_two_answers_at_a_time_do_not_disturb_each_other(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(StepCosts, "took", lambda *_: None)  # a fake engine's times mean nothing
    monkeypatch.setattr(Planner, "drafted", lambda *_: None)
    model, _ = songs(tmp_path, "auto")
    one, two = (model.stream("sing", circles="allow") for _ in range(2))
    texts = ["", ""]
    for a, b in zip(one, two, strict=True):
        texts[0] += a.text
        texts[1] += b.text
    assert texts == [SONG, SONG]
    later = model.generate("sing", circles="allow").speculation
    assert later is not None and later["drafted"] > 0, "the drafter was given back, by the one of the two that had it"


def test_an_unknown_drafter_is_refused_in_a_sentence() -> None:
    with pytest.raises(InputError, match="There is no drafter 'magic'; there are auto, off, blend, cascade"):
        find("magic")
    with pytest.raises(InputError, match="The drafter lookup takes no argument"):
        find("lookup=3")


@pytest.fixture(params=["pristine_tiny_bundle", "int4_bundle"])
def quantized(request: pytest.FixtureRequest) -> Bundle:
    bundle: Bundle = request.getfixturevalue(request.param)
    return bundle


def in_steps(engine: Engine, tokens: np.ndarray, size: int) -> np.ndarray:
    """Logits [S, V] of all tokens, run so many at a time."""
    cache = engine.new_cache(len(tokens))
    pieces = (tokens[start : start + size] for start in range(0, len(tokens), size))
    logits = [engine.step(cache, piece, np.arange(len(piece))).copy() for piece in pieces]
    assert cache.length == cache.capacity == len(tokens)
    return np.concatenate(logits)


def test_reproducible_logits_do_not_depend_on_the_size_of_steps(quantized: Bundle) -> None:
    tokens = np.random.default_rng(0).integers(3, 200, 40)
    engine = open_engine(quantized, context=64, threads=2, exact=True)
    alone = in_steps(engine, tokens, 1)
    for size in range(2, 17):
        np.testing.assert_array_equal(in_steps(engine, tokens, size), alone)
    other = open_engine(quantized, context=64, threads=2)
    differ = (in_steps(other, tokens, 1) != in_steps(other, tokens, 2)).any()
    assert differ != other.independent, "as they do where nobody asks for that, with onnxruntime's kernels"


def test_a_reproducible_answer_is_the_same_bit_for_bit_with_and_without_drafts(
    quantized: Bundle, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Planner, "cut", AllOfIt.cut)
    monkeypatch.setattr(Planner, "drafted", lambda *_: None)  # else what is asked for depends on how long it took
    plain = load(quantized.root, context=200, threads=2, speculate="off", exact=True)
    drafted = load(quantized.root, context=200, threads=2, speculate="lookup", exact=True)
    drafted_tokens = accepted = 0
    options = GenerateOptions(max_tokens=150)
    starts = ("The moon changes", "la la la la la la la la", "def largest(a, b, c): return max(a, b, c)")
    for prompt in (*starts, *(f"{n} and {n} and {n}" for n in range(20))):  # of a random model's words few are repeated
        wanted, got = plain.generate(prompt, options), drafted.generate(prompt, options)  # type: ignore[union-attr]
        assert got.token_ids == wanted.token_ids and got.finish_reason == wanted.finish_reason
        drafted_tokens += got.speculation["drafted"]  # type: ignore[index]
        accepted += got.speculation["accepted"]  # type: ignore[index]
    assert drafted_tokens > 30 and accepted >= 10


@pytest.mark.parametrize("exact", [True, False])
def test_all_logits_of_an_answer_are_the_same_bit_for_bit_with_drafts_where_that_is_asked_for(
    exact: bool, quantized: Bundle
) -> None:
    """And are not elsewhere, which hardly a word shows."""
    most, prompt = 150, Text(quantized).encode_prompt("The moon changes")
    engine, figures = open_engine(quantized, context=200, threads=2, exact=exact), Figures("guesser")
    seen: list[bytes] = []

    def sampler(logits: np.ndarray) -> int:
        seen.append(logits.tobytes())
        return int(logits.argmax())

    cache = engine.new_cache(len(prompt) + most - 1)
    wanted = list(generate(engine, cache, np.array(prompt), sampler, chunk=128, interrupted=lambda: False))
    plain, known = list(seen), [*prompt, *wanted]

    def continues(text: Sequence[int]) -> int:
        return known[len(text)] if len(text) < len(known) else 0

    seen.clear()
    speculation, cache = Speculation(Guesser(chains(3, 0.8, continues)), AllOfIt()), engine.new_cache(cache.capacity)
    said = list(drafted(speculation, engine, cache, prompt, sampler, chunk=128, most=most, figures=figures))
    assert len(said) == len(wanted) == most and 0.8 * figures.drafted > figures.accepted > 0.3 * most
    same = exact or engine.independent
    assert (seen == plain) == same and (said == wanted or not same)


def test_reproducible_logits_are_the_same_up_to_the_last_row_of_the_bundles_context(by_layer: Bundle) -> None:
    """That row is run alone with drafts too: plain decoding has no position for another one beside it."""
    engine = open_engine(by_layer, threads=2, exact=True)
    prompt = np.random.default_rng(4).integers(3, 300, engine.context - 24).tolist()
    seen: list[np.ndarray] = []

    def sampler(logits: np.ndarray) -> int:
        seen.append(logits.copy())
        return int(logits.argmax())

    cache = engine.new_cache()
    said = list(generate(engine, cache, np.array(prompt), sampler, chunk=128, interrupted=lambda: False))
    text, plain = [*prompt, *said], list(seen)
    assert cache.length == cache.capacity == by_layer.manifest.context

    def right(context: Sequence[int], budget: Budget) -> Draft:
        tokens = text[len(context) :][: budget.tokens]
        return Draft(tokens, [0] * len(tokens))

    seen.clear()
    figures = Figures("guesser")
    speculation, cache = Speculation(Guesser(right), AllOfIt(width=4)), engine.new_cache()
    again = drafted(speculation, engine, cache, prompt, sampler, chunk=128, most=len(said), figures=figures)
    assert list(again) == said and figures.steps < len(said) / 2
    np.testing.assert_array_equal(seen, plain)


def test_profiling_drafters_counts_what_was_right_by_position(tiny_bundle: Bundle) -> None:
    from edge.runtime.check.acceptance import measure

    engine, text = open_engine(tiny_bundle, context=256, threads=2), Text(tiny_bundle)
    plain, lookup = measure(lambda name: Model(tiny_bundle, engine, text, speculate=name), ["lookup"], 60)
    assert (plain.drafter, plain.share, sum(plain.seen)) == ("off", 0.0, 0)
    assert lookup.drafter == "lookup" and 0 < lookup.share <= 1 and lookup.tokens_per_s > 0
    assert lookup.seen[0] > lookup.seen[1] >= lookup.seen[2], "a position is looked at where the one before was right"
    assert all(right <= seen for right, seen in zip(lookup.right, lookup.seen, strict=True))
    assert lookup.right[0] >= lookup.seen[1]
