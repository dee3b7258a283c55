"""`edge profile` on real engines: a decoder, a translator and an ear, all tiny; the command, and what it refuses."""

from __future__ import annotations

import dataclasses
import errno
import json
import os
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from profile_example import example_profile

from edge.bundle import Bundle
from edge.cli.main import main
from edge.errors import BundleError, InputError
from edge.manifest import KV8_STEP
from edge.runtime.costs.curve import CostCurve, load
from edge.runtime.costs.record import Profile, parse
from edge.runtime.engine.engine import Engine
from edge.runtime.engine.variant import kv_dtypes
from edge.runtime.kernels.graph import attends_to_bytes
from edge.runtime.load import open_engine
from edge.runtime.profile import fresh
from edge.runtime.profile import profile as profiles
from edge.runtime.profile.profile import ProfileOptions, grid, profile
from edge.runtime.profile.subject import Subject
from edge.runtime.providers import PROVIDERS


def passed() -> float:
    """Seconds that this thread and ended children computed: all that passes on a machine that does nothing else."""
    return time.thread_time() + sum(os.times()[2:4])


@contextmanager
def nothing_else_running() -> Iterator[None]:
    """Within it, a profile's time goes by as on a machine that does nothing else, however busy this one is."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(profiles, "time", SimpleNamespace(monotonic=passed))
        for name in ("take_turns", "sustain"):
            patch.setattr(profiles, name, partial(getattr(profiles, name), clock=passed))
        yield


@pytest.fixture(scope="module")
def measured(pristine_tiny_bundle: Bundle) -> Profile:
    with nothing_else_running():
        return profile(pristine_tiny_bundle.root, ProfileOptions(seconds=40))


def test_a_profile_has_every_figure(measured: Profile, pristine_tiny_bundle: Bundle) -> None:
    assert parse(measured.to_json(), "a.json") == measured
    assert [row.input_tokens for row in measured.ttft] == [row.context for row in measured.decode] == [8, 32, 128, 448]
    assert {point.size for point in measured.curve} == set(profiles.SIZES)
    assert {point.context for point in measured.curve} <= {8, 32, 128, 448}
    assert all(point.low_ms <= point.ms <= point.high_ms for point in measured.curve)
    widest = max(profiles.SIZES) if attends_to_bytes(pristine_tiny_bundle) else KV8_STEP
    assert {point.size for point in measured.curve_int8} == {size for size in profiles.SIZES if size <= widest}
    assert {point.context for point in measured.curve_int8} <= {8, 32, 128, 448}
    assert all(point.count >= 3 for point in measured.curve_int8)
    assert measured.sustained is not None and len(measured.sustained.rates) >= 3
    assert measured.load is not None and measured.load.warm.p50_ms > 1
    assert [use.phase for use in measured.usage] == ["prefill", "decode"]
    assert all(use.tokens > 0 and use.cpu_s > 0 for use in measured.usage)
    assert measured.noise is not None and measured.noise.spread >= 0
    assert measured.bundle.input == "prompt" and measured.context == 512 and measured.source_tokens is None


def test_longer_inputs_and_larger_steps_take_longer(measured: Profile) -> None:
    assert measured.ttft[-1].time.min_ms > measured.ttft[0].time.min_ms
    curve = CostCurve(measured.curve)
    assert curve.ms(64, 8) > curve.ms(1, 8)


@pytest.mark.skipif(sys.platform != "linux", reason="/proc tells kinds of memory")
def test_memory_is_told_by_kind_over_time(measured: Profile) -> None:
    memory = measured.memory
    assert memory is not None and memory.peak_private_bytes and memory.steady_private_bytes
    assert memory.peak_bytes and memory.peak_bytes > memory.peak_private_bytes
    phases = [sample.phase for sample in memory.samples]
    assert phases == sorted(phases, key=["start", "import", "load", "prefill", "decode"].index)
    last = memory.samples[-1].kinds
    assert last["floor"] > 15e6 and last["kv"] >= 2 * 2 * 2 * 4096  # a page for each head of keys and values
    assert abs(sum(last.values()) / memory.peak_bytes - 1) < 0.2
    assert abs((sum(last.values()) - last["files"]) / memory.peak_private_bytes - 1) < 0.2
    assert memory.predicted is not None and sum(memory.predicted.values()) == memory.predicted_bytes
    assert abs(memory.predicted_bytes / memory.peak_private_bytes - 1) < 0.2


def test_fresh_processes_run_this_edge_whatever_the_current_folder_holds(
    tiny_bundle: Bundle, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("edge", "numpy"):
        (tmp_path / f"{name}.py").write_text(f"raise SystemExit('the current folder has an {name} of its own')")
    monkeypatch.chdir(tmp_path)
    assert fresh.load_ms(fresh.Settings(str(tiny_bundle.root), 64, 1, "cpu")) > 0


@pytest.mark.parametrize("seconds", [1, 4])
def test_the_time_is_kept(tiny_bundle: Bundle, seconds: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fresh, "load_ms", lambda settings: 5.0)  # fresh processes take as long as imports take
    monkeypatch.setattr(fresh, "memory", lambda settings, prompt, tokens: example_profile().memory)
    start = passed()
    with nothing_else_running():
        found = profile(tiny_bundle.root, ProfileOptions(seconds=seconds))
    assert passed() - start < seconds * 1.25 + 1.5
    assert {point.size for point in found.curve or found.curve_int8} == set(profiles.SIZES)


def test_where_loading_takes_all_the_time_everything_is_still_measured_once(
    tiny_bundle: Bundle, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fresh, "load_ms", lambda settings: time.sleep(0.6) or 600.0)
    monkeypatch.setattr(fresh, "memory", lambda settings, prompt, tokens: example_profile().memory)
    found = profile(tiny_bundle.root, ProfileOptions(seconds=1))
    assert found.ttft and found.sustained is not None and len(found.decode) == 4
    curve = found.curve or found.curve_int8
    assert {point.size for point in curve} == set(profiles.SIZES)
    assert all(point.count >= 1 for point in curve)


def test_what_is_measured_is_what_generates(tiny_bundle: Bundle) -> None:
    """Behind a context that was reached by moving the cache's length, a step attends to as many rows."""
    engine = open_engine(tiny_bundle, context=256)
    subject = Subject(engine, 256)
    subject.fill()
    cache = subject._cache
    subject.decode(100, 3)
    assert cache.length == 104 and subject.length == 104
    subject.step(16, 200)
    assert cache.length == 216
    rows = np.concatenate([buffer[0, :, :256].ravel() for pair in cache.buffers for buffer in pair])
    assert np.count_nonzero(rows) > 0.99 * rows.size


