"""What is given up under a memory budget, in which order, and that a budget holds."""

from __future__ import annotations

import dataclasses
import itertools
import json
import os
import re
import subprocess
import sys
from types import SimpleNamespace
from typing import Any

import pytest
from paper_bundles import encoder_decoder
from profile_example import example_profile, int8_ms, step_ms

import edge
from edge.bundle import Bundle
from edge.cli.main import main
from edge.errors import InputError
from edge.manifest import FLOAT32, INT8, KV8, Dims, Generation, KVLayer, KVLayout
from edge.runtime import budget as planning
from edge.runtime import load as loading
from edge.runtime.budget import GOAL, MIN_CONTEXT, make_plan
from edge.runtime.costs import machine
from edge.runtime.costs.curve import store
from edge.runtime.decode.beam import new_cache
from edge.runtime.decode.beam_options import BeamOptions
from edge.runtime.load_options import LoadOptions
from edge.runtime.memory import process as memory
from edge.runtime.memory.footprint import MIB
from edge.runtime.memory.plan import RESERVE, Plan, needed
from edge.runtime.profile.profile import bundle_info
from edge.runtime.providers.threads import default_threads
from edge.runtime.sizes import parse_size, show_size

MB = 10**6


@pytest.fixture
def bundle(paper_bundle: Bundle) -> Bundle:
    """A model whose KV cache and activations are large beside its weights: 64 kB a token of context."""
    return dataclasses.replace(
        paper_bundle,
        manifest=dataclasses.replace(
            paper_bundle.manifest,
            dims=Dims(8, 2048, 8192, 16, 16, 64, 2000),
            kv=KVLayout("float32", [KVLayer(16, 64)] * 8),
            context=4096,
        ),
    )


def smallest(bundle: Bundle, **asked: int) -> int:
    """The smallest budget that is accepted, in whole MB."""
    budget = 1
    while True:
        try:
            make_plan(bundle, budget * MB, **asked)
            return budget
        except InputError:
            budget += 1


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("300MB", 300 * MB),
        ("300 mb", 300 * MB),
        ("300M", 300 * MB),
        ("1.5GB", 1500 * MB),
        (".5g", 500 * MB),
        ("512MiB", 512 * MIB),
        ("2KiB", 2048),
        ("7kB", 7000),
        ("123456", 123456),
        ("123456 B", 123456),
        ("1" + "0" * 400, 10**400),
    ],
)
def test_sizes(text: str, size: int) -> None:
    assert parse_size(text) == size


@pytest.mark.parametrize("text", ["", "MB", "a lot", "300 apples", "-1GB", "0", "0.1B", "1e9", "3,5GB", "300MBB", "٣"])
def test_what_is_no_size_gets_a_sentence(text: str) -> None:
    with pytest.raises(InputError, match="is not an amount of memory; write it like 300MB, 1.5GB or 512MiB"):
        parse_size(text)


@pytest.mark.parametrize("size", [1, 999, 10**6, 10**6 + 1, 209_600_001, 10**9, 1_234_567_890])
def test_a_size_that_is_shown_is_enough(size: int) -> None:
    assert size <= parse_size(show_size(size).replace(" bytes", "")) <= 1.01 * size + MB


def test_without_a_budget_the_plan_is_what_runs_by_default(bundle: Bundle) -> None:
    plan = make_plan(bundle)
    assert (plan.demand.context, plan.demand.chunk, plan.demand.width, plan.budget) == (4096, 128, 1, None)


def test_the_budget_holds_the_prediction_with_a_reserve(bundle: Bundle) -> None:
    for budget in range(smallest(bundle), 600, 37):
        plan = make_plan(bundle, budget * MB)
        assert plan.footprint.peak * (1 + RESERVE) <= budget * MB


def test_all_of_a_budget_is_used(bundle: Bundle) -> None:
    plan = make_plan(bundle, 200 * MB)
    assert MIN_CONTEXT < plan.demand.context < 4096
    more = dataclasses.replace(plan.demand, context=plan.demand.context + 1)
    assert needed(planning.MemoryModel(bundle).footprint(more)) > 200 * MB


