"""`edge eval --skip`: what skipping layers costs in quality and brings in speed."""

from __future__ import annotations

import argparse
import dataclasses
from importlib.util import find_spec
from pathlib import Path

from edge.cli.answering import open_answering
from edge.cli.export import stages
from edge.cli.tables import console, print_json, table
from edge.errors import InputError, MissingExtraError
from edge.extras import install
from edge.runtime.check.perplexity import check_decoder, check_window, windows
from edge.runtime.check.skip_policies import SkipFigures, measure
from edge.runtime.costs.measured import open_for
from edge.runtime.text.tokenizer import Text

PLOTS = (".png", ".svg", ".pdf")


def run_skip(args: argparse.Namespace, content: str) -> None:
    """Measure a policy, or several settings of it, on a text, and print a table or JSON. args: of `edge eval`."""
    check_plot(args.plot)
    window = args.window
    skips = [args.skip] if args.sweep is None else settings(args.skip, args.sweep)
    bundle = open_answering(args.bundle)
    check_decoder(bundle)
    check_window(window, bundle.manifest.context)
    with stages() as (progress, _):
        progress(0, 0, "opening")
        bundle.check_files_once()
        texts = windows(Text(bundle).encode(content), bundle.manifest.tokens, window=window, limit=args.tokens)

        def advance(done: int, total: int) -> None:
            progress(done, total, "measuring windows")

        prompt = window // 2 if args.given is None else args.given
        provider = open_for(bundle, args.provider, args.threads, args.strict)
        found = measure(bundle, skips, texts, window=window, given=prompt, provider=provider, progress=advance)
    if args.json:
        results = [dataclasses.asdict(each) | {"speedup": each.speedup} for each in found]
        about = {"model": str(args.bundle), "text": str(args.text), "window": window, "given": prompt}
        print_json(about | {"policies": results})
    else:
        title = f"{args.bundle}: {found[0].tokens:,} tokens, after the first {prompt} of each {window}"
        show(found, title, {"off": found[0].perplexity_unskipped})
    if args.plot is not None:
        draw(found, args.plot)


def check_plot(path: Path | None) -> None:
    """To be called before anything is measured for a plot.

    Raises:
        InputError: a plot is asked for under a name of no kind that can be drawn.
        MissingExtraError: matplotlib, which draws it, is not installed.
    """
    if path is None:
        return
    if path.suffix not in PLOTS:
        raise InputError(f"{path} is no plot that can be drawn; choose a name that ends with {', '.join(PLOTS)}.")
    if find_spec("matplotlib") is None:
        raise MissingExtraError(f"A plot needs matplotlib; install it with: {install('eval')}")


def settings(skip: str, sweep: str) -> list[str]:
    """The policy with each of the settings."""
    if ":" in skip:
        raise InputError(f"--sweep gives the settings, and {skip} has one already; name the policy alone.")
    values = [value.strip() for value in sweep.split(",")]
    if not all(values):
        raise InputError(f"--sweep {sweep!r} names an empty setting; write them like 0.05,0.1.")
    return [f"{skip}:{value}" for value in values]


def show(found: list[SkipFigures], title: str, unskipped: dict[str, float]) -> None:
    """Print policies' figures as a table. unskipped: perplexities with all layers, by what they are of; policies'
    are relative to the first one."""
    whole = next(iter(unskipped.values()))
    names = "policy", "layers", "perplexity", "more", "same", "KL", "speed"
    rows = table(title, *names, text=1, width=max(map(len, [*unskipped, *(each.skip for each in found)])))
    for name, perplexity in unskipped.items():
        more = "" if perplexity == whole else f"{perplexity / whole - 1:+.1%}"
        rows.add_row(name, "all", f"{perplexity:.3f}", more, "", "", "1.00")
    for each in found:
        rows.add_row(
            each.skip,
            f"{each.layers_run:.1f}",
            f"{each.perplexity:.3f}",
            f"{each.perplexity / whole - 1:+.1%}",
            f"{each.top1_agreement:.1%}",
            f"{each.kl_mean:.4f}",
            f"{each.speedup:.2f}",
        )
    console().print(rows)


def draw(found: list[SkipFigures], path: Path) -> None:
    """Perplexity against decode speed, both relative to the whole decoder's."""
    points = [(each.skip, each.speedup, 100 * (each.perplexity / each.perplexity_unskipped - 1)) for each in found]
    figure_of(points, "more perplexity, %", path)


def figure_of(points: list[tuple[str, float, float]], label: str, path: Path) -> None:
    """Settings of policies, each with its decode speed relative to the whole decoder's and its quality."""
    check_plot(path)  # benchmarks draw too
    import matplotlib

    matplotlib.rcdefaults()  # not what a matplotlibrc of the current folder says
    matplotlib.use("Agg")
    from matplotlib import pyplot as plt

    figure, axes = plt.subplots(figsize=(7, 4.5), layout="constrained")
    for name in dict.fromkeys(skip.partition(":")[0] for skip, _, _ in points):
        own = [point for point in points if point[0].partition(":")[0] == name]
        axes.plot([x for _, x, _ in own], [y for _, _, y in own], marker="o", label=name)
        for skip, x, y in own:
            axes.annotate(skip.partition(":")[2], (x, y), xytext=(4, 4), textcoords="offset points", fontsize=8)
    axes.set(xlabel="decode speed, times that of the whole decoder", ylabel=label)
    axes.grid(alpha=0.3)
    axes.legend()
    try:
        figure.savefig(path, dpi=150)
    except OSError as e:
        raise InputError(f"The plot {path} cannot be written: {e.strerror}.") from None
