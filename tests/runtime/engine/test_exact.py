"""The same call gives the same text by default: whatever drafts, was asked before, or is asked at the same time."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

import edge
from edge.bundle import Bundle
from edge.cli.main import main
from edge.runtime.chat import Chat
from edge.runtime.decode import answer
from edge.runtime.decode.draft import Draft
from edge.runtime.decode.generate_options import GenerateOptions
from edge.runtime.engine.engine import Engine
from edge.runtime.engine.slots import Slots
from edge.runtime.model import Model
from edge.runtime.providers import cpu
from edge.runtime.speculate.planner import Planner

PROMPT = "la la la the moon la la la the moon la la"
OTHERS = ("the sea the sea the sea", "A train leaves at nine and arrives at eleven.", "def f(a): return a")
OPTIONS = GenerateOptions(max_tokens=60)


def loaded(bundle: Bundle, **options: object) -> Model:
    model = edge.load(bundle.root, context=200, threads=2, **options)  # type: ignore[arg-type]
    assert isinstance(model, Model)
    return model


@pytest.fixture(autouse=True, params=["edge", "onnxruntime"])
def whose_kernels(request: pytest.FixtureRequest) -> None:
    if request.param == "onnxruntime":
        request.getfixturevalue("onnxruntimes_kernels")
    elif cpu.find_kernels() is None:
        pytest.skip("edge-lm-kernels is not installed, or this processor cannot run it")


@pytest.fixture(autouse=True)
def every_draft(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Every draft is run as it is; their sizes."""
    sizes = list[int]()

    def all_of_it(planner: Planner, draft: Draft) -> Draft:
        sizes.append(len(draft.tokens))
        return draft

    monkeypatch.setattr(Planner, "cut", all_of_it)
    return sizes


@pytest.fixture
def bits(monkeypatch: pytest.MonkeyPatch) -> Callable[[Callable[[], object]], list[bytes]]:
    """Runs something, and returns the logits of every token that its one answer chose, bit for bit."""
    make, seen = answer.make_sampler, threading.local()

    def recording(*given: object) -> Callable[[NDArray[np.float32]], int]:
        choose, seen.logits = make(*given), list[bytes]()  # type: ignore[arg-type]
        logits = seen.logits

        def sampler(row: NDArray[np.float32]) -> int:
            logits.append(row.tobytes())
            return choose(row)

        return sampler

    monkeypatch.setattr(answer, "make_sampler", recording)

    def run(something: Callable[[], object]) -> list[bytes]:
        something()
        found: list[bytes] = seen.logits
        return found

    return run


def test_a_call_gives_the_same_bits_whatever_was_asked_before(
    int4_bundle: Bundle, bits: Callable[[Callable[[], object]], list[bytes]], every_draft: list[int]
) -> None:
    model = loaded(int4_bundle)
    first = bits(lambda: model.generate(PROMPT, OPTIONS))
    assert {size % 2 for size in every_draft} == {0, 1} and max(every_draft) > 2
    for other in OTHERS:
        model.generate(other, OPTIONS)
        assert bits(lambda: model.generate(PROMPT, OPTIONS)) == first
    assert bits(lambda: loaded(int4_bundle).generate(PROMPT, OPTIONS)) == first


@pytest.mark.parametrize("speculate", ["off", "lookup", "trigram", "cascade"])
def test_and_whatever_drafts(
    int4_bundle: Bundle, speculate: str, bits: Callable[[Callable[[], object]], list[bytes]]
) -> None:
    wanted = bits(lambda: loaded(int4_bundle).generate(PROMPT, OPTIONS))
    assert bits(lambda: loaded(int4_bundle, speculate=speculate).generate(PROMPT, OPTIONS)) == wanted


def test_and_in_a_chat(int4_bundle: Bundle, bits: Callable[[Callable[[], object]], list[bytes]]) -> None:
    model = loaded(int4_bundle)
    assert bits(lambda: model.chat().generate(PROMPT, OPTIONS)) == bits(lambda: model.generate(PROMPT, OPTIONS))

    def second(chat: Chat, speculate: str = "auto") -> list[bytes]:
        chat.generate(OTHERS[0], OPTIONS)
        return bits(lambda: chat.generate(PROMPT, OPTIONS))

    wanted = second(model.chat())
    model.generate(OTHERS[1], OPTIONS)
    assert second(model.chat()) == wanted == second(loaded(int4_bundle, speculate="off").chat())


def test_and_from_four_threads_at_once(
    int4_bundle: Bundle, bits: Callable[[Callable[[], object]], list[bytes]]
) -> None:
    model = loaded(int4_bundle)
    asked = [PROMPT, OTHERS[0], PROMPT, OTHERS[1]] * 2
    wanted = {prompt: bits(lambda p=prompt: model.generate(p, OPTIONS)) for prompt in set(asked)}
    together = threading.Barrier(4)

    def one(prompt: str) -> list[bytes]:
        together.wait(60)
        return bits(lambda: model.generate(prompt, OPTIONS))

    with ThreadPoolExecutor(4) as pool:
        assert list(pool.map(one, asked)) == [wanted[prompt] for prompt in asked]


