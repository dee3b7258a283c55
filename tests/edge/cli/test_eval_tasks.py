"""Answers scored beside references: the scores themselves, files, and settings side by side."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
from fake_text2text import fake_text2text

from edge.bundle import Bundle
from edge.cli.eval_tasks import TASKS, read_items
from edge.cli.main import main
from edge.cli.scores import question_answering, summarization, translation
from edge.errors import InputError
from edge.extras import install
from edge.manifest import Generation
from edge.runtime.load import load
from edge.runtime.text2text import Text2Text


def test_answers_match_whatever_their_case_punctuation_and_articles() -> None:
    assert question_answering(["The  Nile!"], [["a Nile"]]) == {"exact_match": 100.0, "f1": 100.0}
    found = question_answering(["the river Nile", "Rome"], [["Amazon", "Nile"], ["Paris"]])
    assert found["exact_match"] == 0.0
    assert found["f1"] == pytest.approx(100 * (2 * 1 * 0.5 / 1.5) / 2)  # precision 1/2, recall 1
    assert question_answering([""], [["the"]])["f1"] == 100.0


def test_a_summary_is_scored_by_its_longest_common_subsequence() -> None:
    pytest.importorskip("rouge_score")
    found = summarization(["the cats sat on a mat"], [["nothing", "the cat sat mat"]])
    assert found["rouge_l"] == pytest.approx(100 * 2 * (4 / 6) * 1 / (4 / 6 + 1))


def test_translations_are_scored_as_a_corpus_with_as_many_references_as_there_are() -> None:
    pytest.importorskip("sacrebleu")
    answers = ["A man is riding a red bike .", "Two dogs play in the snow today ."]
    assert translation(answers, [[answers[0]], ["Cats sleep", answers[1]]])["bleu"] == pytest.approx(100)
    assert translation(answers, [["Nothing of this"], ["is the same"]])["bleu"] < 5


def questions(folder: Path) -> Path:
    path = folder / "qa.jsonl"
    rows = [{"question": "What is the moon?", "answer": ["a rock", "cheese"]}, {"question": "Who?", "answer": "me"}]
    path.write_text("\n".join(map(json.dumps, rows)) + "\n\n")
    return path


def test_policies_are_answered_beside_the_whole_decoder(
    by_layer: Bundle, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    command = ["eval", str(by_layer.root), "--qa", str(questions(tmp_path)), "--max-tokens", "6"]
    command += ["--speculate", "lookup"]
    assert main([*command, "--skip", "unified", "--sweep", "0.2,0.4", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert [each["skip"] for each in found["settings"]] == ["off", "unified:0.2", "unified:0.4"]
    assert all(each["answers"] == 2 and 2 <= each["tokens"] <= 12 for each in found["settings"])
    assert main([*command, "--limit", "1"]) == 0
    shown = capsys.readouterr().out
    assert "1 answers, --speculate lookup" in shown and "exact match" in shown


def test_a_curve_of_answers_can_be_drawn(by_layer: Bundle, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    plot = tmp_path / "qa.svg"
    command = ["eval", str(by_layer.root), "--qa", str(questions(tmp_path)), "--max-tokens", "4", "--limit", "1"]
    assert main([*command, "--skip", "unified:0.2", "--plot", str(plot)]) == 0
    assert "unified" in plot.read_text()


def test_answers_may_come_from_a_cache_in_int8(
    tiny_bundle: Bundle, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    kept = []

    def watched(*args: object, **options: object) -> object:
        model = load(*args, **options)  # type: ignore[arg-type]
        kept.append(model.engine.kv.dtype)
        return model

    monkeypatch.setattr("edge.cli.eval_tasks.load", watched)
    command = ["eval", str(tiny_bundle.root), "--qa", str(questions(tmp_path)), "--max-tokens", "4", "--limit", "1"]
    assert main([*command, "--kv", "int8", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["kv"] == "int8"
    assert main([*command, "--kv", "int8"]) == 0
    assert f"{tiny_bundle.root} (KV cache in int8): 1 answers" in capsys.readouterr().out
    assert main([*command, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["kv"] == "float32"
    assert kept == ["int8", "int8", "float32"]


@pytest.fixture
def translator(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Text2Text:
    """An encoder-decoder in the place of every bundle, which writes in capitals, with four beams if not told else."""
    model, _ = fake_text2text(tmp_path / "fake.edge", generation=Generation(num_beams=4))
    monkeypatch.setattr("edge.cli.eval_tasks.open_answering", lambda path: model.bundle)
    monkeypatch.setattr("edge.cli.eval_tasks.load", lambda *args, **options: model)
    return model


def sources(folder: Path) -> Path:
    path = folder / "translate.jsonl"
    path.write_text(json.dumps({"source": "the moon is a rock", "target": "THE MOON IS A ROCK"}))
    return path


def test_translations_are_greedy_whatever_the_bundle_sets(
    translator: Text2Text, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("sacrebleu")
    monkeypatch.setattr("edge.runtime.decode.beam.search", not_reached)
    assert main(["eval", str(translator.bundle.root), "--translate", str(sources(tmp_path)), "--json"]) == 0
    (found,) = json.loads(capsys.readouterr().out)["settings"]
    assert found["scores"]["bleu"] == pytest.approx(100)


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        (["--speculate", "self"], "self does not serve fake, which turns one text into another"),
        (["--kv", "int8"], "is an encoder-decoder, which keeps float32; omit --kv"),
    ],
)
def test_what_only_decoders_have_is_refused(
    options: list[str], sentence: str, translator: Text2Text, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("sacrebleu")
    assert main(["eval", str(translator.bundle.root), "--translate", str(sources(tmp_path)), *options]) == 2
    assert sentence in capsys.readouterr().err


def not_reached(*args: object, **options: object) -> None:
    raise AssertionError("this must not have been reached")


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        ("", "is empty"),
        ('{"question": "a", "answer": "b"}\n{"question": "a"}', "Line 2"),
        ('{"question": "a", "answer": []}', "Line 1"),
        ('{"question": " ", "answer": "b"}', "Line 1"),
        ("not JSON", "Line 1"),
    ],
)
def test_lines_that_cannot_be_answered_are_named(content: str, sentence: str, tmp_path: Path) -> None:
    path = tmp_path / "qa.jsonl"
    path.write_text(content)
    with pytest.raises(InputError, match=sentence):
        read_items(path, TASKS["qa"])
    with pytest.raises(InputError, match="cannot be read"):
        read_items(tmp_path / "none.jsonl", TASKS["qa"])


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ([], "Give one thing to measure on"),
        (["--qa", "FILE", "--text", "FILE"], "Give one thing to measure on"),
        (["--qa", "FILE", "--prefill-graph"], "Answers need a bundle alone"),
        (["--qa", "FILE", "--sweep", "0.1"], "name the policy with --skip"),
        (["--qa", "FILE", "--skip", "first"], "has no routers"),
        (["--qa", "FILE", "--skip", "unified:2"], "no share of the layers"),
        (["--qa", "FILE", "--limit", "0"], "--limit must be 1 or more"),
        (["--qa", "FILE", "--speculate", "magic"], "magic"),
        (["--qa", "FILE", "--skip", "unified:0.2", "--speculate", "self"], "choose one of the two"),
        (["--qa", "FILE", "--skip", "unified:0.2", "--kv", "int8"], "needs all layers in one graph"),
        (["--qa", "FILE", "--kv", "int4"], "There is no KV cache in 'int4'"),
        (["--qa", "FILE", "--plot", "x.txt"], "no plot that can be drawn"),
        (["--text", "FILE", "--speculate", "off"], "--speculate is about answers"),
    ],
)
def test_what_does_not_go_together_gets_a_sentence_before_anything_is_answered(
    options: list[str],
    sentence: str,
    by_layer: Bundle,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr("edge.runtime.model.Model.generate", not_reached)
    path = str(questions(tmp_path))
    assert main(["eval", str(by_layer.root), *(path if option == "FILE" else option for option in options)]) == 2
    assert sentence in capsys.readouterr().err


def test_a_missing_library_is_named_before_anything_is_answered(
    by_layer: Bundle, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("edge.runtime.model.Model.generate", not_reached)
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    assert main(["eval", str(by_layer.root), "--qa", str(questions(tmp_path)), "--plot", "x.svg"]) == 2
    assert f"A plot needs matplotlib; install it with: {install('eval')}" in capsys.readouterr().err
    monkeypatch.setitem(sys.modules, "sacrebleu", None)
    path = tmp_path / "t.jsonl"
    path.write_text('{"source": "Der Mond", "target": "The moon"}\n')
    assert main(["eval", str(by_layer.root), "--translate", str(path)]) == 2
    assert f"BLEU needs sacrebleu; install it with: {install('eval')}" in capsys.readouterr().err
