"""A bundle with graphs for an NPU, by the commands that a user types: on Qualcomm's simulator where it is installed,
and on the CPU, which computes the same integers."""

from __future__ import annotations

import dataclasses
import json
import logging
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from npu_models import NAME, needs_simulator
from paper_bundles import sealed_again

import edge
from edge import targets
from edge.bundle import Bundle, open_bundle
from edge.cli.main import main
from edge.errors import BundleError, DeviceError, ExportError, InputError, MissingExtraError
from edge.export.targets.npu import compile as compiling
from edge.golden import read_golden
from edge.runtime.check.golden import open_role, replay_golden
from edge.runtime.decode.generate_options import GenerateOptions
from edge.runtime.engine.engine import Engine
from edge.runtime.engine.variant import Variant
from edge.runtime.profile.profile import ProfileOptions, profile
from edge.runtime.providers import open_provider, qnn
from edge.runtime.providers.accelerator import Accelerator, DeviceSession
from edge.runtime.providers.provider import NPU, Device
from edge.targets import Compiled, path_of, read_target

CONTEXT = 96


@pytest.fixture(scope="module")
def pristine(tiny_checkpoint: Path, tmp_path_factory: pytest.TempPathFactory) -> Bundle:
    out = tmp_path_factory.mktemp("npu") / "npu.edge"
    options = ["--weights", "int8", "--target", NAME, "--target-context", str(CONTEXT)]
    assert main(["export", str(tiny_checkpoint), "-o", str(out), *options]) == 0
    return open_bundle(out)


@pytest.fixture
def bundle(pristine: Bundle, tmp_path: Path) -> Bundle:
    """The same, which the test may harm."""
    return Bundle(Path(shutil.copytree(pristine.root, tmp_path / "npu.edge")), pristine.manifest)


@pytest.fixture
def on_the_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """The CPU's provider runs the target, as an NPU's does elsewhere."""
    monkeypatch.setitem(targets.TARGETS, NAME, "cpu")


def changed(bundle: Bundle, **fields: Any) -> None:
    """Let the target say something else."""
    path = bundle.path(path_of(NAME))
    path.write_text(json.dumps(json.loads(path.read_text()) | fields))


# Export


def test_the_target_is_in_the_bundle_and_nothing_else_is(pristine: Bundle) -> None:
    target = read_target(pristine, NAME)
    assert (target.context, target.kv, target.compiled) == (CONTEXT, "int16", [])
    assert [(graph.size, graph.rows) for graph in target.graphs] == [(1, 1), (8, 8), (64, 1)]
    named = {path_of(NAME), target.embedding, f"targets/{NAME}/weights.bin"}
    named |= {*target.graph_paths, *(each.path for each in target.tables)}
    assert {file.path for file in pristine.manifest.files if file.path.startswith("targets/")} == named
    assert target.quality["top1_agreement"] > 0.8 and target.quality["kl_mean"] < 0.05
    assert [form.role for form in read_golden(pristine).forms][-1] == NAME


def test_the_graphs_share_their_weights(pristine: Bundle) -> None:
    graphs = [pristine.path(path).stat().st_size for path in read_target(pristine, NAME).graph_paths]
    parameters = sum(group.parameters for group in pristine.manifest.groups)
    weights = pristine.path(f"targets/{NAME}/weights.bin").stat().st_size
    assert parameters < weights < 3 * parameters and max(graphs) < weights * 3


def test_inspect_says_what_a_step_moves(pristine: Bundle, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["inspect", str(pristine.root)]) == 0
    out = " ".join(capsys.readouterr().out.split())
    assert f"{NAME}, context {CONTEXT}" in out and "steps of 64" in out and "nobody has measured it" in out
    assert main(["inspect", str(pristine.root), "--json"]) == 0
    (found,) = json.loads(capsys.readouterr().out)["targets"]
    assert [graph["tokens"] for graph in found["graphs"]] == [1, 8, 64]
    assert set(found["graphs"][0]["estimates"]) == {"sm8550", "sm8650", "sm8750", "sm8850"}


