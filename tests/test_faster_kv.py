"""The KV cache that `edge run` takes behind a long prompt: by this device's cost curves, or by the prompt's length."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from profile_example import example_profile

from edge.bundle import Bundle
from edge.cli import main
from edge.manifest import FLOAT32, INT8, KV8
from edge.runtime import faster_kv, loading
from edge.runtime.engine import Engine
from edge.runtime.faster_kv import LONG, LONG_DRAFTED, SHORT
from edge.runtime.profile import machine
from edge.runtime.profile.curve import store
from edge.runtime.profile.profile import bundle_info
from edge.runtime.profile.record import CurvePoint
from edge.runtime.providers import cpu

CONTEXTS = (16, 2000)


def curve(times: dict[int, tuple[float, float]]) -> list[CurvePoint]:
    """Milliseconds of steps of so many tokens at both of `CONTEXTS`."""
    points = [(size, context, ms) for size, both in times.items() for context, ms in zip(CONTEXTS, both, strict=True)]
    return [CurvePoint(size, context, ms, ms, ms, 9) for size, context, ms in points]


FLOATS = curve({1: (4.0, 14.0), 4: (8.0, 20.0), 8: (13.0, 28.0)})
INTS = curve({1: (4.0, 8.0), 4: (8.0, 20.0), 8: (13.0, 35.0)})  # drafts pay from 1,000 tokens on
NARROW = curve({1: (4.0, 8.0), 4: (8.0, 40.0), 8: (13.0, 80.0)})  # they never do


@pytest.fixture
def keep(tiny_bundle: Bundle) -> Callable[[list[CurvePoint], list[CurvePoint]], None]:
    """Leaves cost curves of the tiny bundle on this machine."""

    def store_both(floats: list[CurvePoint], ints: list[CurvePoint]) -> None:
        device = machine.describe("cpu", cpu.default_threads())
        measured = dataclasses.replace(example_profile(), device=device, bundle=bundle_info(tiny_bundle))
        store(dataclasses.replace(measured, curve=floats, curve_int8=ints))

    return store_both


@pytest.mark.parametrize(
    ("ints", "prompt", "drafts", "kind"),
    [
        (INTS, 2000, False, INT8),
        (INTS, 2000, True, INT8),
        (INTS, 300, False, INT8),  # a token gains 18% there,
        (INTS, 300, True, FLOAT32),  # one of the steps that drafts want loses
        (NARROW, 2000, False, INT8),
        (NARROW, 2000, True, FLOAT32),
        (FLOATS, 2000, False, FLOAT32),  # nothing is gained
        (INTS, SHORT - 1, False, FLOAT32),
    ],
)
def test_what_was_measured_decides(
    tiny_bundle: Bundle, keep: Callable, ints: list[CurvePoint], prompt: int, drafts: bool, kind: str
) -> None:
    keep(FLOATS, ints)
    assert faster_kv.faster_kv(tiny_bundle, prompt, drafts=drafts) == kind


@pytest.mark.parametrize("profiled", [False, True])
def test_where_nothing_was_measured_the_length_decides_on_processors_that_are_known(
    tiny_bundle: Bundle, keep: Callable, monkeypatch: pytest.MonkeyPatch, profiled: bool
) -> None:
    if profiled:  # by an older version, which knew floats alone
        keep(FLOATS, [])
    monkeypatch.setattr(faster_kv.platform, "machine", lambda: "x86_64")
    for least, drafts in [(LONG, False), (LONG_DRAFTED, True)]:
        kinds = [faster_kv.faster_kv(tiny_bundle, prompt, drafts=drafts) for prompt in (least - 1, least)]
        assert kinds == [FLOAT32, INT8]
    monkeypatch.setattr(faster_kv.platform, "machine", lambda: "riscv64")
    assert faster_kv.faster_kv(tiny_bundle, 5000, drafts=False) == FLOAT32


def test_a_bundle_without_the_graph_keeps_floats(tiny_bundle: Bundle) -> None:
    graphs = [graph for graph in tiny_bundle.manifest.graphs if graph.role != KV8]
    older = Bundle(tiny_bundle.root, dataclasses.replace(tiny_bundle.manifest, graphs=graphs))
    assert faster_kv.faster_kv(older, 5000, drafts=False) == FLOAT32


@pytest.mark.parametrize(
    ("options", "kind"),
    [
        ([], INT8),
        (["--memory", "1GB"], INT8),
        (["--kv", "float32"], FLOAT32),
        (["--reproducible"], FLOAT32),
        (["--max-tokens", "8"], FLOAT32),
    ],
)
def test_edge_run_asks_for_the_prompt_that_it_has(
    tiny_bundle: Bundle, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture, options: list[str], kind: str
) -> None:
    asked, opened = list[tuple[int, bool]](), list[Engine]()

    def faster(bundle: Bundle, prompt: int, *, drafts: bool, threads: int | None) -> str:
        asked.append((prompt, drafts))
        return INT8 if prompt else FLOAT32

    def open_engine(*given: Any, **named: Any) -> Engine:
        opened.append(make(*given, **named))
        return opened[-1]

    make = loading.open_engine
    monkeypatch.setattr(faster_kv, "faster_kv", faster)
    monkeypatch.setattr(loading, "open_engine", open_engine)
    prompt = "a word " * 8
    given = options if "--max-tokens" in options else [*options, "--max-tokens", "64"]
    assert main.main(["run", str(tiny_bundle.root), prompt, "--speculate", "off", *given]) == 0
    assert opened[0].kv.dtype == kind and capsys.readouterr().out
    assert opened[0]._brief
    if kind == INT8:
        assert asked == [(len(prompt) // 4, False)]


def test_a_chat_and_many_prompts_are_no_single_answer(
    tiny_bundle: Bundle, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    given = list[dict[str, Any]]()
    start = loading.start
    monkeypatch.setattr(loading, "start", lambda *args, **named: given.append(named) or start(*args, **named))
    prompts = tmp_path / "prompts.txt"
    prompts.write_text("one\ntwo\n")
    options = ["-f", str(prompts), "--output", str(tmp_path / "out.txt"), "--max-tokens", "2"]
    assert main.main(["run", str(tiny_bundle.root), *options]) == 0
    assert given[0]["once"] is None
    assert main.main(["run", str(tiny_bundle.root), "one", "--max-tokens", "2"]) == 0
    assert given[1]["once"] == loading.Once(0, 2)


def test_an_engine_over_bytes_knows_their_costs(tiny_bundle: Bundle, keep: Callable) -> None:
    keep(FLOATS, INTS)
    floats, ints = (Engine(tiny_bundle, kv=kv).costs for kv in (FLOAT32, INT8))
    assert floats is not None and ints is not None
    assert floats.ms(8, 2000) == 28.0 and ints.ms(8, 2000) == 35.0
