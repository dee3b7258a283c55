"""Golden answers: a right host passes, a wrong one is told apart from one that rounds differently."""

from __future__ import annotations

import dataclasses
import json
import math
import re
import shutil
import weakref
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import onnx
import pytest
from numpy.typing import NDArray
from paper_bundles import sealed_again

import edge
from edge.bundle import PAGE, Bundle
from edge.cli.main import main
from edge.errors import BundleError
from edge.golden import Golden, GoldenCase, TopLogits, read_golden
from edge.manifest import Manifest
from edge.runtime.check.golden import GoldenInput, open_role, record_golden, replay_golden, roles
from edge.runtime.engine.cache import KVCache
from edge.runtime.engine.engine import Engine
from edge.typed_json import typed

VOCAB = 16


class Host:
    """Stands in for an engine whose logits are a fixed function of the last token, plus an error per step."""

    def __init__(self, error: float = 0.0, on: int = 3, two_row_error: float = 0.0) -> None:
        self.error, self.on, self.two_row_error, self.steps = error, on, two_row_error, 0
        self.table = np.random.default_rng(5).normal(0, 3, (VOCAB, VOCAB)).astype(np.float32)

    encoder = None
    bundle = SimpleNamespace(manifest=SimpleNamespace(groups=[]))

    def new_cache(self, capacity: int) -> Any:
        return SimpleNamespace(exact=False, cross=None, states=None)

    def step(self, cache: KVCache, tokens: NDArray[np.int64]) -> NDArray[np.float32]:
        logits = self.table[tokens[-1]].copy()
        if cache.exact:
            logits[logits.argmax()] += self.two_row_error
            return logits[None]
        self.steps += 1
        if self.steps == self.on:
            logits[np.argsort(logits)[-2]] += self.error
        return logits[None]


def gap(host: Host, golden: Golden, token: int) -> float:
    """How far the best logit lies above the second best where the answer's token of this number is chosen."""
    case = golden.cases[0]
    best = np.sort(host.table[(case.prompt_ids[-1:] + case.greedy_ids)[token]])
    return float(best[-1] - best[-2])


@pytest.fixture
def golden() -> Golden:
    recorded = record_golden(Host(two_row_error=0.05), [GoldenInput([1, 2]), GoldenInput([3])], tokens=6)  # type: ignore[arg-type]
    return typed(json.loads(json.dumps(dataclasses.asdict(recorded))), Golden, "golden.json")


def test_the_recorder_passes_its_own_record(golden: Golden) -> None:
    report = replay_golden(Host(), golden)  # type: ignore[arg-type]
    assert (report.ok, report.prompts, report.tokens, report.near_ties) == (True, 2, 12, [])
    assert report.largest_difference < 1e-5


def test_the_record_is_the_greedy_answer(golden: Golden) -> None:
    table, token = Host().table, 2
    for recorded in golden.cases[0].greedy_ids:
        token = int(table[token].argmax())
        assert recorded == token
    assert golden.cases[0].first.ids == np.argsort(-table[2])[:5].tolist()
    assert golden.cases[0].first.logits == pytest.approx(np.sort(table[2])[:-6:-1].tolist(), abs=1e-5)


def test_the_tolerance_is_twice_what_the_recorders_kernels_part(golden: Golden) -> None:
    assert golden.tolerance == pytest.approx(0.1, rel=0.05)
    exact = record_golden(Host(), [GoldenInput([1, 2])], tokens=6)  # type: ignore[arg-type]
    assert exact.tolerance == pytest.approx(1e-3)


def test_another_token_within_the_tolerance_is_a_near_tie(golden: Golden) -> None:
    host = Host()
    host.error = gap(host, golden, 2) + 0.9 * golden.tolerance
    report = replay_golden(host, golden)  # type: ignore[arg-type]
    assert report.ok
    assert len(report.near_ties) == 1
    assert report.near_ties[0].startswith("prompt 1, token 3: ")


def test_another_token_beyond_the_tolerance_is_a_fault(golden: Golden) -> None:
    host = Host()
    host.error = gap(host, golden, 2) + 1.1 * golden.tolerance
    report = replay_golden(host, golden)  # type: ignore[arg-type]
    assert [fault.partition(":")[0] for fault in report.faults] == ["prompt 1, token 3"]


