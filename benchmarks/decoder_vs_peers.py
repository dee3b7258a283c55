"""One decoder at 4 bits on this runtime and on its peers, side by side in one run. docs/lab/benchmarks.md says more.

    python benchmarks/decoder_vs_peers.py --bundle smollm2-135m-instruct.edge

Decoding is one token a step; `benchmarks/speculation.py` measures drafts.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any, TextIO

import convert
import machine
import report
from engines import ENGINES, engine_file
from engines.decoding_engine import Models, Unavailable
from processes import REST_S, Worker, WorkerFailed, first_byte
from prompts import QUESTION, Prompts

CONTEXTS = (16, 128, 512, 2000)
PREFILLS = (128, 512, 2000)
PARTS = ("memory", "speed", "start")
MEMORY_CONTEXT, MEMORY_PROMPT, MEMORY_TOKENS = 2048, 512, 64
MODEL = "smollm2-135m-instruct"
PANELS = {
    "decode": "Decode, tokens/s, by tokens of context",
    "prefill": "Prefill, tokens/s, by prompt tokens",
    "peak private": "Peak private memory, MiB (less is better)",
    "first token": "Process start to first token, ms (less is better)",
}


@dataclass(frozen=True)
class Plan:
    """How much is measured."""

    rounds: int
    tokens: int
    starts: int  # fresh processes per engine, for the time to the first token
    trials: int  # answers per variant, for choosing the fastest


FULL = Plan(rounds=9, tokens=64, starts=9, trials=3)
QUICK = Plan(rounds=3, tokens=24, starts=3, trials=1)


@dataclass
class Contender:
    """An engine that can be measured here, and what was found about it."""

    name: str
    python: str
    version: str
    variant: str
    model: Path
    trials: dict[str, float] = field(default_factory=dict)  # variant -> seconds
    worker: Worker | None = None
    says: str = ""
    first_text: str = ""


def main() -> int:
    """Measure, print, write. Returns the exit status."""
    args = parse(sys.argv[1:])
    try:
        models = find_models(args)
    except Unavailable as error:
        print(f"decoder_vs_peers: {error}", file=sys.stderr)
        return 2
    plan = QUICK if args.quick else FULL
    plan = replace(plan, rounds=args.rounds or plan.rounds)
    args.out.mkdir(parents=True, exist_ok=True)
    began = time.monotonic()
    say(f"{args.threads} threads, load average {os.getloadavg()[0]:.2f} before the start")
    with (args.out / "decoder_vs_peers.log").open("w") as log:
        tokenizer = models.bundle / "tokenizer.json"
        bench = Bench(models, plan, args.threads, log, Prompts(tokenizer))
        for name in args.engines:
            bench.enter(name, args.variant.get(name))
        if not bench.contenders:
            print("decoder_vs_peers: none of the engines can be measured here.", file=sys.stderr)
            return 2
        bench.measure(args.parts)
    result = bench.result() | {"seconds": round(time.monotonic() - began)}
    (args.out / "decoder_vs_peers.json").write_text(json.dumps(result, indent=1) + "\n")
    show(bench, args.out)
    return 0


def parse(arguments: list[str]) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0], allow_abbrev=False)
    parser.add_argument("--bundle", type=Path, required=True, help="this runtime's bundle of the model, at 4 bits")
    parser.add_argument(
        "--gguf", type=Path, help=f"the GGUF file of the model; default: what `edge models pull {MODEL}` left"
    )
    parser.add_argument(
        "--engines",
        type=partial(names_of, ENGINES),
        default=list(ENGINES),
        metavar="NAME,...",
        help="those to compare; default: " + ",".join(ENGINES),
    )
    parser.add_argument(
        "--variant",
        type=variant,
        action="append",
        default=[],
        metavar="ENGINE=VARIANT",
        help="measure an engine with this setting, instead of trying which is fastest",
    )
    parser.add_argument(
        "--peer-python",
        metavar="PATH",
        help="the interpreter of an environment with the peers; default: the one that runs this",
    )
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--quick", action="store_true", help="fewer rounds and tokens: two minutes, less certain")
    parser.add_argument(
        "--parts",
        type=partial(names_of, PARTS),
        default=list(PARTS),
        metavar="NAME,...",
        help="what to measure; default: " + ",".join(PARTS),
    )
    parser.add_argument("--rounds", type=int, help=f"default: {FULL.rounds}, with --quick {QUICK.rounds}")
    parser.add_argument("--out", type=Path, default=Path("build/benchmarks"), help="folder for the JSON, plot and log")
    parser.add_argument(
        "--work", type=Path, help="folder that keeps the peers' converted models; default: in the user's cache"
    )
    args = parser.parse_args(arguments)
    if args.threads < 1:
        parser.error(f"--threads must be 1 or more, not {args.threads}")
    args.variant = dict(args.variant)
    return args


def names_of(known: Sequence[str], text: str) -> list[str]:
    """Engines, or what else is known, from `A,B,...`, in the order of those that are known."""
    names = text.split(",")
    for name in names:
        if name not in known:
            raise argparse.ArgumentTypeError(f"there is no {name!r}; there is: {', '.join(known)}")
    return [name for name in known if name in names]


def variant(text: str) -> tuple[str, str]:
    """An engine and one of its settings, from `ENGINE=SETTING`."""
    name, _, setting = text.partition("=")
    if name not in ENGINES:
        raise argparse.ArgumentTypeError(f"there is no engine {name!r}; there is: {', '.join(ENGINES)}")
    known = engine_file(name).VARIANTS
    if setting not in known:
        raise argparse.ArgumentTypeError(f"{name} has no variant {setting!r}; it has: {'; '.join(known)}")
    return name, setting


def find_models(args: argparse.Namespace) -> Models:
    """The bundle, the GGUF file and the folder for what is made of it."""
    from edge.home import cache_dir

    gguf = args.gguf
    if gguf is None:
        from edge.catalog import find, local

        entry = find(MODEL)
        found = local(entry) if entry is not None else None
        if found is None or found.suffix != ".gguf":
            raise Unavailable(f"--gguf is needed: `edge models pull {MODEL}` has left no GGUF file here")
        gguf = found
    for path in (args.bundle / "edge.json", gguf):
        if not path.is_file():
            raise Unavailable(f"there is no {path}")
    work = (args.work or cache_dir() / "benchmarks") / convert.key(gguf)
    work.mkdir(parents=True, exist_ok=True)
    # Only made absolute: resolving a virtual environment's interpreter would leave the environment.
    pythons = tuple(str(Path(p).absolute()) for p in (args.peer_python, sys.executable) if p)
    return Models(args.bundle.resolve(), gguf.resolve(), work.resolve(), pythons)


def say(text: str) -> None:
    print(text, flush=True)


class Bench:
    """The contenders and what was measured of them."""

    def __init__(self, models: Models, plan: Plan, threads: int, log: TextIO, prompts: Prompts) -> None:
        self.models, self.plan, self.threads, self.log = models, plan, threads, log
        self.prompts = prompts
        self.contenders: dict[str, Contender] = {}
        self.skipped: dict[str, str] = {}
        self.figures: dict[str, dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
        self._watch = machine.Watch()

    def enter(self, name: str, forced: str | None) -> None:
        """Prepare an engine, at the fastest of its variants; or say why it is skipped."""
        engine = engine_file(name)
        try:
            order = (sys.executable,) if report.is_ours(name) else self.models.pythons
            python = convert.python_with(order, *engine.MODULES)
            if python is None:
                raise Unavailable(f"{engine.PACKAGE} is not installed")
            variants = [forced] if forced else list(getattr(engine, "TRIED", engine.VARIANTS))
            made = {v: engine.prepare(self.models, v, self.threads) for v in variants}
            found = Contender(name, python, machine.version(python, engine.PACKAGE), variants[0], made[variants[0]])
            if len(variants) > 1:
                self._choose(found, made)
        except (Unavailable, WorkerFailed) as error:
            self._skip(name, str(error))
            return
        self.contenders[name] = found
        tried = "; ".join(f"{v} {s:.2f} s" for v, s in found.trials.items())
        say(f"{name} {found.version}: {found.variant}" + (f"   (tried: {tried})" if tried else ""))

    def _skip(self, name: str, why: str) -> None:
        self.contenders.pop(name, None)
        for values in self.figures.values():
            values.pop(name, None)
        self.skipped[name] = why
        say(f"{name} is SKIPPED: {why}")

    def _choose(self, found: Contender, made: dict[str, Path]) -> None:
        """The variant that takes a prompt of 512 tokens and an answer of 64 in the shortest time."""
        for variant, model in made.items():
            worker = self._worker(found, variant, model, 1024)
            worker.generate(self.prompts.take(64), 4)
            times = []
            for _ in range(self.plan.trials):
                timed = worker.generate(self.prompts.take(512), 64)
                times.append(timed.prefill_s + 64 * timed.decode_s)
            worker.close()
            found.trials[variant] = min(times)
        found.variant = min(found.trials, key=found.trials.__getitem__)
        found.model = made[found.variant]

    def _worker(self, found: Contender, variant: str, model: Path, capacity: int, *, watched: bool = False) -> Worker:
        engine = engine_file(found.name)
        request = {
            "model": str(model),
            "threads": self.threads,
            "capacity": capacity,
            "settings": engine.VARIANTS[variant],
        }
        return Worker(found.python, engine.__name__, self.log, request, watched=watched)

    def measure(self, parts: Sequence[str] = PARTS) -> None:
        """Everything, in rounds over all contenders, so that a drift of the machine meets all alike."""
        if "memory" in parts:
            self._each(self._memory)
        if "speed" in parts:
            self._speed_rounds()
        if "start" in parts:
            for number in range(self.plan.starts + 1):
                self._each(lambda found, warm=number == 0: self._first_token(found, warm))
            say(f"first token: {self.plan.starts} starts of each")

    def _speed_rounds(self) -> None:
        self._each(self._start)
        for number in range(self.plan.rounds):
            for context in CONTEXTS:
                self._each(lambda found, at=context: self._answer(found, at), backwards=number % 2 == 1)
            say(f"speed: round {number + 1} of {self.plan.rounds}")
        for found in self.contenders.values():
            if found.worker is not None:
                found.worker.close()

    def _each(self, job: Callable[[Contender], None], *, backwards: bool = False) -> None:
        """Do it with one contender after the other; each rests before, so that threads of the one before do not spin
        into its time (OpenMP's do so for up to 200 ms), and `backwards` every other time, so that none always follows
        the same one."""
        for found in list(self.contenders.values())[:: -1 if backwards else 1]:
            time.sleep(REST_S)
            try:
                job(found)
            except WorkerFailed as error:
                self._skip(found.name, str(error))

    def _memory(self, found: Contender) -> None:
        bare = Worker(found.python, engine_file(found.name).__name__, self.log, {})
        bare.close()
        worker = self._worker(found, found.variant, found.model, MEMORY_CONTEXT, watched=True)
        worker.generate(self.prompts.take(MEMORY_PROMPT), MEMORY_TOKENS)
        worker.close()
        private, rss, alone = worker.peak_private_mb, worker.peak_rss_mb, bare.peak_private_mb
        self.figures["bare import"][found.name].append(alone)
        self.figures["peak private"][found.name].append(private)
        self.figures["peak RSS"][found.name].append(rss)
        say(f"memory: {found.name} {private:.0f} MiB private, {rss:.0f} MiB RSS; its package alone {alone:.0f} MiB")

    def _start(self, found: Contender) -> None:
        found.worker = self._worker(found, found.variant, found.model, max(CONTEXTS) + self.plan.tokens + 16)
        warm = found.worker.generate(self.prompts.take(64), 24)
        found.says = self.prompts.text(warm.tokens)

    def _answer(self, found: Contender, context: int) -> None:
        assert found.worker is not None
        ids = self.prompts.take(context)
        with self._watch.over(found.worker):
            timed = found.worker.generate(ids, self.plan.tokens)
        self.figures[f"prefill @ {context}"][found.name].append(context / timed.prefill_s)
        self.figures[f"decode @ {context}"][found.name].append(1 / timed.decode_s)

    def _first_token(self, found: Contender, warm: bool) -> None:
        engine = engine_file(found.name)
        command = engine.first_token(found.python, found.model, QUESTION, self.threads, found.variant)
        got = first_byte(command, self.log)
        found.first_text = got.text
        if not warm:
            self.figures["first token"][found.name].append(got.seconds * 1000)

    @property
    def metrics(self) -> list[report.Metric]:
        """The rows of the report."""
        rows = [(f"prefill @ {n}", "tokens/s", True) for n in PREFILLS]
        rows += [(f"decode @ {n}", "tokens/s", True) for n in CONTEXTS]
        rows += [("peak private", "MiB", False), ("peak RSS", "MiB", False), ("first token", "ms", False)]
        return [report.Metric(row[0], row[1], row[2], self.figures[row[0]]) for row in rows if row[0] in self.figures]

    @property
    def warnings(self) -> list[str]:
        """What may have spoiled the figures."""
        return self._watch.warnings({c.name: c.worker for c in self.contenders.values() if c.worker is not None})

    def result(self) -> dict[str, Any]:
        """All that was measured, for the JSON file."""
        return {
            "date": datetime.now(UTC).isoformat(timespec="seconds"),
            "machine": machine.description(),
            "threads": self.threads,
            "plan": vars(self.plan),
            "bundle": json.loads((self.models.bundle / "edge.json").read_text()).get("name"),
            "gguf": self.models.gguf.name,
            "engines": {
                c.name: {
                    "version": c.version,
                    "variant": c.variant,
                    "trials_s": c.trials,
                    "idle_core_share": c.worker.idle_share if c.worker else None,
                    "continues_with": c.says,
                    "first_text": c.first_text.strip(),
                }
                for c in self.contenders.values()
            },
            "skipped": self.skipped,
            "warnings": self.warnings,
            "rounds": self.figures,
            "ratios": {
                m.label: {p: vars(report.ratio(m.rounds, p)) for p in m.rounds if p != report.OURS}
                for m in self.metrics
                if report.OURS in m.rounds
            },
            "goals": [vars(goal) | {"met": goal.met} for goal in report.goals(self.metrics)],
        }


def show(bench: Bench, out: Path) -> None:
    """Print the tables and draw the plot."""
    metrics, names = bench.metrics, list(bench.contenders)
    floor = report.Metric("bare import", "MiB", False, bench.figures["bare import"])
    say("\n" + report.figures_table([*metrics, floor], names))
    say("\n" + report.ratios_table(metrics, names) + "\n")
    for goal in report.goals(metrics):
        say(str(goal))
    for name, why in bench.skipped.items():
        say(f"SKIPPED {name}: {why}")
    for warning in bench.warnings:
        say(f"WARNING: {warning}")
    try:
        title = f"{bench.models.bundle.stem}, {bench.threads} threads, {machine.cpu_name()}"
        panels = [
            report.Panel(
                heading, {m.label.removeprefix(start).strip(" @"): m for m in metrics if m.label.startswith(start)}
            )
            for start, heading in PANELS.items()
        ]
        report.plot(panels, names, title, out / "decoder_vs_peers.png")
    except ImportError:
        say("There is no plot, because matplotlib is not installed.")
    say(f"\nWritten to {out}: decoder_vs_peers.json, .png and .log")


if __name__ == "__main__":
    sys.exit(main())
