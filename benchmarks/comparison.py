"""Encoder-decoder engines beside each other: each in a process of its own, asked in turn, round by round."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from typing import Any, TextIO, cast

import convert
import machine
import report
from engines.decoding_engine import Unavailable
from processes import REST_S, Worker, WorkerFailed
from seq2seq.seq2seq_engine import EngineFile
from sources import Sources


@dataclass(frozen=True)
class Plan:
    """How much is measured."""

    rounds: int
    trials: int  # of every variant, for choosing the fastest
    block: int  # sentences translated in one round
    sentences: int | None  # of the test set, for its BLEU; None: all
    paragraphs: int | None  # read by espeak-ng; None: all


FULL = Plan(rounds=9, trials=3, block=40, sentences=None, paragraphs=None)
QUICK = Plan(rounds=3, trials=1, block=10, sentences=40, paragraphs=1)


@dataclass
class Run:
    """What all parts of a run share."""

    sources: Sources
    plan: Plan
    threads: int
    log: TextIO
    say: Callable[[str], None]
    watch: machine.Watch = field(default_factory=machine.Watch)
    workers: dict[str, Worker] = field(default_factory=dict)  # that took part in rounds, by the names of their engines


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


@dataclass
class Part:
    """One part of a run: what was measured, and what it shows."""

    title: str
    metrics: list[report.Metric] = field(default_factory=list)
    engines: list[str] = field(default_factory=list)
    goals: list[report.Goal] = field(default_factory=list)
    text: list[str] = field(default_factory=list)  # printed between the tables and the goals
    panels: list[report.Panel] = field(default_factory=list)
    skipped: dict[str, str] = field(default_factory=dict)
    details: dict[str, Any] = field(default_factory=dict)  # for the JSON file

    def result(self) -> dict[str, Any]:
        """All of it, for the JSON file."""
        ours = [name for name in self.engines if report.is_ours(name)]
        return {
            "title": self.title,
            "rounds": {m.label: {"unit": m.unit, "values": m.rounds} for m in self.metrics},
            "ratios": {
                m.label: {
                    o: {p: vars(report.ratio(m.rounds, p, o)) for p in m.rounds if not report.is_ours(p)}
                    for o in ours
                    if o in m.rounds
                }
                for m in self.metrics
            },
            "goals": [vars(goal) | {"met": goal.met} for goal in self.goals],
            "skipped": self.skipped,
            **self.details,
        }


class Comparison:
    """Entrants of one task, and the figures that they make round by round.

    `figures`: values by label and entrant.
    """

    def __init__(self, run: Run, task: str, capacity: int = 448) -> None:
        self.run, self.task, self.capacity = run, task, capacity
        self.entrants: dict[str, Entrant] = {}
        self.skipped: dict[str, str] = {}
        self.figures: dict[str, dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))

    def enter(
        self,
        name: str,
        module: str,
        prepare: Callable[[str], Path],
        trial: Callable[[Worker], float] | None = None,
    ) -> None:
        """Make an engine ready, or say why it is skipped.

        module: of its file, in `seq2seq`. prepare: the model in its form, for a variant. trial: seconds that a worker
        takes for some work; where it is given, the fastest variant is measured, and otherwise the last one.
        """
        engine = cast(EngineFile, import_module(f"seq2seq.{module}"))
        variants = engine.VARIANTS[self.task]
        try:
            python = convert.python_with(self.run.sources.pythons, *engine.MODULES)
            if python is None:
                raise Unavailable(f"{engine.PACKAGE} is not installed")
            made = {variant: prepare(variant) for variant in variants}
            version = machine.version(python, engine.PACKAGE)
            variant = next(reversed(made))
            found = Entrant(name, engine, python, version, variant, made[variant])
            if trial is not None and len(made) > 1:
                self._choose(found, made, trial)
        except (Unavailable, WorkerFailed) as error:
            self._skip(name, str(error))
            return
        self.entrants[name] = found
        tried = "; ".join(f"{v} {s:.3g} s" for v, s in found.trials.items())
        self.run.say(f"{name} {found.version}: {found.variant}" + (f"   (tried: {tried})" if tried else ""))

    def _choose(self, found: Entrant, made: Mapping[str, Path], trial: Callable[[Worker], float]) -> None:
        for variant, model in made.items():
            worker = self._worker(found, variant, model)
            trial(worker)
            found.trials[variant] = min(trial(worker) for _ in range(self.run.plan.trials))
            worker.close()
        found.variant = min(found.trials, key=found.trials.__getitem__)
        found.model = made[found.variant]

    def _worker(self, found: Entrant, variant: str, model: Path, *, watched: bool = False) -> Worker:
        settings = dict(found.engine.VARIANTS[self.task][variant])
        request = {
            "model": str(model),
            "threads": settings.pop("threads", self.run.threads),
            "capacity": self.capacity,
            "settings": {"task": self.task, **settings},
        }
        return Worker(found.python, found.engine.__name__, self.run.log, request, watched=watched)

    def _skip(self, name: str, why: str) -> None:
        self.entrants.pop(name, None)
        for values in self.figures.values():
            values.pop(name, None)
        self.skipped[name] = why
        self.run.say(f"{name} is SKIPPED: {why}")

    def each(self, job: Callable[[Entrant], None], *, backwards: bool = False) -> None:
        """Do something with every entrant in turn; one that fails is skipped from here on.

        Each rests before, so that threads of the one before do not spin into its time; rounds go `backwards` every
        other time, so that none always follows the same one.
        """
        for found in list(self.entrants.values())[:: -1 if backwards else 1]:
            time.sleep(REST_S)
            try:
                job(found)
            except WorkerFailed as error:
                self._skip(found.name, str(error))

    def measure_memory(self, work: Callable[[Worker], object]) -> None:
        """Peak private memory and RSS of a fresh process that loads and does `work`; private memory of one that imports
        the package alone."""

        def measure(found: Entrant) -> None:
            bare = Worker(found.python, found.engine.__name__, self.run.log, {})
            bare.close()
            worker = self._worker(found, found.variant, found.model, watched=True)
            work(worker)
            worker.close()
            self.figures["bare import"][found.name].append(bare.peak_private_mb)
            self.figures["peak private"][found.name].append(worker.peak_private_mb)
            self.figures["peak RSS"][found.name].append(worker.peak_rss_mb)

        self.each(measure)

    def start(self, found: Entrant) -> Worker:
        """Start an entrant's process; `close` ends them all."""
        found.worker = self._worker(found, found.variant, found.model)
        return found.worker

    def rounds(self, work: Callable[[Worker, int], Mapping[str, float]], what: str) -> None:
        """Ask everyone once unmeasured, then `plan.rounds` times in turn: `work` of a round gives values by label."""

        def begin(found: Entrant) -> None:
            work(self.start(found), 0)

        def once(found: Entrant, number: int) -> None:
            assert found.worker is not None
            for label, value in work(found.worker, number).items():
                self.figures[label][found.name].append(value)

        self.each(begin)
        for number in range(self.run.plan.rounds):
            self.each(lambda found, at=number: once(found, at), backwards=number % 2 == 1)
            self.run.say(f"{what}: round {number + 1} of {self.run.plan.rounds}")

    def close(self) -> None:
        """End the processes."""
        for found in self.entrants.values():
            if found.worker is not None:
                found.worker.close()
                self.run.workers[f"{found.name} ({self.task})"] = found.worker

    def metrics(self, rows: Sequence[tuple[str, str, bool, int]]) -> list[report.Metric]:
        """Label, unit, whether more is better, digits; those that were measured."""
        return [report.Metric(r[0], r[1], r[2], self.figures[r[0]], r[3]) for r in rows if self.figures.get(r[0])]

    def details(self) -> dict[str, Any]:
        """What ran, for the JSON file."""
        return {
            "engines": {
                e.name: {"version": e.version, "variant": e.variant, "trials_s": e.trials, "model": e.model.name}
                for e in self.entrants.values()
            }
        }
