"""A prompt that is read along with the next tokens of answers that grow changes no bit of anything."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from texts import SENTENCES

import edge
from edge.bundle import Bundle
from edge.errors import BundleError
from edge.runtime.batch.answer import BatchAnswer
from edge.runtime.batch.batch import Batch
from edge.runtime.batch.pieces import MixedPieces
from edge.runtime.decode.generate_options import GenerateOptions
from edge.runtime.engine.engine import Engine
from edge.runtime.engine.graphs.batch_step import MixedStep
from edge.runtime.engine.prefixes import Prefixes
from edge.runtime.kernels.library import find_kernels
from edge.runtime.model import Model

CONTEXT = 128


@pytest.fixture(params=["float32", "int8"])
def model(pristine_tiny_bundle: Bundle, request: pytest.FixtureRequest) -> Model:
    kernels = find_kernels()
    if kernels is None or not kernels.attention.mixed:
        pytest.skip("needs edge-lm-kernels that take mixed steps")
    found = edge.load(pristine_tiny_bundle.root, speculate="off", context=CONTEXT, kv=request.param, kind=Model)
    assert found.engine.mixes
    return found


@pytest.fixture
def pieces(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, int]]:
    """Of each mixed step: the tokens of those that grow, and those of the prompt, whose pieces are of all sizes."""
    found, run, sizes = list[tuple[int, int]](), Engine.step_all, np.random.default_rng(3)
    # Whatever the clock says: 0 is a step of those that grow alone.
    monkeypatch.setattr(MixedPieces, "beside", lambda *given: int(sizes.choice([0, 1, 2, 4, 7, 12, 32])))
    monkeypatch.setattr(MixedPieces, "read", lambda *given: None)

    def counted(self: Engine, slots: Any, tokens: Any, *, piece: Any = None, **more: Any) -> Any:
        if piece is not None:
            found.append((len(tokens), len(piece)))
            assert len(slots.caches) == len(tokens) + 1
        return run(self, slots, tokens, piece=piece, **more)

    monkeypatch.setattr(Engine, "step_all", counted)
    return found


def batch_of(model: Model, prefixes: Prefixes | None = None, width: int = 4) -> Batch:
    return Batch(model.engine, model.text, capacity=CONTEXT, width=width, chunk=32, fair=True, prefixes=prefixes)


def answer_of(model: Model, place: int, prompt: list[int], tokens: int, **options: Any) -> BatchAnswer:
    asked = GenerateOptions(max_tokens=tokens, seed=place, temperature=0.8, **options)
    return BatchAnswer(place, (prompt, None), asked, model.engine, model.text)


def prompts_of(model: Model, count: int) -> list[list[int]]:
    found = [model.text.encode(SENTENCES[i % len(SENTENCES)] * 3) for i in range(count)]
    return [[*ids[: 10 + 7 * i % 40]] for i, ids in enumerate(found)]


def run(batch: Batch, waiting: list[BatchAnswer], every: int) -> list[BatchAnswer]:
    """Answers that come one after another, one every so many steps."""
    ended, steps = list[BatchAnswer](), 0
    while waiting or not batch.idle:
        if waiting and steps % every == 0:
            batch.add(waiting.pop(0))
        ended += batch.step()
        steps += 1
    return ended


@pytest.mark.parametrize("every", [1, 3])
@pytest.mark.parametrize("width", [2, 4])
@pytest.mark.parametrize("known", [False, True])
def test_answers_are_those_one_by_one(
    model: Model, pieces: list[tuple[int, int]], every: int, width: int, known: bool
) -> None:
    """Some end while another prompt is being read, whose slot is then another one."""
    prompts, lengths = prompts_of(model, 12), [3, 17, 5, 24, 2, 9, 30, 1, 8, 4, 12, 6]
    given = [*zip(prompts, lengths, strict=True)]
    alone = list[list[int]]()
    for place, (prompt, length) in enumerate(given):
        one = answer_of(model, place, prompt, length)
        assert run(batch_of(model, width=2), [one], 1) == [one] and one.error is None
        alone.append(one.tokens)
    assert not pieces
    prefixes = Prefixes(model.engine, 32) if known else None
    if prefixes is not None:
        prefixes.serve()
    for _ in range(1 + known):  # the second time from what is known of the first
        answers = [answer_of(model, place, prompt, length) for place, (prompt, length) in enumerate(given)]
        ended = run(batch_of(model, prefixes, width), [*answers], every)
        assert {*map(id, ended)} == {*map(id, answers)} and len(ended) == len(answers)
        assert [each.error for each in answers] == [None] * len(answers)
        assert [each.tokens for each in answers] == alone
    assert len(pieces) > 10 and {grows for grows, _ in pieces} >= {1, width - 1}
    assert {1, 2, 4, 7, 12, 32} & {size for _, size in pieces} >= {1, 4, 7}
    if prefixes is not None:
        prefixes.close()


@pytest.mark.parametrize("end", ["cancelled", "interrupted"])
def test_a_prompt_that_nobody_wants_any_more_leaves_its_slot(
    model: Model, pieces: list[tuple[int, int]], end: str
) -> None:
    (first, second, third), stop = prompts_of(model, 3), []
    alone = [answer_of(model, 0, first, 30), answer_of(model, 2, third, 12)]
    for one in alone:
        run(batch_of(model), [one], 1)
    batch = batch_of(model)
    grows = answer_of(model, 0, first, 30)
    gone = answer_of(model, 1, second * 2, 30, interrupted=lambda: bool(stop))
    batch.add(grows)
    while not grows.tokens:
        batch.step()
    batch.add(gone)
    while not pieces:
        batch.step()
    if end == "cancelled":
        gone.cancelled = True
    else:
        stop.append(True)
    assert gone in batch.step() and gone.finish == "interrupted" and not gone.tokens
    after = answer_of(model, 2, third, 12)
    run(batch, [after], 1)
    assert [grows.tokens, after.tokens] == [each.tokens for each in alone]


def test_an_error_of_a_prompts_answer_is_its_own(model: Model, pieces: list[tuple[int, int]]) -> None:
    first, second, _ = prompts_of(model, 3)
    alone = answer_of(model, 0, first, 30)
    run(batch_of(model), [alone], 1)

    def broken(row: Any) -> int:
        raise ValueError("no token")

    batch, grows, fails = batch_of(model), answer_of(model, 0, first, 30), answer_of(model, 1, second, 5)
    fails.sampler = broken
    batch.add(grows)
    while not grows.tokens:
        batch.step()
    ended = run(batch, [fails], 1)
    assert str(fails.error) == "no token" and grows.error is None and pieces
    assert grows.tokens == alone.tokens and len(ended) == 2


def test_a_piece_that_fails_ends_its_own_answer_and_no_other(
    model: Model, pieces: list[tuple[int, int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second, third = prompts_of(model, 3)
    alone = [answer_of(model, 0, first, 30), answer_of(model, 2, third, 5)]
    for one in alone:
        run(batch_of(model), [one], 1)
    bind, broken = MixedStep.__init__, [True]

    class Fails:
        def __init__(self, bound: Any) -> None:
            self._bound = bound

        def __getattr__(self, name: str) -> Any:
            return getattr(self._bound, name)

        def run(self) -> None:
            if broken:
                raise RuntimeError("a key that is not a number")
            self._bound.run()

    def failing(self: MixedStep, *given: Any) -> None:
        bind(self, *given)
        self._bound = Fails(self._bound)

    monkeypatch.setattr(MixedStep, "__init__", failing)
    batch, grows, fails = batch_of(model), answer_of(model, 0, first, 30), answer_of(model, 1, second, 5)
    batch.add(grows)
    while not grows.tokens:
        batch.step()
    batch.add(fails)
    while fails.error is None:
        batch.step()
    assert isinstance(fails.error, BundleError) and "not a number" in str(fails.error) and not fails.tokens
    broken.clear()
    after = answer_of(model, 2, third, 5)
    run(batch, [after], 1)
    assert [grows.tokens, after.tokens] == [each.tokens for each in alone]
