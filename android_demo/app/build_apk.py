#!/usr/bin/env python3
"""Build a debug APK of the app without Google's repositories.

Needs a JDK (17 or later), Maven, and Debian's packages aapt, zipalign and apksigner. onnxruntime-android's AAR is not
fetched: --onnxruntime-aar names it. --without-onnxruntime makes an APK that cannot load a model, to test the packaging.
"""

from __future__ import annotations

import argparse
import shutil
import subprocess
import sys
import tempfile
import xml.etree.ElementTree as ElementTree
import zipfile
from pathlib import Path

APP = Path(__file__).resolve().parent
TARGET = APP / "target"
TOOLS = {
    "mvn": "maven",
    "javac": "openjdk-17-jdk-headless",
    "aapt": "aapt",
    "zipalign": "zipalign",
    "apksigner": "apksigner",
}  # and the packages they are in
ABIS = ("arm64-v8a", "x86_64")
LIBRARIES = ("libonnxruntime.so", "libonnxruntime4j_jni.so")
MIN_SDK = "27"
DX = ("com.jakewharton.android.repackaged", "dalvik-dx", "16.0.1")
ASM = ("org.ow2.asm", "asm", "9.9")


class Stop(Exception):
    """The build cannot go on; the message says why."""


def run(*command: str | Path, cwd: Path = APP) -> str:
    words = [str(part) for part in command]
    ran = subprocess.run(words, cwd=cwd, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    if ran.returncode:
        raise Stop(f"{command[0]} failed:\n{ran.stdout[-4000:]}")
    return ran.stdout


def fetched(group: str, name: str, version: str) -> Path:
    """A tool's jar from Maven Central, in Maven's local repository."""
    path = Path.home() / ".m2" / "repository" / Path(*group.split(".")) / name / version / f"{name}-{version}.jar"
    if not path.exists():
        get = "org.apache.maven.plugins:maven-dependency-plugin:3.8.1:get"
        run("mvn", "-q", "-B", get, f"-Dartifact={group}:{name}:{version}", "-Dtransitive=false")
    return path


def check_tools() -> None:
    missing = [package for tool, package in TOOLS.items() if shutil.which(tool) is None]
    if missing:
        raise Stop(f"This needs more tools: apt install {' '.join(missing)}")


def onnxruntime_jar(aar: Path | None, folder: Path) -> Path:
    """The jar with onnxruntime's Java classes: the AAR's, or the JVM's, which are the same without the libraries."""
    if aar is None:
        version = ElementTree.parse(APP.parent / "pom.xml").getroot().findtext(".//{*}onnxruntime.version")
        assert version is not None
        return fetched("com.microsoft.onnxruntime", "onnxruntime", version)
    with zipfile.ZipFile(aar) as archive:
        return Path(archive.extract("classes.jar", folder))


def check_aar(aar: Path) -> None:
    """Raises: Stop where something is missing, before minutes are spent on the rest."""
    if not aar.is_file():
        raise Stop(f"There is no file {aar}.")
    try:
        with zipfile.ZipFile(aar) as archive:
            names = set(archive.namelist())
    except zipfile.BadZipFile as e:
        raise Stop(f"{aar} is no AAR: {e}.") from e
    wanted = ["classes.jar", *(f"jni/{abi}/{library}" for abi in ABIS for library in LIBRARIES)]
    missing = [name for name in wanted if name not in names]
    if missing:
        raise Stop(f"{aar} has no {', '.join(missing)}; take onnxruntime-android's AAR, with all of its ABIs.")


def compile_classes() -> list[Path]:
    """The app's jar, the library's and theirs."""
    run("mvn", "-q", "-B", "-Papp", "-pl", "app", "-am", "package", "-DskipTests", cwd=APP.parent)
    jars = [Path(each) for each in (TARGET / "classpath.txt").read_text().strip().split(":")]
    return [*TARGET.glob("edge-app-*.jar"), *jars]


def make_dex(jars: list[Path], folder: Path) -> Path:
    plain = TARGET / "plain-classes.jar"
    print(run("java", "-cp", fetched(*ASM), APP / "tools" / "PlainClasses.java", plain, *jars), end="")
    dex = folder / "classes.dex"
    dx = "com.android.dx.command.Main"
    run("java", "-Xmx2g", "-cp", fetched(*DX), dx, "--dex", f"--min-sdk-version={MIN_SDK}", f"--output={dex}", plain)
    return dex


def pack(dex: Path, jars: list[Path], aar: Path | None, bundles: list[Path], packed: Path) -> None:
    """Resources as aapt made them, code, libraries and bundles."""
    shutil.copy(TARGET / "resources.ap_", packed)
    with zipfile.ZipFile(packed, "a", zipfile.ZIP_DEFLATED) as apk:
        apk.write(dex, dex.name)
        for jar in jars:
            with zipfile.ZipFile(jar) as archive:
                for name in archive.namelist():
                    if name.startswith("META-INF/services/") and not name.endswith("/"):
                        apk.writestr(name, archive.read(name))
        if aar is not None:
            with zipfile.ZipFile(aar) as archive:
                for abi in ABIS:
                    for library in LIBRARIES:
                        apk.writestr(f"lib/{abi}/{library}", archive.read(f"jni/{abi}/{library}"))
        for bundle in bundles:
            for path in sorted(bundle.rglob("*")):
                if path.is_file():
                    apk.write(path, f"assets/bundles/{bundle.name}/{path.relative_to(bundle).as_posix()}")


def debug_key() -> Path:
    """A key of this machine's, so that one debug build installs over another."""
    key = Path.home() / ".android" / "edge-debug.keystore"
    if not key.exists():
        key.parent.mkdir(exist_ok=True)
        who = ["-alias", "debug", "-dname", "CN=edge debug", "-storepass", "android", "-keypass", "android"]
        kind = ["-keyalg", "RSA", "-keysize", "2048", "-validity", "10000"]
        run("keytool", "-genkeypair", "-keystore", key, *who, *kind)
    return key


def build(aar: Path | None, bundles: list[Path]) -> Path:
    """Returns the APK."""
    check_tools()
    if aar is not None:
        check_aar(aar)
    for bundle in bundles:
        if bundle.suffix != ".edge" or not (bundle / "edge.json").is_file():
            raise Stop(f"{bundle} is not a bundle: its name must end in .edge, and it must have an edge.json.")
    jars = compile_classes()
    apk = TARGET / ("edge-debug.apk" if aar is not None else "edge-debug-without-onnxruntime.apk")
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        jars.append(onnxruntime_jar(aar, folder))
        dex = make_dex(jars, folder)
        pack(dex, jars, aar, bundles, folder / "packed.apk")
        run("zipalign", "-f", "-p", "4", folder / "packed.apk", apk)
    run("apksigner", "sign", "--ks", debug_key(), "--ks-pass", "pass:android", "--min-sdk-version", MIN_SDK, apk)
    run("apksigner", "verify", "--min-sdk-version", MIN_SDK, apk)
    return apk


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    which = parser.add_mutually_exclusive_group(required=True)
    which.add_argument("--onnxruntime-aar", type=Path, metavar="FILE", help="onnxruntime-android-1.29.0.aar")
    which.add_argument("--without-onnxruntime", action="store_true", help="an APK that cannot load models")
    help = "a bundle that is packed with the app; may be given again"
    parser.add_argument("--bundle", type=Path, action="append", default=[], metavar="FOLDER", help=help)
    args = parser.parse_args()
    try:
        apk = build(args.onnxruntime_aar, [bundle.resolve() for bundle in args.bundle])
    except Stop as e:
        print(e, file=sys.stderr)
        return 2
    print(f"{apk} ({apk.stat().st_size / 1e6:.1f} MB)")
    return 0


if __name__ == "__main__":
    sys.exit(main())