def test_the_prompt_chunk_goes_before_the_context_falls_below_the_goal(bundle: Bundle) -> None:
    plans = [make_plan(bundle, budget * MB) for budget in range(smallest(bundle), 500)]
    for plan in plans:
        assert plan.demand.chunk == 128 or plan.demand.context >= GOAL or plan.demand.chunk == planning.MIN_CHUNK
    chunks = [plan.demand.chunk for plan in plans]
    assert chunks == sorted(chunks) and set(chunks) == {16, 32, 64, 128}


def test_a_larger_budget_never_gives_less(bundle: Bundle) -> None:
    plans = [make_plan(bundle, budget * MB) for budget in range(smallest(bundle), 500, 3)]
    for before, after in itertools.pairwise(plans):
        assert after.demand.chunk > before.demand.chunk or after.demand.context >= before.demand.context


def test_plenty_gives_all_there_is_and_room_for_wide_steps(bundle: Bundle) -> None:
    plan = make_plan(bundle, "2GB")
    assert (plan.demand.context, plan.demand.chunk, plan.widest) == (4096, 128, planning.WIDEST)


def test_a_context_that_is_asked_for_is_never_given_up(bundle: Bundle) -> None:
    least = smallest(bundle, context=3000)
    for budget in range(least, least + 60, 7):
        assert make_plan(bundle, budget * MB, context=3000).demand.context == 3000
    assert make_plan(bundle, least * MB, context=3000).demand.chunk == planning.MIN_CHUNK


def test_a_prompt_chunk_that_is_asked_for_is_the_most(bundle: Bundle) -> None:
    assert make_plan(bundle, "2GB", chunk=48).demand.chunk == 48
    assert make_plan(bundle, smallest(bundle) * MB, chunk=4).demand.chunk == 4


@pytest.mark.parametrize("asked", [{}, {"context": 2000}])
def test_the_budget_that_a_refusal_names_would_do(bundle: Bundle, asked: dict[str, int]) -> None:
    with pytest.raises(InputError) as refused:
        make_plan(bundle, "10MB", **asked)
    said, tokens = str(refused.value), asked.get("context", MIN_CONTEXT)
    assert said.startswith(f"paper with {tokens} tokens of context does not fit into 10 MB; the smallest")
    named = said.partition("the smallest budget that would do is ")[2].rstrip(".")
    assert isinstance(make_plan(bundle, named, **asked), Plan)
    with pytest.raises(InputError):
        make_plan(bundle, parse_size(named) - MB, **asked)


def test_a_refusal_of_a_context_names_one_that_would_fit(bundle: Bundle) -> None:
    with pytest.raises(InputError, match=r"and (\d+) tokens would fit") as refused:
        make_plan(bundle, "200MB", context=4000)
    fits = int(str(refused.value).split(", and ")[1].split()[0])
    assert make_plan(bundle, "200MB", context=fits).demand.context == fits
    with pytest.raises(InputError):
        make_plan(bundle, "200MB", context=fits + 1)


@pytest.mark.parametrize(
    ("asked", "sentence"),
    [
        ({"context": 0}, "The context must be between 1 and 4096 tokens for this bundle, not 0"),
        ({"context": 5000}, "The context must be between 1 and 4096 tokens for this bundle, not 5000"),
        ({"chunk": 0}, "The prefill chunk must be 1 token or more, not 0"),
        ({"branches": 0}, "The number of beams must be 1 or more, not 0"),
    ],
)
def test_what_cannot_be_planned_for_gets_a_sentence(bundle: Bundle, asked: dict[str, int], sentence: str) -> None:
    with pytest.raises(InputError, match=sentence):
        make_plan(bundle, "1GB", **asked)


def test_a_program_that_holds_memory_already_leaves_less(bundle: Bundle) -> None:
    free, full = make_plan(bundle, "300MB"), make_plan(bundle, "300MB", present=150 * MIB)
    assert full.demand.context < free.demand.context


def test_beams_are_kept_and_drafts_are_not(bundle: Bundle) -> None:
    manifest = encoder_decoder(bundle, "text").manifest
    text = dataclasses.replace(
        bundle, manifest=dataclasses.replace(manifest, generation=Generation(num_beams=4), context=512)
    )
    plenty, tight = make_plan(text, "2GB").demand, make_plan(text, smallest(text) * MB).demand
    assert (plenty.branches, plenty.width, plenty.source) == (4, 4, 1500)
    assert (tight.branches, tight.width) == (4, 4) and tight.source == tight.context < 512
    assert make_plan(text, "2GB", branches=2).demand.branches == 2


