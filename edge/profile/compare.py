"""Two profiles compared: the ratio of each figure, and whether it is more than noise."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator
from dataclasses import dataclass
from statistics import stdev
from typing import Any

from edge.errors import InputError
from edge.runtime.costs.record import Profile, Stats, Sustained

MEMORY = {
    "peak memory, private": "peak_private_bytes",
    "memory while decoding, private": "steady_private_bytes",
    "peak RSS": "peak_bytes",
    "RSS while decoding": "steady_bytes",
}
FLOOR = 0.01  # medians of the same thing in two runs on one quiet machine differed by this much
FEW = 3  # measurements, below which nothing is known about how they scatter
UNKNOWN = 1.0  # the error of a median of fewer


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
        """True if the two differ by more than noise."""
        return abs(math.log(self.ratio)) > math.log1p(self.noise)

    @property
    def better(self) -> str:
        """The better one, "a" or "b"; empty where the difference may be noise."""
        if not self.certain:
            return ""
        return "b" if (self.ratio < 1) == self.lower_is_better else "a"


@dataclass(frozen=True)
class Comparison:
    """Comparison of two profiles: the figures that both have, and the settings in which they differ."""

    rows: list[Row]
    differences: list[tuple[str, str, str]]  # setting, its value in a, its value in b

    def summary(self) -> dict[str, Any]:
        """Return the comparison for JSON."""
        more = ({"ratio": row.ratio, "certain": row.certain, "better": row.better or None} for row in self.rows)
        rows = [dataclasses.asdict(row) | each for row, each in zip(self.rows, more, strict=True)]
        return {"differences": [{"setting": s, "a": a, "b": b} for s, a, b in self.differences], "rows": rows}


def compare(a: Profile, b: Profile) -> Comparison:
    """Compare all figures that both have.

    Raises:
        InputError: they have none in common.
    """
    rows = list(_rows(a, b))
    if not rows:
        raise InputError("The two profiles have no figure in common; measure the same lengths, with one --context.")
    return Comparison(rows, list(_differences(a, b)))


@dataclass(frozen=True)
class _Figure:
    """One figure of one profile, and what it may be off, as a fraction."""

    unit: str
    value: float
    error: float


def _rows(a: Profile, b: Profile) -> Iterator[Row]:
    machines, others = _machines(a, b), dict(_figures(b))
    for key, first in _figures(a):
        second = others.get(key)
        if second is None or first.value <= 0 or second.value <= 0:
            continue
        noise = FLOOR if first.unit == "MB" else _joined(first.error, second.error, machines)
        yield Row(key[0], first.unit, first.value, second.value, noise, first.unit != "tokens/s")


def _figures(profile: Profile) -> Iterator[tuple[tuple[str, object], _Figure]]:
    """The figures of a profile by name, and by what two profiles must share for it to be compared."""
    kind, half = profile.bundle.input, math.sqrt(0.5)
    for first in profile.ttft:
        yield (f"TTFT @ {first.input_tokens}", kind), _median(first.time)
        if first.encode is not None:
            yield (f"encode @ {first.input_tokens}", kind), _median(first.encode)
    for token in profile.decode:
        yield (f"token @ {token.context}", None), _median(token.time)
        yield (f"token @ {token.context}, p99", None), _tail(token.time)
    for point in profile.curve:
        error = _half(point.low_ms, point.high_ms, point.count or FEW)
        yield (f"step of {point.size} @ {point.context}", None), _Figure("ms", point.ms, error)
    if (run := profile.sustained) is not None:
        yield ("sustained", None), _Figure("tokens/s", run.tokens_per_s, _scatter(run))
    if profile.load is not None:
        yield ("load, warm", None), _median(profile.load.warm)
        if profile.load.cold is not None:
            yield ("load, cold", None), _median(profile.load.cold)
    if profile.memory is not None:
        for name, field in MEMORY.items():
            yield (name, None), _Figure("MB", (getattr(profile.memory, field) or 0) / 1e6, FLOOR)
    for use in (use for use in profile.usage if use.tokens):
        # A token of a long input takes more than one of a short input.
        inputs = [each.input_tokens for each in profile.ttft] if use.phase == "prefill" else []
        cpu = _Figure("ms", 1e3 * use.cpu_s / use.tokens, FLOOR * half)
        yield (f"{use.phase}, CPU per token", tuple(inputs)), cpu
        if use.energy_j is not None:
            joules = _Figure("mJ", 1e3 * use.energy_j / use.tokens, 5 * FLOOR * half)
            yield (f"{use.phase}, energy per token", (use.energy_of, *inputs)), joules


def _median(time: Stats) -> _Figure:
    return _Figure("ms", time.p50_ms, _half(time.low_ms, time.high_ms, time.count))


def _tail(time: Stats) -> _Figure:
    """The 99th percentile: one of a hundred times decides it, so its error is the distance to the 90th."""
    return _Figure("ms", time.p99_ms, UNKNOWN if time.count < FEW else (time.p99_ms - time.p90_ms) / time.p99_ms)


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
    """Return the relative uncertainty of a median from changes of the machines: speed that drifted, or load of other
    programs."""
    noises = [each.noise for each in (a, b) if each.noise is not None]
    return max(FLOOR, _joined(*(noise.drift for noise in noises), *(noise.foreign_cpu or 0.0 for noise in noises)))


def _differences(a: Profile, b: Profile) -> Iterator[tuple[str, str, str]]:
    """The settings that are not the same in both."""
    first, second = _settings(a), _settings(b)
    return ((name, str(first[name]), str(second[name])) for name in first if first[name] != second[name])


def _settings(profile: Profile) -> dict[str, object]:
    device, bundle = profile.device, profile.bundle
    return {
        "device": device.name,
        **device.identity,
        "system": device.os,
        "bundle": bundle.name,
        "weights": bundle.weights,
        "bundle's sha256": bundle.sha256[:12],
        "context": profile.context,
        "rows from the encoder": profile.source_tokens,
    }
