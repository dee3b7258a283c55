"""`edge export`: a checkpoint becomes a bundle."""

from __future__ import annotations

import argparse
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from edge.cli.arguments import Parser
from edge.errors import ExportError

if TYPE_CHECKING:
    from collections.abc import Callable

    from edge.bundle import Bundle


NAME = "export"
HELP = "Turn a checkpoint (folder, hub id, .gguf file or catalog name) into a bundle."
# Options that go to `edge.export` under their own names.
OPTIONS = (
    *("weights", "block_size", "max_context", "encoder_weights", "decoder_weights", "prefill_weights", "trees"),
    *("draft_text", "force", "name"),
)


def add_arguments(parser: Parser) -> None:
    parser.add_argument("source", metavar="SOURCE", help="a model directory, a .gguf file, a catalog name or a hub id")

    add = parser.add_argument_group("bundle").add_argument
    add("-o", "--out", metavar="OUT.edge", type=Path, help="the bundle to write (default: NAME.edge, here)")
    add("--force", action="store_true", help="replace the bundle that stands at the target")
    add("--name", metavar="NAME", help="the model's name in the bundle (default: the source's)")
    tokens = "maximum tokens of prompt and answer (default: the model's, up to 8192)"
    add("--max-context", metavar="N", type=int, help=tokens)
    add("--no-check", action="store_true", help="do not compare the bundle with Torch")

    add = parser.add_argument_group("weights").add_argument
    kinds = "fp32, fp16, int8, int4, or keep: a GGUF's own precision (default: int4; for encoder-decoders int8)"
    add("--weights", metavar="KIND", help=kinds)
    add("--block-size", metavar="N", type=int, help="weights that share one scale (default: the method's)")
    text = "text that a decoder's weights are calibrated on (default: a built-in one)"
    add("--calibration", metavar="FILE", type=Path, help=text)
    add("--encoder-weights", metavar="KIND", help="of an encoder-decoder's encoder: fp32 or int8")
    add("--decoder-weights", metavar="KIND", help="of an encoder-decoder's decoder: fp32, int8 or int4")
    add("--prefill-weights", metavar="KIND", help="a decoder's second graph, for long prompts: int8, or none (default)")

    add = parser.add_argument_group("skipping and drafts").add_argument
    parts = "also write the decoder in parts of N layers, or of half-layers, that can be skipped"
    add("--segments", metavar="N|ffn", help=parts)
    add("--trees", action="store_true", help="also write a decoder's graph for drafts that branch, as recycle's do")
    drafts = "tokens that the model writes to draft from; 0: none (default: as many as take a minute)"
    add("--draft-text", metavar="N", type=int, help=drafts)


def command(args: argparse.Namespace) -> None:
    """Turn a checkpoint into a bundle, compare it with Torch, and print the comparison.

    The bundle appears at its target when it is whole; whatever goes wrong before leaves nothing there.
    """
    start = time.perf_counter()
    segments = args.segments
    try:
        with stages() as (progress, say):
            from edge.export import export
            from edge.export.quantize import read_calibration

            bundle = export(
                args.source,
                args.out,
                **{name: getattr(args, name) for name in OPTIONS},
                calibration=None if args.calibration is None else read_calibration(args.calibration),
                segments=int(segments) if segments is not None and segments.isdecimal() else segments,
                check=not args.no_check,
                progress=progress,
                say=say,
            )
    except KeyboardInterrupt:
        where = f"at {args.out}" if args.out is not None else "behind"
        raise ExportError(f"The export was interrupted; nothing was left {where}.") from None
    _show(bundle, time.perf_counter() - start)


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

    from edge.runtime.memory.process import held

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
    peak = held()
    memory = "" if peak is None else f", peak memory {peak.peak_rss / 1e6:,.0f} MB (RSS)"
    console.print(
        f"{bundle.root}: {size:,.1f} MB, {manifest.bits_per_weight:.2f} bits per weight, context "
        f"{manifest.context:,}; took {seconds:.0f} s{memory}."
    )
