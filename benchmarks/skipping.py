"""Layer skipping: what it costs to be able to, and how fast decoding is with layers skipped.

    python benchmarks/skipping.py --bundle MODEL.edge

Where our kernels do not run MODEL.edge, it was exported with `--segments 1`. Decode speeds are medians of steps taken
in turns with the whole graph's, so that a drift of the machine meets both. `edge eval --skip POLICY --sweep A,B,...`
measures perplexity against speed.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from report import Goal

from edge.bundle import Bundle, open_bundle
from edge.errors import EdgeError
from edge.runtime.check.skip_policies import decode_speeds
from edge.runtime.engine.engine import Engine
from edge.runtime.engine.variant import Variant
from edge.runtime.load import open_engine
from edge.runtime.skip import make_policy
from edge.runtime.skip.skip_policy import AllLayers, middle
from edge.runtime.skip.units import in_units

CONTEXT = 256
WANTED = {"nothing skipped": 0.995, "unified:0.25": 1.28, "unified:0.5": 1.8}  # of the whole graph's decode speed


def speeds(bundle: Bundle, rounds: int) -> tuple[int, float, list[float]]:
    """The units of a decoder, the microseconds that each costs, and decode speeds relative to the whole graph's."""
    bundle = in_units(bundle)
    middle(bundle, parts=("layers", "attention"), what="this benchmark")  # or a sentence where there are none
    policies = [AllLayers(bundle), *(make_policy(skip, bundle) for skip in list(WANTED)[1:])]
    engines = [Engine(bundle, Variant(policy=policy, context=CONTEXT)) for policy in policies]
    prompt = np.arange(100, 100 + CONTEXT // 2)
    whole, *found = decode_speeds([open_engine(bundle, context=CONTEXT), *engines], prompt, CONTEXT, rounds=rounds)
    units = len(bundle.manifest.segments)
    return units, (1 / found[0] - 1 / whole) / (units - 1) * 1e6, [speed / whole for speed in found]


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--bundle", type=Path, required=True)
    parser.add_argument("--rounds", type=int, default=5)
    given = parser.parse_args(argv)
    units, us, found = speeds(open_bundle(given.bundle), given.rounds)
    print(f"{units} units, {us:.1f} us each; decode speed relative to the whole graph's:")
    for (name, wanted), speed in zip(WANTED.items(), found, strict=True):
        print(Goal(name, speed, wanted, True))
    return 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except EdgeError as e:
        sys.exit(f"skipping: {e}")
