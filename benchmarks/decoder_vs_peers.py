"""One decoder at 4 bits on this runtime and on its peers, side by side in one run. docs/lab/benchmarks.md says more.

    python benchmarks/decoder_vs_peers.py --bundle smollm2-135m-instruct.edge

Decoding is one token a step; `benchmarks/speculation.py` measures drafts. A bundle with an int8 prefill graph reads
prompts with it, unless `--variant "edge=without the int8 prefill graph"` says otherwise.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import convert
import machine
import report
from comparison import Comparison, Entrant, add_common, add_peer_python, names_of, parsed, say, write
from engines import DECODER, DECODERS, Models, Unavailable, engine_file
from processes import Worker, first_byte
from prompts import QUESTION, Prompts

CONTEXTS = (16, 128, 512, 2000)
SHORTEST_PREFILL = 128
PARTS = ("memory", "speed", "start")
MEMORY_PROMPT, MEMORY_TOKENS = 512, 64
MODEL = "smollm2-135m-instruct"
PANELS = {
    "decode": "Decode, tokens/s, by tokens of context",
    "prefill": "Prefill, tokens/s, by prompt tokens",
    "peak private": "Peak private memory, MiB (less is better)",
    "first token": "Process start to first token, ms (less is better)",
}


@dataclass(frozen=True)
class Plan:
    """How much is measured."""

    rounds: int
    tokens: int
    starts: int  # fresh processes per engine, for the time to the first token
    trials: int  # answers per variant, for choosing the fastest


FULL = Plan(rounds=9, tokens=64, starts=9, trials=3)
QUICK = Plan(rounds=3, tokens=24, starts=3, trials=1)


def main() -> int:
    """Measure, print, write. Returns the exit status."""
    args = parse(sys.argv[1:])
    try:
        models = find_models(args)
    except Unavailable as error:
        print(f"decoder_vs_peers: {error}", file=sys.stderr)
        return 2
    plan = QUICK if args.quick else FULL
    plan = replace(plan, rounds=args.rounds or plan.rounds)
    args.out.mkdir(parents=True, exist_ok=True)
    say(f"{args.threads} threads, load average {os.getloadavg()[0]:.2f} before the start")
    prompts = Prompts(models.bundle / "tokenizer.json")
    with (args.out / "decoder_vs_peers.log").open("w") as log:
        capacity = max(*args.contexts, MEMORY_PROMPT) + max(plan.tokens, MEMORY_TOKENS) + 16
        compared = Comparison(DECODER, args.threads, log, models.pythons, plan.trials, capacity)
        enter(compared, models, prompts, args)
        if not compared.entrants:
            print("decoder_vs_peers: none of the engines can be measured here.", file=sys.stderr)
            return 2
        if "memory" in args.parts:
            compared.measure_memory(lambda worker: worker.generate(prompts.take(MEMORY_PROMPT), MEMORY_TOKENS))
        if "speed" in args.parts:
            answers = [partial(answer, prompts, context, plan.tokens) for context in args.contexts]
            compared.rounds(plan.rounds, lambda worker: worker.generate(prompts.take(64), 24), answers)
        if "start" in args.parts:
            for number in range(plan.starts + 1):
                compared.each(partial(first_token, compared, number == 0))
    metrics = compared.metrics(rows(args.contexts))
    goals = report.goals(metrics)
    compared.show(metrics, goals)
    result = {"plan": vars(plan), "bundle": models.bundle.name, "gguf": models.gguf.name} | compared.result()
    write(args.out / "decoder_vs_peers.json", args.threads, result | {"goals": list(map(vars, goals))})
    title = f"{models.bundle.stem}, {args.threads} threads, {machine.cpu_name()}"
    panels = [
        report.Panel(
            heading, {m.label.removeprefix(start).strip(" @"): m for m in metrics if m.label.startswith(start)}
        )
        for start, heading in PANELS.items()
    ]
    try:
        report.plot(panels, list(compared.entrants), title, args.out / "decoder_vs_peers.png")
    except ImportError:
        say("There is no plot, because matplotlib is not installed.")
    say(f"\nWritten to {args.out}: decoder_vs_peers.json, .png and .log")
    return 0


def parse(arguments: Sequence[str]) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0], allow_abbrev=False)
    add = parser.add_argument
    add("--bundle", type=Path, required=True, help="this runtime's bundle of the model, at 4 bits")
    add("--gguf", type=Path, help=f"the GGUF file of the model; default: what `edge models pull {MODEL}` left")
    engines, parts = partial(names_of, DECODERS), partial(names_of, PARTS)
    add("--engines", type=engines, default=list(DECODERS), metavar="NAME,...", help="default: " + ",".join(DECODERS))
    what = "measure an engine with this setting, instead of trying which is fastest"
    add("--variant", type=variant, action="append", default=[], metavar="ENGINE=VARIANT", help=what)
    add("--contexts", type=lengths, default=CONTEXTS, metavar="N,...", help="tokens of the prompts")
    add("--quick", action="store_true", help="fewer rounds and tokens: two minutes, less certain")
    add("--parts", type=parts, default=list(PARTS), metavar="NAME,...", help="default: " + ",".join(PARTS))
    add("--rounds", type=int, help=f"default: {FULL.rounds}, with --quick {QUICK.rounds}")
    add_peer_python(parser)
    add_common(parser)
    args = parsed(parser, arguments)
    args.variant = dict(args.variant)
    return args


def variant(text: str) -> tuple[str, str]:
    """An engine and one of its settings, from `ENGINE=SETTING`."""
    name, _, setting = text.partition("=")
    if name not in DECODERS:
        raise argparse.ArgumentTypeError(f"there is no engine {name!r}; there is: {', '.join(DECODERS)}")
    known = engine_file(name).VARIANTS[DECODER]
    if setting not in known:
        raise argparse.ArgumentTypeError(f"{name} has no variant {setting!r}; it has: {'; '.join(known)}")
    return name, setting


def lengths(text: str) -> tuple[int, ...]:
    """Numbers of tokens, from `N,N,...`."""
    sizes = tuple(int(part) if part.isdecimal() else 0 for part in text.split(","))
    if min(sizes) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is no list of lengths; write it like 128,512")
    return sizes


def find_models(args: argparse.Namespace) -> Models:
    """The bundle, the GGUF file and the folder for what is made of it."""
    from edge.catalog import find, local

    gguf = args.gguf
    if gguf is None:
        entry = find(MODEL)
        gguf = local(entry) if entry is not None else None
        if gguf is None or gguf.suffix != ".gguf":
            raise Unavailable(f"--gguf is needed: `edge models pull {MODEL}` has left no GGUF file here")
    for path in (args.bundle / "edge.json", gguf):
        if not path.is_file():
            raise Unavailable(f"there is no {path}")
    work = args.work / convert.key(gguf)
    work.mkdir(parents=True, exist_ok=True)
    return Models(args.bundle.resolve(), gguf.resolve(), work, args.pythons)


def enter(compared: Comparison, models: Models, prompts: Prompts, args: argparse.Namespace) -> None:
    """Every engine at the variant that takes a prompt of 512 tokens and an answer of 64 in the shortest time."""

    def trial(worker: Worker) -> float:
        timed = worker.generate(prompts.take(512), 64)
        return timed.prefill_s + 64 * timed.decode_s

    for name in args.engines:
        engine = engine_file(name)
        tried = [args.variant[name]] if name in args.variant else getattr(engine, "TRIED", ())
        compared.enter(name, partial(engine.prepare, models, threads=args.threads), trial, tried)


def answer(prompts: Prompts, context: int, tokens: int, worker: Worker, number: int) -> dict[str, float]:
    """Tokens per second of an answer to a prompt of `context` tokens."""
    timed = worker.generate(prompts.take(context), tokens)
    return {f"prefill @ {context}": context / timed.prefill_s, f"decode @ {context}": 1 / timed.decode_s}


def first_token(compared: Comparison, warm: bool, found: Entrant) -> None:
    """Milliseconds from a process's start to its first token."""
    command = found.engine.first_token(found.python, found.model, QUESTION, compared.threads, found.variant)
    got = first_byte(command, compared.log)
    if not warm:
        compared.figures["first token"][found.name].append(got.seconds * 1000)


def rows(contexts: Sequence[int]) -> list[tuple[str, str, bool, int]]:
    """The rows of the report."""
    found = [(f"prefill @ {n}", "tokens/s", True, 0) for n in contexts if n >= SHORTEST_PREFILL]
    found += [(f"decode @ {n}", "tokens/s", True, 0) for n in contexts]
    return [*found, ("peak private", "MiB", False, 0), ("peak RSS", "MiB", False, 0), ("first token", "ms", False, 0)]


if __name__ == "__main__":
    sys.exit(main())