def test_and_by_the_command(int4_bundle: Bundle, capsys: pytest.CaptureFixture[str]) -> None:
    wanted = loaded(int4_bundle).generate(PROMPT, OPTIONS).text
    for more in ([], ["--speculate", "off"], ["--speculate", "cascade"]):
        options = ["--context", "200", "--max-tokens", "60", "--json", *more]
        assert main(["run", str(int4_bundle.root), PROMPT, *options]) == 0
        assert json.loads(capsys.readouterr().out)["text"] == wanted


def test_and_when_tokens_are_drawn_with_a_seed(
    int4_bundle: Bundle, bits: Callable[[Callable[[], object]], list[bytes]]
) -> None:
    drawn = GenerateOptions(max_tokens=60, temperature=0.8, seed=7)
    model = loaded(int4_bundle)
    first = bits(lambda: model.generate(PROMPT, drawn))
    model.generate(OTHERS[0], OPTIONS)
    assert bits(lambda: model.generate(PROMPT, drawn)) == first
    assert bits(lambda: loaded(int4_bundle, speculate="off").generate(PROMPT, drawn)) == first


def test_what_is_drawn_anew_every_time_is_not_slowed_by_it(
    int4_bundle: Bundle, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, sizes = loaded(int4_bundle, speculate="off"), set[int]()
    run = model.engine.graphs.run
    monkeypatch.setattr(model.engine.graphs, "run", lambda c, t, *a: sizes.add(len(t)) or run(c, t, *a))
    chat = model.chat()
    for _ in range(20):  # some of them begin with an end token, and then there is no step
        chat.generate(PROMPT, GenerateOptions(max_tokens=9, temperature=0.8, seed="random"))
        chat.reset()
    assert 1 in sizes
    sizes.clear()
    chat.generate(PROMPT, OPTIONS)
    assert all(size % 2 == 0 for size in sizes) == model.engine.pads


@pytest.mark.parametrize("width", [2, 3, 8])
def test_an_answer_in_a_batch_does_not_depend_on_what_stands_next_to_it(
    int4_bundle: Bundle, width: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    def rows(prompts: Sequence[str], width: int) -> list[bytes]:
        """The logits of the first prompt's tokens."""
        seen, run = list[bytes](), Engine.step_all

        def recording(engine: Engine, slots: Slots, *given: Any, **more: Any) -> NDArray[np.float32]:
            logits: NDArray[np.float32] = run(engine, slots, *given, **more)
            rows = zip(slots.caches, logits, strict=True)
            seen.extend(row.tobytes() for cache, row in rows if cache.prompt == length)
            return logits

        model = loaded(int4_bundle)
        length = len(model.prompt_ids(prompts[0]))
        assert all(len(model.prompt_ids(prompt)) != length for prompt in prompts[1:])
        with monkeypatch.context() as patched:
            patched.setattr(Engine, "step_all", recording)
            model.generate_all(prompts, OPTIONS, width=width)
        return seen

    alone = rows([PROMPT], 8)
    assert len(alone) > 10
    assert rows([PROMPT, *OTHERS], width) == alone == rows([PROMPT, *OTHERS[:2]], width)


def test_without_it_steps_are_as_long_as_their_drafts(
    int4_bundle: Bundle, bits: Callable[[Callable[[], object]], list[bytes]]
) -> None:
    plain = bits(lambda: loaded(int4_bundle, exact=False, speculate="off").generate(PROMPT, OPTIONS))
    drafted = bits(lambda: loaded(int4_bundle, exact=False).generate(PROMPT, OPTIONS))
    assert (drafted != plain) == loaded(int4_bundle).engine.pads


def test_costs_of_exact_steps_are_those_of_even_ones(int4_bundle: Bundle, monkeypatch: pytest.MonkeyPatch) -> None:
    model, begun = loaded(int4_bundle), list[list[float]]()
    begin = Planner.begin

    def recording(planner: Planner, *given: bool) -> None:
        begin(planner, *given)
        begun.append(list(planner.costs.ratios))

    monkeypatch.setattr(Planner, "begin", recording)
    for options in (OPTIONS, *[GenerateOptions(max_tokens=9, temperature=0.8, seed="random")] * 20):
        model.generate(PROMPT, options)  # some that are drawn begin with an end token, and then nothing is planned
    exact, drawn, *_ = begun
    if not model.engine.pads:
        assert 1 < exact[2] < exact[3]
        return
    assert exact[1] == exact[2] == 1 < exact[3] == exact[4]  # a second token costs nothing there
    assert 1 < drawn[2] < drawn[3]
