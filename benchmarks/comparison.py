"""Engines beside each other: each in a process of its own, asked in turn, round by round."""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any, TextIO

import convert
import machine
import report
from engines import EngineFile, Unavailable, engine_file
from processes import REST_S, Worker, WorkerFailed

Work = Callable[[Worker, int], Mapping[str, float]]  # of a round: values by label


@dataclass
class Entrant:
    """An engine that can be measured here, with the model in the form it reads."""

    name: str
    engine: EngineFile
    python: str
    version: str
    variant: str
    model: Path
    trials: dict[str, float] = field(default_factory=dict)  # variant -> seconds
    worker: Worker | None = None


class Comparison:
    """Entrants of one task, and the figures that they make round by round.

    pythons: interpreters to look in for what an engine needs; this runtime runs in the one that runs this.
    trials: of every variant, for choosing the fastest. capacity: tokens of prompt and answer that there is room for.
    `figures`: values by label and entrant. `skipped`: why others are not measured.
    """

    def __init__(
        self, task: str, threads: int, log: TextIO, pythons: Sequence[str] = (), trials: int = 1, capacity: int = 448
    ) -> None:
        self.task, self.threads, self.log = task, threads, log
        self.pythons, self.trials, self.capacity = tuple(pythons), trials, capacity
        self.entrants: dict[str, Entrant] = {}
        self.skipped: dict[str, str] = {}
        self.figures: dict[str, dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
        self.watch = machine.Watch()
        self._spinning: dict[str, Worker] = {}

    def enter(
        self,
        name: str,
        prepare: Callable[[str], Path],
        trial: Callable[[Worker], float] | None = None,
        variants: Sequence[str] = (),
    ) -> None:
        """Make an engine ready at the fastest of its variants, or of those that are named; or say why it is skipped.

        prepare: the model in its form, for a variant. trial: seconds that a worker takes for some work; where there is
        none, the first variant is measured.
        """
        engine = engine_file(name)
        pythons = (sys.executable,) if report.is_ours(name) else self.pythons
        try:
            python = convert.python_with(pythons, *engine.MODULES)
            if python is None:
                raise Unavailable(f"{engine.PACKAGE} is not installed")
            made = {variant: prepare(variant) for variant in variants or engine.VARIANTS[self.task]}
            version, variant = machine.version(python, engine.PACKAGE), next(iter(made))
            found = Entrant(name, engine, python, version, variant, made[variant])
            if trial is not None and len(made) > 1:
                self._choose(found, made, trial)
        except (Unavailable, WorkerFailed) as error:
            self.skip(name, str(error))
            return
        self.entrants[name] = found
        tried = "; ".join(f"{v} {s:.3g} s" for v, s in found.trials.items())
        say(f"{name} {found.version}: {found.variant}" + (f"   (tried: {tried})" if tried else ""))

    def _choose(self, found: Entrant, made: Mapping[str, Path], trial: Callable[[Worker], float]) -> None:
        for variant, model in made.items():
            found.variant, found.model = variant, model
            worker = self.worker(found)
            trial(worker)
            found.trials[variant] = min(trial(worker) for _ in range(self.trials))
            worker.close()
        found.variant = min(found.trials, key=found.trials.__getitem__)
        found.model = made[found.variant]

    def worker(self, found: Entrant, *, watched: bool = False) -> Worker:
        """A process with an entrant's model."""
        settings: dict[str, Any] = dict(found.engine.VARIANTS[self.task][found.variant])
        request = {
            "model": str(found.model),
            "threads": settings.pop("threads", self.threads),
            "capacity": self.capacity,
            "settings": {"task": self.task, **settings},
        }
        return Worker(found.python, found.engine.__name__, self.log, request, watched=watched)

    def skip(self, name: str, why: str) -> None:
        """Leave an engine out from here on."""
        self.entrants.pop(name, None)
        for values in self.figures.values():
            values.pop(name, None)
        self.skipped[name] = why
        say(f"{name} is SKIPPED: {why}")

    def each(self, job: Callable[[Entrant], None], *, backwards: bool = False) -> None:
        """Do something with every entrant in turn; one that fails is skipped from here on.

        Each rests before, so that threads of the one before do not spin into its time (OpenMP's do so for up to 200
        ms); rounds go `backwards` every other time, so that none always follows the same one.
        """
        for found in list(self.entrants.values())[:: -1 if backwards else 1]:
            time.sleep(REST_S)
            try:
                job(found)
            except WorkerFailed as error:
                self.skip(found.name, str(error))

    def measure_memory(self, work: Callable[[Worker], object]) -> None:
        """Peak private memory and RSS of a fresh process that loads and does `work`; private memory of one that imports
        the package alone."""

        def measure(found: Entrant) -> None:
            bare = Worker(found.python, found.engine.__name__, self.log, {})
            bare.close()
            worker = self.worker(found, watched=True)
            work(worker)
            worker.close()
            self.figures["bare import"][found.name].append(bare.peak_private_mb)
            self.figures["peak private"][found.name].append(worker.peak_private_mb)
            self.figures["peak RSS"][found.name].append(worker.peak_rss_mb)

        self.each(measure)

    def rounds(self, count: int, warm: Callable[[Worker], object], works: Sequence[Work]) -> None:
        """Start everyone and do `warm`, then each of the `works` `count` times in turn: work of a round gives values by
        label."""

        def begin(found: Entrant) -> None:
            found.worker = self.worker(found)
            warm(found.worker)

        self.each(begin)
        for number in range(count):
            for work in works:
                self.each(partial(self._once, work, number), backwards=number % 2 == 1)
            say(f"round {number + 1} of {count}")
        for found in self.entrants.values():
            if found.worker is not None:
                found.worker.close()
                self._spinning[found.name] = found.worker

    def _once(self, work: Work, number: int, found: Entrant) -> None:
        assert found.worker is not None
        with self.watch.over(found.worker):
            values = work(found.worker, number)
        for label, value in values.items():
            self.figures[label][found.name].append(value)

    def metrics(self, rows: Sequence[tuple[str, str, bool, int]]) -> list[report.Metric]:
        """Label, unit, whether more is better, digits; those that were measured."""
        return [report.Metric(r[0], r[1], r[2], self.figures[r[0]], r[3]) for r in rows if self.figures.get(r[0])]

    @property
    def warnings(self) -> list[str]:
        """What may have spoiled the figures."""
        return self.watch.warnings(self._spinning)

    def result(self) -> dict[str, Any]:
        """What was measured, for the JSON file."""
        engines = {
            e.name: {"version": e.version, "variant": e.variant, "trials_s": e.trials, "model": e.model.name}
            for e in self.entrants.values()
        }
        return {"engines": engines, "skipped": self.skipped, "warnings": self.warnings, "rounds": self.figures}

    def show(self, metrics: Sequence[report.Metric], goals: Sequence[report.Goal]) -> None:
        """Print the tables, the goals and what went wrong."""
        names = list(self.entrants)
        bare = self.metrics([("bare import", "MiB", False, 0)])
        say("\n" + report.figures_table([*metrics, *bare], names))
        for ours in filter(report.is_ours, names if len(names) > 1 else ()):
            say("\n" + report.ratios_table(metrics, names, ours))
        say("\n" + "\n".join(map(str, goals)))
        for name, why in self.skipped.items():
            say(f"SKIPPED {name}: {why}")
        for warning in self.warnings:
            say(f"WARNING: {warning}")


def say(text: str) -> None:
    print(text, flush=True)


def names_of(known: Sequence[str], text: str) -> list[str]:
    """Engines, or what else is known, from `A,B,...`, in the order of those that are known."""
    names = text.split(",")
    for name in names:
        if name not in known:
            raise argparse.ArgumentTypeError(f"there is no {name!r}; there is: {', '.join(known)}")
    return [name for name in known if name in names]


def add_peer_python(parser: argparse.ArgumentParser) -> None:
    """The option of comparisons whose peers may stand in an environment of their own."""
    parser.add_argument(
        "--peer-python", metavar="PATH", help="the interpreter of an environment with the peers; default: this one"
    )


def add_common(parser: argparse.ArgumentParser) -> None:
    """The options of every comparison with peers."""
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--out", type=Path, default=Path("build/benchmarks"), help="folder for the JSON, plot and log")
    parser.add_argument("--work", type=Path, help="folder that keeps converted models; default: in the user's cache")


def parsed(parser: argparse.ArgumentParser, arguments: Sequence[str]) -> argparse.Namespace:
    """The command line, with `pythons`, and the folders made."""
    from edge.home import cache_dir

    args = parser.parse_args(arguments)
    for option in ("threads", "rounds"):
        if (value := getattr(args, option, None)) is not None and value < 1:
            parser.error(f"--{option} must be 1 or more, not {value}")
    # Only made absolute: resolving a virtual environment's interpreter would leave the environment.
    args.pythons = tuple(str(Path(p).absolute()) for p in (getattr(args, "peer_python", None), sys.executable) if p)
    args.work = (args.work or cache_dir() / "benchmarks").resolve()
    return args


def write(path: Path, threads: int, content: Mapping[str, Any]) -> None:
    """The JSON file of a run."""
    about = {"date": datetime.now(UTC).isoformat(timespec="seconds"), "machine": machine.description()}
    path.write_text(json.dumps(about | {"threads": threads} | dict(content), indent=1) + "\n")
