"""A profile, and two side by side, as tables on the terminal."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Console
from rich.text import Text

from edge.cli.tables import console, labelled, table
from edge.profile.compare import Comparison, Row
from edge.runtime.costs.record import CurvePoint, Placement, Profile, Stats

INPUTS = {"prompt": "Prompt tokens", "source": "Source tokens", "audio": "Rows of sound"}
STEP = "step of "  # how the curve's rows of a comparison begin


def show(profile: Profile) -> None:
    """Print everything that a profile holds, except the operators."""
    out = console()
    device, bundle = profile.device, profile.bundle
    machine = f"{device.cpu}, {device.cores} cores, {device.threads} threads; {device.runtime}, {device.provider}"
    shown = labelled(bundle.name, f" ({bundle.family}, {bundle.weights}, {bundle.bytes / 1e6:,.0f} MB) on ")
    out.print(shown + labelled(device.name, f": {machine}; {profile.created}"))
    _first_tokens(profile, out)
    _output_tokens(profile, out)
    if profile.curve:
        _curve(profile.curve, out)
    if profile.curve_int8:
        _curve(profile.curve_int8, out, " over a KV cache in int8")
    if profile.skipped:
        from edge.cli.profile_skipped import show_skipped

        show_skipped(profile.skipped, "Layers left out", out)
    if any(row.provider != device.provider for row in profile.placement):
        show_placement(profile.placement, out)
    for name, value in _facts(profile).items():
        out.print(labelled(f"{name:10} ", value))
    for note in profile.notes:
        out.print(labelled("Note: ", note))


def show_placement(placement: Sequence[Placement], out: Console) -> None:
    """Print which execution provider runs what of each graph."""
    shown = table("What runs where", "Graph", "Provider", "Nodes", "of all", "Weights, MB", "of all", "Time", text=2)
    for row in placement:
        provider = row.provider.removesuffix("ExecutionProvider")
        nodes, weights = f"{row.nodes:,}", f"{row.weight_bytes / 1e6:,.1f}"
        time = "?" if row.time_share is None else f"{row.time_share:.1%}"
        shown.add_row(row.graph, provider, nodes, f"{row.node_share:.1%}", weights, f"{row.weight_share:.1%}", time)
    out.print(shown)


def _first_tokens(profile: Profile, out: Console) -> None:
    encoded = any(row.encode is not None for row in profile.ttft)
    speech = profile.bundle.input == "audio"
    rate = "Times real time" if speech else "Tokens/s"
    columns = [INPUTS.get(profile.bundle.input, "Input tokens"), "TTFT, ms", "±", "p90", rate, "Runs"]
    shown = table("Time to first token", *columns, *(["Encoder, ms"] if encoded else []))
    for row in profile.ttft:
        amount = row.audio_s if speech and row.audio_s is not None else row.input_tokens
        rate = f"{1e3 * amount / row.time.p50_ms:,.0f}"
        name = f"{row.input_tokens:,}" + ("" if row.audio_s is None else f" ({row.audio_s:g} s)")
        cells = [name, ms(row.time.p50_ms), _sure(row.time), ms(row.time.p90_ms), rate]
        share = [ms(row.encode.p50_ms) if row.encode else ""] if encoded else []
        shown.add_row(*cells, str(row.time.count), *share)
    if profile.ttft:
        out.print(shown)


def _output_tokens(profile: Profile, out: Console) -> None:
    shown = table("Time per output token", "Context", "p50, ms", "±", "p90", "p99", "Jitter", "Tokens/s", "Runs")
    for row in profile.decode:
        time = row.time
        spread = [ms(each) for each in (time.p90_ms, time.p99_ms, time.jitter_ms)]
        shown.add_row(
            f"{row.context:,}", ms(time.p50_ms), _sure(time), *spread, f"{row.tokens_per_s:,.1f}", str(time.count)
        )
    if profile.decode:
        out.print(shown)


def _curve(points: list[CurvePoint], out: Console, over: str = "") -> None:
    contexts, sizes = sorted({p.context for p in points}), sorted({p.size for p in points})
    times = {(p.size, p.context): p.ms for p in points}
    title = f"A step of S tokens at a context{over}: ms, and times a step of one"
    shown = table(title, "S", *map("{:,}".format, contexts))
    for size in sizes:
        cells = []
        for context in contexts:
            time, one = times.get((size, context)), times.get((1, context))
            cells.append("" if time is None else Text.assemble(ms(time), (f" {time / one:5.2f}" if one else "", "dim")))
        shown.add_row(str(size), *cells)
    out.print(shown)


def _facts(profile: Profile) -> dict[str, str]:
    """Return the figures of a profile that take one line each."""
    facts: dict[str, str] = {}
    if (run := profile.sustained) is not None:
        seconds = run.rates[-1].second if run.rates else 60.0
        change, low, high = (each * seconds / 60 for each in (run.slope_per_minute, run.slope_low, run.slope_high))
        drift = f"changing by {change:+.1%} ({low:+.1%} to {high:+.1%})" if low * high > 0 else "no drift to be seen"
        facts["Sustained"] = f"{run.tokens_per_s:,.1f} tokens/s over {seconds:.{0 if seconds >= 10 else 1}f} s, {drift}"
    if (load := profile.load) is not None:
        facts["Load"] = f"{ms(load.warm.p50_ms)} ms warm" + (f", {ms(load.cold.p50_ms)} ms cold" if load.cold else "")
    if (memory := profile.memory) is not None and memory.peak_private_bytes is not None:
        steady, peak = memory.steady_private_bytes, memory.peak_private_bytes
        decoding = "" if steady is None else f", {steady / 1e6:,.0f} MB while decoding"
        predicted = ""
        if memory.predicted_bytes:
            off = memory.predicted_bytes / peak - 1
            predicted = f"; predicted {memory.predicted_bytes / 1e6:,.0f} MB ({off:+.1%})"
        rss = "" if memory.peak_bytes is None else f"; peak RSS {memory.peak_bytes / 1e6:,.0f} MB"
        facts["Memory"] = f"private, peak {peak / 1e6:,.0f} MB{decoding}{predicted}{rss}"
    for use in profile.usage:
        if use.tokens:
            energy = "" if use.energy_j is None else f", {1e3 * use.energy_j / use.tokens:,.1f} mJ ({use.energy_of})"
            cores = use.cpu_s / use.wall_s if use.wall_s else 0.0
            token = "row of sound" if profile.bundle.input == "audio" and use.phase == "prefill" else "token"
            facts[use.phase.capitalize()] = (
                f"{ms(1e3 * use.cpu_s / use.tokens)} ms of CPU time a {token} ({cores:.1f} cores){energy}"
            )
    if (noise := profile.noise) is not None:
        others = "" if noise.foreign_cpu is None else f", other processes {noise.foreign_cpu:.0%} of the machine"
        facts["Noise"] = f"one step ±{noise.spread:.1%}, drift {noise.drift:+.1%}{others}"
    return facts


def show_comparison(comparison: Comparison, name_a: str, name_b: str) -> None:
    """Print two profiles side by side: b over a, and the better one where that is more than noise."""
    out = console()
    out.print(Text.assemble("a: ", (name_a, "bold"), ", b: ", (name_b, "bold")))
    if comparison.differences:
        settings = table("They differ in", "", "a", "b", text=3)
        for each in comparison.differences:
            settings.add_row(*each)
        out.print(settings)
    shown = table("", "", "a", "b", "b / a", "Noise", "Better", text=1)
    for row in comparison.rows:
        if not row.name.startswith(STEP):
            shown.add_row(f"{row.name}, {row.unit}", *_cells(row))
    out.print(shown)
    steps = [row for row in comparison.rows if row.name.startswith(STEP)]
    if steps:
        _steps(steps, out)


def _steps(rows: list[Row], out: Console) -> None:
    """The cost curves' ratios as a grid."""
    ratio = {}
    for row in rows:
        size, context = map(int, row.name.removeprefix(STEP).split(" @ "))
        ratio[size, context] = f"{row.ratio:.2f}{'*' if row.certain else ' '}"
    contexts = sorted({context for _, context in ratio})
    title = "A step of S tokens at a context: b / a (*: more than noise)"
    shown = table(title, "S", *map("{:,}".format, contexts))
    for size in sorted({size for size, _ in ratio}):
        shown.add_row(str(size), *(ratio.get((size, context), "") for context in contexts))
    out.print(shown)


def _cells(row: Row) -> list[str]:
    figures = [ms(value) for value in (row.a, row.b)]
    return [*figures, f"{row.ratio:.2f}", f"±{row.noise:.1%}", row.better or "-"]


def ms(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def _sure(stats: Stats) -> str:
    """Half of the median's confidence interval; unknown for a handful of times."""
    if stats.count < 3:
        return "?"
    return f"{(stats.high_ms - stats.low_ms) / (stats.high_ms + stats.low_ms):.1%}"
