"""What is written for another host to repeat."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from tiny_encoder_decoders import nllb_bundle

from edge.bundle import Bundle
from edge.runtime.check import conformance_drafts
from edge.runtime.check.conformance import count, emit
from edge.runtime.load import load
from edge.runtime.model import Model


def test_drafts_are_the_same_each_time_and_some_are_run(pristine_tiny_bundle: Bundle) -> None:
    model = load(pristine_tiny_bundle.root, speculate="off", kind=Model)
    lines = list(conformance_drafts.lines(model))
    assert lines == list(conformance_drafts.lines(model))
    for name in conformance_drafts.DRAFTERS:
        drafted = [line for line in lines if line.get("drafter") == name]
        assert any(each["tokens"] for line in drafted for each in line["rounds"])
        assert max(len(line["text"]) for line in drafted) > 256  # more than the smallest index keeps
        planned = [line for line in lines if line.get("planner") == name]
        cuts = {each["cut"] for line in planned for answer in line["answers"] for each in answer["rounds"]}
        assert {0, 1, 2, 3} <= cuts


def test_answers_with_layers_left_out_are_others(by_half: Bundle, tmp_path: Path) -> None:
    made = list[int]()
    assert emit(by_half, tmp_path, progress=made.append) == sum(made) <= count(by_half)
    answers, skips = (
        [json.loads(line) for line in (tmp_path / name).read_text("utf-8").splitlines()]
        for name in ("answers.jsonl", "skips.jsonl")
    )
    plain = {_asked(each): each["ids"] for each in answers if each["kv"] == "float32"}
    for skip in ("unified:0.34", "skipdecode:2-6", "skipdecode:3-5", "ffn:0.34"):
        under = [each for each in skips if each["skip"] == skip and "prompt" in each]
        assert len(under) >= 6 and {each["options"].get("seed") for each in under} == {None, 1}
        assert any(each["ids"] != plain[_asked(each)] for each in under if _asked(each) in plain)
        chats = sum("turns" in each for each in skips if each["skip"] == skip)
        assert chats == int(by_half.manifest.chat_format is not None)


def _asked(answer: dict[str, Any]) -> str:
    return json.dumps([answer["prompt"], answer["raw"], answer["options"]])


def test_a_translators_corpus_has_every_way_to_choose_tokens_and_several_languages(tmp_path: Path) -> None:
    bundle, made = nllb_bundle(tmp_path), list[int]()
    assert emit(bundle, tmp_path / "corpus", progress=made.append) == count(bundle) == sum(made)
    lines = (tmp_path / "corpus" / "outputs.jsonl").read_text("utf-8").splitlines()
    outputs = [json.loads(line) for line in lines]
    assert len(outputs) == count(bundle)
    options = [output["options"] for output in outputs]
    assert {each["target_language"] for each in options} == {"deu_Latn", "fra_Latn"}
    assert {each.get("beams", 0) for each in options} == {0, 1, 2, 3, 4, 6}
    assert {each.get("groups", 1) for each in options} == {1, 2, 3}
    for output, given in zip(outputs, options, strict=True):
        assert output["finish"] in ("stop", "length")
        assert 0 < len(output["ids"]) <= given["max_tokens"]
        assert len(output.get("score", [])) == (given.get("n_best", 1) if given.get("beams", 1) > 1 else 0)
