"""Jobs that are measured in turns: first tokens, output tokens and steps of a `Subject`."""

from __future__ import annotations

import time
from dataclasses import dataclass, field

from edge.runtime.costs.machine import Energy
from edge.runtime.costs.record import CurvePoint, Decode, Ttft, Usage
from edge.runtime.profile.measure import Series
from edge.runtime.profile.subject import Subject

SURE_TOKENS = 100  # minimum of times per output token, for their p99
VISIT_TOKENS, VISIT_S = 64, 0.5  # output tokens, or seconds, at one context before the next has its turn


@dataclass
class _Timed:
    """A subject and the times that were kept."""

    subject: Subject
    series: Series = field(default_factory=Series, kw_only=True)

    @property
    def sure(self) -> bool:
        return self.series.sure


@dataclass
class FirstTokenJob(_Timed):
    """Time to first token of an input of `tokens` tokens, with its CPU time and energy."""

    tokens: int
    energy: Energy
    encode: Series = field(default_factory=Series)
    wall_s: float = 0.0
    cpu_s: float = 0.0
    joules: list[float] = field(default_factory=list)

    def run(self, *, keep: bool) -> None:
        with self.energy.metered() as joules:
            wall, cpu = time.perf_counter(), time.process_time()
            found = self.subject.first_token(self.tokens)
            cpu, wall = time.process_time() - cpu, time.perf_counter() - wall
        if keep:
            self.series.times.append(found.ms)
            if found.encode_ms is not None:
                self.encode.times.append(found.encode_ms)
            self.wall_s += wall
            self.cpu_s += cpu
            self.joules += joules

    def result(self) -> Ttft:
        encode = self.encode.stats if self.encode.times else None
        return Ttft(self.tokens, self.series.stats, encode, self.subject.audio_s(self.tokens))


def prefill_usage(jobs: list[FirstTokenJob], energy: Energy) -> Usage:
    """Time and energy of all first tokens together."""
    tokens = sum(job.tokens * len(job.series.times) for job in jobs)
    wall_s, cpu_s = sum(job.wall_s for job in jobs), sum(job.cpu_s for job in jobs)
    return energy.usage("prefill", tokens, wall_s, cpu_s, [each for job in jobs for each in job.joules])


@dataclass
class TokenJob(_Timed):
    """Time per output token at a context."""

    context: int
    series: Series = field(default_factory=lambda: Series(least=SURE_TOKENS), kw_only=True)
    visit: int = 2  # tokens

    def run(self, *, keep: bool) -> None:
        room = self.subject.capacity - self.context - 1
        times = self.subject.decode(self.context, max(1, min(self.visit, room)))
        self.visit = max(2, min(VISIT_TOKENS, round(VISIT_S * 1e3 / min(times))))
        if keep:
            self.series.times += times

    def result(self) -> Decode:
        times = self.series.times
        return Decode(self.context, self.series.stats, len(times) / sum(times) * 1e3)


@dataclass
class StepJob(_Timed):
    """A point of the cost curve."""

    size: int
    context: int

    def run(self, *, keep: bool) -> None:
        ms = self.subject.step(self.size, self.context)
        if keep:
            self.series.times.append(ms)

    def result(self) -> CurvePoint:
        stats = self.series.stats
        return CurvePoint(self.size, self.context, stats.p50_ms, stats.low_ms, stats.high_ms, stats.count)
