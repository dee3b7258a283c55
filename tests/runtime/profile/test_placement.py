"""Which execution provider runs what is known: by nodes, by bytes of weights, by time."""

from __future__ import annotations

import dataclasses
import json
from typing import Any

import pytest
from profile_example import example_profile

import edge
from edge.bundle import Bundle
from edge.cli.main import main
from edge.runtime.costs import machine, measured
from edge.runtime.costs.curve import store
from edge.runtime.costs.measured import best_provider, open_for
from edge.runtime.costs.record import Op, Placement, parse
from edge.runtime.load import open_engine
from edge.runtime.profile import ops
from edge.runtime.profile.graph_file import read_graph
from edge.runtime.profile.placement import of_engine, placement_of, with_times
from edge.runtime.profile.profile import bundle_info
from edge.runtime.providers import cpu
from edge.runtime.providers.provider import NPU, Device, Session, Support
from edge.runtime.providers.threads import pool_threads

CPU, QNN = "CPUExecutionProvider", "QNNExecutionProvider"


class Halves(cpu.Cpu):
    """Says of a session that another provider ran the products."""

    def placement(self, session: Session) -> dict[str, list[str]]:
        (nodes,) = super().placement(session).values()
        products = [node for node in nodes if "MatMul" in node]
        return {QNN: products, CPU: [node for node in nodes if node not in products]}


def test_all_of_a_plain_bundle_is_the_cpus(tiny_bundle: Bundle, monkeypatch: pytest.MonkeyPatch) -> None:
    (row,) = of_engine(open_engine(tiny_bundle))
    assert (row.graph, row.provider, row.node_share, row.weight_share, row.time_share) == ("decoder", CPU, 1, 1, 1)
    monkeypatch.setattr(cpu, "find_kernels", lambda: None)  # those of our own take several nodes together
    (row,) = of_engine(open_engine(tiny_bundle))
    graph = read_graph(tiny_bundle.path(tiny_bundle.manifest.graph("decoder").path))
    weights = {name: size for node in graph.values() for name, size in node.weights.items()}
    assert row == Placement("decoder", CPU, len(graph), 1.0, sum(weights.values()), 1.0, 1.0)


def test_shares_add_up_and_weights_are_those_of_the_nodes(tiny_bundle: Bundle) -> None:
    rows = of_engine(open_engine(tiny_bundle, provider=Halves()))
    assert {row.provider for row in rows} == {QNN, CPU} and {row.time_share for row in rows} == {None}
    assert sum(row.node_share for row in rows) == sum(row.weight_share for row in rows) == pytest.approx(1)
    graph = read_graph(tiny_bundle.path(tiny_bundle.manifest.graph("decoder").path))
    products = [node for name, node in graph.items() if "MatMul" in name]
    (own,) = (row for row in rows if row.provider == QNN)
    assert own.nodes == len(products)
    assert own.weight_bytes == sum(sum(node.weights.values()) for node in products)


def test_a_weight_that_two_nodes_read_counts_once(tiny_bundle: Bundle) -> None:
    role, path = "decoder", tiny_bundle.path(tiny_bundle.manifest.graph("decoder").path)
    readers = [name for name, node in read_graph(path).items() if "rope_rope.cos" in node.weights]
    assert len(readers) > 1

    class Two(cpu.Cpu):
        def placement(self, session: Session) -> dict[str, list[str]]:
            return {CPU: readers[:2]}

    provider = Two()
    (row,) = placement_of(provider, {role: (provider.open(tiny_bundle, role), path)})
    assert row.weight_bytes == sum(read_graph(path)[readers[0]].weights.values())


def test_time_is_shared_out_as_it_was_measured() -> None:
    def op(provider: str, size: int, us: float) -> Op:
        return Op("decoder", size, "0", "MatMul", "x", 5, us, provider=provider)

    rows = [Placement("decoder", name, 5, 0.5, 10, 0.5) for name in (QNN, CPU)]
    found = with_times(rows, [op(QNN, 1, 30.0), op(CPU, 1, 5.0), op(CPU, 1, 5.0), op(CPU, 128, 1000.0)])
    assert [row.time_share for row in found] == [0.75, 0.25]
    assert with_times(rows, []) == rows


def test_operators_say_who_ran_them(tiny_bundle: Bundle) -> None:
    found = ops.measure(tiny_bundle, context=8, sizes=(1,), seconds=0.2)
    assert {op.provider for op in found.ops} == {CPU}
    assert [(row.provider, row.time_share) for row in found.placement] == [(CPU, 1.0)]


