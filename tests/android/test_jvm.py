"""The Kotlin runtime on a JVM: its own tests, and that it answers as Python does with the same bundles."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import xml.etree.ElementTree as ElementTree
from importlib.metadata import version
from pathlib import Path

import chat_corpus
import pytest
import tokenizer_corpus
from texts import SENTENCES
from tiny_encoder_decoders import nllb_bundle, t5_bundle
from whisper_files import talking_whisper, write_ctranslate2

import edge
from edge.runtime.profile.record import read_profile

ROOT = Path(__file__).parents[2]
PROJECT = ROOT / "android_demo"
LINES = 2_000  # for each tokenizer; 20,000 take minutes, and were run by hand: docs/lab/android.md
MINUTES = 15  # with all that Maven fetches


@pytest.fixture(scope="module")
def maven() -> str:
    """The command. Without it and a JDK tests are skipped, but where EDGE_TEST_JVM_REQUIRED is set."""
    found = shutil.which("mvn")
    if found is None or shutil.which("javac") is None:
        missing = "the Kotlin runtime is not tested: no JDK and Maven (Debian: openjdk-17-jdk-headless, maven)"
        if os.environ.get("EDGE_TEST_JVM_REQUIRED"):
            pytest.fail(missing)
        pytest.skip(missing)
    return found


@pytest.fixture(scope="module")
def same_onnxruntime(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """The environment of a Python with the onnxruntime that Maven has: another version's kernels round otherwise, and
    Maven's is behind PyPI's."""
    found = ElementTree.parse(PROJECT / "pom.xml").getroot().find(".//{*}onnxruntime.version")
    assert found is not None and found.text is not None
    environment = {**os.environ, "EDGE_HOME": str(tmp_path_factory.mktemp("edge-home"))}
    if found.text == version("onnxruntime"):
        return environment
    folder = tmp_path_factory.mktemp("onnxruntime")
    wanted = [f"onnxruntime=={found.text}", "--no-deps", "--target", str(folder)]
    subprocess.run([sys.executable, "-m", "pip", "install", "--quiet", *wanted], check=True, timeout=60 * MINUTES)
    return {**environment, "PYTHONPATH": str(folder)}


@pytest.fixture(scope="module")
def corpus(
    tmp_path_factory: pytest.TempPathFactory,
    same_onnxruntime: dict[str, str],
    six_layers: Path,
    tiny_checkpoint: Path,
) -> Path:
    """What the tests read: bundles, and what Python makes of them."""
    folder = tmp_path_factory.mktemp("corpus")
    bundles = folder / "bundles"
    edge.export(
        six_layers, bundles / "int8.edge", weights="int8", prefill_weights="int8", candidates=False, draft_text=0
    )
    text = " ".join(SENTENCES)
    edge.export(tiny_checkpoint, bundles / "int4.edge", weights="int4", calibration=text, check=False)
    for made in (t5_bundle(folder), nllb_bundle(folder)):
        made.root.rename(bundles / made.root.name)
    # One draws at all temperatures; the other trusts what it says of short windows.
    for name, sure, weights in (("unsure", 1, "fp32"), ("sure", 4, "int8")):
        checkpoint = write_ctranslate2(folder / name, talking_whisper(sure), quantization="float32")
        edge.export(checkpoint, bundles / f"{name}.edge", weights=weights)
    for path in bundles.iterdir():
        answers = folder / "answers" / path.stem
        command = [sys.executable, "-m", "edge.cli.main", "verify", str(path), "--emit", str(answers)]
        ran = subprocess.run(command, cwd=ROOT, env=same_onnxruntime, text=True, capture_output=True)
        assert ran.returncode == 0, ran.stderr
    tokenizer_corpus.write(folder / "tokenizers", LINES, seed=1)
    chat_corpus.write(folder / "chat_formats.jsonl")
    return folder


def test_the_kotlin_runtime_answers_as_python_does(maven: str, corpus: Path) -> None:
    reports = PROJECT / "edge-runtime" / "target" / "surefire-reports"
    shutil.rmtree(reports, ignore_errors=True)
    command = [maven, "--quiet", "--batch-mode", "test", f"-Dedge.corpus={corpus}"]
    ran = subprocess.run(command, cwd=PROJECT, text=True, capture_output=True, timeout=60 * MINUTES)
    assert ran.returncode == 0, ran.stdout[-8000:] + ran.stderr[-2000:]
    passed: dict[str, int] = {}
    for report in reports.glob("TEST-*.xml"):
        suite = ElementTree.parse(report).getroot()
        name = suite.attrib["name"].rsplit(".", 1)[-1]
        passed[name] = int(suite.attrib["tests"]) - int(suite.attrib["skipped"])
    # What needs the corpus may not have been skipped.
    # Two decoders, each over float and int8 keys, a prefill graph, two models from text to text, two of speech.
    assert passed["GoldenTest"] >= 9
    assert passed["ConformanceTest"] >= 6
    assert passed["ModelTest"] >= 12
    assert passed["Text2TextTest"] >= 15
    assert passed["TranscriberTest"] >= 9
    assert passed["WeightsFileTest"] >= 3
    assert passed["BadInputTest"] >= 3
    assert passed["ChatFormatTest"] >= 1
    assert sum(count for name, count in passed.items() if "Tokenizer" in name) >= 5
    assert passed["ProfilingTest"] >= 5
    measured = read_profile(PROJECT / "edge-runtime" / "target" / "profile.json")
    assert measured.decode and measured.curve and measured.device.runtime.startswith("onnxruntime 1.")
