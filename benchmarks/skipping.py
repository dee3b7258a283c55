"""Layer skipping: what it costs to be able to, and each policy's perplexity against its decode speed, in one run.

    python benchmarks/skipping.py --bundle MODEL.edge --text TEXT --out DIR
        --tuned TUNED.edge first,first:skip=4

TUNED.edge is exported from what `edge tune` made of the same model, for the policies named behind it. Where our kernels
do not run MODEL.edge, it was exported with `--segments 1`, and `--halves` names one with `--segments ffn`. Decode
speeds are medians of steps taken in turns with the whole graph's, so that a drift of the machine meets both. A tuned
model's perplexity stands beside that of the untuned one with nothing skipped.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import sys
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from edge.bundle import Bundle, open_bundle
from edge.cli.eval_skip import draw
from edge.errors import EdgeError
from edge.runtime.check.perplexity import windows
from edge.runtime.check.skip_policies import SkipFigures, decode_speeds, measure
from edge.runtime.engine.engine import Engine
from edge.runtime.engine.variant import Variant
from edge.runtime.load import open_engine
from edge.runtime.skip import make_policy
from edge.runtime.skip.base import AllLayers, middle
from edge.runtime.skip.first import read_routers
from edge.runtime.skip.units import in_units
from edge.runtime.text.tokenizer import Text
from edge.text_file import read_text

SHARES = (0.034, 0.1, 0.2, 0.3, 0.4, 0.5)  # of the layers, or of the blocks, that are left out
ROUTED = (1, 3, 6)  # units that routers leave out
TARGET = 0.995  # of the whole graph's decode speed, with nothing skipped
FASTER = {"unified:0.25": 1.28, "unified:0.5": 1.8}  # decode speeds that are wanted
WANTED = ((1.12, 0.08), (1.25, 0.25))  # decode speed, and the most that perplexity may rise for it
TUNED = "tuned "


def segments(bundle: Bundle, context: int, rounds: int) -> dict[str, float]:
    """Decode speed of all segments with nothing left out, relative to the whole graph's."""
    bundle = in_units(bundle)
    middle(bundle, parts=("layers", "attention"), what="this benchmark")  # or a sentence where there are none
    every = Engine(bundle, Variant(policy=AllLayers(bundle), context=context))
    fast = [Engine(bundle, Variant(policy=make_policy(skip, bundle), context=context)) for skip in FASTER]
    prompt = np.arange(100, 100 + context // 2)
    whole, *speeds = decode_speeds([open_engine(bundle, context=context), every, *fast], prompt, context, rounds=rounds)
    parts, ratios = len(bundle.manifest.segments), [speed / whole for speed in speeds]
    found = {"parts": parts, "ratio": ratios[0], "us_per_part": (1 / speeds[0] - 1 / whole) / (parts - 1) * 1e6}
    return found | dict(zip(FASTER, ratios[1:], strict=True))


def policies(bundle: Bundle) -> list[str]:
    """What a bundle is measured with, whose segments are layers or halves of them."""
    layers, routed = bundle.manifest.dims.num_layers, list[str]()
    if bundle.manifest.routers:
        biases = read_routers(bundle, len(middle(bundle, what="first")))[:, -1]
        routed = [f"first:skip={n}" for n in ROUTED if n <= np.isfinite(biases).sum()]
    ways = ("", "token=") if in_units(bundle, halves=True).routed else ("",)
    halves = [f"ffn:{way}{share:g}" for way in ways for share in SHARES]
    if any(segment.part == "feed_forward" for segment in bundle.manifest.segments):
        return halves + routed
    falling = [f"skipdecode:{max(2, layers - max(1, round(2 * share * layers)))}-{layers}" for share in SHARES[:-1]]
    both = halves if in_units(bundle) is not bundle else []
    return [f"unified:{share:g}" for share in SHARES] + list(dict.fromkeys(falling)) + both + routed


def table(figures: Sequence[SkipFigures]) -> str:
    head = f"{'policy':24} {'layers':>6} {'perplexity':>10} {'more':>8} {'same':>6} {'speed':>6}"
    lines = [
        f"{f.skip:24} {f.layers_run:6.1f} {f.perplexity:10.3f} {f.perplexity / f.perplexity_unskipped - 1:8.1%} "
        f"{f.top1_agreement:6.1%} {f.speedup:6.2f}"
        for f in figures
    ]
    return "\n".join([head, *lines])


def tuned_figures(
    asked: Sequence[Sequence[str]], content: str, window: int, limit: int, untuned: float
) -> tuple[list[SkipFigures], float]:
    """Of each tuned bundle under its policies, beside the untuned model's perplexity with nothing skipped; and the
    least perplexity that any of these bundles has with nothing skipped."""
    figures, least = [], untuned
    for path, skips in asked:
        own = open_bundle(path)
        texts = windows(Text(own).encode(content), own.manifest.tokens, window=window, limit=limit)
        found = measure(own, skips.split(","), texts, window=window, given=window // 2)
        rise = found[0].perplexity_unskipped / untuned - 1
        least = min(least, found[0].perplexity_unskipped)
        print(f"{path}: perplexity {found[0].perplexity_unskipped:.3f} with nothing skipped ({rise:+.1%})")
        figures += [dataclasses.replace(f, skip=TUNED + f.skip, perplexity_unskipped=untuned) for f in found]
    return figures, least


def goals(figures: Sequence[SkipFigures], least: float) -> list[str]:
    """What the best of the tuned routers' settings reach of WANTED, and against tuned unified skipping as fast.

    least: the perplexity of the best tuned decoder with nothing skipped, from which the rises of the two are compared:
    tuning on text like that which is read lowers both, so that from the untuned one there may be none.
    """
    rises = {f.skip: f.perplexity / f.perplexity_unskipped - 1 for f in figures}
    above = {f.skip: f.perplexity / least - 1 for f in figures}
    first = [f for f in figures if f.skip.startswith(f"{TUNED}first")]
    lines = []
    for speed, most in WANTED if first else ():
        fast = [f for f in first if f.speedup >= speed]
        best = min(fast, key=lambda f: rises[f.skip], default=None)
        reached, met = "never", False
        if best is not None:
            own = f"{above[best.skip]:+.1%} from the best tuned decoder's with nothing skipped"
            reached = f"{rises[best.skip]:+.1%} perplexity ({best.skip}; {own})"
            met = rises[best.skip] <= most
        lines.append(f"FiRST at {speed} times decode speed: {reached}; {most:.0%} wanted: {'met' if met else 'missed'}")
    unified = sorted((f.speedup, above[f.skip]) for f in figures if f.skip.startswith(f"{TUNED}unified"))
    for f in first if len(unified) > 1 else ():
        if unified[0][0] <= f.speedup <= unified[-1][0]:
            other = float(np.interp(f.speedup, *zip(*unified, strict=True)))
            share = f"{above[f.skip] / other:.2f} of tuned unified's rise"
            lines.append(f"{f.skip} at {f.speedup:.2f}: {share}; 0.7 wanted")
    return lines


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--bundle", type=Path, required=True)
    parser.add_argument("--halves", type=Path, help="where our kernels do not run it: with segments of half-layers")
    parser.add_argument(
        "--tuned", nargs=2, action="append", default=[], metavar=("BUNDLE", "POLICIES"), help="what edge tune made"
    )
    parser.add_argument("--text", type=Path, help="to predict; without it only the cost of segments is measured")
    parser.add_argument("--tokens", type=int, default=2048)
    parser.add_argument("--window", type=int, default=512)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--out", type=Path, required=True, help="a folder for skipping.json and skipping.png")
    given = parser.parse_args(argv)
    bundle = open_bundle(given.bundle)
    content = None if given.text is None else read_text(given.text)
    own = segments(bundle, 256, given.rounds)
    print(f"{own['parts']} units, {own['us_per_part']:.1f} us each; decode speed, by that of the whole graph:")
    for name, wanted in {"ratio": TARGET, **FASTER}.items():
        met = "met" if own[name] >= wanted else "MISSED"
        print(f"  {'nothing skipped' if name == 'ratio' else name}: {own[name]:.3f}; {wanted} wanted: {met}")
    figures: list[SkipFigures] = []
    if content is not None:
        for path in (given.bundle, given.halves):
            if path is None:
                continue
            read = open_bundle(path)
            texts = windows(Text(read).encode(content), read.manifest.tokens, window=given.window, limit=given.tokens)
            figures += measure(read, policies(read), texts, window=given.window, given=given.window // 2)
        untuned = figures[0].perplexity_unskipped
        tuned, least = tuned_figures(given.tuned, content, given.window, given.tokens, untuned)
        figures += tuned
        print(table(figures))
        print(*goals(figures, least), sep="\n")
    given.out.mkdir(parents=True, exist_ok=True)
    measured = [dataclasses.asdict(f) | {"speedup": f.speedup} for f in figures]
    result = {"segments": own, "policies": measured}
    (given.out / "skipping.json").write_text(json.dumps(result, indent=1) + "\n")
    if figures:
        draw(figures, given.out / "skipping.png")
    return 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except EdgeError as e:
        sys.exit(f"skipping: {e}")
