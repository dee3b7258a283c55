"""`edge export`: a checkpoint becomes a bundle."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from edge.errors import ExportError

if TYPE_CHECKING:
    from collections.abc import Callable

    from edge.bundle import Bundle


def command(
    source: Annotated[
        str,
        typer.Argument(metavar="SOURCE", help="A model directory, a .gguf file, a catalog name or a hub id."),
    ],
    out: Annotated[
        Path | None,
        typer.Option("--out", "-o", metavar="OUT.edge", help="The bundle to write; default: NAME.edge, here."),
    ] = None,
    weights: Annotated[
        str | None,
        typer.Option(
            metavar="KIND",
            help="fp32, fp16, int8, int4, or keep: a GGUF's own precision; default: int4, for encoder-decoders int8.",
        ),
    ] = None,
    block_size: Annotated[
        int | None, typer.Option(metavar="N", help="Weights that share one scale; default: the method's.")
    ] = None,
    max_context: Annotated[
        int | None,
        typer.Option(metavar="N", help="Most tokens, prompt and answer; default: the model's, up to 8192."),
    ] = None,
    calibration: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Text that a decoder's weights are calibrated on; default: a built-in one."),
    ] = None,
    encoder_weights: Annotated[
        str | None, typer.Option(metavar="KIND", help="Of an encoder-decoder's encoder: fp32 or int8.")
    ] = None,
    decoder_weights: Annotated[
        str | None, typer.Option(metavar="KIND", help="Of an encoder-decoder's decoder: fp32, int8 or int4.")
    ] = None,
    wide_weights: Annotated[
        str | None,
        typer.Option(metavar="KIND", help="A second form of a decoder's layers, for prompts: int8 or none."),
    ] = None,
    segments: Annotated[
        str | None,
        typer.Option(
            metavar="N|ffn", help="Also write the decoder in parts of N layers, or of half-layers, that can be skipped."
        ),
    ] = None,
    trees: Annotated[
        bool, typer.Option("--trees", help="Also write a decoder's graph for drafts that branch, as recycle's do.")
    ] = False,
    draft_text: Annotated[
        int | None,
        typer.Option(
            metavar="N", help="Tokens that the model writes to draft from; default: a minute's; 0: none."
        ),
    ] = None,
    no_check: Annotated[bool, typer.Option("--no-check", help="Do not compare the bundle with Torch.")] = False,
    force: Annotated[bool, typer.Option("--force", help="Replace the bundle that stands at the target.")] = False,
    name: Annotated[
        str | None, typer.Option(metavar="NAME", help="The model's name in the bundle; default: the source's.")
    ] = None,
) -> None:
    """Turn a checkpoint into a bundle, compare it with Torch, and print the comparison.

    The bundle appears at its target when it is whole; whatever goes wrong before leaves nothing there.
    """
    start = time.perf_counter()
    kinds = encoder_weights, decoder_weights, wide_weights
    check = not no_check
    try:
        bundle = _export(
            *(source, out, weights, block_size, max_context, calibration, kinds, segments, trees, draft_text, check),
            *(force, name),
        )
    except KeyboardInterrupt:
        where = f"at {out}" if out is not None else "behind"
        raise ExportError(f"The export was interrupted; nothing was left {where}.") from None
    _show(bundle, time.perf_counter() - start)


def _export(
    source: str,
    out: Path | None,
    weights: str | None,
    block_size: int | None,
    max_context: int | None,
    calibration: Path | None,
    kinds: tuple[str | None, str | None, str | None],
    segments: str | None,
    trees: bool,
    draft_text: int | None,
    check: bool,
    force: bool,
    name: str | None,
) -> Bundle:
    with stages() as (progress, say):
        from edge.export import export
        from edge.export.quantize import read_calibration

        return export(
            source,
            out,
            weights=weights,
            block_size=block_size,
            max_context=max_context,
            calibration=None if calibration is None else read_calibration(calibration),
            encoder_weights=kinds[0],
            decoder_weights=kinds[1],
            wide_weights=kinds[2],
            segments=int(segments) if segments is not None and segments.isdecimal() else segments,
            trees=trees,
            draft_text=draft_text,
            check=check,
            force=force,
            name=name,
            progress=progress,
            say=say,
        )


@contextmanager
def stages() -> Iterator[tuple[Callable[[int, int, str], None], Callable[[str], None]]]:
    """One line of progress on standard error for the stage at hand, and a function that prints above it.

    A total of 0 shows that a stage runs and for how long. Where standard error is no terminal only the sentences
    are printed.
    """
    from rich.console import Console
    from rich.progress import BarColumn, Progress, SpinnerColumn, TaskID, TextColumn, TimeElapsedColumn

    console = Console(stderr=True, highlight=False, soft_wrap=True)
    columns = SpinnerColumn(), TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn()
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as bar:
        shown: dict[str, TaskID] = {}  # at most one

        def progress(done: int, total: int, text: str) -> None:
            if text not in shown:
                for task in shown.values():
                    bar.remove_task(task)
                shown.clear()
                shown[text] = bar.add_task(text, total=None)
            bar.update(shown[text], completed=done, total=total or None)

        yield progress, console.print


def _show(bundle: Bundle, seconds: float) -> None:
    from rich import box
    from rich.console import Console
    from rich.table import Table

    from edge.runtime.memory import MIB, peak_rss_mb

    console = Console(highlight=False, soft_wrap=True)
    manifest, figures = bundle.manifest, bundle.manifest.quality
    if figures:
        table = Table(box=box.SIMPLE, title="The bundle against Torch in float32", title_justify="left")
        table.add_column(f"on {figures['check_tokens']:.0f} tokens")
        table.add_column("Torch", justify="right")
        table.add_column("bundle", justify="right")
        table.add_row("perplexity", f"{figures['perplexity_torch']:.3f}", f"{figures['perplexity']:.3f}")
        table.add_row("same most likely token", "", f"{figures['top1_agreement']:.1%}")
        table.add_row("KL divergence, mean (nats)", "", f"{figures['kl_mean']:.4f}")
        table.add_row("KL divergence, 95th percentile", "", f"{figures['kl_p95']:.4f}")
        console.print(table)
    size = sum(file.size for file in manifest.files) / 1e6
    peak = peak_rss_mb()
    memory = "" if peak is None else f", peak memory {peak * MIB / 1e6:,.0f} MB"
    console.print(
        f"{bundle.root}: {size:,.1f} MB, {manifest.bits_per_weight:.2f} bits per weight, context "
        f"{manifest.context:,}; took {seconds:.0f} s{memory}."
    )
