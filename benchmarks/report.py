"""From measured rounds to medians, ratios, tables and the plot."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median, quantiles

OURS = "edge"
# Values by round, by engine. Rounds are interleaved, so the values of one round saw the same state of the machine.
Rounds = Mapping[str, Sequence[float]]


@dataclass(frozen=True)
class Metric:
    """One row: what was measured, in which unit, and whether more is better."""

    label: str
    unit: str
    more_is_better: bool
    rounds: Rounds


@dataclass(frozen=True)
class Ratio:
    """Ours over another's: the median of the rounds' ratios, and the smallest and largest of them."""

    value: float
    low: float
    high: float

    def __str__(self) -> str:
        same = f"{self.low:.2f}" == f"{self.high:.2f}"
        return f"{self.value:.2f}" + ("" if same else f" ({self.low:.2f}-{self.high:.2f})")


def ratio(rounds: Rounds, peer: str) -> Ratio:
    """Ours over `peer`'s, round by round."""
    ratios = [a / b for a, b in zip(rounds[OURS], rounds[peer], strict=True)]
    return Ratio(median(ratios), min(ratios), max(ratios))


def best_peer(metric: Metric) -> str | None:
    """The peer whose median is best; None where there is none."""
    peers = [name for name in metric.rounds if name != OURS]
    if not peers:
        return None
    choose = max if metric.more_is_better else min
    return choose(peers, key=lambda name: median(metric.rounds[name]))


def spread(values: Sequence[float]) -> float:
    """Half the interquartile range over the median: how far a typical round lies from it."""
    if len(values) < 2:
        return 0.0
    low, _, high = quantiles(values, n=4, method="inclusive")
    return (high - low) / 2 / median(values)


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
            cells.append(f"{median(values):,.0f}{around}")
        rows.append([f"{metric.label}, {metric.unit}", *cells])
    return _table(rows)


def ratios_table(metrics: Sequence[Metric], engines: Sequence[str]) -> str:
    """Ours over every peer's, and over the best one's."""
    peers = [name for name in engines if name != OURS]
    rows = [[f"{OURS} /", "best peer", *peers]]
    for metric in metrics:
        best = best_peer(metric)
        if best is None or OURS not in metric.rounds:
            continue
        better = "" if metric.more_is_better else " (less is better)"
        cells = [f"{ratio(metric.rounds, p).value:.2f}" if p in metric.rounds else "-" for p in peers]
        rows.append([metric.label + better, f"{ratio(metric.rounds, best)} {best}", *cells])
    return _table(rows)


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
        elif metric.label.startswith("peak RSS"):
            add(metric, "onnxruntime-genai", 1.0)
            add(metric, "llama.cpp", 1.0)
        elif metric.label.startswith("first token"):
            add(metric, "onnxruntime-genai", 0.8)
    return found


def _table(rows: Sequence[Sequence[str]]) -> str:
    """Markdown with aligned columns: the first one left, the others right."""
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]

    def line(row: Sequence[str]) -> str:
        cells = [row[0].ljust(widths[0]), *(c.rjust(w) for c, w in zip(row[1:], widths[1:], strict=True))]
        return "| " + " | ".join(cells) + " |"

    rule = "|" + "|".join(["-" * (widths[0] + 2), *("-" * (w + 1) + ":" for w in widths[1:])]) + "|"
    return "\n".join([line(rows[0]), rule, *map(line, rows[1:])])


def plot(metrics: Sequence[Metric], engines: Sequence[str], title: str, path: Path) -> None:
    """Four panels: decode, prefill, peak RSS, first token. Whiskers reach from the smallest round to the largest."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot as plt

    panels = {
        "decode": "Decode, tokens/s, by tokens of context",
        "prefill": "Prefill, tokens/s, by prompt tokens",
        "peak RSS": "Peak RSS, MiB (less is better)",
        "first token": "Process start to first token, ms (less is better)",
    }
    colours = dict(zip(engines, ["#d1495b", "#30638e", "#edae49", "#00798c", "#8d96a3"], strict=False))
    figure, axes = plt.subplots(2, 2, figsize=(11, 7), layout="constrained")
    for axis, (start, heading) in zip(axes.flat, panels.items(), strict=True):
        rows = [m for m in metrics if m.label.startswith(start)]
        width = 0.8 / len(engines)
        for place, name in enumerate(engines):
            at = [i for i, m in enumerate(rows) if name in m.rounds]
            values = [rows[i].rounds[name] for i in at]
            middle = [median(v) for v in values]
            whiskers = [
                [m - min(v) for m, v in zip(middle, values, strict=True)],
                [max(v) - m for m, v in zip(middle, values, strict=True)],
            ]
            x = [i + (place - (len(engines) - 1) / 2) * width for i in at]
            bars = axis.bar(x, middle, width * 0.92, yerr=whiskers, color=colours[name], label=name,
                            error_kw={"lw": 0.8, "ecolor": "#444"})
            axis.bar_label(bars, [f"{m:,.0f}" for m in middle], fontsize=7, padding=2)
        axis.set_title(heading, fontsize=10, loc="left")
        axis.set_xticks(range(len(rows)), [m.label.removeprefix(start).strip(" @") for m in rows])
        axis.tick_params(axis="x", length=0)
        axis.spines[["top", "right"]].set_visible(False)
        axis.margins(y=0.12)
    figure.suptitle(title, fontsize=11)
    labels = axes[0, 0].get_legend_handles_labels()
    figure.legend(*labels, loc="outside lower center", ncols=len(engines), frameon=False)
    figure.savefig(path, dpi=150)
    plt.close(figure)