@pytest.mark.parametrize("on", [1, 6])
def test_logits_of_the_first_and_last_step_are_compared(golden: Golden, on: int) -> None:
    for error, ok in ((-0.9, True), (-1.1, False)):
        host = Host(error * golden.tolerance, on)
        assert replay_golden(host, golden).ok is ok  # type: ignore[arg-type]


def test_a_shift_of_all_logits_is_no_difference(golden: Golden) -> None:
    host = Host()
    host.table += 7.0
    report = replay_golden(host, golden)  # type: ignore[arg-type]
    assert report.ok
    assert report.largest_difference < 1e-5


def test_logits_that_are_no_numbers_are_a_fault(golden: Golden) -> None:
    assert not replay_golden(Host(np.nan, 1), golden).ok  # type: ignore[arg-type]


def test_many_near_ties_are_a_fault() -> None:
    table = Host().table
    case = GoldenCase([1], [2, 3, 4], TopLogits([2], [float(table[1, 2])]), TopLogits([4], [float(table[3, 4])]))
    report = replay_golden(Host(), Golden("test", 100.0, [case], []))  # type: ignore[arg-type]
    assert len(report.near_ties) >= 2
    assert not report.ok


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda g: g["cases"].clear(), "has no recorded answers"),
        (lambda g: g["cases"][1].pop("greedy_ids"), r"lacks the field 'cases\[1\].greedy_ids'"),
        (lambda g: g["cases"][0]["prompt_ids"].append(10**6), r"cases\[0\] is no recorded answer"),
        (lambda g: g["cases"][0]["greedy_ids"].clear(), r"cases\[0\] is no recorded answer"),
        (lambda g: g["cases"][0]["first"]["logits"].pop(), r"cases\[0\] is no recorded answer"),
        (lambda g: g["cases"][0]["first"].update(ids=[1] * 65, logits=[0.0] * 65), r"cases\[0\] is no recorded answer"),
        (lambda g: g["cases"][0]["last"]["logits"].__setitem__(0, 1e300), r"cases\[0\] is no recorded answer"),
        (lambda g: g["cases"][2]["prompt_ids"].extend([1] * 500), r"cases\[2\] is longer than this model takes"),
        (lambda g: g["cases"][1].update(source_seed=3), r"cases\[1\] is .*, or no input of it"),
        (lambda g: g["cases"][1].update(source_ids=[3]), r"cases\[1\] is .*, or no input of it"),
        (lambda g: g.update(cases=g["cases"] * 100), "more than 256 recorded answers"),
        (lambda g: g["cases"][0]["prompt_ids"].extend([1] * 70_000), "65536 tokens of them"),
    ],
)
def test_a_golden_file_that_cannot_be_right_is_named(tiny_bundle: Bundle, change: Any, message: str) -> None:
    path = tiny_bundle.path("golden.json")
    raw = json.loads(path.read_text())
    change(raw)
    path.write_text(json.dumps(raw))
    with pytest.raises(BundleError, match=message):
        read_golden(tiny_bundle)


def test_an_exported_bundle_passes(tiny_bundle: Bundle, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["verify", str(tiny_bundle.root)]) == 0
    captured = capsys.readouterr()
    assert captured.err == ""
    assert "6 intact" in captured.out
    assert "4 prompts, 96 tokens: 96 as recorded" in captured.out
    assert captured.out.startswith("Verdict  Good: the files are intact, and the answers are as recorded at export")
    assert re.search(r"distances within \S+ nats of the recorded; up to \S+ nats are tolerated", captured.out)


def test_a_flipped_byte_fails_verify(tiny_bundle: Bundle, capsys: pytest.CaptureFixture[str]) -> None:
    path = tiny_bundle.path("weights.bin")
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 0x10
    path.write_bytes(data)
    assert main(["verify", str(tiny_bundle.root)]) == 2
    assert "weights.bin is damaged" in capsys.readouterr().err


