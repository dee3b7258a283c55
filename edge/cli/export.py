"""`edge export`: a checkpoint becomes a bundle."""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from edge.cli.arguments import Parser
from edge.cli.progress import Countdown, drawn, time_column
from edge.cli.tables import console, table
from edge.errors import InterruptedExport

if TYPE_CHECKING:
    from edge.bundle import Bundle


LEFT = " · "  # before the time that is left, in what a stage is called
BAR = 18  # columns, so that the longest stage and the time that is left fit into 80
NAME = "export"
HELP = "Turn a checkpoint (folder, hub id, .gguf file or catalog name) into a bundle."
# Options that go to `edge.export` under their own names.
OPTIONS = (
    *("weights", "block_size", "symmetric", "encoder_weights", "decoder_weights", "prefill_weights"),
    *("bits", "perplexity", "effort", "max_context", "trees", "draft_text", "force", "name", "memory"),
    *("target", "target_context", "target_weights", "target_activations"),
)


def add_arguments(parser: Parser) -> None:
    source = "a model directory, a .gguf file, a catalog name, org/NAME on the hub, or the address of a .gguf file"
    parser.add_argument("source", metavar="SOURCE", help=source)
    parser.surplus = "name the bundle with -o {0}"

    add = parser.options("bundle")
    add("-o/--out OUT.edge", "the bundle to write (default: NAME.edge, here)", Path)
    add("--force", "replace an earlier bundle at the target")
    add("--name NAME", "the model's name in the bundle (default: the source's)")
    add("--max-context N", "maximum tokens of prompt and answer (default: the model's, up to 8192)", int)
    add("--no-check", "do not compare the bundle with the model in float32")
    efforts = (
        "quick: seconds, 8 bits, nothing for drafts; normal (default): minutes, 4 bits, drafts; best: longer, more "
        "bits where they count, more text"
    )
    add("--effort EFFORT", efforts, default="normal")
    add("--memory SIZE", "maximum private memory, as in 8GB; what does not fit is left out, and said")

    add = parser.options("weights")
    kinds = (
        "fp32, fp16, int8, int4, or keep: the own precision of a GGUF or a quantized folder (default: int4; keep for "
        "folders whose integers fit; for encoder-decoders int8)"
    )
    add("--weights KIND", kinds)
    add("--block-size N", "weights that share one scale (default: the method's)", int)
    add("--bits N", "int4: each matrix its own blocks and 4 or 8 bits, N a weight on average (5.2, say)", float)
    add("--size SIZE", "the same, for a bundle of at most SIZE (100MB, say)")
    add("--perplexity R", "the same, for at most R times the float model's perplexity (1.05, say), estimated", float)
    add("--symmetric", "int4 without zero points, in blocks of 32: for the fast paths of NPUs and GPUs")
    calibration = "text, or a speech model's recording, that int4 is calibrated on (default: what is built in)"
    add("--calibration FILE", calibration, Path)
    add("--encoder-weights KIND", "of an encoder-decoder's encoder: fp32 or int8")
    add("--decoder-weights KIND", "of an encoder-decoder's decoder: fp32, int8 or int4")
    add("--prefill-weights KIND", "a decoder's second graph, for long prompts: int8, or none (default)")

    add = parser.options("devices")
    add("--target NAME", "also write graphs for a kind of device: npu-qualcomm or cuda")
    kinds = "npu-qualcomm: int8 (default) or int4; cuda: int4 (default), int8 or float16, which encoder-decoders have"
    add("--target-weights KIND", kinds)
    add("--target-activations TYPE", "cuda: float16 (default), or bfloat16, where float16 is too narrow for a model")
    room = "npu: tokens that graphs have room for, one number or several (default: 512; others 128, Whisper 448)"
    add("--target-context N,...", room, _numbers)
    add("--soc CHIP,...", "npu: chips to compile them for, such as sm8650 (default: the device compiles at each start)")

    add = parser.options("skipping and drafts")
    add("--segments N|ffn", "also write the decoder in segments of N layers, or of half-layers, for skipping")
    add("--trees", "also write a decoder's graph for drafts that branch, as recycle's do")
    drafts = "tokens that the model writes to draft from; 0: none (default: as many as take a minute)"
    add("--draft-text N", drafts, int)


def _numbers(text: str) -> list[int]:
    try:
        return [int(part) for part in text.split(",")]
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is no number, nor several with commas between them") from None


def command(args: argparse.Namespace) -> None:
    """Turn a checkpoint into a bundle, compare the two, and print the comparison.

    The bundle appears at its target when it is whole; whatever goes wrong before leaves nothing there.
    """
    from edge.runtime.memory.process import watching

    start = time.perf_counter()
    segments = args.segments
    try:
        with watching(), stages(countdown := Countdown()) as (progress, say):
            from edge.export import export

            def expect(sentence: str, left: Callable[[], float]) -> None:
                countdown.left = left
                say(sentence)

            from edge.runtime.memory.sizes import parse_size

            bundle = export(
                args.source,
                args.out,
                **{name: getattr(args, name) for name in OPTIONS},
                size=None if args.size is None else parse_size(args.size),
                calibration=args.calibration,
                segments=int(segments) if segments is not None and segments.isdecimal() else segments,
                soc=[] if args.soc is None else args.soc.split(","),
                check=not args.no_check,
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

    shows = TextColumn("{task.description}", markup=False), BarColumn(BAR), time_column(countdown or Countdown())
    with drawn(SpinnerColumn(), *shows) as bar:
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
    if figures:
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
