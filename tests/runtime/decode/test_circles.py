"""Circles: what repeats itself without end is led out, what repeats for a reason stays, and drafts change nothing."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import pytest
from fake_drafters import AllOfIt, Guesser
from path_engine import PathEngine
from with_drafts import drafted

from edge.errors import InputError
from edge.runtime.decode.beam import beam_search, new_cache
from edge.runtime.decode.beam_options import BeamOptions
from edge.runtime.decode.draft import NOTHING, Draft
from edge.runtime.decode.generate_options import GenerateOptions, never
from edge.runtime.decode.loop import generate
from edge.runtime.decode.rules.circles import Circles
from edge.runtime.decode.sampling import SamplingOptions, make_sampler
from edge.runtime.engine.want import LOGITS, TOKENS
from edge.runtime.speculate.drafter import Budget
from edge.runtime.speculate.speculation import Speculation

VOCAB = 40
PROMPT = [3, 1, 4, 1, 5]
SEEDS = range(3)


class ChoosingEngine(PathEngine):
    """Keeps its logits to itself, unless it is asked for them: counts the rows that it gave out."""

    chooses = True

    def __init__(self, next_logits: Callable[[tuple[int, ...]], np.ndarray]) -> None:
        super().__init__(next_logits)
        self.shown = 0

    def step(self, *given: Any, want: object = LOGITS, **more: Any) -> np.ndarray:
        logits = super().step(*given, **more)
        if want == TOKENS:
            return logits.argmax(axis=1)
        self.shown += len(logits)
        return logits


def looping(seed: int, order: int = 2) -> Callable[[tuple[int, ...]], np.ndarray]:
    """A model that goes by the last tokens alone, so that its greedy text ends in a circle of some length."""

    def next_logits(path: tuple[int, ...]) -> np.ndarray:
        logits = np.random.default_rng([seed, *path[-order:]]).standard_normal(VOCAB) * 3
        logits[: len(path) % 2] += 0.001  # near-ties go one way
        return logits.astype(np.float32)

    return next_logits


def raw(model: Callable[[tuple[int, ...]], np.ndarray], tokens: int) -> list[int]:
    text = list(PROMPT)
    while len(text) < len(PROMPT) + tokens:
        text.append(int(model(tuple(text)).argmax()))
    return text[len(PROMPT) :]


def led(model: Callable[[tuple[int, ...]], np.ndarray], tokens: int) -> list[int]:
    """What the rule's text is by definition: of each token's logits those in a circle are lowered."""
    text, circles = list(PROMPT), Circles()
    for _ in range(tokens):
        logits = model(tuple(text)).copy()
        for token, loss in circles.losses.items():
            logits[token] -= np.float32(loss)
        text.append(int(logits.argmax()))
        circles.push(text[-1])
    return text[len(PROMPT) :]


def repeated(text: Sequence[int]) -> float:
    grams = [tuple(text[i : i + 8]) for i in range(len(text) - 7)]
    return 1 - len(set(grams)) / len(grams)


def plain(engine: PathEngine, tokens: int, **options: Any) -> Iterator[int]:
    sampler = make_sampler(SamplingOptions(**options), PROMPT)
    prompt = np.array(PROMPT, np.int64)
    stream = generate(engine, engine.new_cache(), prompt, sampler, chunk=64, interrupted=never)  # type: ignore[arg-type]
    return (token for _, token in zip(range(tokens), stream, strict=False))


@pytest.mark.parametrize("seed", SEEDS)
def test_a_greedy_text_that_circles_is_led_out_and_allowed_to_where_asked(seed: int) -> None:
    model = looping(seed)
    circling = raw(model, 250)
    assert repeated(circling) > 0.5, "a model that goes by two tokens circles"
    assert list(plain(PathEngine(model), 250, circles="allow")) == circling
    text = list(plain(PathEngine(model), 250))
    assert text == led(model, 250)
    assert repeated(text) < 0.5


@pytest.mark.parametrize("seed", SEEDS)
def test_logits_stay_in_the_graph_but_where_a_text_circles(seed: int) -> None:
    model = looping(seed)
    engine, before = ChoosingEngine(model), begun(raw(model, 250))
    stream = plain(engine, 250)
    text = [next(stream) for _ in range(before)]
    assert engine.shown == 1, "those of the prompt"
    assert [*text, *stream] == led(model, 250)
    assert 1 < engine.shown < 200


def begun(text: Sequence[int]) -> int:
    """The tokens of a text before the first choice for which any is less likely."""
    circles = Circles()
    for place, token in enumerate(text):
        if circles.losses:
            return place
        circles.push(token)
    raise AssertionError("it does not circle")


def guesses(seed: int, model: Callable[[tuple[int, ...]], np.ndarray]) -> Callable[..., Draft]:
    """Drafts of what the model would say without the rule, of what was said a while ago, or of anything."""
    rng = random.Random(seed)

    def guess(context: Sequence[int], budget: Budget) -> Draft:
        count = rng.randrange(budget.tokens + 1)
        if not count:
            return NOTHING
        text = list(context)
        for _ in range(count):
            right = rng.random() < 0.9
            text.append(int(model(tuple(text)).argmax()) if right else rng.randrange(VOCAB))
        return Draft(text[len(context) :], [0] * count)

    return guess


@pytest.mark.parametrize("chooses", [False, True], ids=["logits", "tokens"])
@pytest.mark.parametrize("seed", SEEDS)
def test_drafts_change_nothing_about_the_way_out(seed: int, chooses: bool) -> None:
    model = looping(seed)
    engine = ChoosingEngine(model) if chooses else PathEngine(model)
    speculation = Speculation(Guesser(guesses(seed, model)), AllOfIt())
    sampler, most = make_sampler(SamplingOptions(), PROMPT), 200
    stream = drafted(speculation, engine, engine.new_cache(), PROMPT, sampler, most=most)
    assert [token for _, token in zip(range(most), stream, strict=False)] == led(model, most)
    assert len(engine.steps) < most, "nothing was accepted"


@pytest.mark.parametrize("period", [1, 2, 3, 7, 20, 50, 120])
def test_every_circle_is_left_whatever_its_length(period: int) -> None:
    """A model that is very sure of its circle, and begins it again after whatever else it said."""
    vocab = 200
    circle = list(range(10, 10 + period))

    def next_logits(path: tuple[int, ...]) -> np.ndarray:
        logits = np.random.default_rng(list(path)).standard_normal(vocab)
        logits[circle[(len(path) - len(PROMPT)) % period]] += 12
        return logits.astype(np.float32)

    text = list(plain(PathEngine(next_logits), 400))
    assert text[:period] == circle and repeated(text) < 0.75
    last = text[200:]
    assert repeated(last) < 0.5


@pytest.mark.parametrize("seed", range(20))
def test_what_repeats_for_a_reason_is_left_alone(seed: int) -> None:
    """Lists, tables and code: lines of one shape with other words in them, and lines that occur several times."""
    rng = random.Random(seed)
    shape = [rng.randrange(100) for _ in range(rng.randint(2, 10))]
    places = sorted(rng.sample(range(len(shape) + 1), rng.randint(1, 2)))
    common = [[rng.randrange(100) for _ in range(rng.randint(3, 20))] for _ in range(2)]
    text = list[int]()
    for _ in range(30):
        line = list(shape)
        for place in reversed(places):
            line[place:place] = [rng.randrange(100, 10_000) for _ in range(rng.randint(1, 4))]
        text += line + rng.choice([[], [], [], [], *common])
    circles = Circles()
    for token in text:
        assert token not in circles.losses
        circles.push(token)


@pytest.mark.parametrize("beams", [2, 4])
@pytest.mark.parametrize("seed", SEEDS)
def test_beams_leave_circles_too(seed: int, beams: int) -> None:
    model = looping(seed, order=1)

    def search(circles: str) -> list[int]:
        options = BeamOptions(beams, max_tokens=150, circles=circles)
        engine = PathEngine(model)
        cache = new_cache(engine, len(PROMPT), options)  # type: ignore[arg-type]
        return beam_search(engine, cache, PROMPT, options, eos=[VOCAB - 1])[0].token_ids  # type: ignore[arg-type]

    found, circling = search("avoid"), search("allow")
    if repeated(circling) > 0.5:
        assert repeated(found) < 0.5
    elif found != circling:
        assert repeated(circling) > 0.2


def test_drawn_answers_stay_as_they_are() -> None:
    model = looping(1)
    texts = [list(plain(PathEngine(model), 200, temperature=0.01, seed=3, circles=each)) for each in ("avoid", "allow")]
    assert texts[0] == texts[1]


def test_another_word_than_the_two_is_a_sentence() -> None:
    with pytest.raises(InputError, match="The option circles must be avoid or allow, not 'never'"):
        GenerateOptions(circles="never")
