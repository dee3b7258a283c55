"""Two profiles side by side: the ratio of each figure, and whether it is more than noise."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator
from dataclasses import dataclass
from statistics import stdev
from typing import Any

from edge.errors import InputError
from edge.runtime.profile.record import FORMAT_VERSION, Profile, Stats, Sustained, parse, version_of

MEMORY = {
    "peak memory, private": "peak_private_bytes",
    "steady memory, private": "steady_private_bytes",
    "peak RSS": "peak_bytes",
    "steady RSS": "steady_bytes",
}
FLOOR = 0.01  # medians of the same thing in two runs on one quiet machine differed by this much
FEW = 3  # measurements, below which nothing is known about how they scatter
UNKNOWN = 1.0  # the error of a median of fewer: it may be off by as much again


@dataclass(frozen=True)
class Row:
    """One figure of both. The ratio is b / a; within `noise`, a fraction, it says nothing."""

    name: str
    unit: str
    a: float
    b: float
    noise: float
    lower_is_better: bool = True

    @property
    def ratio(self) -> float:
        return self.b / self.a

    @property
    def certain(self) -> bool:
        """Whether the two differ by more than noise."""
        return abs(math.log(self.ratio)) > math.log1p(self.noise)

    @property
    def better(self) -> str:
        """The better one, "a" or "b"; empty where the difference may be noise."""
        if not self.certain:
            return ""
        return "b" if (self.ratio < 1) == self.lower_is_better else "a"


@dataclass(frozen=True)
class Comparison:
    """What two profiles have in common, figure by figure, and in which settings they differ."""

    rows: list[Row]
    differences: list[tuple[str, str, str]]  # setting, its value in a, its value in b

    def summary(self) -> dict[str, Any]:
        """All of it as what JSON can hold."""
        rows = [
            dataclasses.asdict(row) | {"ratio": row.ratio, "certain": row.certain, "better": row.better or None}
            for row in self.rows
        ]
        return {"differences": [{"setting": s, "a": a, "b": b} for s, a, b in self.differences], "rows": rows}


def parse_both(text_a: str, name_a: str, text_b: str, name_b: str) -> tuple[Profile, Profile]:
    """Two profile documents to be compared.

    Raises:
        InputError: one cannot be read, or they have different format versions.
    """
    a, b = version_of(text_a, name_a), version_of(text_b, name_b)
    if a != b:
        raise InputError(
            f"{name_a} has format version {a} and {name_b} {b}, so that they cannot be compared; profile with one "
            f"version of edge, such as this one, which writes {FORMAT_VERSION}."
        )
    return parse(text_a, name_a), parse(text_b, name_b)


def compare(a: Profile, b: Profile) -> Comparison:
    """Compare all figures that both have.

    Raises:
        InputError: they have none in common.
    """
    rows = [row for row in _rows(a, b) if row.a > 0 and row.b > 0]
    if not rows:
        raise InputError("The two profiles have no figure in common; measure the same lengths, with one --context.")
    return Comparison(rows, list(_differences(a, b)))


def _rows(a: Profile, b: Profile) -> Iterator[Row]:
    machines = _machines(a, b)
    firsts = {each.input_tokens: each for each in b.ttft} if a.bundle.input == b.bundle.input else {}
    for each in a.ttft:
        if (other := firsts.get(each.input_tokens)) is not None:
            yield _times(f"TTFT @ {each.input_tokens}", each.time, other.time, machines)
            if each.encode is not None and other.encode is not None:
                yield _times(f"encode @ {each.input_tokens}", each.encode, other.encode, machines)
    tokens = {each.context: each for each in b.decode}
    for token in a.decode:
        if (second := tokens.get(token.context)) is not None:
            yield _times(f"token @ {token.context}", token.time, second.time, machines)
            yield _tail(f"token @ {token.context}, p99", token.time, second.time, machines)
    points = {(point.size, point.context): point for point in b.curve}
    for point in a.curve:
        match = points.get((point.size, point.context))
        if match is not None:
            noise = _joined(*(_half(each.low_ms, each.high_ms, each.count or FEW) for each in (point, match)), machines)
            yield Row(f"step of {point.size} @ {point.context}", "ms", point.ms, match.ms, noise)
    if a.sustained is not None and b.sustained is not None:
        noise = _joined(_scatter(a.sustained), _scatter(b.sustained), machines)
        yield Row("sustained", "tokens/s", a.sustained.tokens_per_s, b.sustained.tokens_per_s, noise, False)
    if a.load is not None and b.load is not None:
        yield _times("load, warm", a.load.warm, b.load.warm, machines)
        if a.load.cold is not None and b.load.cold is not None:
            yield _times("load, cold", a.load.cold, b.load.cold, machines)
    if a.memory is not None and b.memory is not None:
        for name, field in MEMORY.items():
            before, after = getattr(a.memory, field), getattr(b.memory, field)
            if before and after:
                yield Row(name, "MB", before / 1e6, after / 1e6, FLOOR)
    uses = {use.phase: use for use in b.usage}
    for use in a.usage:
        twin = uses.get(use.phase)
        if twin is None or not use.tokens or not twin.tokens:
            continue
        if use.phase == "prefill" and [each.input_tokens for each in a.ttft] != [each.input_tokens for each in b.ttft]:
            continue  # a token of a long input takes more than one of a short input
        cpu = 1e3 * use.cpu_s / use.tokens, 1e3 * twin.cpu_s / twin.tokens
        yield Row(f"{use.phase}, CPU per token", "ms", *cpu, _joined(FLOOR, machines))
        if use.energy_j is not None and twin.energy_j is not None and use.energy_of == twin.energy_of:
            joules = 1e3 * use.energy_j / use.tokens, 1e3 * twin.energy_j / twin.tokens
            yield Row(f"{use.phase}, energy per token", "mJ", *joules, _joined(5 * FLOOR, machines))


def _times(name: str, a: Stats, b: Stats, machines: float) -> Row:
    noise = _joined(*(_half(each.low_ms, each.high_ms, each.count) for each in (a, b)), machines)
    return Row(name, "ms", a.p50_ms, b.p50_ms, noise)


def _tail(name: str, a: Stats, b: Stats, machines: float) -> Row:
    """The 99th percentile: one of a hundred times decides it, and the distance to the 90th is what it may be off."""
    off = (UNKNOWN if each.count < FEW else (each.p99_ms - each.p90_ms) / each.p99_ms for each in (a, b))
    noise = _joined(*off, machines)
    return Row(name, "ms", a.p99_ms, b.p99_ms, noise)


def _half(low: float, high: float, count: int) -> float:
    """Half of the confidence interval of a median of `count` measurements, as a fraction of its middle."""
    return UNKNOWN if count < FEW else (high - low) / (high + low)


def _scatter(run: Sustained) -> float:
    """Half of the 95% confidence interval of the mean of a run's rates, as a fraction; 1% where no rates are told."""
    rates = [rate.tokens_per_s for rate in run.rates]
    return FLOOR if len(rates) < 2 else max(FLOOR, 2 * stdev(rates) / math.sqrt(len(rates)) / run.tokens_per_s)