def test_a_profile_holds_it_and_an_older_one_is_still_read() -> None:
    profile = dataclasses.replace(example_profile(), placement=[Placement("decoder", QNN, 5, 1.0, 10, 1.0, 1.0)])
    assert parse(profile.to_json(), "a.json") == profile
    raw = json.loads(profile.to_json())
    del raw["placement"]
    assert parse(json.dumps(raw), "a.json").placement == []


# The commands


def test_inspect_opens_the_graphs_on_a_provider(tiny_bundle: Bundle, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["inspect", str(tiny_bundle.root), "--provider", "cpu", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["provider"] == "cpu" and found["devices"][0]["use"] == "runs"
    assert [(row["graph"], row["node_share"], row["time_share"]) for row in found["placement"]] == [("decoder", 1, 1)]
    assert main(["inspect", str(tiny_bundle.root), "--provider", "cpu"]) == 0
    assert "What runs where" in capsys.readouterr().out


@pytest.mark.parametrize("option", [["--strict"], ["--no-strict"], ["--threads", "1"]])
def test_inspect_refuses_options_of_a_provider_without_one(
    option: list[str], tiny_bundle: Bundle, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["inspect", str(tiny_bundle.root), *option]) == 2
    assert "name one with --provider" in capsys.readouterr().err


def test_run_states_it_in_json(tiny_bundle: Bundle, capsys: pytest.CaptureFixture[str]) -> None:
    command = ["run", str(tiny_bundle.root), "hi", "--raw", "--max-tokens", "2", "--kv", "float32", "--json"]
    assert main(command) == 0
    (row,) = json.loads(capsys.readouterr().out)["placement"]
    assert (row["graph"], row["provider"], row["node_share"], row["time_share"]) == ("decoder", CPU, 1, 1)


# What auto stands for


@pytest.fixture
def keep(tiny_bundle: Bundle, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Keeps a profile of the bundle with a provider, on this device; every provider is usable then."""

    def keep(provider: str, slower: float, placed: str | None = None) -> None:
        device = machine.describe(provider, pool_threads(None))
        rows = [Placement("decoder", placed or device.provider, 5, 1.0, 10, 1.0, 1.0)]
        profile = dataclasses.replace(example_profile(slower=slower), device=device, placement=rows)
        store(dataclasses.replace(profile, bundle=bundle_info(tiny_bundle)))

    monkeypatch.setattr(measured, "find_support", lambda name: Support(name, [Device(name, NPU, "Paper")]))
    return keep


def test_auto_is_the_cpu_until_two_were_measured(
    tiny_bundle: Bundle, keep: Any, caplog: pytest.LogCaptureFixture
) -> None:
    assert best_provider(tiny_bundle) == "cpu"
    keep("qnn", 0.1)
    assert best_provider(tiny_bundle) == "cpu" and not caplog.records


def test_auto_is_the_faster_of_those_that_were_measured_and_says_so(
    tiny_bundle: Bundle, keep: Any, caplog: pytest.LogCaptureFixture
) -> None:
    keep("cpu", 1.0)
    keep("qnn", 0.5)
    assert best_provider(tiny_bundle) == "qnn"
    assert "auto takes qnn: a token takes" in caplog.text and "with cpu, as edge profile measured it" in caplog.text
    keep("qnn", 2.0)
    assert best_provider(tiny_bundle) == "cpu" and "auto takes cpu" in caplog.text
    assert open_for(tiny_bundle, "auto", None, None).name == "cpu"


def test_auto_leaves_out_what_a_strict_provider_did_not_run_alone(tiny_bundle: Bundle, keep: Any) -> None:
    keep("cpu", 1.0)
    keep("qnn", 0.5, placed=CPU)
    assert best_provider(tiny_bundle) == "cpu"
    assert best_provider(tiny_bundle, strict=False) == "qnn"


def test_auto_leaves_out_what_is_gone_and_says_why(
    tiny_bundle: Bundle, keep: Any, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    keep("cpu", 1.0)
    keep("qnn", 0.5)
    gone = Support(None, [], "It needs its plugin.")
    monkeypatch.setattr(measured, "find_support", lambda name: gone if name == "qnn" else Support(name, []))
    assert best_provider(tiny_bundle) == "cpu" and "It needs its plugin." in caplog.text
    model = edge.load(tiny_bundle.root)
    assert model.engine.provider.name == "cpu"
