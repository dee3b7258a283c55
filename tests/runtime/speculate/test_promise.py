"""The planner's promise, for every drafter there is: a text of which no draft is accepted takes hardly longer.

A clock moves on by what steps cost, of the model and of what drafts, and by nothing else.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import edge
from edge.bundle import Bundle
from edge.runtime.costs.curve import CostCurve, CurvePoint
from edge.runtime.decode.draft import Draft
from edge.runtime.decode.generate_options import never
from edge.runtime.decode.loop import generate
from edge.runtime.engine.graphs.segment_cache import SegmentedCache
from edge.runtime.engine.graphs.segments import SegmentedGraph
from edge.runtime.engine.graphs.whole import WholeGraph
from edge.runtime.kernels.library import find_kernels
from edge.runtime.load import open_engine
from edge.runtime.speculate.drafter import DRAFTERS, OFF, runs_units
from edge.runtime.speculate.planner import DRAWN_RISK, GUESSED_SLOPE, RISK, STAKE, Planner
from edge.runtime.speculate.speculation import AnswerDrafts, make_speculation

# What steps of so many tokens cost in plain ones: on our kernels with AVX-512 VNNI, with AVX2 alone, and on others'.
VNNI = {1: 1.0, 2: 1.17, 4: 1.5, 8: 2.4, 16: 4.1, 128: 20.0}
AVX2 = {1: 1.0, 2: 1.25, 4: 2.1, 8: 3.8, 16: 7.5, 128: 40.0}
OTHERS = {size: 1 + GUESSED_SLOPE * (size - 1) for size in VNNI}
HERE = "as here, never measured"
# What follows the names of drafters that may be asked for in several ways.
ARGUMENTS = {"model": ["{same}", "{smaller}"], "self": ["", "exit", "unified:0.34", "2,3"]}
ASKED = [f"{name}={more}".rstrip("=") for name in DRAFTERS for more in ARGUMENTS.get(name, [""])]
SMALLER = 0.1  # of the time of a step, whatever the sizes of tests' models are
PROMPT = [(7 * i) % 11 + 60 for i in range(120)]  # eleven tokens in a circle: whoever looks finds something
TOKENS, ANSWERS = 120, 2
GUESSED = 1.1  # by how much the loss may be larger where what steps cost was guessed


class Clock:
    """Seconds that steps take, by a cost curve and by the share of the model that they run.

    measured: whether the model that verifies knows of the curve. smaller: the bundle of a smaller model that drafts.
    """

    def __init__(self, points: dict[int, float], smaller: Path, measured: bool = True) -> None:
        self.curve = CostCurve([CurvePoint(size, 0, ms, ms, ms) for size, ms in points.items()])
        self.measured = measured
        self.now = 0.0
        self.steps = list[tuple[int, float]]()
        self._smaller = smaller

    def __call__(self) -> float:
        return self.now

    def ran(self, graphs: Any, cache: Any, size: int) -> None:
        share = SMALLER if graphs.bundle.root == self._smaller else 1.0
        if isinstance(cache, SegmentedCache) and cache.forced:
            layers = sum(map(graphs.weight, cache.forced)) / graphs.bundle.manifest.dims.num_layers
            head = head_share(graphs.bundle)
            share *= head + (1 - head) * layers
        self.steps.append((size, share))
        self.now += share * self.curve.ms(size, 0) / 1000


def head_share(bundle: Bundle) -> float:
    """Of the bytes that a step reads: the head's, which may be the embedding."""
    sizes = {group.name: group.bytes for group in bundle.manifest.groups}
    head = sizes.get("head", sizes.get("embedding", 0))
    return head / (head + sum(size for name, size in sizes.items() if name not in ("head", "embedding")))


@pytest.fixture(scope="module")
def bundles(six_layers: Path, tiny_checkpoint: Path, tmp_path_factory: pytest.TempPathFactory) -> list[Bundle]:
    """The small model of six layers in 8 bits, which our kernels run where they are, and one of two layers."""
    import torch

    torch.set_num_threads(1)  # more wait for each other on a busy machine
    folder = tmp_path_factory.mktemp("promise")
    more: dict[str, Any] = {"weights": "int8", "check": False, "draft_text": 0, "candidates": False}
    more["segments"] = None if find_kernels() is not None else 1
    sources = {"six": six_layers, "two": tiny_checkpoint}
    return [edge.export(source, folder / f"{name}.edge", **more) for name, source in sources.items()]


