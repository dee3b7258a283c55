"""The Kotlin runtime on an Arm core, which is the nearest thing to a phone here: see emulators.py."""

from __future__ import annotations

import shutil
import subprocess
import xml.etree.ElementTree as ElementTree
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from emulators import Emulator, emulators, java, or_skip, with_onnxruntime

RUNTIME = Path(__file__).parents[2] / "android_demo" / "edge-runtime"
MINUTES = 8  # that Python or Java may take with one bundle on a busy machine
GOLDEN = "dev.edgelm.check.GoldenTest"
TESTS = {
    "int4": [GOLDEN, "dev.edgelm.ConformanceTest", "dev.edgelm.decode.SamplingTest"],
    "t5": [GOLDEN, "dev.edgelm.Text2TextTest#candidates are Python's with its scores"],
}


@pytest.fixture(scope="module")
def arm(onnxruntime_of_maven: str) -> tuple[Emulator, Emulator]:
    """Python and Java there, with the same onnxruntime."""
    return or_skip(lambda: (with_onnxruntime(emulators()["aarch64"], onnxruntime_of_maven), java()))


@pytest.fixture(scope="module")
def class_path(maven: str) -> str:
    """What Maven compiled: the runtime, its tests and the libraries. A test that it runs tells."""
    command = [maven, "--quiet", "--batch-mode", "test", "-Dtest=SamplingTest"]
    ran = subprocess.run(command, cwd=RUNTIME, text=True, capture_output=True, timeout=60 * MINUTES)
    assert ran.returncode == 0, ran.stdout[-8000:] + ran.stderr[-2000:]
    report = ElementTree.parse(RUNTIME / "target" / "surefire-reports" / "TEST-dev.edgelm.decode.SamplingTest.xml")
    found = report.find(".//property[@name='java.class.path']")
    assert found is not None
    return found.attrib["value"]


@pytest.fixture(scope="module")
def said(
    arm: tuple[Emulator, Emulator], class_path: str, corpus: Path, tmp_path_factory: pytest.TempPathFactory
) -> dict[str, str]:
    """What the tests say of each bundle, after Python answered there; empty where all passed."""
    python, kotlin = arm

    def ask(name: str) -> str:
        folder = tmp_path_factory.mktemp(f"arm-{name}")
        bundle = shutil.copytree(corpus / "bundles" / f"{name}.edge", folder / "bundles" / f"{name}.edge")
        verify = ["-m", "edge.cli.main", "verify", str(bundle), "--emit", str(folder / "answers" / name)]
        answered = python.run([*verify, "--threads", "1"], timeout=60 * MINUTES)
        assert answered.returncode == 0, answered.stdout + answered.stderr[-3000:]
        run = [f"-Dedge.corpus={folder}", "-cp", class_path, "dev.edgelm.RunTestsKt", *TESTS[name]]
        tested = kotlin.run(run, timeout=60 * MINUTES)
        return "" if tested.returncode == 0 else tested.stdout[-8000:] + tested.stderr[-3000:]

    with ThreadPoolExecutor(2) as pool:
        return dict(zip(TESTS, pool.map(ask, TESTS), strict=True))


@pytest.mark.parametrize("name", TESTS)
def test_kotlin_says_on_arm_what_python_says_there(said: dict[str, str], name: str) -> None:
    assert not said[name], said[name]
