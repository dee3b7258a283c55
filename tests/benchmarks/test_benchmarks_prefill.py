"""The benchmark of prompts: its promises and its command line; no peer is needed."""

from __future__ import annotations

import argparse
import sys
from io import StringIO
from pathlib import Path

import pytest
from places import BENCHMARKS

import edge
from edge.bundle import Bundle

FOLDER = BENCHMARKS
import decoder_vs_peers  # noqa: E402
import prefill  # noqa: E402
from engines import engine_file  # noqa: E402
from engines.decoding_engine import Models  # noqa: E402
from prompts import Prompts  # noqa: E402


def bench(bundle: Bundle, tmp_path: Path) -> prefill.PrefillBench:
    models = Models(bundle.root, tmp_path / "m.gguf", tmp_path, (sys.executable,))
    plan = decoder_vs_peers.Plan(1, 4, 0, 1)
    return prefill.PrefillBench(models, plan, 1, StringIO(), Prompts(bundle.root / "tokenizer.json"))


@pytest.fixture(scope="module")
def prefill_bundle(tiny_checkpoint: Path, tmp_path_factory: pytest.TempPathFactory) -> Bundle:
    target = tmp_path_factory.mktemp("prefill") / "w.edge"
    return edge.export(tiny_checkpoint, target, weights="int8", prefill_weights="int8", max_context=512, check=False)


def test_promises_are_held_against_the_right_peers(pristine_tiny_bundle: Bundle, tmp_path: Path) -> None:
    found = bench(pristine_tiny_bundle, tmp_path)
    found.figures["prefill @ 512"] |= {"edge": [300.0], "openvino-genai": [250.0], "llama.cpp": [100.0]}
    found.figures["prefill @ 128"] |= {"edge": [300.0], "openvino-genai": [350.0]}
    assert {(goal.text, goal.met) for goal in found.goals()} == {
        ("prefill @ 512 / openvino-genai", True),
        ("prefill @ 512 / llama.cpp", False),
    }


def test_plain_decoding_is_compared_with_and_without_the_form(
    prefill_bundle: Bundle, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(decoder_vs_peers, "REST_S", 0.0)
    found = prefill.decoding(prefill_bundle.root, argparse.Namespace(threads=1))
    assert "with that graph open" in found.text and found.ratio > 0


def test_the_decode_graph_alone_can_be_measured(prefill_bundle: Bundle) -> None:
    loaded = engine_file(prefill.DECODE_GRAPH).load(prefill_bundle.root, 1, 128, prefill=False)
    assert loaded.model.engine.prefill is None
    timed = loaded.generate(list(range(3, 83)), 4)
    assert len(timed.tokens) == 5 and timed.prefill_s > 0


def test_a_bundle_without_the_form_is_refused(
    pristine_tiny_bundle: Bundle, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    gguf = tmp_path / "m.gguf"
    gguf.write_bytes(b"GGUF")
    options = ["--bundle", str(pristine_tiny_bundle.root), "--gguf", str(gguf), "--work", str(tmp_path)]
    monkeypatch.setattr(sys, "argv", ["prefill", *options])
    assert prefill.main() == 2
    assert "has no int8 prefill graph; see --prefill-weights int8" in capsys.readouterr().err


@pytest.mark.parametrize("options", [["--lengths", "x"], ["--lengths", "0"], ["--rounds", "0"], ["--engines", "vllm"]])
def test_wrong_options_are_refused(options: list[str]) -> None:
    with pytest.raises(SystemExit) as stopped:
        prefill.parse(["--bundle", "b.edge", *options])
    assert stopped.value.code == 2
