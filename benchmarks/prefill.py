"""How fast prompts are read, in both forms and by the peers, in one run. docs/lab/long-prompts.md says more.

    python benchmarks/prefill.py --bundle smollm2-135m-instruct.edge

The bundle is one of `edge export ... --prefill-weights int8`. With --encoders, a sentence or a silent window through
each checkpoint's encoder is timed too, in int8 and in blocks of 4 bits.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any
from unittest import mock

import convert
import decoder_vs_peers
import machine
import report
from decoder_vs_peers import Bench, Contender, find_models, say
from engines import engine_file
from engines.decoding_engine import Unavailable
from processes import Worker
from prompts import Prompts

LENGTHS = (128, 512, 2048, 4096)
DECODE_GRAPH = "edge, decode graph"  # the same bundle, read without its int8 prefill graph
ENGINES = ("edge", DECODE_GRAPH, "openvino-genai", "onnxruntime-genai", "llama.cpp")
DECODED = 32  # tokens behind each prompt
TURNS = 24  # of plain decoding, with the int8 prefill graph open and without
GOALS = {"openvino-genai": (1.0, (512, 2048)), "onnxruntime-genai": (5.0, LENGTHS), "llama.cpp": (5.0, LENGTHS)}
SENTENCE = 32  # tokens through a text encoder
ENCODES = 15


class PrefillBench(Bench):
    """Long prompts, and a few tokens behind each."""

    def _worker(self, found: Contender, variant: str, model: Path, capacity: int, *, watched: bool = False) -> Worker:
        engine = engine_file(found.name)
        settings: dict[str, Any] = dict(engine.VARIANTS[variant])
        if found.name == DECODE_GRAPH:
            settings["prefill"] = False
        request = {"model": str(model), "threads": self.threads, "capacity": capacity, "settings": settings}
        return Worker(found.python, engine.__name__, self.log, request, watched=watched)

    def measure_prompts(self, lengths: tuple[int, ...]) -> None:
        """Rounds over all contenders, so that a drift of the machine meets all alike."""

        def start(found: Contender) -> None:
            found.worker = self._worker(found, found.variant, found.model, max(lengths) + DECODED + 16)
            found.worker.generate(self.prompts.take(min(1024, max(lengths))), 4)

        def answer(found: Contender, size: int) -> None:
            assert found.worker is not None
            ids = self.prompts.take(size)
            with self._watch.over(found.worker):
                timed = found.worker.generate(ids, DECODED)
            self.figures[f"prefill @ {size}"][found.name].append(size / timed.prefill_s)
            self.figures[f"decode @ {size}"][found.name].append(1 / timed.decode_s)

        self._each(start)
        for number in range(self.plan.rounds):
            for size in lengths:
                backwards = number % 2 == 1
                self._each(lambda found, at=size: answer(found, at), backwards=backwards)  # type: ignore[misc]
            say(f"round {number + 1} of {self.plan.rounds}")
        for found in self.contenders.values():
            if found.worker is not None:
                self.figures["peak private"][found.name].append(found.worker.peak_private_mb)
                self.figures["peak RSS"][found.name].append(found.worker.peak_rss_mb)
                found.worker.close()

    def goals(self) -> list[report.Goal]:
        """What the issue of the int8 prefill graph asks for."""
        found = []
        for size in LENGTHS:
            rounds = self.figures.get(f"prefill @ {size}", {})
            for peer, (limit, sizes) in GOALS.items():
                if size in sizes and peer in rounds and "edge" in rounds:
                    value = report.ratio(rounds, peer).value
                    found.append(report.Goal(f"prefill @ {size} / {peer}", value, limit, True))
        return found


def main() -> int:
    """Measure, print, write. Returns the exit status."""
    args = parse(sys.argv[1:])
    try:
        models = find_models(args)
    except Unavailable as error:
        print(f"prefill: {error}", file=sys.stderr)
        return 2
    if json.loads((models.bundle / "edge.json").read_text()).get("prefill") is None:
        print(f"prefill: {models.bundle} has no int8 prefill graph; see --prefill-weights int8", file=sys.stderr)
        return 2
    args.out.mkdir(parents=True, exist_ok=True)
    plan = decoder_vs_peers.Plan(args.rounds, DECODED, 0, 1)
    began = time.monotonic()
    alone = [decoding(models.bundle, args), *(encoder(source, args) for source in args.encoders)]
    with (args.out / "prefill.log").open("w") as log:
        bench = PrefillBench(models, plan, args.threads, log, Prompts(models.bundle / "tokenizer.json"))
        for name in args.engines:
            bench.enter(name, args.variant.get(name))
        bench.measure_prompts(args.lengths)
    rows = [(f"{what} @ {n}", "tokens/s", True) for what in ("prefill", "decode") for n in args.lengths]
    rows += [(label, "MiB", False) for label in ("peak private", "peak RSS")]
    metrics = [report.Metric(*row, bench.figures[row[0]]) for row in rows]
    names = list(bench.contenders)
    say("\n" + report.figures_table(metrics, names) + "\n\n" + report.ratios_table(metrics, names) + "\n")
    goals = [*bench.goals(), *alone]
    for goal in goals:
        say(str(goal))
    for name, why in bench.skipped.items():
        say(f"SKIPPED {name}: {why}")
    for warning in bench.warnings:
        say(f"WARNING: {warning}")
    result = {
        "machine": machine.description(),
        "threads": args.threads,
        "engines": {c.name: {"version": c.version, "variant": c.variant} for c in bench.contenders.values()},
        "rounds": bench.figures,
        "goals": [vars(goal) | {"met": goal.met} for goal in goals],
        "skipped": bench.skipped,
        "warnings": bench.warnings,
        "seconds": round(time.monotonic() - began),
    }
    (args.out / "prefill.json").write_text(json.dumps(result, indent=1) + "\n")
    say(f"\nWritten to {args.out}: prefill.json and .log")
    return 0


def parse(arguments: list[str]) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0], allow_abbrev=False)
    parser.add_argument("--bundle", type=Path, required=True, help="this runtime's bundle, with an int8 prefill graph")
    parser.add_argument("--gguf", type=Path, help="the GGUF file of the model; default: what `edge models pull` left")
    parser.add_argument(
        "--engines",
        type=partial(decoder_vs_peers.names_of, ENGINES),
        default=list(ENGINES),
        metavar="NAME,...",
        help="those to compare; default: " + ",".join(ENGINES),
    )
    parser.add_argument(
        "--variant",
        type=decoder_vs_peers.variant,
        action="append",
        default=[],
        metavar="ENGINE=VARIANT",
        help="measure a peer with this setting, without trying others",
    )
    parser.add_argument("--lengths", type=_lengths, default=LENGTHS, metavar="N,...", help="tokens of the prompts")
    parser.add_argument(
        "--encoders",
        type=Path,
        action="append",
        default=[],
        metavar="SOURCE",
        help="a checkpoint of an encoder-decoder whose encoder is timed in both forms; may be repeated",
    )
    parser.add_argument("--peer-python", metavar="PATH", help="the interpreter of an environment with the peers")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--out", type=Path, default=Path("build/benchmarks"), help="folder for the JSON and the log")
    parser.add_argument("--work", type=Path, help="folder that keeps converted models; default: in the user's cache")
    args = parser.parse_args(arguments)
    if min(args.threads, args.rounds) < 1:
        parser.error("--threads and --rounds must be 1 or more")
    args.variant = dict(args.variant)
    return args


def _lengths(text: str) -> tuple[int, ...]:
    try:
        sizes = tuple(int(part) for part in text.split(","))
    except ValueError:
        sizes = (0,)
    if min(sizes) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is no list of lengths; write it like 128,512")
    return sizes


def decoding(bundle: Path, args: argparse.Namespace) -> report.Goal:
    """Plain decoding behind a prompt that the int8 prefill graph read, beside the same without the form.

    Both in one process and in turns, and the fastest quarter of them counts: two processes of one kind differ by up to
    10% for as long as they live, and a busy neighbour takes as much, ten times what is looked for.
    """
    import numpy as np

    import edge
    from edge.runtime.load import open_engine

    opened = edge.open_bundle(bundle)
    ids = np.random.default_rng(0).integers(0, opened.manifest.dims.vocab_size, 256)
    prefill, decode = (open_engine(opened, threads=args.threads) for _ in range(2))
    if prefill.prefill is None:
        raise ValueError(f"the int8 prefill graph of {bundle} cannot be used")
    readers = [(prefill, prefill.prefill.step), (decode, decode.step)]
    times: list[list[float]] = [[], []]
    for turn in range(TURNS):
        for number in (0, 1) if turn % 2 else (1, 0):
            engine, read = readers[number]
            cache = engine.new_cache(ids.size + DECODED)
            read(cache, ids)
            start = time.perf_counter()
            for token in ids[:DECODED]:
                engine.step(cache, token[None])
            times[number].append((time.perf_counter() - start) / DECODED * 1e3)
            time.sleep(decoder_vs_peers.REST_S)
    after, before = (median(sorted(taken)[: TURNS // 4]) for taken in times)
    name = f"plain decoding at {ids.size}, {after:.2f} ms a token with that graph open: speed / without it"
    return report.Goal(name, before / after, 0.99, True)


def encoder(source: Path, args: argparse.Namespace) -> report.Goal:
    """A checkpoint's encoder in int8, beside the same one in blocks of 4 bits."""
    import numpy as np

    import edge
    from edge.export.quantize import encoder_decoder
    from edge.export.quantize.rtn import round_to_nearest
    from edge.runtime.load import open_engine

    def blocks(w: Any) -> Any:
        return round_to_nearest(w, 4, encoder_decoder.INT4_BLOCK)

    folder = (args.work or Path(args.out)).resolve() / f"encoder-{convert.key(_largest(source))}"
    folder.mkdir(parents=True, exist_ok=True)
    engines = []
    for name, make in (("int8", encoder_decoder.rows_to_nearest), ("int4", blocks)):
        target = folder / f"{name}.edge"
        if not target.exists():
            with mock.patch.object(encoder_decoder, "rows_to_nearest", make):  # the exporter has no such encoders
                edge.export(source, target, encoder_weights="int8", decoder_weights="int4", check=False)
        engines.append(open_engine(edge.open_bundle(target), threads=args.threads))
    times: list[list[float]] = [[], []]
    for _ in range(ENCODES):
        for engine, taken in zip(engines, times, strict=True):
            assert engine.encoder is not None
            start = time.perf_counter()
            if engine.bundle.manifest.speech is None:
                engine.encoder.encode_text(np.arange(2, 2 + SENTENCE))
            else:
                engine.encoder.encode_audio(np.zeros(0, np.float32))
            taken.append((time.perf_counter() - start) * 1e3)
    int8, int4 = (median(taken[1:]) for taken in times)
    name = engines[0].bundle.manifest.name
    return report.Goal(f"encoder of {name}, int8 {int8:.1f} ms: times faster than 4-bit blocks", int4 / int8, 2.0, True)


def _largest(source: Path) -> Path:
    """The file that a checkpoint's weights are in."""
    files = [source] if source.is_file() else [path for path in source.rglob("*") if path.is_file()]
    return max(files, key=lambda path: path.stat().st_size)


if __name__ == "__main__":
    sys.exit(main())
