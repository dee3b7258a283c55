"""The Kotlin runtime next to Python's, in turns on the same machine and bundle: tokens per second, memory, garbage.

    python android_demo/bench/compare.py smol.edge

Both answer the same prompt greedily, without drafts, in a process of their own each round. Memory is private memory
after the answers, less that before onnxruntime was loaded, and without that of the Java machine itself: heap, compiler,
code and classes.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
PROMPT = "The history of the lighthouse begins with fires that were lit on hills above a harbour. " * 6
HEAP = "192m"
FLAGS = ["-XX:+AlwaysPreTouch", "-XX:NativeMemoryTracking=summary"]
ROWS = {
    "tokens_per_s": "tokens per second",
    "first_token_ms": "first token, ms",
    "private_mb": "private memory, MB",
}
PYTHON = """
import json, sys
import numpy
from pathlib import Path
def private_bytes():
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("RssAnon"))
path, prompt, tokens, rounds = sys.argv[1:]
before = private_bytes()
import onnxruntime
import edge
model = edge.load(path, speculate="off", context=1024)
runs = [model.generate(prompt, raw=True, max_tokens=int(tokens)) for _ in range(int(rounds) + 1)]
print(json.dumps({
    "tokens_per_s": max(run.decode_tokens_per_s for run in runs), "first_token_ms": min(run.ttft_ms for run in runs),
    "tokens": runs[-1].generated_tokens, "private_mb": (private_bytes() - before) / 1e6,
    "onnxruntime": onnxruntime.__version__,
}))
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("bundle", type=Path)
    parser.add_argument("--tokens", type=int, default=128)
    parser.add_argument("--rounds", type=int, default=5, help="processes of each, in turns")
    args = parser.parse_args()
    subprocess.run(["mvn", "-q", "-B", "package", "-DskipTests"], cwd=HERE.parent, check=True)
    classes = [HERE / "target" / "classes", HERE.parent / "edge-runtime" / "target" / "classes"]
    found = (HERE / "target" / "classpath.txt").read_text().strip()
    path = ":".join([*map(str, classes), found])
    java = ["java", f"-Xms{HEAP}", f"-Xmx{HEAP}", *FLAGS, "-cp", path, "dev.edgelm.bench.BenchKt"]
    given = [str(args.bundle), PROMPT, str(args.tokens), "3"]
    runs: dict[str, list[dict[str, Any]]] = {"Kotlin": [], "Python": []}
    for number in range(args.rounds):
        for name, command in (("Kotlin", java), ("Python", [sys.executable, "-c", PYTHON])):
            done = subprocess.run([*command, *given], capture_output=True, text=True, check=True)
            runs[name].append(json.loads(done.stdout.strip().splitlines()[-1]))
            print(f"round {number + 1}, {name}: {runs[name][-1]['tokens_per_s']:.1f} tokens/s", file=sys.stderr)
    print(f"{'':24}{'Kotlin':>10}{'Python':>10}{'ratio':>8}")
    versions = [runs[name][-1]["onnxruntime"] for name in runs]
    print(f"{'onnxruntime':24}{versions[0]:>10}{versions[1]:>10}")
    for key, what in ROWS.items():
        kotlin, python = (statistics.median(run[key] for run in runs[name]) for name in runs)
        ratio = statistics.median(a[key] / b[key] for a, b in zip(*runs.values(), strict=True))
        print(f"{what:24}{kotlin:10.1f}{python:10.1f}{ratio:8.3f}")
    last = runs["Kotlin"][-1]
    print(f"{'bytes allocated a token':24}{last['allocated_per_token']:10}")
    print(f"{'collections':24}{last['collections']:10} in {last['tokens']} tokens")


if __name__ == "__main__":
    main()