def test_a_host_that_computes_wrongly_fails_verify(
    tiny_bundle: Bundle, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    step = Engine.step

    def wrong(self: Engine, cache: KVCache, tokens: NDArray[np.int64], rows: Any = None) -> NDArray[np.float32]:
        return np.roll(step(self, cache, tokens, rows), 1, axis=-1)

    monkeypatch.setattr(Engine, "step", wrong)
    assert main(["verify", str(tiny_bundle.root)]) == 2
    told = capsys.readouterr()
    assert "does not answer on this machine as it was recorded" in told.err
    assert told.out.startswith("Verdict  Not good: the files are intact, but the answers are others than were recorded")
    counts = re.findall(r"4 prompts, (\d+) of 96 as recorded(?:, (\d+) near-ties?)?, (\d+) different", told.out)
    assert len(counts) == 2 and all(sum(int(count or 0) for count in each) == 96 for each in counts)
    assert "distances within" not in told.out and "distances up to" in told.out


@pytest.mark.parametrize("wrong", [np.nan, np.inf])
@pytest.mark.parametrize("where", ["everywhere", "at one token"])
def test_verify_claims_nothing_of_logits_that_are_no_numbers(
    tiny_bundle: Bundle, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], wrong: float, where: str
) -> None:
    step = Engine.step

    def broken(self: Engine, cache: KVCache, tokens: NDArray[np.int64], rows: Any = None) -> NDArray[np.float32]:
        logits = step(self, cache, tokens, rows).copy()
        logits[..., slice(None) if where == "everywhere" else 7] = wrong
        return logits

    monkeypatch.setattr(Engine, "step", broken)
    assert main(["verify", str(tiny_bundle.root)]) == 2
    told = capsys.readouterr()
    assert "0 of 96 as recorded, 96 different" in told.out and "distances within 0 " not in told.out


def test_what_is_not_a_number_is_not_recorded() -> None:
    with pytest.raises(BundleError, match="logits are not numbers"):
        record_golden(Host(np.nan, 1), [GoldenInput([1, 2])], 6)  # type: ignore[arg-type]


@pytest.mark.parametrize("form", [False, True])
@pytest.mark.parametrize("tolerance", [-1e-9, 1e9, 100.0, 1e308, "NaN", "Infinity", "1e999", 10**400, None, True])
def test_a_tolerance_that_says_nothing_is_refused(tiny_bundle: Bundle, tolerance: Any, form: bool) -> None:
    path = tiny_bundle.path("golden.json")
    raw = json.loads(path.read_text())
    (raw["forms"][0] if form else raw)["tolerance"] = "HERE"
    written = tolerance if isinstance(tolerance, str) else json.dumps(tolerance)
    path.write_text(json.dumps(raw).replace('"HERE"', written))
    with pytest.raises(BundleError, match="tolera|is no number of JSON") as caught:
        read_golden(tiny_bundle)
    assert "\n" not in str(caught.value)


# Every graph that a run could take


ROLES = ["decoder", "prefill", "kv8", "skip"]


@pytest.fixture(scope="module")
def pristine_whole(tmp_path_factory: pytest.TempPathFactory, six_layers: Path) -> Bundle:
    """A bundle with a graph of each kind that a decoder can have."""
    made = tmp_path_factory.mktemp("whole") / "whole.edge"
    options: dict[str, Any] = {"prefill_weights": "int8", "segments": 1, "draft_text": 0}
    return edge.export(six_layers, made, weights="int8", candidates=False, **options)


@pytest.fixture
def whole(tmp_path: Path, pristine_whole: Bundle) -> Bundle:
    """The same; the test may harm it."""
    return Bundle(Path(shutil.copytree(pristine_whole.root, tmp_path / "whole.edge")), pristine_whole.manifest)


def graph_of(bundle: Bundle, role: str) -> Path:
    return bundle.path(bundle.manifest.graph(role).path)


def shift(path: Path) -> None:
    """A layer's largest matrix is read a page too early."""
    model = onnx.load(path, load_external_data=False)
    layers = [tensor for tensor in model.graph.initializer if tensor.external_data and "layers." in tensor.name]
    largest = max(layers, key=lambda tensor: math.prod(tensor.dims))
    (offset,) = (entry for entry in largest.external_data if entry.key == "offset")
    offset.value = str(int(offset.value) - PAGE)
    path.write_bytes(model.SerializeToString())


def verified(bundle: Bundle, capsys: pytest.CaptureFixture[str]) -> tuple[int, str, str]:
    """Exit status, standard output and error."""
    status = main(["verify", str(bundle.root)])
    return status, *capsys.readouterr()


