"""From measured rounds to medians, ratios, tables and the plot."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median, quantiles
from typing import Any

OURS = "edge"  # this runtime; several forms of it are called "edge ..."
# Values by round, by engine. Rounds are interleaved, so the values of one round saw the same state of the machine.
Rounds = Mapping[str, Sequence[float]]


@dataclass(frozen=True)
class Metric:
    """One row: what was measured, in which unit, and whether more is better."""

    label: str
    unit: str
    more_is_better: bool
    rounds: Rounds
    digits: int = 0  # behind the decimal point

    def shown(self, value: float) -> str:
        return f"{value:,.{self.digits}f}"


@dataclass(frozen=True)
class Ratio:
    """Ours over another's: the median of the rounds' ratios, and the smallest and largest of them."""

    value: float
    low: float
    high: float

    def __str__(self) -> str:
        same = f"{self.low:.2f}" == f"{self.high:.2f}"
        return f"{self.value:.2f}" + ("" if same else f" ({self.low:.2f}-{self.high:.2f})")


def is_ours(name: str) -> bool:
    """Whether this is a form of this runtime and no peer."""
    return name.split()[0] == OURS


def ratio(rounds: Rounds, peer: str, ours: str = OURS) -> Ratio:
    """Ours over `peer`'s, round by round; infinite over nothing that could be measured."""
    ratios = [a / b if b else math.inf for a, b in zip(rounds[ours], rounds[peer], strict=True)]
    return Ratio(median(ratios), min(ratios), max(ratios))


def best_peer(metric: Metric) -> str | None:
    """The peer whose median is best; None where there is none."""
    peers = [name for name in metric.rounds if not is_ours(name)]
    if not peers:
        return None
    choose = max if metric.more_is_better else min
    return choose(peers, key=lambda name: median(metric.rounds[name]))


def spread(values: Sequence[float]) -> float:
    """Half the interquartile range over the median: how far a typical round lies from it."""
    if len(values) < 2:
        return 0.0
    low, _, high = quantiles(values, n=4, method="inclusive")
    return (high - low) / 2 / middle if (middle := median(values)) else 0.0


def figures_table(metrics: Sequence[Metric], engines: Sequence[str]) -> str:
    """Medians, with the spread of the rounds."""
    rows = [["", *engines]]
    for metric in metrics:
        cells = []
        for name in engines:
            values = metric.rounds.get(name)
            if values is None:
                cells.append("-")
                continue
            around = f" ±{spread(values):.0%}" if len(values) > 1 else ""
            cells.append(metric.shown(median(values)) + around)
        rows.append([f"{metric.label}, {metric.unit}", *cells])
    return table(rows)


def ratios_table(metrics: Sequence[Metric], engines: Sequence[str], ours: str = OURS) -> str:
    """Ours over every peer's, and over the best one's."""
    peers = [name for name in engines if not is_ours(name)]
    rows = [[f"{ours} /", "best peer", *peers]]
    for metric in metrics:
        best = best_peer(metric)
        if best is None or ours not in metric.rounds:
            continue
        better = "" if metric.more_is_better else " (less is better)"
        cells = [f"{ratio(metric.rounds, p, ours).value:.2f}" if p in metric.rounds else "-" for p in peers]
        rows.append([metric.label + better, f"{ratio(metric.rounds, best, ours)} {best}", *cells])
    return table(rows)


@dataclass(frozen=True)
class Goal:
    """What this project promises: a ratio of at least, or at most, `limit`."""

    text: str
    ratio: float
    limit: float
    at_least: bool

    @property
    def met(self) -> bool:
        return self.ratio >= self.limit if self.at_least else self.ratio <= self.limit

    def __str__(self) -> str:
        sign = ">=" if self.at_least else "<="
        return f"{'met   ' if self.met else 'MISSED'}  {self.text}: {self.ratio:.2f} ({sign} {self.limit:.2f})"


