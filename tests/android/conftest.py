"""What tests of the Kotlin runtime share: Maven, and a corpus of bundles and of what Python makes of them."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import xml.etree.ElementTree as ElementTree
from collections.abc import Iterator
from importlib.metadata import version
from pathlib import Path
from typing import Any

import chat_corpus
import noise_corpus
import numpy as np
import pytest
import tokenizer_corpus
from safetensors.numpy import save_file
from texts import SENTENCES
from tiny_encoder_decoders import nllb_bundle, t5_bundle
from whisper_files import talking_whisper, write_ctranslate2

import edge
from edge.export.drafts import successors
from edge.export.pipeline.routers import ABOUT, KEY, ROUTERS
from edge.lock import locked
from edge.runtime.check import conformance, conformance_drafts
from edge.runtime.model import Model

ROOT = Path(__file__).parents[2]
PROJECT = ROOT / "android_demo"
LINES = 2_000  # for each tokenizer; 20,000 take minutes, and were run by hand: docs/lab/android.md
MINUTES = 15  # with all that pip fetches


@pytest.fixture(scope="module")
def maven() -> Iterator[str]:
    """The command, for one file of tests at a time, for all compile into the same folder. Without it and a JDK tests
    are skipped, but where EDGE_TEST_JVM_REQUIRED is set."""
    found = shutil.which("mvn")
    if found is None or shutil.which("javac") is None:
        missing = "the Kotlin runtime is not tested: no JDK and Maven (Debian: openjdk-17-jdk-headless, maven)"
        if os.environ.get("EDGE_TEST_JVM_REQUIRED"):
            pytest.fail(missing)
        pytest.skip(missing)
    with locked(PROJECT / "target" / "tests.lock", waiting=lambda: None):
        yield found


@pytest.fixture(scope="session")
def onnxruntime_of_maven() -> str:
    """Its version, which is behind PyPI's."""
    found = ElementTree.parse(PROJECT / "pom.xml").getroot().find(".//{*}onnxruntime.version")
    assert found is not None and found.text is not None
    return found.text


@pytest.fixture(scope="session")
def same_onnxruntime(tmp_path_factory: pytest.TempPathFactory, onnxruntime_of_maven: str) -> dict[str, str]:
    """The environment of a Python with the onnxruntime that Maven has: another version's kernels round otherwise."""
    environment = {**os.environ, "EDGE_HOME": str(tmp_path_factory.mktemp("edge-home"))}
    if onnxruntime_of_maven == version("onnxruntime"):
        return environment
    folder = tmp_path_factory.mktemp("onnxruntime")
    wanted = [f"onnxruntime=={onnxruntime_of_maven}", "--no-deps", "--target", str(folder)]
    subprocess.run([sys.executable, "-m", "pip", "install", "--quiet", *wanted], check=True, timeout=60 * MINUTES)
    return {**environment, "PYTHONPATH": str(folder)}


@pytest.fixture(scope="session")
def corpus(
    tmp_path_factory: pytest.TempPathFactory,
    same_onnxruntime: dict[str, str],
    six_layers: Path,
    tiny_checkpoint: Path,
) -> Path:
    """What the tests read: bundles, and what Python makes of them."""
    folder = tmp_path_factory.mktemp("corpus")
    bundles = folder / "bundles"
    tuned = _with_routers(six_layers, folder / "tuned")
    graphs: dict[str, Any] = {"prefill_weights": "int8", "segments": 1}
    edge.export(tuned, bundles / "int8.edge", weights="int8", candidates=False, draft_text=0, **graphs)
    edge.export(six_layers, bundles / "halves.edge", weights="fp32", segments="ffn", check=False, draft_text=0)
    text = " ".join(SENTENCES)
    with pytest.MonkeyPatch.context() as patch:  # a table for drafts, of texts that the corpus has
        patch.setattr(successors, "own_answers", _texts_twice)
        edge.export(
            tiny_checkpoint, bundles / "int4.edge", weights="int4", calibration=text, check=False, draft_text=100_000
        )
    for made in (t5_bundle(folder), nllb_bundle(folder)):
        made.root.rename(bundles / made.root.name)
    # One draws at all temperatures; the other trusts what it says of short windows.
    for name, sure, weights in (("unsure", 1, "fp32"), ("sure", 4, "int8")):
        checkpoint = write_ctranslate2(folder / name, talking_whisper(sure), quantization="float32")
        edge.export(checkpoint, bundles / f"{name}.edge", weights=weights)
    for path in bundles.iterdir():
        answers = folder / "answers" / path.stem
        command = [sys.executable, "-m", "edge.cli.main", "verify", str(path), "--emit", str(answers)]
        plain = {**same_onnxruntime, "EDGE_KERNELS": "off"}  # phones have none of these yet
        ran = subprocess.run(command, cwd=ROOT, env=plain, text=True, capture_output=True)
        assert ran.returncode == 0, ran.stderr
        if (answers / "speech.jsonl").exists():
            paths = filter(None, [plain.get("PYTHONPATH"), str(ROOT), str(ROOT / "tests" / "fixtures")])
            command = [sys.executable, noise_corpus.__file__, str(path), str(answers)]
            here = plain | {"PYTHONPATH": os.pathsep.join(paths)}
            ran = subprocess.run(command, env=here, text=True, capture_output=True)
            assert ran.returncode == 0, ran.stderr
    noise_corpus.write(folder / "evidence.jsonl", LINES, seed=1)
    tokenizer_corpus.write(folder / "tokenizers", LINES, seed=1)
    chat_corpus.write(folder / "chat_formats.jsonl")
    shutil.copy(Path(__file__).with_name("rules.jsonl"), folder)
    return folder


def _with_routers(checkpoint: Path, target: Path) -> Path:
    """The checkpoint with routers that nobody trained: one keeps its layer always."""
    shutil.copytree(checkpoint, target)
    config = json.loads((target / "config.json").read_text("utf-8"))
    shape = config["num_hidden_layers"] - 2, config["hidden_size"] + 1
    routers = np.random.default_rng(5).standard_normal(shape).astype(np.float32)
    routers[3, -1] = np.inf
    save_file({KEY: routers}, target / ROUTERS)
    (target / ABOUT).write_text('{"unit": 1}', "utf-8")
    return target


def _texts_twice(model: Model) -> Iterator[list[int]]:
    for text in 2 * [*conformance_drafts.TEXTS, *conformance.PROMPTS, *SENTENCES]:
        yield model.prompt_ids(text, raw=True)
