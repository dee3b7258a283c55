"""Sampling against straightforward references, and draws against the distribution they claim."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest

from edge.errors import InputError
from edge.runtime.decode.sampling import SamplingOptions, greedy, make_sampler


def reference(logits: np.ndarray, options: SamplingOptions, said: set[int] = frozenset()) -> np.ndarray:
    """The probabilities [V] that transformers' logits processors lead to, by sorting everything."""
    options = options.settled(None)
    scores = logits.astype(np.float64)
    for token in said:
        factor = options.repetition_penalty or 1.0
        scores[token] = scores[token] / factor if scores[token] > 0 else scores[token] * factor
    scores /= options.temperature
    if options.top_k:
        scores[scores < np.sort(scores)[-options.top_k :][0]] = -np.inf
    if options.top_p < 1:
        order = np.argsort(-scores)
        before = np.cumsum(softmax(scores)[order]) - softmax(scores)[order]
        scores[order[before >= options.top_p]] = -np.inf
    if options.min_p:
        p = softmax(scores)
        scores[p < options.min_p * p.max()] = -np.inf
    return softmax(scores)


def softmax(scores: np.ndarray) -> np.ndarray:
    e = np.exp(scores - scores.max())
    return e / e.sum()


def random_logits(size: int, seed: int = 0, spread: float = 2.0) -> np.ndarray:
    return (np.random.default_rng(seed).standard_normal(size) * spread).astype(np.float32)


def assert_drawn_from(drawn: list[int], expected: np.ndarray) -> None:
    """Pearson's chi-square: fails one right sampler in ten thousand, and the seeds are fixed."""
    counts = np.bincount(drawn, minlength=len(expected))
    assert set(np.flatnonzero(counts)) <= set(np.flatnonzero(expected)), "a token was drawn that is left out"
    order = np.argsort(-expected)
    wanted, got = len(drawn) * expected[order], counts[order].astype(float)
    many = int((wanted >= 5).sum())  # rarer tokens are counted together
    wanted = np.append(wanted[:many], wanted[many:].sum())
    got = np.append(got[:many], got[many:].sum())
    keep = wanted > 0
    statistic = float((((got - wanted)[keep]) ** 2 / wanted[keep]).sum())
    freedom = int(keep.sum()) - 1
    # Wilson and Hilferty's approximation of the 0.9999 quantile
    limit = freedom * (1 - 2 / (9 * freedom) + 3.719 * (2 / (9 * freedom)) ** 0.5) ** 3 if freedom else 1e-9
    assert statistic <= limit, f"chi-square {statistic:.1f} above {limit:.1f} with {freedom} degrees of freedom"


COMBINATIONS = [
    dict(temperature=t, top_k=k, top_p=p, min_p=m)
    for t, k, p, m in product((0.7, 1.0, 1.6), (0, 5), (1.0, 0.8), (0.0, 0.1))
]


@pytest.mark.parametrize("values", COMBINATIONS, ids=str)
def test_draws_follow_the_reference_distribution(values: dict[str, float]) -> None:
    logits = random_logits(40)
    options = SamplingOptions(seed=1, **values)
    sampler = make_sampler(options)
    assert_drawn_from([sampler(logits) for _ in range(4000)], reference(logits, options))


@pytest.mark.parametrize("values", [{}, {"top_p": 0.9}, {"top_k": 700}], ids=str)
def test_draws_from_a_large_vocabulary_follow_the_reference_distribution(values: dict[str, float]) -> None:
    logits = random_logits(3000, spread=0.5)  # flat: the nucleus is larger than the sampler's first guess
    options = SamplingOptions(temperature=1.0, seed=2, **values)
    sampler = make_sampler(options)
    assert_drawn_from([sampler(logits) for _ in range(30_000)], reference(logits, options))


def test_a_wrong_distribution_is_noticed() -> None:
    logits = random_logits(40)
    sampler = make_sampler(SamplingOptions(temperature=1.0, seed=1))
    with pytest.raises(AssertionError, match="chi-square"):
        assert_drawn_from([sampler(logits) for _ in range(4000)], reference(logits, SamplingOptions(temperature=1.2)))