def goals(metrics: Sequence[Metric]) -> list[Goal]:
    """The promises that these metrics can tell about."""
    found: list[Goal] = []

    def add(metric: Metric, peer: str | None, limit: float) -> None:
        if peer is not None and peer in metric.rounds and OURS in metric.rounds:
            value = ratio(metric.rounds, peer).value
            found.append(Goal(f"{metric.label} / {peer}", value, limit, metric.more_is_better))

    for metric in metrics:
        if metric.label.startswith("decode"):
            add(metric, best_peer(metric), 1.15)
        elif metric.label.startswith("prefill"):
            add(metric, "onnxruntime-genai", 1.0)
        elif metric.label.startswith("peak private"):
            add(metric, "onnxruntime-genai", 1.0)
            add(metric, "llama.cpp", 1.0)
        elif metric.label.startswith("first token"):
            add(metric, "onnxruntime-genai", 0.8)
    return found


def table(rows: Sequence[Sequence[str]]) -> str:
    """Markdown with aligned columns: the first one left, the others right."""
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]

    def line(row: Sequence[str]) -> str:
        cells = [row[0].ljust(widths[0]), *(c.rjust(w) for c, w in zip(row[1:], widths[1:], strict=True))]
        return "| " + " | ".join(cells) + " |"

    rule = "|" + "|".join(["-" * (widths[0] + 2), *("-" * (w + 1) + ":" for w in widths[1:])]) + "|"
    return "\n".join([line(rows[0]), rule, *map(line, rows[1:])])


COLOURS = ("#d1495b", "#30638e", "#edae49", "#00798c", "#8d96a3", "#6a4c93", "#a1662f", "#7fb069")


@dataclass(frozen=True)
class Panel:
    """One diagram: a group of bars for every metric, which stands under it as its tick."""

    heading: str
    metrics: Mapping[str, Metric]


def plot(panels: Sequence[Panel], engines: Sequence[str], title: str, path: Path) -> None:
    """Diagrams two in a row, of what was measured. Whiskers reach from the smallest round to the largest."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot as plt

    colours = dict(zip(engines, itertools.cycle(COLOURS), strict=False))
    panels = [panel for panel in panels if any(metric.rounds for metric in panel.metrics.values())]
    rows = max(1, -(-len(panels) // 2))
    figure, axes = plt.subplots(rows, 2, figsize=(11, 3.5 * rows), layout="constrained", squeeze=False)
    for axis, panel in zip(axes.flat, panels, strict=False):
        _bars(axis, panel, [n for n in engines if any(n in m.rounds for m in panel.metrics.values())], colours)
    for axis in axes.flat[len(panels) :]:
        axis.axis("off")
    figure.suptitle(title, fontsize=11)
    handles = {h.get_label(): h for axis in axes.flat for h in axis.containers if h.get_label() in colours}
    figure.legend(
        [handles[n] for n in engines if n in handles],
        [n for n in engines if n in handles],
        loc="outside lower center",
        ncols=len(engines),
        frameon=False,
    )
    figure.savefig(path, dpi=150)
    plt.close(figure)


def _bars(axis: Any, panel: Panel, engines: Sequence[str], colours: Mapping[str, str]) -> None:
    metrics = list(panel.metrics.values())
    width = 0.8 / max(len(engines), 1)
    for place, name in enumerate(engines):
        at = [i for i, m in enumerate(metrics) if name in m.rounds]
        values = [metrics[i].rounds[name] for i in at]
        middle = [median(v) for v in values]
        whiskers = [
            [m - min(v) for m, v in zip(middle, values, strict=True)],
            [max(v) - m for m, v in zip(middle, values, strict=True)],
        ]
        x = [i + (place - (len(engines) - 1) / 2) * width for i in at]
        bars = axis.bar(
            x,
            middle,
            width * 0.92,
            yerr=whiskers,
            color=colours[name],
            label=name,
            error_kw={"lw": 0.8, "ecolor": "#444"},
        )
        shown = [metrics[i].shown(m) for i, m in zip(at, middle, strict=True)]
        axis.bar_label(bars, shown, fontsize=7, padding=2)
    axis.set_title(panel.heading, fontsize=10, loc="left")
    axis.set_xticks(range(len(metrics)), list(panel.metrics))
    axis.tick_params(axis="x", length=0)
    axis.spines[["top", "right"]].set_visible(False)
    axis.margins(y=0.12)
