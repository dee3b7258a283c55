"""The KV cache that `edge run` takes behind a long prompt: by this device's cost curves, or by the prompt's length."""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from profile_example import example_profile

from edge.bundle import Bundle
from edge.cli import main
from edge.manifest import FLOAT32, INT8, KV8, KV8_STEP, WIDE_VERSION, WideForm
from edge.runtime import faster_kv, loading
from edge.runtime.engine import Engine
from edge.runtime.faster_kv import LONG, SHORT, SHORT_ANSWER, Once
from edge.runtime.memory_model import Demand, Footprint, MemoryModel
from edge.runtime.plan import make_plan
from edge.runtime.profile import machine
from edge.runtime.profile.curve import store
from edge.runtime.profile.profile import bundle_info
from edge.runtime.profile.record import CurvePoint

CONTEXTS = (16, 2000)


def curve(times: dict[int, tuple[float, float]]) -> list[CurvePoint]:
    """Milliseconds of steps of so many tokens at both of `CONTEXTS`."""
    points = [(size, context, ms) for size, both in times.items() for context, ms in zip(CONTEXTS, both, strict=True)]
    return [CurvePoint(size, context, ms, ms, ms, 9) for size, context, ms in points]


FLOATS = curve({1: (4.0, 14.0), 4: (8.0, 20.0), 8: (13.0, 28.0)})
INTS = curve({1: (4.0, 8.0), 4: (8.0, 20.0), 8: (13.0, 35.0)})  # drafts pay from some 360 tokens on
NARROW = curve({1: (4.0, 8.0), 4: (8.0, 40.0), 8: (13.0, 80.0)})  # they never do


@pytest.fixture
def keep(tiny_bundle: Bundle) -> Callable[[list[CurvePoint], list[CurvePoint]], int]:
    """Leaves cost curves of the tiny bundle on this machine, for the threads that it returns."""
    threads = Engine(tiny_bundle).threads  # whatever the first engine of this process has chosen

    def store_both(floats: list[CurvePoint], ints: list[CurvePoint]) -> int:
        device = machine.describe("cpu", threads)
        measured = dataclasses.replace(example_profile(), device=device, bundle=bundle_info(tiny_bundle))
        store(dataclasses.replace(measured, curve=floats, curve_int8=ints))
        return threads

    return store_both


@pytest.mark.parametrize(
    ("ints", "once", "drafts", "kind"),
    [
        (INTS, Once(2000, 512), False, INT8),
        (INTS, Once(2000, 512), True, INT8),
        (INTS, Once(300, 512), False, INT8),  # a token gains 19% there,
        (INTS, Once(300, 512), True, FLOAT32),  # one of the steps that drafts want loses
        (NARROW, Once(2000, 512), False, INT8),
        (NARROW, Once(2000, 512), True, FLOAT32),
        (FLOATS, Once(2000, 512), False, FLOAT32),  # nothing is gained
        (INTS, Once(SHORT - 1, 512), False, FLOAT32),
        (INTS, Once(2000, SHORT_ANSWER), False, INT8),
        (INTS, Once(2000, SHORT_ANSWER - 1), False, FLOAT32),
    ],
)
def test_what_was_measured_decides(
    tiny_bundle: Bundle, keep: Callable, ints: list[CurvePoint], once: Once, drafts: bool, kind: str
) -> None:
    threads = keep(FLOATS, ints)
    assert faster_kv.faster_kv(tiny_bundle, once, drafts=drafts, threads=threads) == kind


@pytest.mark.parametrize("profiled", [False, True])
def test_where_nothing_was_measured_the_length_decides_on_processors_that_are_known(
    tiny_bundle: Bundle, keep: Callable, monkeypatch: pytest.MonkeyPatch, profiled: bool
) -> None:
    threads = keep(FLOATS, []) if profiled else 2  # by an older version, which knew floats alone
    monkeypatch.setattr(faster_kv.platform, "machine", lambda: "x86_64")
    for once, drafts, kind in [
        (Once(LONG - 1, 512), False, FLOAT32),
        (Once(LONG, 512), False, INT8),
        (Once(100 * LONG, 512), True, FLOAT32),
    ]:
        assert faster_kv.faster_kv(tiny_bundle, once, drafts=drafts, threads=threads) == kind
    monkeypatch.setattr(faster_kv.platform, "machine", lambda: "riscv64")
    assert faster_kv.faster_kv(tiny_bundle, Once(5000, 512), drafts=False, threads=threads) == FLOAT32


