"""The benchmarks' own arithmetic, command line and processes; no peer is needed."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from io import StringIO
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import comparison
import convert
import decoder_vs_peers as bench
import pytest
import report
from engines import DECODER, engine_file
from places import BENCHMARKS
from processes import Worker, WorkerFailed, first_byte
from prompts import Prompts

import edge
from edge.bundle import Bundle

ENGINES = ("edge", "onnxruntime-genai", "llama.cpp", "openvino-genai", "ctranslate2")
DECODE = {"edge": [300.0, 150.0, 330.0], "onnxruntime-genai": [200.0, 120.0, 210.0], "llama.cpp": [180.0, 140.0, 190.0]}


def test_a_ratio_is_taken_round_by_round() -> None:
    found = report.ratio({"edge": [100.0, 20.0, 90.0], "p": [50.0, 40.0, 30.0]}, "p")
    assert (found.value, found.low, found.high) == (2.0, 0.5, 3.0)  # the medians' ratio would be 2.25


def test_the_best_peer_is_the_fastest_or_the_smallest() -> None:
    assert report.best_peer(report.Metric("decode @ 16", "tokens/s", True, DECODE)) == "onnxruntime-genai"
    assert report.best_peer(report.Metric("peak private", "MiB", False, DECODE)) == "llama.cpp"
    assert report.best_peer(report.Metric("decode @ 16", "tokens/s", True, {"edge": [1.0]})) is None


def test_goals_are_checked_in_the_direction_of_each_metric() -> None:
    size = {"edge": [100.0], "onnxruntime-genai": [100.0], "llama.cpp": [99.0]}
    start = {"edge": [81.0], "onnxruntime-genai": [100.0]}
    found = report.goals(
        [
            report.Metric("decode @ 16", "tokens/s", True, DECODE),
            report.Metric("peak private", "MiB", False, size),
            report.Metric("first token", "ms", False, start),
        ]
    )
    assert [(goal.text, goal.met) for goal in found] == [
        ("decode @ 16 / onnxruntime-genai", True),
        ("peak private / onnxruntime-genai", True),
        ("peak private / llama.cpp", False),
        ("first token / onnxruntime-genai", False),
    ]


def test_a_peer_of_which_nothing_could_be_measured_has_an_infinite_ratio() -> None:
    assert report.ratio({"edge": [1.0, 2.0], "p": [0.0, 0.0]}, "p").value == float("inf")
    assert report.spread([0.0, 0.0, 0.0]) == 0.0


def test_a_peer_without_a_figure_is_a_dash_and_no_ratio() -> None:
    metric = report.Metric("decode @ 16", "tokens/s", True, DECODE)
    names = ["edge", "onnxruntime-genai", "llama.cpp", "openvino-genai"]
    assert report.figures_table([metric], names).splitlines()[2].endswith(" - |")
    row = report.ratios_table([metric], names).splitlines()[2]
    assert "1.50 (1.25-1.57) onnxruntime-genai" in row
    assert row.endswith(" - |")


def test_a_picture_has_bars_for_any_number_of_engines(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    names = [f"engine {i}" for i in range(len(report.COLOURS) + 2)]
    metric = report.Metric("decode @ 16", "tokens/s", True, {name: [1.0, 2.0] for name in names})
    report.plot([report.Panel("Decode", {"16": metric})], names, "title", tmp_path / "many.png")
    assert (tmp_path / "many.png").stat().st_size > 1000


def test_a_picture_has_no_diagram_of_what_was_not_measured(tmp_path: Path) -> None:
    pyplot = pytest.importorskip("matplotlib.pyplot")
    empty = report.Panel("With drafts", {})
    full = report.Panel("Decode", {"16": report.Metric("decode @ 16", "tokens/s", True, {"edge": [1.0, 2.0]})})
    report.plot([full, empty, full], ["edge"], "title", tmp_path / "with.png")
    report.plot([full, full], ["edge"], "title", tmp_path / "without.png")
    pictures = [pyplot.imread(tmp_path / f"{name}.png") for name in ("with", "without")]
    assert pictures[0].shape == pictures[1].shape and (pictures[0] == pictures[1]).all()


def test_engines_are_compared_in_one_order_with_ours_first() -> None:
    args = bench.parse(["--bundle", "x.edge", "--engines", "llama.cpp,edge", "--variant", "llama.cpp=flash attention"])
    assert args.engines == ["edge", "llama.cpp"]
    assert args.variant == {"llama.cpp": "flash attention"}


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (["--engines", "edge,vllm"], "there is no 'vllm'; there is: edge, onnxruntime-genai"),
        (["--variant", "llama.cpp=fastest"], "llama.cpp has no variant 'fastest'; it has: flash attention"),
        (["--threads", "0"], "--threads must be 1 or more, not 0"),
        (["--contexts", "128,x"], "'128,x' is no list of lengths"),
    ],
)
def test_a_wrong_option_is_refused_by_name(
    arguments: list[str], complaint: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        bench.parse(["--bundle", "x.edge", *arguments])
    assert complaint in capsys.readouterr().err


def test_engine_files_import_their_packages_only_when_they_load() -> None:
    code = f"import sys; sys.path.insert(0, {str(BENCHMARKS)!r}); import engines\n"
    code += "for n in engines._FILES: engines.engine_file(n)\nprint(*sys.modules)"
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()
    assert not {m for name in ENGINES for m in engine_file(name).MODULES} & set(loaded)


def test_an_absent_peer_is_skipped_with_a_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(engine_file("llama.cpp"), "MODULES", ("no_such_module",))
    compared = comparison.Comparison(DECODER, 1, StringIO(), (sys.executable,))
    compared.enter("llama.cpp", Path)
    assert compared.entrants == {} and compared.skipped == {"llama.cpp": "llama-cpp-python is not installed"}
    assert capsys.readouterr().out == "llama.cpp is SKIPPED: llama-cpp-python is not installed\n"


def test_engines_take_turns_in_turned_order_and_rest_before(monkeypatch: pytest.MonkeyPatch) -> None:
    events: list[str] = []
    monkeypatch.setattr(comparison.time, "sleep", lambda seconds: events.append("rest"))
    compared = comparison.Comparison(DECODER, 1, StringIO())
    for name in "ab":
        compared.entrants[name] = comparison.Entrant(name, None, "", "", "", Path())  # type: ignore[arg-type]
    worker = SimpleNamespace(cpu_s=0.0, idle_share=0.0, close=lambda: None)
    monkeypatch.setattr(compared, "worker", lambda found: SimpleNamespace(**vars(worker), name=found.name))

    def work(worker: Any, number: int = 0) -> dict[str, float]:
        events.append(worker.name)
        return {"s": 1.0}

    compared.rounds(2, work, [work])
    assert events == [step for name in "ababba" for step in ("rest", name)]  # unmeasured, a round, one turned
    assert compared.figures == {"s": {"a": [1.0, 1.0], "b": [1.0, 1.0]}}


@pytest.fixture(scope="module")
def prefill_bundle(tiny_checkpoint: Path, tmp_path_factory: pytest.TempPathFactory) -> Bundle:
    target = tmp_path_factory.mktemp("prefill") / "w.edge"
    return edge.export(tiny_checkpoint, target, weights="int8", prefill_weights="int8", max_context=512, check=False)


def test_the_decode_graph_alone_can_be_measured(prefill_bundle: Bundle) -> None:
    engine = engine_file("edge")
    settings = engine.VARIANTS[DECODER]["without the int8 prefill graph"]
    loaded = engine.load(prefill_bundle.root, 1, 128, DECODER, **settings)
    assert loaded.model.engine.prefill is None
    timed = loaded.generate(list(range(3, 83)), 4)
    assert len(timed.tokens) == 5 and timed.prefill_s > 0


def test_a_folder_gets_its_name_only_when_it_is_whole(tmp_path: Path) -> None:
    with pytest.raises(RuntimeError), convert.folder(tmp_path / "model") as part:
        (part / "half").touch()
        raise RuntimeError
    assert not (tmp_path / "model").exists()
    with convert.folder(tmp_path / "model") as part:
        (part / "whole").touch()
    assert [p.name for p in (tmp_path / "model").iterdir()] == ["whole"]


def test_prompts_have_their_length_and_differ(tiny_bundle: Bundle) -> None:
    prompts = Prompts(tiny_bundle.root / "tokenizer.json")
    taken = [prompts.take(16) for _ in range(20)]
    assert {len(ids) for ids in taken} == {16}
    assert len({tuple(ids) for ids in taken}) == 20


def test_the_clock_stops_at_the_first_byte() -> None:
    code = (  # the rest of the line is read once the clock has stopped
        "import fcntl, termios, time\n"
        "print('a', flush=True)\n"
        "while fcntl.ioctl(1, termios.FIONREAD, bytes(4)) != bytes(4):\n"
        "    time.sleep(0.01)\n"
        "time.sleep(1)\n"
        "print('b')"
    )
    start = time.perf_counter()
    got = first_byte([sys.executable, "-c", code], sys.stderr)
    assert time.perf_counter() - start - got.seconds > 0.9
    assert got.text == "a\nb\n"


def test_a_process_that_writes_nothing_has_failed() -> None:
    with pytest.raises(WorkerFailed, match="wrote nothing and ended with status 3"):
        first_byte([sys.executable, "-c", "import sys; sys.exit(3)"], sys.stderr)


def test_the_worker_gives_the_runtimes_own_greedy_tokens(tiny_bundle: Bundle) -> None:
    model = edge.load(tiny_bundle.root)
    prompt = "The moon changes its shape"
    ids = model.prompt_ids(prompt, raw=True)
    request = {"model": str(tiny_bundle.root), "threads": 2, "capacity": 64, "settings": {"task": DECODER}}
    worker = Worker(sys.executable, "engines.edge_runtime", sys.stderr, request)
    try:
        first, again = worker.generate(ids, 12), worker.generate(ids, 12)
    finally:
        worker.close()
    expected = model.generate(prompt, edge.GenerateOptions(max_tokens=13), raw=True).token_ids
    assert first.tokens[: len(expected)] == expected
    assert first.tokens == again.tokens
    assert len(first.tokens) == 13
    assert first.prefill_s > 0
    assert first.decode_s > 0
    assert worker.peak_rss_mb > worker.peak_private_mb > 20


def test_an_engine_that_cannot_load_is_one_sentence(tmp_path: Path) -> None:
    request = {"model": str(tmp_path / "none.edge"), "threads": 1, "capacity": 64, "settings": {"task": DECODER}}
    with pytest.raises(WorkerFailed, match=r"^BundleError: .*none\.edge"):
        Worker(sys.executable, "engines.edge_runtime", subprocess.DEVNULL, request)  # type: ignore[arg-type]


def test_a_whole_run_writes_every_metric(
    tiny_bundle: Bundle, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    gguf = tmp_path / "model.gguf"
    gguf.write_bytes(b"only peers read it")
    for name, value in {"MEMORY_PROMPT": 64, "MEMORY_TOKENS": 4}.items():
        monkeypatch.setattr(bench, name, value)
    monkeypatch.setattr(bench, "QUICK", bench.Plan(rounds=2, tokens=4, starts=1, trials=1))
    arguments = ["--bundle", str(tiny_bundle.root), "--gguf", str(gguf), "--engines", "edge", "--quick"]
    arguments += ["--contexts", "16,128"]
    monkeypatch.setattr(sys, "argv", ["bench", *arguments, "--out", str(tmp_path / "out"), "--work", str(tmp_path)])
    assert bench.main() == 0
    result = json.loads((tmp_path / "out" / "decoder_vs_peers.json").read_text())
    counts = {label: len(rounds["edge"]) for label, rounds in result["rounds"].items()}
    speed = {f"{what} @ {n}": 2 for what in ("prefill", "decode") for n in (16, 128)}
    assert counts == speed | {"bare import": 1, "peak private": 1, "peak RSS": 1, "first token": 1}
    assert "decode @ 128, tokens/s" in capsys.readouterr().out


def test_a_bundle_is_exported_once_for_the_code_that_writes_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    commands: list[list[str]] = []

    def run(command: list[str]) -> None:
        commands.append(command)
        Path(command[command.index("-o") + 1]).mkdir()

    monkeypatch.setattr(convert, "run", run)
    made = [convert.bundle(tmp_path / "model", tmp_path, "int4", "--weights", "int4") for _ in range(2)]
    assert made[0] == made[1] and made[0].is_dir() and len(commands) == 1
    assert commands[0][-2:] == ["--weights", "int4"]
