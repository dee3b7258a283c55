"""The Android app without a phone: its tests on a JVM, and an APK that a phone could install."""

from __future__ import annotations

import shutil
import struct
import subprocess
import sys
import xml.etree.ElementTree as ElementTree
import zipfile
from pathlib import Path

import pytest

from edge.profile.compare import compare
from edge.runtime.costs.record import read_profile

PROJECT = Path(__file__).parents[2] / "android_demo"
APP = PROJECT / "app"
BUILD = [sys.executable, str(APP / "build_apk.py")]
TOOLS = ("mvn", "javac", "aapt", "zipalign", "apksigner")
MINUTES = 20  # with all that Maven fetches
CALL_SITES = 7  # the kind of a dex file's entries that only invokedynamic makes

pytestmark = pytest.mark.skipif(
    any(shutil.which(tool) is None for tool in TOOLS),
    reason="the app is not built: it needs a JDK, Maven, and Debian's aapt, zipalign and apksigner",
)


def build(*args: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([*BUILD, *args], text=True, capture_output=True, timeout=60 * MINUTES)


def kinds(dex: bytes) -> set[int]:
    """What a dex file's map lists."""
    (at,) = struct.unpack_from("<I", dex, 0x34)
    (count,) = struct.unpack_from("<I", dex, at)
    return {struct.unpack_from("<H", dex, at + 4 + 12 * i)[0] for i in range(count)}


def test_an_aar_that_lacks_a_library_is_told(tmp_path: Path) -> None:
    aar = tmp_path / "some.aar"
    assert "There is no file" in build("--onnxruntime-aar", str(aar)).stderr
    with zipfile.ZipFile(aar, "w") as archive:
        archive.writestr("classes.jar", b"")
        archive.writestr("jni/arm64-v8a/libonnxruntime.so", b"")
    ran = build("--onnxruntime-aar", str(aar))
    assert ran.returncode == 2
    assert "has no jni/arm64-v8a/libonnxruntime4j_jni.so" in ran.stderr and "Traceback" not in ran.stderr


@pytest.mark.slow  # two minutes, and hundreds of megabytes for whoever never ran it
def test_the_app_passes_its_tests_and_its_profile_is_read() -> None:
    reports = APP / "target" / "surefire-reports"
    shutil.rmtree(reports, ignore_errors=True)
    tests = ["-Dtest=dev.edgelm.app.**", "-Dsurefire.failIfNoSpecifiedTests=false"]
    command = ["mvn", "-q", "-B", "-Papp", "-pl", "app", "-am", "test", *tests]
    ran = subprocess.run(command, cwd=PROJECT, text=True, capture_output=True, timeout=60 * MINUTES)
    assert ran.returncode == 0, ran.stdout[-8000:] + ran.stderr[-2000:]
    suites = [ElementTree.parse(path).getroot().attrib for path in reports.glob("TEST-*.xml")]
    assert sum(int(suite["tests"]) - int(suite["skipped"]) for suite in suites) >= 55
    profile = read_profile(APP / "target" / "shared.profile.json")
    assert {row.name for row in compare(profile, profile).rows} >= {"TTFT @ 128", "token @ 128", "step of 8 @ 128"}


@pytest.mark.slow  # a minute
def test_the_apk_is_signed_and_has_no_invokedynamic(tmp_path: Path) -> None:
    """With libraries that are none: onnxruntime-android cannot be fetched everywhere. Its classes are the JVM's."""
    jar = next((Path.home() / ".m2/repository/com/microsoft/onnxruntime/onnxruntime").glob("*/onnxruntime-*.jar"), None)
    if jar is None:
        pytest.skip("Maven has not fetched onnxruntime yet")
    with zipfile.ZipFile(jar) as jvm, zipfile.ZipFile(tmp_path / "classes.jar", "w") as classes:
        for name in jvm.namelist():
            if name.endswith(".class"):
                classes.writestr(name, jvm.read(name))
    aar, bundle = tmp_path / "some.aar", tmp_path / "tiny.edge"
    names = ("libonnxruntime.so", "libonnxruntime4j_jni.so")
    libraries = [f"{abi}/{name}" for abi in ("arm64-v8a", "x86_64") for name in names]
    with zipfile.ZipFile(aar, "w") as archive:
        archive.write(tmp_path / "classes.jar", "classes.jar")
        for library in libraries:
            archive.writestr(f"jni/{library}", b"\x7fELF")
    bundle.mkdir()
    (bundle / "edge.json").write_text("{}")
    ran = build("--onnxruntime-aar", str(aar), "--bundle", str(bundle))
    assert ran.returncode == 0, ran.stderr
    apk = APP / "target" / "edge-debug.apk"
    badging = subprocess.run(["aapt", "dump", "badging", str(apk)], text=True, capture_output=True, check=True).stdout
    assert "package: name='dev.edgelm.app'" in badging and "sdkVersion:'27'" in badging
    assert "native-code: 'arm64-v8a' 'x86_64'" in badging
    permissions = [line for line in badging.splitlines() if line.startswith("uses-permission")]
    assert permissions == ["uses-permission: name='android.permission.RECORD_AUDIO'"]
    subprocess.run(["apksigner", "verify", str(apk)], check=True)
    with zipfile.ZipFile(apk) as archive:
        packed, dex = set(archive.namelist()), archive.read("classes.dex")
        assert archive.getinfo("resources.arsc").compress_type == zipfile.ZIP_STORED  # else Android 11 refuses it
    assert {"assets/bundles/tiny.edge/edge.json", *(f"lib/{library}" for library in libraries)} <= packed
    assert b"LambdaMetafactory" not in dex and CALL_SITES not in kinds(dex)
    ours = "EdgeModel", "EdgeText2Text", "EdgeTranscriber", "app/ProfileInstrumentation", "app/screens/DictateActivity"
    for type_ in ("ai/onnxruntime/OrtSession", *(f"dev/edgelm/{name}" for name in ours)):
        assert f"L{type_};".encode() in dex
