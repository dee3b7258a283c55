"""Layer skipping: what segments cost, and each policy's perplexity against its decode speed, in one run.

    python benchmarks/skipping.py --bundle MODEL.edge --halves HALVES.edge --text TEXT --out DIR

MODEL.edge was exported with `--segments 1`, HALVES.edge with `--segments ffn`. Decode speeds are medians of steps taken
in turns with the whole graph's, so that a drift of the machine meets both.
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
from edge.runtime.engine import Engine
from edge.runtime.evaluate import windows
from edge.runtime.skip.apart import Apart
from edge.runtime.skip.base import skippable
from edge.runtime.skip.engine import SegmentedEngine
from edge.runtime.skip.evaluate import SkipFigures, decode_speeds, measure
from edge.runtime.text import Text

WIDTHS = (1, 2, 4, 0)  # parts that run together; 0: all of them
POLICIES = ["unified:0.034", "unified:0.1", "unified:0.2", "skipdecode:29-30", "skipdecode:27-30", "skipdecode:24-30"]
ROUTED = ["first:skip=1", "first:skip=3", "first:skip=6"]
HALVES = ["ffn:0.034", "ffn:0.1", "ffn:0.25"]
TARGET = 0.93  # of the whole graph's decode speed, with nothing skipped


def segments(bundle: Bundle, context: int, rounds: int) -> list[dict[str, float]]:
    """Decode speed of all segments, joined by so many, relative to the whole graph's."""
    units = skippable(bundle.manifest.segments)
    prompt = np.arange(100, 100 + context // 2)
    whole, rows = Engine(bundle, context=context), []
    for width in WIDTHS:
        joined = [tuple(i for unit in units[at : at + width] for i in unit) for at in range(0, len(units), width or 1)]
        engine = SegmentedEngine(bundle, Apart(bundle, joined if width else []), context=context)
        speeds = decode_speeds([whole, engine], prompt, context, rounds=rounds)
        sessions = len(engine.groups)
        cost = (1 / speeds[1] - 1 / speeds[0]) / max(1, sessions - 1) * 1e6
        rows.append({"sessions": sessions, "ratio": speeds[1] / speeds[0], "us_per_session": cost})
    return rows


def table(figures: Sequence[SkipFigures]) -> str:
    head = f"{'policy':18} {'layers':>6} {'perplexity':>10} {'more':>8} {'same':>6} {'speed':>6}"
    lines = [
        f"{f.skip:18} {f.layers_run:6.1f} {f.perplexity:10.3f} {f.perplexity / f.perplexity_unskipped - 1:8.1%} "
        f"{f.top1_agreement:6.1%} {f.speedup:6.2f}"
        for f in figures
    ]
    return "\n".join([head, *lines])


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--bundle", type=Path, required=True, help="with segments of layers")
    parser.add_argument("--halves", type=Path, help="with segments of half-layers")
    parser.add_argument("--text", type=Path, help="to predict; without it only the cost of segments is measured")
    parser.add_argument("--tokens", type=int, default=2048)
    parser.add_argument("--window", type=int, default=512)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--out", type=Path, required=True, help="a folder for skipping.json and skipping.png")
    given = parser.parse_args(argv)
    bundle = open_bundle(given.bundle)
    rows = segments(bundle, 256, given.rounds)
    for row in rows:
        cost = f"{row['us_per_session']:.1f} us each"
        print(f"{row['sessions']:3.0f} sessions: {row['ratio']:.3f} of the whole graph's speed, {cost}")
    best = max(row["ratio"] for row in rows)
    print(f"nothing skipped: {best:.3f} at best, {'' if best >= TARGET else 'not '}the {TARGET} that is wanted")
    figures: list[SkipFigures] = []
    if given.text is not None:
        for path, skips in ((given.bundle, POLICIES), (given.halves, HALVES)):
            if path is None:
                continue
            own = open_bundle(path)
            skips = skips + (ROUTED if own.manifest.routers else [])
            content = given.text.read_text(encoding="utf-8")
            texts = windows(Text(own).encode(content), own.manifest.tokens, window=given.window, limit=given.tokens)
            figures += measure(own, skips, texts, window=given.window, given=given.window // 2)
        print(table(figures))
    given.out.mkdir(parents=True, exist_ok=True)
    result = {"segments": rows, "policies": [dataclasses.asdict(f) | {"speedup": f.speedup} for f in figures]}
    (given.out / "skipping.json").write_text(json.dumps(result, indent=1) + "\n")
    if figures:
        draw(figures, given.out / "skipping.png")
    return 0


if __name__ == "__main__":
    sys.exit(main())
