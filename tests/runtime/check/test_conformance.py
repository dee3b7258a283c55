"""What is written for another host to repeat."""

from __future__ import annotations

import json
from pathlib import Path

from tiny_encoder_decoders import nllb_bundle

from edge.runtime.check.conformance import count, emit


def test_a_translators_corpus_has_every_way_to_choose_tokens_and_several_languages(tmp_path: Path) -> None:
    bundle, made = nllb_bundle(tmp_path), list[int]()
    assert emit(bundle, tmp_path / "corpus", progress=made.append) == count(bundle) == sum(made)
    lines = (tmp_path / "corpus" / "outputs.jsonl").read_text("utf-8").splitlines()
    outputs = [json.loads(line) for line in lines]
    assert len(outputs) == count(bundle)
    options = [output["options"] for output in outputs]
    assert {each["target_language"] for each in options} == {"deu_Latn", "fra_Latn"}
    assert {each.get("beams", 0) for each in options} == {0, 1, 2, 3, 4}
    for output, given in zip(outputs, options, strict=True):
        assert output["finish"] in ("stop", "length")
        assert 0 < len(output["ids"]) <= given["max_tokens"]
        assert len(output.get("score", [])) == (given.get("n_best", 1) if given.get("beams", 1) > 1 else 0)
