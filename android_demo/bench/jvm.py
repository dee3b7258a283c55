"""The Java command that runs what measures the Kotlin runtime."""

from __future__ import annotations

import subprocess
from pathlib import Path

HERE = Path(__file__).parent
HEAP = "192m"


def java(main: str, *flags: str) -> list[str]:
    """The command that runs a class of `dev.edgelm.bench` on a heap of 192 MB, once Maven has compiled it."""
    subprocess.run(["mvn", "-q", "-B", "package", "-DskipTests"], cwd=HERE.parent, check=True)
    classes = [HERE / "target" / "classes", HERE.parent / "edge-runtime" / "target" / "classes"]
    found = (HERE / "target" / "classpath.txt").read_text().strip()
    path = ":".join([*map(str, classes), found])
    return ["java", f"-Xms{HEAP}", f"-Xmx{HEAP}", *flags, "-cp", path, f"dev.edgelm.bench.{main}"]
