"""The encoder-decoder benchmark's own arithmetic, command line and processes; no peer is needed."""

from __future__ import annotations

import dataclasses
import json
import subprocess
import sys
import wave
from importlib import import_module
from io import StringIO
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from places import BENCHMARKS

from edge.bundle import Bundle

FOLDER = BENCHMARKS
import comparison  # noqa: E402
import encoder_decoder as bench  # noqa: E402
import quality  # noqa: E402
import recordings  # noqa: E402
import report  # noqa: E402
import sources  # noqa: E402
import speed  # noqa: E402
from engines.decoding_engine import Unavailable  # noqa: E402

TIMES = {"edge int8": [1.0, 2.0], "edge int4": [0.5, 1.0], "ctranslate2": [2.0, 4.0]}
SECONDS = report.Metric("window", "s", False, TIMES)
ENGINES = ("edge_runtime", "edge_whole", "ctranslate", "faster_whisper_", "eager", "optimum_ort")
SENTENCES = ["A man rides a bicycle.", "Two dogs run.", "A girl is reading.", "People wait for a train."] * 3


def test_less_time_is_so_many_times_faster() -> None:
    assert [(goal.ratio, goal.met) for goal in speed.faster(SECONDS, 2.5)] == [(2.0, False), (4.0, True)]
    rate = report.Metric("greedy", "sentences/s", True, {"edge": [6.0], "ctranslate2": [4.0]})
    assert [(goal.ratio, goal.met) for goal in speed.faster(rate, 1.5)] == [(1.5, True)]


def test_memory_may_be_equal_and_no_larger() -> None:
    sizes = {"edge int8": [101.0], "edge int4": [100.0], "ctranslate2": [100.0]}
    size = report.Metric("peak private", "MiB", False, sizes)
    assert [goal.met for goal in speed.no_larger(size)] == [False, True]


def test_a_form_of_this_runtime_is_no_peer() -> None:
    assert report.best_peer(SECONDS) == "ctranslate2"
    row = report.ratios_table([SECONDS], ["edge int8", "edge int4", "ctranslate2"], "edge int4").splitlines()[2]
    assert [cell.strip() for cell in row.split("|")[1:-1]] == ["window (less is better)", "0.25 ctranslate2", "0.25"]


def test_figures_have_the_digits_of_their_metric() -> None:
    assert report.Metric("token", "ms", False, {}, 2).shown(1.234) == "1.23"


def test_only_words_count_in_the_error_rate() -> None:
    assert quality.words("Mister Dashwood's ill-disposed\n\u2014 he\u2019s   MISTAKEN!") == quality.words(
        "Mr. Dashwood's ill disposed, he's mistaken"
    )


def test_times_are_compared_where_both_sides_cut_the_text() -> None:
    torch = [(0.0, 2.0, " One two,"), (2.0, 4.0, " three four.")]
    shifted = quality.times([(torch, [(0.0, 2.1, " One too,"), (2.2, 4.0, " three four.")])])
    # "too" is another word, so that nothing tells that its end is that of "two".
    assert shifted == {
        "times within 0.1 s": pytest.approx(100 * 2 / 3),
        "largest shift": pytest.approx(0.2),
        "cut elsewhere": pytest.approx(100 * 2 / 5),
    }
    merged = quality.times([(torch, [(0.0, 4.0, " One two, three four.")])])
    assert merged == {"times within 0.1 s": 100, "largest shift": 0, "cut elsewhere": 50}