def _joined(*parts: float) -> float:
    """Independent errors together."""
    return math.sqrt(sum(part**2 for part in parts))


def _machines(a: Profile, b: Profile) -> float:
    """What a median may be off because the machines became slower or faster meanwhile, or had other work to do."""
    noises = [each.noise for each in (a, b) if each.noise is not None]
    return max(FLOOR, _joined(*(noise.drift for noise in noises), *(noise.foreign_cpu or 0.0 for noise in noises)))


def _differences(a: Profile, b: Profile) -> Iterator[tuple[str, str, str]]:
    """The settings that are not the same in both."""
    for (name, first), (_, second) in zip(_settings(a), _settings(b), strict=True):
        if first != second:
            yield name, str(first), str(second)


def _settings(profile: Profile) -> list[tuple[str, object]]:
    device, bundle = profile.device, profile.bundle
    return [
        ("device", device.name),
        ("processor", device.cpu),
        ("cores", device.cores),
        ("system", device.os),
        ("runtime", device.runtime),
        ("provider", device.provider),
        ("threads", device.threads),
        ("bundle", bundle.name),
        ("weights", bundle.weights),
        ("bundle's sha256", bundle.sha256[:12]),
        ("context", profile.context),
        ("rows from the encoder", profile.source_tokens),
    ]