@pytest.mark.parametrize("kind", ["text", "audio"])
def test_encoder_decoders_are_measured_too(kind: str, tmp_path: Path) -> None:
    engine = translator(tmp_path) if kind == "text" else ear(tmp_path)
    bundle = engine.bundle
    (bundle.root / "edge.json").write_text(bundle.manifest.to_json())
    said: list[str] = []
    with nothing_else_running():
        found = profiles._Run(bundle, ProfileOptions(seconds=2), lambda done, total, text: said.append(text)).profile()
    assert parse(found.to_json(), "a.json") == found
    assert all(row.encode is not None and row.encode.p50_ms < row.time.p50_ms for row in found.ttft)
    if kind == "text":
        assert found.bundle.input == "source" and found.ttft[0].input_tokens == 8 and found.source_tokens == 64
    else:
        heard = [(row.input_tokens, row.audio_s) for row in found.ttft]
        assert heard == [(8, 0.16), (16, 0.32), (50, 1.0)], "short windows and a whole one"
        assert found.bundle.input == "audio" and found.source_tokens == 50
    assert found.load is None and any("fresh process" in note for note in found.notes)  # it has no tokenizer
    assert found.curve and found.decode and "cost curve" in said


def translator(folder: Path) -> Engine:
    from encoder_decoder_harness import Exported, tiny_model
    from graph_harness import TinyCheckpoint, float_matrices
    from transformers import T5Config

    model = tiny_model(T5Config(vocab_size=60, d_model=32, d_kv=8, d_ff=48, num_layers=2, num_heads=4))
    return Exported(folder / "t5.edge", model, float_matrices(TinyCheckpoint(model)), 96).engine


def ear(folder: Path) -> Engine:
    from whisper_speaker import Speaker

    return Speaker(folder / "ear.edge").engine


def test_lengths_are_about_four_times_one_another() -> None:
    assert grid(8128) == [16, 128, 512, 2000, 8128]
    assert grid(4032) == [16, 128, 512, 2000, 4032]
    assert grid(448) == [8, 32, 128, 448] and grid(8) == [8] and grid(20) == [8, 20]


def test_a_small_context_is_measured_within_itself(tiny_bundle: Bundle, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fresh, "load_ms", lambda settings: 5.0)
    monkeypatch.setattr(fresh, "memory", lambda settings, prompt, tokens: example_profile().memory)
    found = profile(tiny_bundle.root, ProfileOptions(seconds=1, context=16))
    points = [*found.curve, *found.curve_int8]  # of one of them, where there was no time for the other
    assert found.context == 16 and max(point.size + point.context for point in points) <= 16


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"provider": "tpu"}, f"There is no provider 'tpu'; choose one of {', '.join(PROVIDERS)}."),
        ({"seconds": 0.0}, "Measuring needs 1 second or more, not 0."),
        ({"seconds": float("nan")}, "Measuring needs 1 second or more, not nan."),
        ({"context": 3}, "A profile needs a context of 16 tokens or more, not 3."),
    ],
)
def test_an_option_out_of_its_range_is_one_sentence(options: dict[str, object], sentence: str) -> None:
    with pytest.raises(InputError) as caught:
        ProfileOptions(**options)  # type: ignore[arg-type]
    assert str(caught.value) == sentence


