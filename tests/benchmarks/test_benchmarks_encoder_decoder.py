"""The encoder-decoder benchmark's own arithmetic, command line and processes; no peer is needed."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import convert
import encoder_decoder as bench
import pytest
import report
from engines import Unavailable, engine_file
from tiny_encoder_decoders import t5_bundle
from unigram_tokenizers import SENTENCES

TIMES = {"edge int8": [1.0, 2.0], "edge int4": [0.5, 1.0], "ctranslate2": [2.0, 4.0]}
SECONDS = report.Metric("window", "s", False, TIMES)


def test_less_time_is_so_many_times_faster() -> None:
    assert [(goal.ratio, goal.met) for goal in bench.faster(SECONDS, 2.5)] == [(2.0, False), (4.0, True)]
    rate = report.Metric("greedy", "sentences/s", True, {"edge": [6.0], "ctranslate2": [4.0]})
    assert [(goal.ratio, goal.met) for goal in bench.faster(rate, 1.5)] == [(1.5, True)]


def test_memory_may_be_equal_and_no_larger() -> None:
    sizes = {"edge int8": [101.0], "edge int4": [100.0], "ctranslate2": [100.0]}
    size = report.Metric("peak private", "MiB", False, sizes)
    assert [goal.met for goal in bench.no_larger(size)] == [False, True]


def test_a_form_of_this_runtime_is_no_peer() -> None:
    assert report.best_peer(SECONDS) == "ctranslate2"
    row = report.ratios_table([SECONDS], ["edge int8", "edge int4", "ctranslate2"], "edge int4").splitlines()[2]
    assert [cell.strip() for cell in row.split("|")[1:-1]] == ["window (less is better)", "0.25 ctranslate2", "0.25"]


def test_only_words_count_in_the_error_rate() -> None:
    assert bench.words("Mister Dashwood's ill-disposed\n\u2014 he\u2019s   MISTAKEN!") == bench.words(
        "Mr. Dashwood's ill disposed, he's mistaken"
    )


def test_parts_are_measured_in_one_order() -> None:
    assert bench.parse(["--parts", "wer,whisper"]).parts == ["whisper", "wer"]


def test_a_recording_has_its_text_beside_it(tmp_path: Path) -> None:
    for name in ("said.wav", "said.txt", "unknown.wav"):
        (tmp_path / name).write_text("Beep.")
    assert bench.find_speech(bench.parse(["--audio", str(tmp_path)])) == {tmp_path / "said.wav": "Beep."}
    (tmp_path / "said.txt").unlink()
    with pytest.raises(Unavailable, match=r"holds no sound files \(\.wav"):
        bench.find_speech(bench.parse(["--audio", str(tmp_path)]))


def test_a_whole_run_writes_every_metric(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for language in ("en", "de"):
        (tmp_path / f"{bench.TEST}.{language}").write_text("\n".join(SENTENCES) + "\n")
    (tmp_path / "config.json").touch()
    bundle = t5_bundle(tmp_path)
    monkeypatch.setattr(engine_file("ctranslate2"), "MODULES", ("no_such_module",))
    monkeypatch.setattr(convert, "bundle", lambda *given: bundle.root)
    monkeypatch.setattr(convert, "key", lambda source: "key")
    for name, value in {"MOST": 8, "QUICKLY": 2}.items():
        monkeypatch.setattr(bench, name, value)
    arguments = ["--translator", tmp_path, "--multi30k", tmp_path, "--parts", "translator,bleu,wer", "--quick"]
    given = [*arguments, "--out", tmp_path / "out", "--work", tmp_path]
    monkeypatch.setattr(sys, "argv", ["bench", *map(str, given)])
    assert bench.main() == 0
    parts = json.loads((tmp_path / "out" / "encoder_decoder.json").read_text())["parts"]
    counts = {label: {name: len(v) for name, v in of.items()} for label, of in parts["translator"]["rounds"].items()}
    assert counts == {
        **dict.fromkeys(("greedy", "beam 4"), dict.fromkeys(bench.FORMS, 3)),
        **dict.fromkeys(("bare import", "peak private", "peak RSS"), dict.fromkeys(bench.FORMS, 1)),
    }
    assert parts["translator"]["skipped"] == {"ctranslate2": "ctranslate2 is not installed"}
    assert list(parts["bleu"]["bleu"]) == [bench.FLOAT, *bench.FORMS]
    assert parts["wer"] == {"skipped": "--audio is needed, a folder of recordings with their texts"}
    out = capsys.readouterr().out
    assert "| greedy, sentences/s" in out and "SKIPPED ctranslate2: ctranslate2 is not installed" in out
