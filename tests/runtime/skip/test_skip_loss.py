"""A setting of `--skip` that ruins a bundle is refused with what was measured, unless it is asked for twice."""

from __future__ import annotations

import dataclasses
import io
import json
import shutil
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from paper_bundles import sealed_again
from skip_models import in_units, segmented_t5

import edge
from edge.bundle import Bundle, open_bundle
from edge.cli.main import main
from edge.errors import InputError
from edge.golden import Golden, GoldenCase, TopLogits, read_golden
from edge.runtime.check.perplexity import EngineLogits, compare
from edge.runtime.check.skip_policies import PolicyLogits
from edge.runtime.engine.engine import Engine
from edge.runtime.kernels.library import find_kernels
from edge.runtime.load import open_engine
from edge.runtime.skip import loss
from edge.runtime.skip.loss import TOKENS, WORST, SkipLoss

OF_LAYERS = ["unified:0.34", "skipdecode:2-5"]
SETTINGS = [*OF_LAYERS, "ffn:0.34", "unified:0"]


@pytest.fixture
def strict(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever changes an answer ruins a bundle."""
    monkeypatch.setattr(loss, "RUINED", 1.0)


@pytest.fixture(scope="module")
def t5(tmp_path_factory: pytest.TempPathFactory) -> Bundle:
    return segmented_t5(tmp_path_factory.mktemp("t5"))


@pytest.fixture
def routed(by_layer: Bundle, tmp_path: Path) -> Bundle:
    """With routers that find two layers unnecessary, whatever is asked."""
    root = Path(shutil.copytree(by_layer.root, tmp_path / "routed.edge"))
    routers = np.zeros((4, by_layer.manifest.dims.hidden_size + 1))
    routers[:, -1] = [-5, 5, -5, 5]
    bundle = in_units(dataclasses.replace(by_layer, root=root), 1, routers)
    sealed_again(bundle)
    return open_bundle(root)


def measured(bundle: Bundle, skip: str) -> SkipLoss:
    engine = open_engine(bundle, skip=skip)
    assert engine.routes is not None
    return loss.measure(engine)


def run(bundle: Bundle, *arguments: str) -> int:
    return main(["run", str(bundle.root), *arguments])


# What is measured


def check_against_an_evaluation(bundle: Bundle, skip: str, rounding: float, apart: float) -> None:
    """The loss of the recorded answers, and what `edge eval --skip` measures of the same tokens."""
    found, tokens, same, divergence = measured(bundle, skip), 0, 0.0, 0.0
    for case in read_golden(bundle).cases:
        text, given = np.array([*case.prompt_ids, *case.greedy_ids]), len(case.prompt_ids)
        engine = open_engine(bundle, skip=skip, context=len(text))
        assert engine.routes is not None
        whole = EngineLogits(open_engine(bundle, context=len(text), kv=engine.kv.dtype), len(text))
        agreement = compare(whole, PolicyLogits(engine, len(text), given), [text], given=given)
        tokens += agreement.tokens
        same += agreement.top1 * agreement.tokens
        divergence += agreement.kl_mean * agreement.tokens
    assert found.tokens == tokens
    assert found.same == pytest.approx(same, abs=apart)
    assert found.divergence == pytest.approx(divergence / tokens, rel=rounding, abs=1e-3)
    if skip == "unified:0":
        assert (found.same, round(found.times, 3)) == (found.tokens, 1)


@pytest.mark.parametrize("skip", SETTINGS)
def test_what_is_lost_is_what_an_evaluation_of_the_recorded_answers_says(
    by_layer: Bundle, by_half: Bundle, skip: str
) -> None:
    check_against_an_evaluation(by_half if skip.startswith("ffn") else by_layer, skip, 1e-3, 0.1)


@pytest.mark.parametrize("skip", SETTINGS)
def test_the_same_where_our_kernels_leave_layers_out(quantized: list[Bundle], skip: str) -> None:
    if find_kernels() is None:
        pytest.skip("edge-lm-kernels is not installed, or this processor cannot run it")
    check_against_an_evaluation(quantized[0], skip, 0.1, 3)  # in 8 bits steps of other sizes round otherwise


@pytest.mark.parametrize("recorded", [[1], [16], [24, 3], [1, 1, 1, 1, 1, 1, 1, 1, 1, 1]])
def test_where_little_was_recorded_the_whole_decoder_goes_on(
    by_layer: Bundle, tmp_path: Path, recorded: list[int]
) -> None:
    """As in the bundles that `edge run` makes of a model: a lone answer of a few tokens says little."""
    golden = read_golden(by_layer)
    cases = [_cut(golden.cases[i % len(golden.cases)], count) for i, count in enumerate(recorded)]
    bundle = _recorded(by_layer, tmp_path, dataclasses.replace(golden, cases=cases, forms=[]))
    assert TOKENS <= measured(bundle, "unified:0.34").tokens <= TOKENS + 24
    whole = measured(bundle, "unified:0")
    assert whole.same == whole.tokens


def test_long_records_are_not_run_to_their_end(by_layer: Bundle, tmp_path: Path) -> None:
    golden = read_golden(by_layer)
    case = golden.cases[0]
    ids = case.greedy_ids * 4
    cases = [dataclasses.replace(case, greedy_ids=ids)] * 40
    bundle = _recorded(by_layer, tmp_path, dataclasses.replace(golden, cases=cases, forms=[]))
    assert measured(bundle, "unified:0.34").tokens == loss.CASES * loss.LONGEST


@pytest.mark.parametrize(
    ("whole", "left", "expected"),
    [
        ([0, 0], [0, 0], 0.0),
        ([0, -np.inf], [0, -np.inf], 0.0),
        ([0, -np.inf], [0, 0], np.log(2)),
        ([0, 0], [0, -np.inf], WORST),
        ([0, 0], [np.nan, 0], WORST),
        ([np.nan, 0], [0, 0], 0.0),  # a model that says nothing has nothing to lose
        ([0, 0], [0, -1000], WORST),
    ],
)
def test_logits_that_are_not_finite_have_a_loss_that_is(whole: list[float], left: list[float], expected: float) -> None:
    rows = np.array(whole, np.float32), np.array(left, np.float32)
    with np.errstate(all="raise"):
        assert loss._divergence(*rows) == pytest.approx(expected, rel=1e-5)


@pytest.mark.parametrize(("times", "text"), [(1, "1.00"), (2.818, "2.82"), (2410.7, "2,411"), (9e9, "over 1,000,000")])
def test_multiples_are_written_as_they_are_read(times: float, text: str) -> None:
    assert loss.shown(times) == text


# Refusing


@pytest.mark.usefixtures("strict")
@pytest.mark.parametrize("skip", [*OF_LAYERS, "first", "first:skip=1", "ffn:0.34"])
def test_a_ruinous_setting_is_refused_until_it_is_asked_for_twice(
    routed: Bundle, by_half: Bundle, skip: str, capsys: pytest.CaptureFixture[str]
) -> None:
    bundle = by_half if skip.startswith("ffn") else routed
    asked = "hello", "--raw", "--json", "--max-tokens", "4", "--skip", skip
    for _ in range(2):  # as measured, and as kept
        assert run(bundle, *asked) == 2
        out, error = capsys.readouterr()
        assert out == "" and error.count("\n") == 1
        assert error.startswith(f"edge: {skip} ruins {bundle.manifest.name}: it keeps ")
        assert "edge tune" in error
        assert error.endswith("or insist with --skip-anyway (in Python skip_anyway=True).\n")
    with pytest.raises(InputError, match=f"^{skip} ruins .* of .* tokens of the bundle's own answers, at "):
        edge.load(bundle.root, skip=skip)
    assert run(bundle, *asked, "--skip-anyway") == 0
    said = json.loads(capsys.readouterr().out)["token_ids"]
    model = edge.load(bundle.root, skip=skip, skip_anyway=True, kind=edge.Model)
    assert model.generate("hello", raw=True, max_tokens=4).token_ids == said


@pytest.mark.usefixtures("strict")
def test_what_leaves_nothing_out_ruins_nothing(by_layer: Bundle) -> None:
    for skip in ("off", "unified:0", "unified:0.05", "skipdecode:6-6"):
        assert edge.load(by_layer.root, skip=skip)


def test_what_a_setting_within_the_limit_costs_is_said_once(
    by_layer: Bundle, own_cache: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(loss, "RUINED", 1e30)
    for large, said in ((1e9, ["keeps"]), (0, ["Measuring what", "keeps"]), (0, [])):
        caplog.clear()
        monkeypatch.setattr(loss, "LARGE", large)
        if said:
            shutil.rmtree(own_cache / "skipped", ignore_errors=True)
        assert run(by_layer, "hello", "--raw", "--max-tokens", "2", "--skip", "unified:0.34") == 0
        own = [each.getMessage() for each in caplog.records if each.name == loss.__name__]
        assert len(own) == len(said) and all(a in b and "unified:0.34" in b for a, b in zip(said, own, strict=True))


@pytest.mark.usefixtures("strict")
def test_drafts_and_measurements_are_never_refused(by_layer: Bundle, tmp_path: Path) -> None:
    text, tasks = tmp_path / "text.txt", tmp_path / "tasks.jsonl"
    text.write_text("The moon changes its shape. " * 20, encoding="utf-8")
    tasks.write_text('{"question": "Why?", "answer": "So."}\n', encoding="utf-8")
    bundle, skip = str(by_layer.root), ["--skip", "unified:0.34"]
    assert main(["run", bundle, "hello", "--raw", "--max-tokens", "4", "--speculate", "self=2,3"]) == 0
    assert main(["eval", bundle, "--text", str(text), "--window", "40", "--tokens", "40", *skip]) == 0
    assert main(["eval", bundle, "--qa", str(tasks), "--max-tokens", "2", *skip]) == 0
    assert main(["profile", bundle, "--seconds", "1", *skip]) == 0
    assert open_engine(by_layer, skip="unified:0.34").routes is not None


WAYS = {
    "a chat": [],
    "a pipe": [],
    "lines": ["--lines", "{lines}"],
    "lines into a file": ["--lines", "{lines}", "--output", "{out}"],
}


@pytest.mark.usefixtures("strict")
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("kind", ["decoder", "encoder-decoder"])
def test_it_is_refused_before_anything_is_asked_or_written(
    by_layer: Bundle,
    t5: Bundle,
    way: str,
    kind: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """And not as a fault of a line, nor time and again in a chat."""
    bundle, lines, out = t5 if kind == "encoder-decoder" else by_layer, tmp_path / "lines.txt", tmp_path / "out.txt"
    lines.write_text("one\ntwo\n", encoding="utf-8")
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(b"one\ntwo\n" if way == "a pipe" else b"")))
    if way == "a chat":
        monkeypatch.setattr("sys.stdin", SimpleNamespace(isatty=lambda: True))
    monkeypatch.setattr("builtins.input", lambda *_: pytest.fail("it asked"))
    assert run(bundle, *(each.format(lines=lines, out=out) for each in WAYS[way]), "--skip", "unified:0.5") == 2
    printed, error = capsys.readouterr()
    assert printed == "" and error.splitlines()[-1].startswith(f"edge: unified:0.5 ruins {bundle.manifest.name}: it")
    assert ("edge tune" in error) is (kind == "decoder"), "which trains decoders"
    assert [path.name for path in tmp_path.iterdir() if path.is_file()] == ["lines.txt"]


def test_insisting_on_nothing_is_refused(by_layer: Bundle, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(by_layer, "hello", "--skip-anyway") == 2
    assert "name a policy with --skip" in capsys.readouterr().err


# Keeping


@pytest.fixture
def measurements(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Grows with each measurement."""
    made, measure = list[str](), loss.measure

    def watched(engine: Engine) -> SkipLoss:
        made.append(engine.bundle.manifest.name)
        return measure(engine)

    monkeypatch.setattr(loss, "measure", watched)
    monkeypatch.setattr(loss, "RUINED", 1e30)
    return made


def test_a_setting_is_measured_once_for_each_content_of_a_bundle(
    by_layer: Bundle, tmp_path: Path, measurements: list[str]
) -> None:
    elsewhere = Path(shutil.copytree(by_layer.root, tmp_path / "elsewhere.edge"))
    for root in (by_layer.root, by_layer.root, elsewhere):
        edge.load(root, skip="unified:0.34")
    assert len(measurements) == 1
    edge.load(by_layer.root, skip="unified:0.5")
    golden = read_golden(by_layer)
    other = _recorded(by_layer, tmp_path, dataclasses.replace(golden, cases=golden.cases[:2], forms=[]))
    edge.load(other.root, skip="unified:0.34")
    assert len(measurements) == 3


def test_a_ruined_bundle_is_not_loaded_to_be_refused_again(
    by_layer: Bundle, strict: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    for _ in range(2):
        with pytest.raises(InputError, match="ruins"):
            edge.load(by_layer.root, skip="unified:0.34")
        monkeypatch.setattr("edge.runtime.load.make_engine", lambda *_: pytest.fail("its weights were loaded"))


DAMAGES: dict[str, Any] = {
    "empty": "",
    "cut": '{"bundle": "',
    "another type": "[1, 2]",
    "no text": b"\xff\xfe",
    "fields missing": {},
    "of another bundle": {"files": {"weights.bin": "0" * 64}},
    "of another manifest": {"manifest": 1},
    "of another setting": {"skip": "unified:0.5"},
    "of another version": {"edge": "0.0.1"},
    "more same than there are": {"loss": {"tokens": 3, "same": 4, "divergence": 0.0}},
    "no tokens": {"loss": {"tokens": 0, "same": 0, "divergence": 0.0}},
    "no number": {"loss": {"tokens": 4, "same": 4, "divergence": None}},
    "below zero": {"loss": {"tokens": 4, "same": 4, "divergence": -1.0}},
    "beyond all": {"loss": {"tokens": 4, "same": 4, "divergence": 1e9}},
    "a folder": None,
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_record_is_measured_anew(
    by_layer: Bundle, own_cache: Path, measurements: list[str], damage: str
) -> None:
    edge.load(by_layer.root, skip="unified:0.34")
    (path,) = (own_cache / "skipped").iterdir()
    good, changes = path.read_text(encoding="utf-8"), DAMAGES[damage]
    if changes is None:
        path.unlink()
        path.mkdir()
    elif isinstance(changes, dict):
        path.write_text(json.dumps({**json.loads(good), **changes} if changes else {}), encoding="utf-8")
    else:
        path.write_bytes(changes if isinstance(changes, bytes) else changes.encode())
    edge.load(by_layer.root, skip="unified:0.34")
    assert len(measurements) == 2
    assert path.read_text(encoding="utf-8") == good


def test_without_a_cache_folder_it_is_measured_each_time(
    by_layer: Bundle, tmp_path: Path, measurements: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("", encoding="utf-8")
    monkeypatch.setenv("EDGE_HOME", str(tmp_path / "file" / "home"))
    for _ in range(2):
        assert edge.load(by_layer.root, skip="unified:0.34", kind=edge.Model).generate("a", max_tokens=2)
    assert len(measurements) == 2


def test_a_limit_of_memory_holds_while_it_is_measured(by_layer: Bundle) -> None:
    """Steps are as large as the plan allows for others."""
    engine = open_engine(by_layer, skip="unified:0.34", memory="1GB", context=64)
    assert engine.routes is not None and engine.plan is not None
    sizes, step = list[int](), engine.step

    def watched(cache: Any, tokens: Any, *more: Any, **others: Any) -> Any:
        sizes.append(len(tokens))
        return step(cache, tokens, *more, **others)

    engine.step = watched  # type: ignore[method-assign]
    demand = dataclasses.replace(engine.plan.demand, width=2, chunk=8)
    engine.plan = dataclasses.replace(engine.plan, demand=demand)
    found = loss.measure(engine)
    assert max(sizes) == 8 and sizes.count(2) > 20
    engine.plan = None
    assert loss.measure(engine).divergence == pytest.approx(found.divergence, rel=1e-3)


def test_a_source_is_cut_where_memory_has_room_for_less(t5: Bundle) -> None:
    engine = open_engine(t5, skip="unified:0.25")
    assert engine.routes is not None and engine.encoder is not None
    engine.encoder.max_length = 2
    assert min(len(case.source_ids) for case in read_golden(t5).cases) > 2
    assert loss.measure(engine).tokens >= TOKENS


def test_what_a_policy_does_in_the_course_of_an_answer_is_measured_to_its_end(by_layer: Bundle) -> None:
    """SkipDecode's layers fall over hundreds of tokens of an answer, of which few are recorded."""
    engine = open_engine(by_layer, skip="skipdecode:2-6")
    assert engine.routes is not None
    routes = set[tuple[int, ...]]()
    route = engine.routes.policy.route
    engine.routes.policy.route = lambda cache, size: routes.add(found := route(cache, size)) or found  # type: ignore
    loss.measure(engine)
    assert {len(each) for each in routes} == {2, 3, 4, 5, 6}


def _cut(case: GoldenCase, count: int) -> GoldenCase:
    """The first tokens of a recorded answer."""
    last = TopLogits(case.greedy_ids[count - 1 : count], [0.0])
    return dataclasses.replace(case, greedy_ids=case.greedy_ids[:count], last=last)


def _recorded(bundle: Bundle, folder: Path, golden: Golden) -> Bundle:
    """The bundle with other recorded answers."""
    root = Path(shutil.copytree(bundle.root, folder / "recorded.edge"))
    (root / "golden.json").write_text(json.dumps(dataclasses.asdict(golden)), encoding="utf-8")
    sealed_again(dataclasses.replace(bundle, root=root))
    return open_bundle(root)