@pytest.mark.usefixtures("onnxruntimes_kernels")
def test_each_graph_that_a_run_could_take_is_verified_one_after_the_other(
    pristine_whole: Bundle, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    opened: list[weakref.ref[Engine]] = []

    def watched(*args: Any, **given: Any) -> Engine:
        assert [engine() for engine in opened] == [None] * len(opened)
        engine = open_role(*args, **given)
        opened.append(weakref.ref(engine))
        return engine

    monkeypatch.setattr("edge.runtime.check.golden.open_role", watched)
    status, out, err = verified(pristine_whole, capsys)
    assert (status, err, len(opened)) == (0, "", len(ROLES))
    assert re.findall(r"^Graph    (\w+)", out, re.MULTILINE) == ROLES == roles(pristine_whole)
    # A near-tie is right: a lone row's last bits depend on the processor, and an untrained model's logits lie close.
    told = re.findall(r"4 prompts, 96 tokens: (?:96 as recorded|95 as recorded, 1 near-tie)$", out, re.MULTILINE)
    assert len(told) == len(ROLES)
    assert out.count("Logits   distances within ") == len(ROLES)


@pytest.mark.usefixtures("onnxruntimes_kernels")
def test_answers_of_graphs_that_round_otherwise_are_recorded(pristine_whole: Bundle) -> None:
    golden = read_golden(pristine_whole)
    assert [form.role for form in golden.forms] == ["prefill", "kv8"]
    for form in golden.forms:
        assert form.tolerance >= golden.tolerance
        assert [len(case.ids) for case in form.cases] == [24] * 4
        assert [case.last for case in form.cases] != [case.last for case in golden.cases]
        report = replay_golden(open_role(pristine_whole, form.role), golden, role=form.role)
        assert report.ok and report.largest_difference < 1e-4
    assert golden.form("skip").tolerance == golden.tolerance


@pytest.mark.parametrize("recorded", [True, False])
@pytest.mark.parametrize("role", ROLES)
def test_a_graph_that_computes_wrongly_is_told(whole: Bundle, role: str, recorded: bool) -> None:
    shift(graph_of(whole, role))
    golden = read_golden(whole)
    if not recorded:
        golden.forms.clear()
    assert not replay_golden(open_role(whole, role), golden, role=role).ok


@pytest.mark.parametrize("role", ROLES)
def test_a_graph_that_cannot_be_loaded_is_told(whole: Bundle, role: str) -> None:
    path = graph_of(whole, role)
    path.write_bytes(path.read_bytes()[:-40])
    golden = read_golden(whole)
    with pytest.raises(BundleError, match=re.escape(str(path))):
        replay_golden(open_role(whole, role), golden, role=role)


def test_a_graph_that_computes_wrongly_fails_verify_by_its_name(
    whole: Bundle, capsys: pytest.CaptureFixture[str]
) -> None:
    shift(graph_of(whole, "skip"))
    sealed_again(whole)
    status, out, err = verified(whole, capsys)
    assert status == 2
    assert "does not answer on this machine as it was recorded (its graph skip, prompt 1, " in err
    assert re.findall(r"^Graph    (\w+)", out, re.MULTILINE) == ROLES


def test_a_prefill_graph_that_no_run_takes_is_left_alone(manifest: Manifest, pristine_whole: Bundle) -> None:
    assert pristine_whole.manifest.prefill is not None
    unknown = dataclasses.replace(pristine_whole.manifest.prefill, version=99)
    other = dataclasses.replace(pristine_whole.manifest, prefill=unknown)
    assert roles(Bundle(pristine_whole.root, other)) == [role for role in ROLES if role != "prefill"]
    assert roles(Bundle(pristine_whole.root, manifest)) == ["decoder"]


@pytest.mark.parametrize(
    "change",
    [
        lambda form: form["cases"].pop(),
        lambda form: form["cases"][0]["ids"].pop(),
        lambda form: form["cases"][1]["first"]["logits"].pop(),
        lambda form: form["cases"][2]["last"]["ids"].clear(),
        lambda form: form["cases"][3]["ids"].append(10**6),
    ],
)
def test_a_record_of_another_graph_that_cannot_be_right_is_named(tiny_bundle: Bundle, change: Any) -> None:
    path = tiny_bundle.path("golden.json")
    raw = json.loads(path.read_text())
    change(raw["forms"][0])
    path.write_text(json.dumps(raw))
    with pytest.raises(BundleError, match="forms 'kv8' is no record of this model's answers; export the model again"):
        read_golden(tiny_bundle)