def test_parts_are_measured_in_one_order() -> None:
    assert bench.parse(["--parts", "wer,whisper"]).parts == ["whisper", "wer"]


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (["--parts", "whisper,rouge"], "there is no part 'rouge'; there is: whisper, recording"),
        (["--threads", "0"], "--threads must be 1 or more, not 0"),
    ],
)
def test_a_wrong_option_is_refused_by_name(
    arguments: list[str], complaint: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        bench.parse(arguments)
    assert complaint in capsys.readouterr().err


def test_engine_files_import_their_packages_only_when_they_load() -> None:
    code = f"import sys; sys.path.insert(0, {str(FOLDER)!r}); from importlib import import_module\n"
    code += f"for n in {ENGINES!r}: import_module('seq2seq.' + n)\nprint(*sys.modules)"
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()
    packages = {m for n in ENGINES for m in import_module(f"seq2seq.{n}").MODULES}
    assert not packages & set(loaded)


def test_a_recording_has_its_text_beside_it(tmp_path: Path) -> None:
    sound = np.sin(np.arange(8000) / 10).astype(np.float32)
    for name in ("said", "unknown"):
        with wave.open(str(tmp_path / f"{name}.wav"), "wb") as file:
            file.setnchannels(1)
            file.setsampwidth(2)
            file.setframerate(recordings.RATE)
            file.writeframes((sound * (20000 if name == "said" else 10000)).astype("<i2").tobytes())
    (tmp_path / "said.txt").write_text("Beep.")
    said, unknown = recordings.from_folder(tmp_path, tmp_path)
    assert (said.text, unknown.text, said.seconds) == ("Beep.", None, 0.5)
    window = np.load(recordings.window(said, tmp_path, 10_000))
    assert np.array_equal(window[:8000], np.load(said.pcm))
    assert not window[8000:].any()


def test_a_recording_is_cut_where_it_is_quietest(tmp_path: Path) -> None:
    pcm = np.random.default_rng(0).normal(0, 0.1, round(7.3 * recordings.RATE)).astype(np.float32)
    for second in (1.8, 4.2):
        pcm[round((second - 0.1) * recordings.RATE) : round((second + 0.1) * recordings.RATE)] = 0
    np.save(tmp_path / "said.npy", pcm)
    found = recordings.pieces(recordings.Recording("said", tmp_path / "said.npy", 7.3, "Beep."), tmp_path, 2.0)
    assert [one.seconds for one in found[:2]] == [pytest.approx(n, abs=0.15) for n in (1.8, 2.4)]
    assert np.array_equal(np.concatenate([np.load(one.pcm) for one in found]), pcm)


def test_an_engine_can_be_held_to_whole_windows(monkeypatch: pytest.MonkeyPatch) -> None:
    edge_whole, edge_runtime = (import_module(f"seq2seq.{name}") for name in ("edge_whole", "edge_runtime"))
    encoder = SimpleNamespace(any_length=True)
    loaded = SimpleNamespace(engine=SimpleNamespace(encoder=encoder))
    monkeypatch.setattr("edge.load", lambda model, threads: loaded)
    edge_runtime.load(Path("x.edge"), 1, 448)
    assert encoder.any_length
    edge_whole.load(Path("x.edge"), 1, 448, "recording")
    assert not encoder.any_length


def test_a_folder_without_sound_is_a_sentence(tmp_path: Path) -> None:
    with pytest.raises(Unavailable, match=r"holds no sound files \(\.wav"):
        recordings.from_folder(tmp_path, tmp_path)


def test_a_peer_that_is_not_here_is_skipped_with_a_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(import_module("seq2seq.ctranslate"), "MODULES", ("no_such_module",))
    run = comparison.Run(sources.Sources(tmp_path, (sys.executable,)), comparison.QUICK, 1, StringIO(), bench.say)
    compared = comparison.Comparison(run, "text")
    compared.enter("ctranslate2", "ctranslate", lambda _: tmp_path)
    assert compared.skipped == {"ctranslate2": "ctranslate2 is not installed"}
    assert capsys.readouterr().out == "ctranslate2 is SKIPPED: ctranslate2 is not installed\n"


@pytest.fixture(scope="module")
def tiny_translator(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Bundle]:
    """A random T5 as the benchmark makes them, and its bundle."""
    import edge

    folder = tmp_path_factory.mktemp("translator")
    shape = dict(d_model=64, d_kv=16, num_heads=4, d_ff=64, num_layers=1, num_decoder_layers=1, vocab_size=320)
    ids = dict(decoder_start_token_id=0, pad_token_id=0, eos_token_id=1)
    sources._random("", str(folder / "t5"), json.dumps(dict(model_type="t5", **shape, **ids)))
    return folder / "t5", edge.export(folder / "t5", folder / "t5.edge", weights="int8", check=False)


def test_engines_take_turns_in_turned_order_and_rest_before(monkeypatch: pytest.MonkeyPatch) -> None:
    events: list[str] = []
    monkeypatch.setattr(comparison.time, "sleep", lambda seconds: events.append("rest"))
    plan = dataclasses.replace(comparison.QUICK, rounds=2)
    run = comparison.Run(None, plan, 1, sys.stderr, lambda line: None)  # type: ignore[arg-type]
    compared = comparison.Comparison(run, "text")
    for name in "ab":
        compared.entrants[name] = comparison.Entrant(name, None, "", "", "", Path())  # type: ignore[arg-type]

    def start(found: comparison.Entrant) -> str:
        found.worker = found.name  # type: ignore[assignment]
        return found.name

    monkeypatch.setattr(compared, "start", start)

    def work(worker: str, number: int) -> dict[str, float]:
        events.append(worker)
        return {"s": 1.0}

    compared.rounds(work, "text")  # type: ignore[arg-type]
    assert events == [step for name in "ababba" for step in ("rest", name)]  # unmeasured, a round, one turned


def test_a_whole_run_writes_every_metric(
    tiny_translator: tuple[Path, Bundle],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    source, bundle = tiny_translator
    for language in ("en", "de"):
        (tmp_path / f"{bench.TEST}.{language}").write_text("\n".join(SENTENCES) + "\n")
    for module in ("ctranslate", "eager", "optimum_ort"):
        monkeypatch.setattr(import_module(f"seq2seq.{module}"), "MODULES", ("no_such_module",))
    monkeypatch.setattr(sources.Sources, "bundle", lambda self, source, *weights: bundle.root)
    monkeypatch.setattr(bench, "QUICK", comparison.Plan(rounds=2, trials=1, block=2, sentences=2, paragraphs=1))
    arguments = ["--translator", str(source), "--multi30k", str(tmp_path), "--parts", "translator,bleu", "--quick"]
    monkeypatch.setattr(sys, "argv", ["bench", *arguments, "--out", str(tmp_path / "out"), "--work", str(tmp_path)])
    assert bench.main() == 0
    result = json.loads((tmp_path / "out" / "encoder_decoder.json").read_text())
    rounds = result["parts"]["translator"]["rounds"]
    counts = {label: {name: len(v) for name, v in of["values"].items()} for label, of in rounds.items()}
    forms = ("edge int8", "edge int4")
    assert counts == {
        **dict.fromkeys(("greedy", "beam 4"), dict.fromkeys(forms, 2)),
        **dict.fromkeys(("peak private", "peak RSS"), dict.fromkeys(forms, 1)),
    }
    assert set(result["parts"]["translator"]["skipped"]) == {"ctranslate2", "transformers", "optimum"}
    assert result["skipped"]["bleu"].endswith("is not installed")  # transformers, or sacrebleu before it
    out = capsys.readouterr().out
    assert "| greedy, sentences/s" in out
    assert "SKIPPED ctranslate2: ctranslate2 is not installed" in out