def test_what_cannot_be_measured_is_refused_before_anything_is(
    tiny_bundle: Bundle, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delattr(fresh, "load_ms")
    with pytest.raises(InputError, match="The context must be up to 512 tokens for this bundle, not 513."):
        profile(tiny_bundle.root, ProfileOptions(context=513))
    graphs = [dataclasses.replace(graph, role="segment") for graph in tiny_bundle.manifest.graphs]
    changed = dataclasses.replace(tiny_bundle.manifest, graphs=graphs)
    (tiny_bundle.root / "edge.json").write_text(changed.to_json())
    with pytest.raises(BundleError, match="graphs has none with the role 'decoder'; export"):
        profile(tiny_bundle.root, ProfileOptions())


def test_the_command_prints_tables_and_keeps_the_curve(tiny_bundle: Bundle, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["profile", str(tiny_bundle.root), "--seconds", "2"]) == 0
    out = capsys.readouterr().out
    for title in ("Time to first token", "Time per output token", "A step of S tokens", "Sustained", "Load", "Noise"):
        assert title in out
    engine, kv = open_engine(tiny_bundle), kv_dtypes(tiny_bundle)[0]
    assert load(tiny_bundle, provider="cpu", threads=engine.threads, kv=kv) is not None


def test_operators_are_shown_and_written_as_a_trace(
    tiny_bundle: Bundle, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    trace, page = tmp_path / "trace.json", tmp_path / "report.html"
    given = ["--seconds", "2", "--ops", "--trace", str(trace), "--html", str(page)]
    assert main(["profile", str(tiny_bundle.root), *given]) == 0
    out = capsys.readouterr().out
    assert "This machine reads" in out and "By operator" in out and "GroupQueryAttention" in out and "lm_head" in out
    assert json.loads(trace.read_text())["traceEvents"] and page.read_text().startswith("<!doctype html>")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["report.html", "tiny.edge", "trace.json"]


def test_a_stored_profile_becomes_reports_too(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    stored, trace = tmp_path / "phone.json", tmp_path / "trace.json"
    stored.write_text(example_profile().to_json())
    assert main(["profile", str(stored), "--ops", "--trace", str(trace)]) == 0
    assert "3 layers of" in capsys.readouterr().out and trace.exists()
    stored.write_text(dataclasses.replace(example_profile(), ops=[]).to_json())
    assert main(["profile", str(stored), "--ops"]) == 2
    assert "phone.json holds no operators; profile the bundle with --ops." in capsys.readouterr().err


@pytest.mark.parametrize("option", ["--trace", "--html"])
def test_a_report_that_cannot_be_written_is_refused_before_anything_is_measured(
    option: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "folder").mkdir()
    for target, why in [("folder", "it is a folder; name a file"), ("none/x.html", "No such file or directory")]:
        assert main(["profile", "no-such.edge", option, str(tmp_path / target)]) == 2
        err = capsys.readouterr().err
        assert err == f"edge: The report {tmp_path / target} cannot be written: {why}.\n"


@pytest.mark.parametrize("option", ["--trace", "--html"])
def test_a_disk_that_fills_while_a_report_is_written_is_one_sentence(
    option: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def full(number: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    (tmp_path / "phone.json").write_text(example_profile().to_json())
    report = tmp_path / "report"
    report.write_text("the one before")
    monkeypatch.setattr(os, "fsync", full)
    assert main(["profile", str(tmp_path / "phone.json"), option, str(report)]) == 2
    said = f"edge: The report {report} could not be written: No space left on device; nothing new was left there.\n"
    assert capsys.readouterr().err == said
    assert sorted(path.name for path in tmp_path.iterdir()) == ["phone.json", "report"]


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="there is no /dev/full")  # noqa: PTH110
@pytest.mark.parametrize("option", ["--trace", "--html"])
def test_a_device_is_written_to_and_never_replaced(
    option: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "phone.json").write_text(example_profile().to_json())
    device = tmp_path / "device"  # a link, as /dev/stdout is: were it replaced, /dev/full would still be there
    device.symlink_to("/dev/full")
    assert main(["profile", str(tmp_path / "phone.json"), option, str(device)]) == 2
    assert capsys.readouterr().err == f"edge: The report {device} could not be written: No space left on device.\n"
    assert device.is_symlink() and device.is_char_device()


def test_a_link_goes_on_to_lead_to_the_report(tmp_path: Path) -> None:
    (tmp_path / "phone.json").write_text(example_profile().to_json())
    (tmp_path / "elsewhere").mkdir()
    link = tmp_path / "report.html"
    link.symlink_to(tmp_path / "elsewhere" / "real.html")
    assert main(["profile", str(tmp_path / "phone.json"), "--html", str(link)]) == 0
    assert link.is_symlink() and [path.name for path in (tmp_path / "elsewhere").iterdir()] == ["real.html"]


def test_a_profile_from_elsewhere_is_shown(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "phone.json").write_text(example_profile(kind="speech").to_json())
    assert main(["profile", str(tmp_path / "phone.json")]) == 0
    out = capsys.readouterr().out
    assert "paper-phone" in out and "1,500 (30 s)" in out and "(battery)" in out and "predicted 200 MB (+4.7%)" in out
    assert main(["profile", str(tmp_path / "phone.json"), "--json"]) == 0
    assert parse(capsys.readouterr().out, "out") == example_profile(kind="speech")


def test_a_fraction_of_a_second_is_never_shown_as_none(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    shown = example_profile()
    assert shown.sustained is not None
    rates = [dataclasses.replace(shown.sustained.rates[0], second=0.4)]
    short = dataclasses.replace(shown, sustained=dataclasses.replace(shown.sustained, rates=rates))
    (tmp_path / "phone.json").write_text(short.to_json())
    assert main(["profile", str(tmp_path / "phone.json")]) == 0
    assert " tokens/s over 0.4 s, " in capsys.readouterr().out


def test_two_profiles_are_shown_side_by_side(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    paths = [str(tmp_path / name) for name in ("a.json", "b.json")]
    for path, slower in zip(paths, (1.0, 2.0), strict=True):
        Path(path).write_text(example_profile(slower=slower).to_json())
    assert main(["profile", "--compare", *paths]) == 0
    out = capsys.readouterr().out
    assert "token @ 512" in out and "2.00*" in out
    assert main(["profile", "--json", "--compare", *paths]) == 0
    assert json.loads(capsys.readouterr().out)["differences"] == []


@pytest.mark.parametrize(
    ("args", "sentence"),
    [
        ([], "There is nothing to measure; give a bundle, or two profiles with --compare."),
        (["x.edge"], "There is no bundle at x.edge; edge export makes one."),
        (["x.edge", "--compare", "a.json", "b.json"], "--compare takes two profiles, measures nothing, writes"),
        (["--compare", "a.json", "b.json"], "The profile a.json cannot be read: No such file or directory."),
        (["--compare", "a.json"], "Argument --compare: expected 2 arguments"),
        (["--compare", "a.json", "b.json", "--html", "x.html"], "writes no report; omit --html."),
        (["x.edge", "--provider", "tpu"], "There is no provider 'tpu'"),
        (["x.edge", "--drafter", "lookup"], "--drafter says what --speculate measures; give --speculate too, or"),
        (["x.edge", "--speculate", "--drafter", "look"], "There is no drafter 'look'; there are auto, off, blend, "),
        (["x.edge", "--speculate", "--drafter", "model"], "The drafter model needs an argument; write it as in"),
        (["x.edge", "--speculate", "--drafter", "off"], "Plain decoding is measured with every drafter; omit"),
        (["x.edge", "--speculate", "--drafter", "lookup"], "There is no bundle at x.edge; edge export makes one."),
        (["x.edge", "--speculate", "--provider", "tpu"], "There is no provider 'tpu'"),
        (["--compare", "a.json", "b.json", "--speculate"], "--compare takes two profiles, measures nothing, writes no "
         "report; omit --speculate."),
    ],
)  # fmt: skip
def test_the_command_refuses_in_one_sentence(
    args: list[str], sentence: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["profile", *args]) == 2
    captured = capsys.readouterr()
    assert captured.out == "" and sentence in captured.err and captured.err.count("\n") == 1


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="there is no /dev/full")  # noqa: PTH110
@pytest.mark.parametrize(
    ("args", "what"),
    [(["a.json", "--json"], "The output could not be written"),
     (["a.json"], "The output could not be written"),
     (["--compare", "a.json", "a.json"], "The output could not be written")],
    ids=["json", "tables", "comparison"],
)  # fmt: skip
def test_a_full_disk_behind_standard_output_is_one_sentence(args: list[str], what: str, tmp_path: Path) -> None:
    import subprocess

    (tmp_path / "a.json").write_text(example_profile().to_json())
    command = [sys.executable, "-m", "edge.cli.main", "profile", *args]
    with open("/dev/full", "w") as full:  # noqa: PTH123
        done = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, text=True, timeout=60, cwd=tmp_path)
    assert done.returncode == 2
    assert done.stderr == f"edge: {what}: No space left on device.\n"
