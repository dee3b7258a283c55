"""`edge export`: a checkpoint becomes a bundle."""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from edge.cli.arguments import Parser, add_fields, taken
from edge.cli.progress import Countdown, amount_column, drawn, time_column
from edge.cli.tables import console, table
from edge.errors import InterruptedExport

if TYPE_CHECKING:
    from edge.bundle import Bundle


LEFT = " · "  # before the time that is left, in what a stage is called
BAR = 18  # columns, so that the longest stage and the time that is left fit into 80
NAME = "export"
HELP = "Turn a checkpoint (folder, hub id, .gguf file or catalog name) into a bundle."


def add_arguments(parser: Parser) -> None:
    from edge.export.request.export_request import ExportRequest

    source = "a model directory, a .gguf file, a catalog name, org/NAME on the hub, or the address of a .gguf file"
    parser.add_argument("source", metavar="SOURCE", help=source)
    parser.surplus = "name the bundle with -o {0}"

    add = parser.options("bundle")
    add("-o/--out OUT.edge", "the bundle to write (default: NAME.edge, here)", Path)
    add_fields(add, "bundle", ExportRequest)
    for heading in ("weights", "devices", "skipping and drafts"):
        add_fields(parser.options(heading), heading, ExportRequest)


def command(args: argparse.Namespace) -> None:
    """Turn a checkpoint into a bundle, compare the two, and print the comparison.

    The bundle appears at its target when it is whole; whatever goes wrong before leaves nothing there.
    """
    from edge.runtime.memory.process import watching

    start = time.perf_counter()
    try:
        with watching(), stages(countdown := Countdown()) as (progress, say):
            from edge.export import export
            from edge.export.request.export_request import ExportRequest

            def expect(sentence: str, left: Callable[[], float]) -> None:
                countdown.left = left
                say(sentence)

            bundle = export(
                args.source,
                args.out,
                **taken(args, ExportRequest),
                progress=progress,
                say=say,
                expect=expect,
            )
    except KeyboardInterrupt as e:
        where = f" at {args.out}" if args.out is not None else ""
        raise InterruptedExport(f"The export was interrupted; nothing was left{where}.") from e
    _show(bundle, time.perf_counter() - start)


@contextmanager
def stages(
    countdown: Countdown | None = None,
) -> Iterator[tuple[Callable[[int, int, str], None], Callable[[str], None]]]:
    """One line of progress on standard error for the stage at hand, and a function that prints above it.

    A total of 0 shows that a stage runs. The line ends with the time that all stages still take, as far as `countdown`
    knows it, else with the time of this one. Where standard error is no terminal only the sentences are printed,
    without what draws the line: it takes 6 MB.
    """
    if not sys.stderr.isatty():
        yield lambda done, total, text: None, lambda sentence: print(sentence, file=sys.stderr, flush=True)
        return
    from rich.progress import BarColumn, SpinnerColumn, TaskID, TextColumn

    shows = TextColumn("{task.description}", markup=False), BarColumn(BAR), amount_column()
    with drawn(SpinnerColumn(), *shows, time_column(countdown or Countdown())) as bar:
        shown: dict[str, TaskID] = {}  # at most one

        def progress(done: int, total: int, text: str) -> None:
            stage = text.partition(LEFT)[0]
            if stage not in shown:
                for task in shown.values():
                    bar.remove_task(task)
                shown.clear()
                shown[stage] = bar.add_task(stage, total=None)
            bar.update(shown[stage], completed=done, total=total or None)

        yield progress, bar.console.print


def _show(bundle: Bundle, seconds: float) -> None:
    from edge.runtime.memory.process import held

    out, manifest, figures = console(), bundle.manifest, bundle.manifest.quality
    if "cosine_mean" in figures:
        rows = table("The bundle against the model in float32", f"on {figures['check_texts']:.0f} texts", "", text=1)
        rows.add_row("cosine of its vectors, mean", f"{figures['cosine_mean']:.5f}")
        rows.add_row("cosine of its vectors, smallest", f"{figures['cosine_min']:.5f}")
        out.print(rows)
    elif figures:
        title, tokens = "The bundle against the model in float32", f"on {figures['check_tokens']:.0f} tokens"
        rows = table(title, tokens, "float32", "bundle", text=1)
        if "perplexity" in figures:
            of = "" if manifest.encoder is None else " of the model's answers"
            rows.add_row(f"perplexity{of}", f"{figures['perplexity_float32']:.3f}", f"{figures['perplexity']:.3f}")
        rows.add_row("same most likely token", "", f"{figures['top1_agreement']:.1%}")
        rows.add_row("KL divergence, mean (nats)", "", f"{figures['kl_mean']:.4f}")
        rows.add_row("KL divergence, 95th percentile", "", f"{figures['kl_p95']:.4f}")
        out.print(rows)
    size = sum(file.size for file in manifest.files) / 1e6
    peak = held()
    memory = ""
    if peak is not None:
        memory = f", peak memory {peak.peak_private / 1e6:,.0f} MB private, {peak.peak_rss / 1e6:,.0f} MB RSS"
    out.print(
        f"{bundle.root}: {size:,.1f} MB, {manifest.bits_per_weight:.2f} bits per weight, context "
        f"{manifest.context:,}; took {seconds:.0f} s{memory}."
    )