def test_a_bundle_without_the_graph_or_with_a_wide_form_keeps_floats(
    tiny_bundle: Bundle, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(faster_kv.platform, "machine", lambda: "x86_64")
    assert faster_kv.faster_kv(tiny_bundle, Once(5000, 512), drafts=False) == INT8
    graphs = [graph for graph in tiny_bundle.manifest.graphs if graph.role != KV8]
    wide = WideForm("int8", WIDE_VERSION, [])
    for change in ({"graphs": graphs}, {"wide": wide}):
        other = Bundle(tiny_bundle.root, dataclasses.replace(tiny_bundle.manifest, **change))
        assert faster_kv.faster_kv(other, Once(5000, 512), drafts=False) == FLOAT32


@pytest.fixture
def opened(monkeypatch: pytest.MonkeyPatch) -> list[Engine]:
    """The engines that are opened, where bytes are the faster for any answer."""
    engines, make = list[Engine](), loading.open_engine

    def open_engine(*given: Any, **named: Any) -> Engine:
        engines.append(make(*given, **named))
        return engines[-1]

    monkeypatch.setattr(faster_kv, "faster_kv", lambda *given, **named: INT8)
    monkeypatch.setattr(loading, "open_engine", open_engine)
    return engines


@pytest.mark.parametrize(
    ("options", "kind"),
    [
        ([], INT8),
        (["--speculate", "off"], INT8),
        (["--memory", "1GB"], INT8),
        (["--kv", "float32"], FLOAT32),
        (["--reproducible"], FLOAT32),
    ],
)
def test_edge_run_takes_what_is_faster(
    tiny_bundle: Bundle, opened: list[Engine], options: list[str], kind: str
) -> None:
    assert main.main(["run", str(tiny_bundle.root), "a word", "--max-tokens", "4", *options]) == 0
    assert opened[0].kv.dtype == kind


def test_layers_that_are_left_out_read_floats(by_layer: Bundle, opened: list[Engine]) -> None:
    assert main.main(["run", str(by_layer.root), "a word", "--max-tokens", "4", "--skip", "unified:0.3"]) == 0
    assert opened[0].kv.dtype == FLOAT32


def test_where_bytes_do_not_fit_a_limit_floats_are_planned_for(
    tiny_bundle: Bundle, monkeypatch: pytest.MonkeyPatch
) -> None:
    def footprint(model: MemoryModel, demand: Demand) -> Footprint:
        found = predict(model, demand)
        return found if demand.kv == FLOAT32 else Footprint(found.loading | {"graphs": 2**30}, found.running)

    predict, rather = MemoryModel.footprint, (INT8, FLOAT32)
    assert make_plan(tiny_bundle, "1GB", context=400, kv=rather).demand.kv == INT8
    assert make_plan(tiny_bundle, "1GB", context=400, kv=rather, speculate="auto").demand.width == KV8_STEP
    monkeypatch.setattr(MemoryModel, "footprint", footprint)  # as of a graph whose file is large
    assert make_plan(tiny_bundle, "1GB", context=400, kv=rather).demand.kv == FLOAT32


def test_a_single_answer_is_told_from_a_chat_and_from_many(
    tiny_bundle: Bundle, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    given = list[dict[str, Any]]()
    start = loading.start
    monkeypatch.setattr(loading, "start", lambda *args, **named: given.append(named) or start(*args, **named))
    run = ["run", str(tiny_bundle.root)]
    assert main.main([*run, "a word " * 8, "--system", "Be brief", "--max-tokens", "2"]) == 0
    prompts = tmp_path / "prompts.txt"
    prompts.write_text("one\ntwo\n")
    assert main.main([*run, "-f", str(prompts), "--output", str(tmp_path / "out.txt"), "--max-tokens", "2"]) == 0
    monkeypatch.setattr(sys.stdin, "isatty", lambda: True, raising=False)
    monkeypatch.setattr("builtins.input", lambda prompt="": "/quit")
    assert main.main(run) == 0
    assert [named["once"] for named in given] == [Once((7 * 8 + 8) // 4, 2), None, None]


def test_an_engine_over_bytes_knows_their_costs(tiny_bundle: Bundle, keep: Callable) -> None:
    keep(FLOATS, INTS)
    floats, ints = (Engine(tiny_bundle, kv=kv).costs for kv in (FLOAT32, INT8))
    assert floats is not None and ints is not None
    assert floats.ms(8, 2000) == 28.0 and ints.ms(8, 2000) == 35.0