@pytest.mark.parametrize("values", [*COMBINATIONS, {"temperature": 1.0, "top_p": 0.05}], ids=str)
@pytest.mark.parametrize("seed", range(4))
def test_the_tokens_kept_are_those_transformers_keeps(values: dict[str, float], seed: int) -> None:
    torch = pytest.importorskip("torch")
    from transformers import (
        LogitsProcessorList,
        MinPLogitsWarper,
        RepetitionPenaltyLogitsProcessor,
        TemperatureLogitsWarper,
        TopKLogitsWarper,
        TopPLogitsWarper,
    )

    logits = random_logits(600, seed)
    options = SamplingOptions(repetition_penalty=1.3, seed=seed, **values)
    said = {int(t) for t in np.argsort(-logits)[:4]}
    steps = [RepetitionPenaltyLogitsProcessor(1.3), TemperatureLogitsWarper(options.temperature)]
    steps += [TopKLogitsWarper(options.top_k)] if options.top_k else []
    steps += [TopPLogitsWarper(options.top_p)] if options.top_p < 1 else []
    steps += [MinPLogitsWarper(options.min_p)] if options.min_p else []
    scores = LogitsProcessorList(steps)(torch.tensor([sorted(said)]), torch.tensor(logits[None]).clone())
    expected = torch.softmax(scores[0].double(), -1).numpy()
    assert np.allclose(reference(logits, options, said), expected, atol=1e-6)
    drawn = set()
    for _ in range(300):  # a new sampler for each: the penalty would count what was drawn
        drawn.add(make_sampler(SamplingOptions(repetition_penalty=1.3, **values), sorted(said))(logits))
    assert drawn <= set(np.flatnonzero(expected > 0))


@pytest.mark.parametrize(
    "values", [{}, {"repetition_penalty": 1.5}, {"temperature": 1.0}, {"temperature": 1.0, "top_k": 3, "top_p": 0.5}]
)
def test_logits_are_left_as_they_are(values: dict[str, float]) -> None:
    logits = random_logits(100)
    before = logits.copy()
    make_sampler(SamplingOptions(**values), [1, 2])(logits)
    assert np.array_equal(logits, before)


def test_the_most_likely_token_is_taken_without_any_other_step() -> None:
    assert make_sampler(SamplingOptions(circles="allow")) is greedy
    assert greedy(np.array([0.5, 3.0, 3.0, -1.0], np.float32)) == 1


def test_the_penalty_counts_the_prompt_and_what_was_sampled() -> None:
    logits = np.array([4.0, 3.9, 3.8, -1.0], np.float32)
    sampler = make_sampler(SamplingOptions(repetition_penalty=1.2), prompt=[0])
    assert [sampler(logits) for _ in range(3)] == [1, 2, 0]


def test_the_penalty_lowers_negative_logits_too() -> None:
    logits = np.array([-1.0, -1.1], np.float32)
    assert make_sampler(SamplingOptions(repetition_penalty=1.2), prompt=[0])(logits) == 1


@pytest.mark.parametrize("values", [{}, {"top_k": 5}, {"top_p": 0.9}, {"min_p": 0.01}], ids=str)
def test_a_seed_makes_draws_repeatable(values: dict[str, float]) -> None:
    logits = random_logits(5000, spread=0.5)

    def draws(seed: int | None) -> list[int]:
        sampler = make_sampler(SamplingOptions(temperature=1.0, seed=seed, **values))
        return [sampler(logits) for _ in range(20)]

    assert draws(7) == draws(7)
    assert draws(7) != draws(8)
    assert draws(None) != draws(None)


@pytest.mark.parametrize("values", [{}, {"top_k": 2}, {"top_p": 0.99}, {"min_p": 1e-6}], ids=str)
def test_a_token_of_minus_infinity_is_never_drawn(values: dict[str, float]) -> None:
    logits = np.full(1000, -np.inf, np.float32)
    logits[[3, 700]] = 1.0
    sampler = make_sampler(SamplingOptions(temperature=1.0, seed=0, **values))
    assert {sampler(logits) for _ in range(100)} == {3, 700}


@pytest.mark.parametrize("values", [{"temperature": 1e-300}, {"temperature": 9.0, "top_k": 1}, {"top_p": 1e-9}])
def test_the_narrowest_settings_are_greedy(values: dict[str, float]) -> None:
    logits = random_logits(500)
    sampler = make_sampler(SamplingOptions(**{"temperature": 1.0, **values}))
    assert {sampler(logits) for _ in range(20)} == {greedy(logits)}


def test_a_top_k_beyond_the_vocabulary_keeps_all() -> None:
    logits = np.zeros(8, np.float32)
    sampler = make_sampler(SamplingOptions(temperature=1.0, top_k=100, seed=0))
    assert {sampler(logits) for _ in range(200)} == set(range(8))


@pytest.mark.parametrize(
    ("name", "value"),
    [
        *(("temperature", v) for v in (-1, -1e-9, float("nan"), float("inf"), "warm", True)),
        *(("top_k", v) for v in (-1, 1.5, float("nan"))),
        *(("top_p", v) for v in (0, -0.1, 1.0001, float("nan"))),
        *(("min_p", v) for v in (-0.1, 1.1, float("nan"))),
        *(("repetition_penalty", v) for v in (0, -1, float("nan"), float("inf"))),
        *(("seed", v) for v in (-1, 0.5)),
    ],
)
def test_a_value_out_of_range_gets_one_sentence_that_names_it(name: str, value: object) -> None:
    with pytest.raises(InputError) as caught:
        SamplingOptions(**{name: value})
    message = str(caught.value)
    assert name.replace("_", " ") in message.replace("-", " ") and repr(value) in message and message.endswith(".")
    assert "\n" not in message
