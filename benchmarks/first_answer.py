"""From a GGUF file and an empty cache to the first token, on this runtime and on its peers, side by side in one run.

    python benchmarks/first_answer.py --gguf SmolLM2-135M-Instruct.Q4_1.gguf

Every engine does twice what its user would do: with nothing made of the file yet, and then with what the first run
left. docs/lab/benchmarks.md says more.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TextIO

import convert
import machine
import report
from decoder_vs_peers import names_of, say
from engines import engine_file
from engines.decoding_engine import SCRIPTS
from processes import REST_S, WorkerFailed, first_byte
from prompts import QUESTION

ROWS = {  # label: unit, digits
    "first run": ("s", 2),
    "second run": ("s", 2),
    "CPU time, first run": ("s", 2),  # of the whole run, which depends less on what else the machine does
    "CPU time, second run": ("s", 2),
    "peak private, first run": ("MiB", 0),
    "peak private, second run": ("MiB", 0),
}


@dataclass(frozen=True)
class Run:
    """What a command line is made of. `cache` is the folder that an engine may fill and find again."""

    python: str
    gguf: Path
    cache: Path
    threads: int
    ov_precision: str | None = None


def _edge(run: Run) -> list[str]:
    return engine_file("edge").first_token(run.python, run.gguf, QUESTION, run.threads, "exact")


def _genai(run: Run) -> list[str]:
    return [run.python, str(SCRIPTS / "genai_gguf.py"), str(run.gguf), QUESTION, str(run.threads), str(run.cache)]


def _llamacpp(run: Run) -> list[str]:
    return engine_file("llama.cpp").first_token(run.python, run.gguf, QUESTION, run.threads, "flash attention")


def _openvino(run: Run) -> list[str]:
    command = [run.python, str(SCRIPTS / "ov_gguf.py"), str(run.gguf), QUESTION, str(run.threads), str(run.cache)]
    return [*command, *([run.ov_precision] if run.ov_precision else [])]


COMMANDS: Mapping[str, Callable[[Run], list[str]]] = {
    "edge": _edge,
    "onnxruntime-genai": _genai,
    "llama.cpp": _llamacpp,
    "openvino-genai": _openvino,
}
# What else an engine's environment must have to make its model of a GGUF file.
MAKING = {"onnxruntime-genai": ("torch", "transformers", "onnx", "onnx_ir", "gguf", "safetensors", "edge")}


def main() -> int:
    """Measure, print, write. Returns the exit status."""
    args = parse(sys.argv[1:])
    if not args.gguf.is_file():
        print(f"first_answer: there is no {args.gguf}", file=sys.stderr)
        return 2
    args.out.mkdir(parents=True, exist_ok=True)
    say(f"{args.threads} threads, load average {os.getloadavg()[0]:.2f} before the start")
    with (args.out / "first_answer.log").open("w") as log:
        bench = Bench(args, log)
        for name in args.engines:
            bench.enter(name)
        bench.measure()
    result = bench.result()
    (args.out / "first_answer.json").write_text(json.dumps(result, indent=1) + "\n")
    say("\n" + report.figures_table(bench.metrics, list(bench.pythons)))
    say("\n" + report.ratios_table(bench.metrics, list(bench.pythons)) + "\n")
    for name, why in bench.skipped.items():
        say(f"SKIPPED {name}: {why}")
    for warning in result["warnings"]:
        say(f"WARNING: {warning}")
    return 0


def parse(arguments: Sequence[str]) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0], allow_abbrev=False)
    parser.add_argument("--gguf", type=Path, required=True, help="the model's file, which all engines are given")
    parser.add_argument(
        "--engines",
        type=partial(names_of, tuple(COMMANDS)),
        default=list(COMMANDS),
        metavar="NAME,...",
        help="those to compare; default: " + ",".join(COMMANDS),
    )
    parser.add_argument(
        "--peer-python",
        metavar="PATH",
        help="the interpreter of an environment with the peers; default: the one that runs this",
    )
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument(
        "--ov-precision",
        choices=("f32", "bf16"),
        help="the precision that OpenVINO computes in; default: what it chooses itself",
    )
    parser.add_argument(
        "--work",
        type=Path,
        help="folder for the caches, which are removed again; default: the system's temporary folder",
    )
    parser.add_argument("--out", type=Path, default=Path("build/benchmarks"), help="folder for the JSON and the log")
    args = parser.parse_args(arguments)
    for option in ("threads", "rounds"):
        if getattr(args, option) < 1:
            parser.error(f"--{option} must be 1 or more, not {getattr(args, option)}")
    args.gguf = args.gguf.absolute()
    return args


class Bench:
    """The engines that can be measured here, by the interpreter that runs each, and the figures of their rounds."""

    def __init__(self, args: argparse.Namespace, log: TextIO) -> None:
        self.args, self.log = args, log
        self.pythons: dict[str, str] = {}
        self.versions: dict[str, str] = {}
        self.skipped: dict[str, str] = {}
        self.figures: dict[str, dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
        self._watch = machine.Watch()

    def enter(self, name: str) -> None:
        """Find an engine and import its package once, unmeasured; or say why it is skipped."""
        engine = engine_file(name)
        peers = tuple(str(Path(p).absolute()) for p in (self.args.peer_python, sys.executable) if p)
        pythons = (sys.executable,) if report.is_ours(name) else peers
        needs = (*engine.MODULES, *MAKING.get(name, ()))
        if convert.python_with(pythons, *engine.MODULES) is None:
            self._skip(name, f"{engine.PACKAGE} is not installed")
        elif (python := convert.python_with(pythons, *needs)) is None:
            self._skip(name, f"making its model of a GGUF file needs {', '.join(needs)} in one environment")
        else:
            self.pythons[name], self.versions[name] = python, machine.version(python, engine.PACKAGE)
            subprocess.run([python, "-c", engine.IMPORT], stdout=self.log, stderr=self.log)
            say(f"{name} {self.versions[name]}")

    def _skip(self, name: str, why: str) -> None:
        self.pythons.pop(name, None)
        for values in self.figures.values():
            values.pop(name, None)
        self.skipped[name] = why
        say(f"{name} is SKIPPED: {why}")

    def measure(self) -> None:
        """Rounds over all engines, each time in another order, so that a drift of the machine meets all alike."""
        order = random.Random(0)
        for number in range(self.args.rounds):
            names = list(self.pythons)
            for name in order.sample(names, len(names)):
                try:
                    self._twice(name)
                except WorkerFailed as error:
                    self._skip(name, str(error))
            say(f"round {number + 1} of {self.args.rounds}")

    def _twice(self, name: str) -> None:
        with tempfile.TemporaryDirectory(dir=self.args.work) as cache:
            run = Run(self.pythons[name], self.args.gguf, Path(cache), self.args.threads, self.args.ov_precision)
            for which in ("first run", "second run"):
                time.sleep(REST_S)
                cpu_s = machine.children_s()
                with self._watch.over_children():
                    got = first_byte(COMMANDS[name](run), self.log, env=os.environ | {"EDGE_HOME": cache}, watched=True)
                self.figures[which][name].append(got.seconds)
                self.figures[f"CPU time, {which}"][name].append(machine.children_s() - cpu_s)
                self.figures[f"peak private, {which}"][name].append(got.peak_private_mb)
                said = f"{got.seconds:6.2f} s, {got.peak_private_mb:5.0f} MiB private"
                say(f"  {name}, {which}: {said}, {got.text.strip()!r}")

    @property
    def metrics(self) -> list[report.Metric]:
        """The rows of the report."""
        return [report.Metric(r, unit, False, self.figures[r], n) for r, (unit, n) in ROWS.items() if self.figures[r]]

    def result(self) -> dict[str, object]:
        """All that was measured, for the JSON file."""
        return {
            "machine": machine.description(),
            "threads": self.args.threads,
            "gguf": self.args.gguf.name,
            "engines": self.versions,
            "skipped": self.skipped,
            "warnings": self._watch.warnings({}),
            "rounds": self.figures,
        }


if __name__ == "__main__":
    sys.exit(main())
