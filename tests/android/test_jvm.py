"""The Kotlin runtime on a JVM: its own tests, and that it answers as Python does with the same bundles."""

from __future__ import annotations

import shutil
import subprocess
import xml.etree.ElementTree as ElementTree
from pathlib import Path

from edge.runtime.costs.record import read_profile

PROJECT = Path(__file__).parents[2] / "android_demo"
MINUTES = 15  # with all that Maven fetches


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
    # Three decoders, each over float and int8 keys; two in units, a prefill graph; four encoder-decoders.
    assert passed["GoldenTest"] >= 13
    assert passed["ConformanceTest"] >= 47  # with what drafts in three ways, and ten policies that skip layers
    assert passed["SkipTest"] >= 7
    assert passed["DraftsTest"] >= 4
    assert passed["SpeculationTest"] >= 11
    assert passed["ModelTest"] >= 12
    assert passed["Text2TextTest"] >= 15
    assert passed["TranscriberTest"] >= 11
    assert passed["EvidenceTest"] >= 1
    assert passed["RuleLinesTest"] >= 2
    assert passed["WeightsFileTest"] >= 4
    assert passed["BadInputTest"] >= 3
    assert passed["HostileBundleTest"] >= 6
    assert passed["OrtTest"] >= 1
    assert passed["HostileTokenizerTest"] >= 5
    assert passed["HostileAnswerTest"] >= 6
    assert passed["ChatFormatTest"] >= 1
    assert sum(count for name, count in passed.items() if "Tokenizer" in name) >= 5
    assert passed["ProfilingTest"] >= 5
    measured = read_profile(PROJECT / "edge-runtime" / "target" / "profile.json")
    assert measured.decode and measured.curve and measured.device.runtime.startswith("onnxruntime 1.")