NO_TARGET = (
    "--target-context, --target-weights, --target-activations and --soc are for graphs that --target writes; name one."
)


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        (["--target", "npu-paper"], "There is no target 'npu-paper'; choose one of npu-qualcomm, cuda."),
        (["--target", NAME, "--target-context", "32"], "--target-context must be between 64 and 512"),
        (["--target", NAME, "--target-context", "1024"], "--target-context must be between 64 and 512"),
        (["--target", NAME, "--max-context", "32"], "needs a context of 64 tokens or more, and this bundle has 32"),
        (["--target", NAME, "--soc", "sm1"], "There is no chip 'sm1'; known are sm8550 (Snapdragon 8 Gen 2), "),
        (["--target", NAME, "--target-context", "64,1024"], "--target-context must be between 64 and 512"),
        (["--target", NAME, "--target-context", "64,x"], "'64,x' is no number, nor several with commas between them"),
        (["--soc", "sm8650"], NO_TARGET),
        (["--target-context", "64"], NO_TARGET),
        (["--target-weights", "int4"], NO_TARGET),
        (
            ["--target", NAME, "--target-weights", "int3"],
            "There are no target weights 'int3' for npu-qualcomm; choose int8 or int4",
        ),
    ],
)
def test_what_cannot_be_made_is_a_sentence_before_anything_is_done(
    tiny_checkpoint: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], options: list[str], expected: str
) -> None:
    assert main(["export", str(tiny_checkpoint), "-o", str(tmp_path / "x.edge"), *options]) == 2
    assert expected in capsys.readouterr().err.splitlines()[-1]
    assert list(tmp_path.iterdir()) == []


def test_without_the_plugin_nothing_is_compiled_and_the_extra_is_named(
    tiny_checkpoint: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "onnxruntime_qnn", None)
    with pytest.raises(InputError, match=r"Nothing can be compiled for sm8650 here: .*\[npu-qualcomm\]"):
        edge.export(tiny_checkpoint, tmp_path / "x.edge", target=NAME, soc=["sm8650"])
    assert list(tmp_path.iterdir()) == []


def test_graphs_that_say_something_else_are_not_written(
    tiny_checkpoint: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("edge.export.targets.npu.qdq.activation_grid", lambda found: _coarse(found))
    with pytest.raises(ExportError, match="do not answer as the model in float32 does .* export it without --target"):
        edge.export(tiny_checkpoint, tmp_path / "x.edge", weights="fp32", target=NAME, target_context=64)
    assert list(tmp_path.iterdir()) == []


def _coarse(found: tuple[float, float]) -> Any:
    from edge.export.targets.npu.qdq import Grid

    return Grid(np.float32(max(found[1], 0.1)), np.uint16(1))  # type: ignore[arg-type]


# Answers


@pytest.mark.usefixtures("on_the_cpu")
def test_a_text_a_chat_and_drafts(bundle: Bundle, capsys: pytest.CaptureFixture[str]) -> None:
    model = edge.load(bundle.root, provider="cpu", kind=edge.Model)
    assert model.engine.target is not None and model.engine.context == CONTEXT
    options = GenerateOptions(max_tokens=12)
    plain = edge.load(bundle.root, provider="cpu", speculate="off", kind=edge.Model).generate("the moon", options)
    drafted = edge.load(bundle.root, provider="cpu", speculate="lookup", kind=edge.Model).generate("the moon", options)
    assert len(plain.token_ids) == len(drafted.token_ids) and drafted.speculation is not None
    chat = model.chat()
    for line in ("one", "two"):
        assert chat.generate(line, GenerateOptions(max_tokens=4)).generated_tokens
    assert chat.cached_tokens > 8
    with pytest.raises(InputError, match=f"and the context holds {CONTEXT}"):
        model.generate("word " * CONTEXT, options)


@pytest.mark.usefixtures("on_the_cpu")
@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"exact": True}, "--exact does not apply to the graphs of .* for npu-qualcomm; leave it out, or choose"),
        ({"exact": True}, "or choose the provider cpu"),
        ({"memory": 10**9}, "--memory does not apply"),
        ({"kv": "int8"}, "--kv int8 does not apply"),
        (
            {"context": CONTEXT + 1},
            f"made for {CONTEXT} tokens, not 97; choose a --context of {CONTEXT} or less, or export",
        ),
    ],
)
def test_options_that_fixed_sizes_cannot_have(pristine: Bundle, options: dict[str, Any], expected: str) -> None:
    with pytest.raises(InputError, match=expected):
        edge.load(pristine.root, provider="cpu", kind=edge.Model, **options).engine  # noqa: B018


@pytest.mark.usefixtures("on_the_cpu")
def test_verify_replays_what_was_recorded_of_the_target(pristine: Bundle, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["verify", str(pristine.root), "--provider", "cpu"]) == 0
    assert f"Graph    {NAME}, for the provider " in capsys.readouterr().out
    golden = read_golden(pristine)
    report = replay_golden(open_role(pristine, NAME), golden, role=NAME)
    assert report.ok and report.largest_difference < 0.01


@pytest.mark.usefixtures("on_the_cpu")
def test_a_profile_is_of_the_target(pristine: Bundle) -> None:
    found = profile(pristine.root, ProfileOptions(seconds=2, provider="cpu"))
    assert {row.graph for row in found.placement} == {f"{NAME}, steps of {size}" for size in (1, 8, 64)}
    assert max(row.context for row in found.decode) < CONTEXT and not found.curve_int8