@pytest.fixture(params=["VNNI", "AVX2", HERE])
def clock(request: pytest.FixtureRequest, bundles: list[Bundle], monkeypatch: pytest.MonkeyPatch) -> Clock:
    kernels = find_kernels()
    here = OTHERS if kernels is None else AVX2 if kernels.form == "avx2" else VNNI
    curve = {"VNNI": VNNI, "AVX2": AVX2, HERE: here}[request.param]
    made = Clock(curve, bundles[1].root, request.param != HERE)

    def timed(graphs: Any, cache: Any, tokens: Any, *rest: Any, run: Callable[..., Any]) -> Any:
        found = run(graphs, cache, tokens, *rest)
        made.ran(graphs, cache, len(tokens))
        return found

    monkeypatch.setattr("edge.runtime.speculate.speculation.clock", made)
    for kind in (WholeGraph, SegmentedGraph):
        monkeypatch.setattr(kind, "run", functools.partialmethod(timed, run=kind.run))
    return made


class Foe:
    """Says anything but what was drafted: `friendly` tokens at first that were, where something was."""

    def __init__(self, friendly: int) -> None:
        self.proposed = Draft((), ())
        self._friendly = friendly
        self._said = 0

    def __call__(self, logits: np.ndarray) -> int:
        self._said += 1
        drafted = self.proposed.tokens[:1]
        if drafted and self._said <= self._friendly:
            return drafted[0]
        return next(token for token in itertools.count(60 + self._said % 11) if token not in drafted)


def lost(
    asked: str, bundle: Bundle, clock: Clock, friendly: int = 0, drawn: bool = False
) -> Iterator[tuple[float, float, int]]:
    """After each token of several texts: plain steps that were lost, and that may be; and tokens drafted."""
    context = min(512, bundle.manifest.context)
    engine = open_engine(bundle, context=context, threads=1, speculate=asked if runs_units(asked) else OFF)
    engine.__dict__["costs"] = clock.curve if clock.measured else None
    speculation = make_speculation(asked, engine)
    assert speculation is not None
    if asked.endswith("two.edge"):
        speculation.drafter.cost = speculation.planner._cost = speculation.planner._told = SMALLER
    drafter, plain = speculation.drafter, clock.curve.ms(1, 0) / 1000
    begin, propose = drafter.begin, drafter.propose

    def begun(*given: Any) -> None:
        began, steps = clock.now, len(clock.steps)
        begin(*given)
        clock.now = began  # a model that drafts reads the prompt, as the other one did
        assert sum(size for size, _ in clock.steps[steps:]) <= len(PROMPT)

    def proposed(*given: Any) -> Draft:
        foe.proposed = propose(*given)
        return foe.proposed

    drafter.begin, drafter.propose = begun, proposed  # type: ignore[method-assign]
    for _ in range(ANSWERS):
        foe, cache = Foe(friendly), engine.new_cache()
        drafts = AnswerDrafts(speculation, PROMPT, TOKENS, drawn=drawn, source=PROMPT)
        said = generate(engine, cache, np.array(PROMPT), foe, chunk=64, interrupted=never, drafts=drafts)
        next(said)
        began = clock.now
        for count, _ in enumerate(itertools.islice(said, TOKENS), 1):
            foe.proposed = Draft((), ())
            may = (DRAWN_RISK if drawn else RISK) * count + STAKE
            may *= 1.0 if clock.measured else GUESSED
            yield (clock.now - began) / plain - count, may, drafts.figures.drafted


def every(asked: str, bundles: list[Bundle]) -> str:
    return asked.format(same=bundles[0].root, smaller=bundles[1].root)


@pytest.mark.parametrize("asked", ASKED)
def test_a_text_of_which_no_draft_is_accepted_loses_no_more_than_is_promised(
    asked: str, bundles: list[Bundle], clock: Clock
) -> None:
    for loss, may, _ in lost(every(asked, bundles), bundles[0], clock):
        assert loss <= may + 1e-6


@pytest.mark.parametrize("clock", ["VNNI"], indirect=True)
@pytest.mark.parametrize(("friendly", "drawn"), [(60, False), (0, True), (60, True)])
@pytest.mark.parametrize("asked", ASKED)
def test_nor_does_one_whose_drafts_were_accepted_at_first_or_that_is_drawn(
    asked: str, friendly: int, drawn: bool, bundles: list[Bundle], clock: Clock
) -> None:
    for loss, may, _ in lost(every(asked, bundles), bundles[0], clock, friendly, drawn):
        assert loss <= may + 1e-6


@pytest.mark.parametrize("clock", ["VNNI"], indirect=True)
def test_the_test_fails_where_what_a_drafters_steps_take_is_not_counted(
    bundles: list[Bundle], clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Planner, "_afford", lambda self, share, size: True)
    assert any(loss > may for loss, may, _ in lost("self", bundles[0], clock))