def test_more_beams_than_memory_was_planned_for_are_refused(bundle: Bundle) -> None:
    engine = SimpleNamespace(
        plan=make_plan(bundle, branches=2), make_cache=lambda rows, cross: SimpleNamespace(capacity=rows)
    )
    assert new_cache(engine, 1, BeamOptions(beams=2, max_tokens=3)).capacity == 7  # type: ignore[arg-type]
    with pytest.raises(InputError, match="planned for 2 beams, not for 3"):
        new_cache(engine, 1, BeamOptions(beams=3))  # type: ignore[arg-type]


def test_a_loaded_model_keeps_to_the_plan(tiny_bundle: Bundle) -> None:
    model = edge.load(tiny_bundle.root, memory=4 * 10**9)
    assert model.engine.plan is not None and model.engine.context == 512 and model.prefill_chunk == 128
    assert edge.load(tiny_bundle.root, memory="4GB", context=100, prefill_chunk=20).prefill_chunk == 20
    with pytest.raises(InputError, match="does not fit into 10 MB; the smallest budget that would do is"):
        edge.load(tiny_bundle.root, memory="10MB")


def test_a_prompt_that_the_memory_has_no_room_for_gets_a_sentence(tiny_bundle: Bundle) -> None:
    model = edge.load(tiny_bundle.root, memory="4GB", context=16)
    with pytest.raises(InputError, match="shorten it or raise the memory or the context"):
        model.generate("The moon changes its shape. " * 20, raw=True)


def run(*args: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "edge.cli.main", *args]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, env=dict(os.environ))


@pytest.mark.skipif(sys.platform != "linux", reason="the constants were measured on Linux")
def test_edge_run_stays_under_the_smallest_budget(tiny_bundle: Bundle) -> None:
    refused = run("run", str(tiny_bundle.root), "Hi", "--memory", "10MB")
    assert refused.returncode == 2 and refused.stderr.count("\n") == 1
    named = refused.stderr.partition("would do is ")[2].strip().rstrip(".")
    prompt = "The moon changes its shape. " * 5
    done = run("run", str(tiny_bundle.root), prompt, "--memory", named, "--json", "--max-tokens", "20", "--raw")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["peak_private_mb"] * MB <= parse_size(named)