@pytest.mark.usefixtures("on_the_cpu")
@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({"version": 99}, "is of version 99, and this edge reads version 1; upgrade edge"),
        ({"graphs": []}, "names no graph for a step of one token"),
        ({"shorter": [{"context": 64, "graphs": []}]}, "names no graph for a step of one token"),
        ({"graphs": [{"size": 1, "rows": 1, "paths": []}]}, "names graphs without parts"),
        (
            {"shorter": [{"context": 128, "graphs": [{"size": 1, "rows": 1, "paths": ["weights.bin"]}]}]},
            "names contexts that do not grow",
        ),
        ({"context": "many"}, "context"),
        ({"embedding": "../x"}, "leads out of the bundle"),
    ],
)
def test_a_target_that_is_no_target(bundle: Bundle, fields: dict[str, Any], expected: str) -> None:
    changed(bundle, **fields)
    with pytest.raises(BundleError, match=expected):
        Engine(bundle, Variant(target=NAME), open_provider("cpu"))


# A device


class Phone(Accelerator):
    """An NPU of a chip, whose graphs the CPU runs. opened: what it opened as compiled for it."""

    def __init__(self, chip: str | None) -> None:
        device = Device("qnn", NPU, "Paper", chip=chip)
        super().__init__(
            "qnn", "CPUExecutionProvider", device, lambda options: None, threads=None, arena=-1, strict=True
        )
        self.opened: list[Path] = []

    def open_compiled(self, model: Path) -> Any:
        self.opened.append(model)
        return super().open_compiled(model)


def compiled(bundle: Bundle, compiler: str = "onnxruntime-qnn 1.0") -> list[str]:
    """Let the target have copies of its graphs as compiled for a chip."""
    target = read_target(bundle, NAME)
    paths = [path.replace("step-", "compiled-") for path in target.graph_paths]
    for graph, path in zip(target.graph_paths, paths, strict=True):
        shutil.copy(bundle.path(graph), bundle.path(path))
    changed(bundle, compiled=[dataclasses.asdict(Compiled("sm8650", 75, compiler, paths))])
    return paths


def test_a_chip_gets_what_was_compiled_for_it(bundle: Bundle, caplog: pytest.LogCaptureFixture) -> None:
    paths = compiled(bundle)
    phone = Phone("sm8650")
    engine = Engine(bundle, Variant(target=NAME), phone)
    assert phone.opened == [bundle.path(path) for path in paths] and not caplog.records
    assert engine.path(f"{NAME}, steps of 8") == bundle.path(paths[1])


@pytest.mark.parametrize(("chip", "told"), [("sm8550", "sm8550 (it is for: sm8650)"), (None, "which is not known")])
def test_another_chip_compiles_at_every_start_and_says_so(
    bundle: Bundle, caplog: pytest.LogCaptureFixture, chip: str | None, told: str
) -> None:
    compiled(bundle)
    phone = Phone(chip)
    with caplog.at_level(logging.WARNING):
        Engine(bundle, Variant(target=NAME), phone)
    assert phone.opened == [] and told in caplog.text and "every start compiles it" in caplog.text


def test_what_another_package_compiled_names_both(bundle: Bundle) -> None:
    paths = compiled(bundle)
    bundle.path(paths[0]).write_bytes(b"of another version")
    told = (
        r"What onnxruntime-qnn 1\.0 compiled for sm8650 does not open with .*: .*compiled-1\.onnx could not be loaded"
    )
    with pytest.raises(BundleError, match=told):
        Engine(bundle, Variant(target=NAME), Phone("sm8650"))


def test_a_device_that_disappears_ends_the_answer_with_what_there_is(
    bundle: Bundle, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    compiled(bundle)
    runs = 0
    guarded = DeviceSession._guarded

    def fail(session: DeviceSession, run: Callable[[], Any]) -> Any:
        nonlocal runs
        runs += 1

        def broken() -> Any:
            raise RuntimeError("the device is gone")

        return guarded(session, broken if runs > 4 else run)

    monkeypatch.setattr(DeviceSession, "_guarded", fail)
    sealed_again(bundle)
    model = edge.load(bundle.root, provider=Phone("sm8650"), speculate="off", kind=edge.Model)
    got = []
    with pytest.raises(DeviceError, match=r"of the provider qnn failed \(the device is gone\), and the answer ends"):
        for piece in model.stream("a", GenerateOptions(max_tokens=20)):
            got.append(piece)
    assert 1 <= len(got) < 20


def test_the_chip_is_what_the_system_calls_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(qnn, "MACHINE", tmp_path / "machine")
    assert qnn._chip() is None
    (tmp_path / "machine").write_text("SM8550\n")
    assert qnn._chip() == "sm8550"
    command = tmp_path / "getprop"
    command.write_text("#!/bin/sh\n[ $1 = ro.soc.model ] && echo SM8650\n")
    command.chmod(0o755)
    assert qnn._chip() == "sm8650"


# Qualcomm's simulator


def test_the_commands_on_the_simulator(
    pristine: Bundle, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    needs_simulator()
    root = str(pristine.root)
    assert main(["verify", root, "--provider", "qnn"]) == 0
    assert f"Graph    {NAME}" in capsys.readouterr().out
    assert main(["inspect", root, "--provider", "qnn", "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)["placement"]
    assert len(rows) == 3 and {(row["provider"], row["node_share"]) for row in rows} == {("QNNExecutionProvider", 1.0)}
    assert {row["weight_share"] for row in rows} == {1.0}
    assert main(["run", root, "the moon", "--provider", "qnn", "--max-tokens", "5", "--json"]) == 0
    answer = json.loads(capsys.readouterr().out)
    assert answer["generated_tokens"] and answer["ttft_ms"] is answer["decode_tokens_per_s"] is None
    assert main(["run", root, "the moon", "--provider", "qnn", "--max-tokens", "5"]) == 0
    out, err = capsys.readouterr()
    assert out and "on a simulator, whose times say nothing" in err and "tokens/s" not in err and "TTFT" not in err
    assert main(["profile", root, "--provider", "qnn"]) == 2
    assert "simulates Hexagon on this machine" in capsys.readouterr().err


def test_a_graph_that_was_compiled_for_a_chip_gives_the_same_bits(pristine: Bundle, tmp_path: Path) -> None:
    """Alone: the simulator opens no binary whose graphs share weights."""
    needs_simulator()
    target = read_target(pristine, NAME)
    folder = Path(shutil.copytree(pristine.root / "targets" / NAME, tmp_path / "target"))
    out = tmp_path / "compiled.onnx"
    chip = compiling.SOCS["sm8650"]
    options = {"htp_arch": str(chip.architecture), "soc_model": str(chip.model)}
    compiling.compile_apart({str(folder / "step-8.onnx"): str(out)}, options, chip.name)
    provider = open_provider("qnn")
    plain = provider.open_model(folder / "step-8.onnx", "plain")
    random = np.random.default_rng(0)
    given = {}
    for value in plain.inference.get_inputs():
        kind = {"tensor(float)": np.float32, "tensor(int16)": np.int16, "tensor(int32)": np.int32}[value.type]
        given[value.name] = random.standard_normal(value.shape).astype(kind)
    given["logit_rows"][:] = range(target.graphs[1].rows)
    theirs = plain.run(given)  # before the other one, after which the simulator runs no graph that it compiled itself
    for ours, other in zip(provider.open_model(out, "compiled").run(given), theirs, strict=True):
        np.testing.assert_array_equal(ours, other)


def test_chips_get_one_binary_for_all_graphs(tiny_checkpoint: Path, tmp_path: Path) -> None:
    needs_simulator()
    made = edge.export(
        tiny_checkpoint,
        tmp_path / "x.edge",
        weights="fp32",
        target=NAME,
        target_context=64,
        soc=["sm8550"],
        check=False,
    )
    (found,) = read_target(made, NAME).compiled
    assert (found.soc, found.architecture) == ("sm8550", 73) and found.compiler.startswith("onnxruntime-qnn ")
    files = {file.path: file.size for file in made.manifest.files if "sm8550/" in file.path}
    binaries = {path: size for path, size in files.items() if path.endswith(".bin")}
    assert set(found.paths) == set(files) - set(binaries) and len(binaries) == 1
    with pytest.raises(BundleError, match="What onnxruntime-qnn .* compiled for sm8550 does not open with"):
        _as_on("sm8550", made)


def test_what_does_not_compile_is_a_sentence(tmp_path: Path) -> None:
    needs_simulator()
    (tmp_path / "a.onnx").write_bytes(b"no graph")
    with pytest.raises(
        ExportError, match=r"Nothing was compiled for sm8650 \(.*a\.onnx could not be loaded .*--soc sm8650"
    ):
        compiling.compile_apart({str(tmp_path / "a.onnx"): str(tmp_path / "b.onnx")}, {"htp_arch": "75"}, "sm8650")


def _as_on(chip: str, bundle: Bundle) -> None:
    """Open a bundle as a device with this chip does, over the simulator, which knows no shared weights."""
    provider = open_provider("qnn")
    assert isinstance(provider, Accelerator)
    provider._device = Device("qnn", NPU, "Paper", chip=chip)
    Engine(bundle, Variant(target=NAME), provider)


def test_a_missing_plugin_leaves_the_cpu_at_work(pristine: Bundle, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "onnxruntime_qnn", None)
    with pytest.raises(MissingExtraError, match=r"\[npu-qualcomm\]"):
        edge.load(pristine.root, provider="qnn")
    assert edge.load(pristine.root, provider="cpu", kind=edge.Model).generate("hi", GenerateOptions(max_tokens=2)).text