def test_edge_plan_prints_json(tiny_bundle: Bundle, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plan", str(tiny_bundle.root), "--json", "--memory", "1GB"]) == 0
    plan = json.loads(capsys.readouterr().out)
    assert plan["name"] == tiny_bundle.manifest.name
    assert (plan["context"], plan["chunk"], plan["budget"]) == (512, 128, 10**9)
    assert plan["peak"] == max(sum(plan["loading"].values()), sum(plan["running"].values()))
    assert plan["peak"] < plan["smallest_budget"] < 10**9


def test_edge_plan_prints_a_table_and_a_bar(tiny_bundle: Bundle, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plan", str(tiny_bundle.root), "--context", "300"]) == 0
    out = capsys.readouterr().out
    assert all(word in out for word in ("KV cache", "packed weights", "Loading", "Running", "together", "█"))
    assert "300 tokens" in out and "would do" in out


def test_edge_plan_tells_the_speed_that_was_measured(tiny_bundle: Bundle, capsys: pytest.CaptureFixture[str]) -> None:
    command = ["plan", str(tiny_bundle.root), "--context", "300", "--kv", "float32"]
    assert main(command) == 0 and "not measured on this device yet" in capsys.readouterr().out

    device = machine.describe("cpu", default_threads())
    store(dataclasses.replace(example_profile(), device=device, bundle=bundle_info(tiny_bundle)))
    assert main([*command, "--json"]) == 0
    speeds = json.loads(capsys.readouterr().out)["tokens_per_s"]
    assert speeds == {str(n): pytest.approx(1e3 / step_ms(1, n), abs=0.06) for n in (128, 300)}
    assert main(command) == 0 and f"{speeds['300']:.0f} tokens/s at 300" in capsys.readouterr().out

    assert main([*command, "--kv", "int8", "--json"]) == 0
    speeds = json.loads(capsys.readouterr().out)["tokens_per_s"]
    assert speeds == {str(n): pytest.approx(1e3 / int8_ms(1, n), abs=0.06) for n in (128, 300)}


@pytest.mark.parametrize(
    ("args", "sentence"),
    [
        (["--memory", "10MB"], "does not fit into 10 MB; the smallest budget that would do is"),
        (["--memory", "lots"], "'lots' is not an amount of memory"),
        (["--context", "100000"], "The context must be between 1 and 512"),
    ],
)
def test_edge_plan_says_what_is_wrong_in_a_sentence(
    tiny_bundle: Bundle, capsys: pytest.CaptureFixture[str], args: list[str], sentence: str
) -> None:
    assert main(["plan", str(tiny_bundle.root), *args]) == 2
    assert sentence in capsys.readouterr().err


def test_edge_run_imports_the_plan_only_for_a_budget(tiny_bundle: Bundle) -> None:
    code = (
        "import sys; from edge.cli.main import main; main(sys.argv[1:]); "
        "print(any(name in sys.modules for name in ('edge.runtime.budget', 'edge.runtime.memory.footprint')))"
    )
    command = [sys.executable, "-c", code, "run", str(tiny_bundle.root), "Hi", "--max-tokens", "1"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert done.stdout.splitlines()[-1] == "False"


def test_steps_and_prompt_chunks_narrow_by_what_they_cost_before_a_context_is_given_up(bundle: Bundle) -> None:
    dims = dataclasses.replace(bundle.manifest.dims, vocab_size=100_000)  # logits weigh
    large = dataclasses.replace(bundle, manifest=dataclasses.replace(bundle.manifest, dims=dims))
    most, seen = make_plan(large, context=1024, speculate="auto").demand, []
    assert most.width == 16 and most.drafts > 0
    for budget in range(needed(make_plan(large, context=1024, speculate="auto").footprint), 0, -MB // 2):
        try:
            plan = make_plan(large, budget, context=1024, speculate="auto")
        except InputError:
            break
        assert plan.demand.context == 1024 and (plan.demand.drafts > 0) == (plan.demand.width > 1)
        seen.append((plan.demand.width, plan.demand.chunk))
    pairs = [pair for pair, _ in itertools.groupby(seen)]
    assert pairs == [(16, 128), (8, 128), (4, 128), (4, 64), (2, 64), (2, 32), (1, 32), (1, 16)]


def test_without_drafts_the_cache_goes_to_bytes_before_the_chunk_shrinks(bundle: Bundle) -> None:
    manifest = bundle.manifest
    graphs = [*manifest.graphs, dataclasses.replace(manifest.graph("decoder"), role=KV8)]
    both, seen = Bundle(bundle.root, dataclasses.replace(manifest, graphs=graphs)), []
    options: dict[str, Any] = {"context": 1024, "kv": (FLOAT32, INT8)}
    for budget in planning.budgets(both, **options)[::-1]:
        demand = make_plan(both, budget, **options).demand
        seen.append((demand.kv, demand.chunk))
    assert seen == [(FLOAT32, 128), (INT8, 128), (INT8, 64), (INT8, 32), (INT8, 16)]


def test_what_a_smaller_chunk_costs_is_known_by_its_size(bundle: Bundle) -> None:
    """Not by how often it was halved: 512 falls to 64 before drafts do, 64 to 32 after."""
    for chunk, order in ((512, [(4, 128), (4, 64), (2, 64)]), (64, [(4, 64), (2, 64), (2, 32)])):
        asked: dict[str, Any] = {"context": 1024, "speculate": "auto", "chunk": chunk}
        choices = planning._Choices(bundle, 1024, chunk, None, "auto", False, (FLOAT32,))
        pairs = [(rung.width, rung.chunk) for rung in choices.ladder()]
        at = pairs.index(order[0])
        assert pairs[at : at + 3] == order and make_plan(bundle, **asked).demand.chunk == chunk


@pytest.mark.parametrize("asked", [{}, {"context": 3000}])
def test_the_budgets_from_which_on_less_is_given_up(bundle: Bundle, asked: dict[str, int]) -> None:
    """Below each of them something has to go; the smallest is the smallest that would do; the last has room for all."""
    manifest = bundle.manifest
    graphs = [*manifest.graphs, dataclasses.replace(manifest.graph("decoder"), role=KV8)]
    dims = dataclasses.replace(manifest.dims, vocab_size=100_000)  # logits weigh
    both = Bundle(bundle.root, dataclasses.replace(manifest, graphs=graphs, dims=dims))
    options: dict[str, Any] = {**asked, "speculate": "auto", "kv": (FLOAT32, INT8)}

    def kept(budget: int) -> tuple[object, ...]:
        demand = make_plan(both, budget, **options).demand
        return demand.kv, demand.width, demand.chunk, demand.context >= GOAL

    found = planning.budgets(both, **options)
    assert found == sorted(set(found)) and len({kept(budget) for budget in found}) > 6
    with pytest.raises(InputError):
        make_plan(both, found[0] - planning.SHOWN, **options)
    assert all(kept(budget - planning.SHOWN) != kept(budget) for budget in found[1:-1])
    assert make_plan(both, found[-1], **options).demand == make_plan(both, "4GB", **options).demand


def test_a_loaded_model_drafts_as_its_plan_says(tiny_bundle: Bundle) -> None:
    wide, none = ({"memory": "9GB"}, {"memory": "9GB", "speculate": "off"})
    model = edge.load(tiny_bundle.root, context=128, threads=2, **wide)  # type: ignore[arg-type]
    assert model.engine.plan is not None and model.engine.plan.demand.width == 16  # type: ignore[union-attr]
    assert model.speculation is not None  # type: ignore[union-attr]
    model = edge.load(tiny_bundle.root, context=128, threads=2, **none)  # type: ignore[arg-type]
    assert model.engine.plan is not None and model.engine.plan.demand.width == 1  # type: ignore[union-attr]
    assert model.speculation is None  # type: ignore[union-attr]


def test_edge_plan_tells_what_drafts_take_and_bring(tiny_bundle: Bundle, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plan", str(tiny_bundle.root), "--json"]) == 0
    drafts = json.loads(capsys.readouterr().out)["drafts"]
    assert drafts["tokens"] == 15 and drafts["gain"] > 1.2 and not drafts["measured"]
    vocab = tiny_bundle.manifest.dims.vocab_size
    assert drafts["bytes"] >= 15 * 4 * vocab
    assert main(["plan", str(tiny_bundle.root), "--json", "--speculate", "lookup"]) == 0
    assert json.loads(capsys.readouterr().out)["drafts"]["gain"] == drafts["gain"]
    assert main(["plan", str(tiny_bundle.root), "--speculate", "trigram"]) == 0
    said = " ".join(capsys.readouterr().out.split())
    assert "edge profile --speculate measures the gain" in said
    assert "edge profile --speculate measures the gain of drafts" in said
    assert main(["plan", str(tiny_bundle.root)]) == 0
    assert "the gain of drafts is a guess" in " ".join(capsys.readouterr().out.split())
    assert main(["plan", str(tiny_bundle.root), "--speculate", "off"]) == 0
    assert "none: every step is one token" in capsys.readouterr().out


def test_edge_plan_tells_what_drafts_take_and_bring_at_several_budgets(
    tiny_bundle: Bundle, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """At each of them what `--memory` says of it alone; without drafts there is nothing to tell."""
    command = ["plan", str(tiny_bundle.root), "--json"]
    one = planning.budgets(tiny_bundle)[0]  # loading is so small a model's peak, whatever it does then
    monkeypatch.setattr(planning, "budgets", lambda *args, **options: [one, 2 * one])
    assert main(command) == 0
    rows = json.loads(capsys.readouterr().out)["budgets"]
    assert len(rows) == 2 and rows[-1]["context"] == tiny_bundle.manifest.context
    for row in rows:
        assert main([*command, "--memory", str(row["budget"])]) == 0
        alone = json.loads(capsys.readouterr().out)
        assert row == {name: alone[name] for name in row}
    assert rows[-1]["drafts"]["tokens"] == 15 and rows[-1]["drafts"]["gain"] > 1.2
    assert main(command[:-1]) == 0
    shown = capsys.readouterr().out
    assert "From these budgets on" in shown and f"{rows[-1]['drafts']['gain']:.2f}x" in shown
    assert main([*command, "--speculate", "off"]) == 0
    assert all(row["drafts"] is None for row in json.loads(capsys.readouterr().out)["budgets"])


def test_edge_plan_counts_texts_side_by_side_at_each_budget(
    tiny_bundle: Bundle, capsys: pytest.CaptureFixture[str]
) -> None:
    command, plans = ["plan", str(tiny_bundle.root), "--json", "--context", "300"], []
    for beams in ("1", "500"):
        assert main([*command, "--beams", beams]) == 0
        plans.append(json.loads(capsys.readouterr().out))
    one, many = ([row["budget"] for row in plan["budgets"]] for plan in plans)
    assert plans[1]["branches"] == 500 and min(many) > max(one)
    assert all(row["context"] == 300 for row in plans[1]["budgets"])


def test_edge_plan_promises_no_bytes_to_drafts_over_segments(
    by_layer: Bundle, capsys: pytest.CaptureFixture[str]
) -> None:
    """As `edge run`, which keeps floats there."""
    asked = ["plan", str(by_layer.root), "--kv", "int8"]
    assert main(asked) == 0
    assert main([*asked, "--speculate", "self"]) == 2
    assert "needs all layers in one graph" in capsys.readouterr().err


@pytest.mark.parametrize("width", [1, 4])
def test_segments_stand_apart_only_where_there_is_room_for_drafts(
    by_layer: Bundle, width: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Their graph is memory that no plan without drafts has counted."""

    def narrow(*args: Any, **options: Any) -> Plan:
        plan = make_plan(*args, **options)
        return dataclasses.replace(plan, demand=dataclasses.replace(plan.demand, width=width))

    monkeypatch.setattr(planning, "make_plan", narrow)
    engine = loading.start(by_layer, LoadOptions(memory="2GB", context=64, speculate="self")).engine.result()
    assert (engine.routes is not None) == (width > 1)


@pytest.mark.parametrize("kv", ["auto", "int8"])
@pytest.mark.parametrize("drafter", ["off", "lookup", "recycle"])
def test_drafts_change_neither_cache_nor_context_nor_chunk_of_exact_answers(
    bundle: Bundle, drafter: str, kv: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever the budget, the plan that is made has the context and the cache that `auto` leaves, and reads the prompt
    in the same chunks."""
    manifest = bundle.manifest
    graphs = [*manifest.graphs, dataclasses.replace(manifest.graph("decoder"), role=KV8)]
    both = Bundle(bundle.root, dataclasses.replace(manifest, graphs=graphs))
    monkeypatch.setattr(loading, "Background", lambda make: None)  # nothing is loaded
    monkeypatch.setattr(memory, "private_bytes", lambda: 0)
    plans: list[Plan] = []

    def recorded(*args: object, **options: object) -> Plan:
        plans.append(make_plan(*args, **options))  # type: ignore[arg-type]
        return plans[-1]

    monkeypatch.setattr(planning, "make_plan", recorded)
    widths, kinds = set[int](), set[str]()
    for budget in [*range(80, 240, 4), *range(240, 480, 20)]:
        found = []
        for speculate in ("auto", drafter):
            loading.start(both, LoadOptions(memory=budget * MB, speculate=speculate, kv=kv))
            demand = plans[-1].demand
            found.append((demand.context, demand.kv, demand.chunk))
        widths.add(plans[-1].demand.width)
        kinds.add(found[0][1])
        assert found[0] == found[1]
    assert kinds == ({INT8} if kv == "int8" else {FLOAT32, INT8})
    assert widths == {1} if drafter == "off" else max(widths) > 1


def test_a_translator_is_planned_for_a_usual_text_and_the_longest_is_said(
    paper_bundle: Bundle, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    translator = encoder_decoder(paper_bundle, "text")
    manifest = dataclasses.replace(translator.manifest, context=8192)
    long = Bundle(translator.root, manifest)
    monkeypatch.setattr("edge.cli.plan.open_answering", lambda path: long)
    monkeypatch.setattr(Bundle, "check_sizes", lambda self: None)
    assert main(["plan", str(long.root)]) == 0
    said = capsys.readouterr().out
    assert re.search(r"Input +512 tokens", said) and re.search(r"Longer texts .* for one of [\d,]+ tokens", said)
    assert main(["plan", str(long.root), "--context", "1000"]) == 0
    said = capsys.readouterr().out
    assert re.search(r"Input +1,000 tokens", said) and "Longer texts" not in said
