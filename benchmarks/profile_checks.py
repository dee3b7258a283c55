"""Whether `edge profile` tells the truth: four claims about its figures, each measured another way.

    python benchmarks/profile_checks.py --bundle smollm2-135m-instruct.edge

1. The timers that feed `edge run --json` cost less than 1%.
2. The cost curve predicts the steps of a real generation with mixed sizes: half of them lie within 10%.
3. Time per output token agrees within 5% with what benchmarks/decoder_vs_peers.py measures of this runtime.
4. `edge profile --seconds 60` ends within 75 s.

What 2 and 3 compare is measured in turns, a profile between its checks, several times over, and the median of these
rounds counts: a shared machine's own speed moves by more than 5% from one minute to the next.

A decoder's bundle on a quiet machine; takes about five minutes. Exit status 1: a claim did not hold.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import statistics
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from prompts import Prompts

from edge.runtime.profile.measure import confidence

QUESTIONS = (
    "Write a short story about a lighthouse keeper who finds a message in a bottle.",
    "Explain how a bicycle stays upright while it is ridden, step by step.",
    "List ten things to pack for a week in the mountains, with a reason for each.",
)
TOKENS = 64  # of an answer
ANSWERS = 3  # at each context, before and after a profile
SHORT_S = 20.0  # a profile of a turn
SLACK_S = 15.0  # what a profile may take longer than it was given
LIMITS = {"timers": 0.01, "curve": 0.10, "decode": 0.05}
# Steps as speculation takes them: mostly plain ones and short drafts. Shares of the sizes.
MIX = {1: 8, 2: 3, 3: 3, 4: 3, 5: 2, 6: 2, 8: 2, 10: 1, 12: 1, 16: 1}


def main() -> int:
    """Check, print, write. Returns the exit status."""
    args = _parse()
    args.out.mkdir(parents=True, exist_ok=True)
    profile, took = _profile(args, args.seconds)
    curves, answers, noise = [], [], [profile["noise"]["spread"]]
    after = _child(args, "answers")
    for number in range(1, args.turns + 1):
        print(f"turn {number} of {args.turns}", flush=True)
        before = after
        short, _ = _profile(args, SHORT_S)
        steps = _child(args, "steps")
        after = _child(args, "answers")
        curves.append(_curve(short, steps))
        answers.append(_decode(short, before, after))
        noise.append(short["noise"]["spread"])
    timers = _child(args, "timers")
    result: dict[str, Any] = {
        "timers": timers,
        "curve": _median_curve(curves),
        "decode": _median_decode(answers),
        "time": {"seconds": took, "given": args.seconds},
        "noise": noise,
    }
    claims = {
        f"the timers of --json cost {timers['cost']:+.2%} ({timers['low']:+.2%} to {timers['high']:+.2%}; below 1%)": (
            timers["cost"] < LIMITS["timers"]
        ),
        f"half of the mixed steps lie within {result['curve']['error']:.1%} of the curve (10%)": (
            result["curve"]["error"] < LIMITS["curve"]
        ),
        f"time per token differs from decoder_vs_peers' by up to {result['decode']['error']:.1%} (5%)": (
            result["decode"]["error"] < LIMITS["decode"]
        ),
        f"a profile of {args.seconds:.0f} s took {took:.1f} s (at most {args.seconds + SLACK_S:.0f})": (
            took <= args.seconds + SLACK_S
        ),
    }
    _show(result)
    for claim, holds in claims.items():
        print(f"{'holds' if holds else 'FAILS'}: {claim}")
    result["claims"] = claims
    (args.out / "profile_checks.json").write_text(json.dumps(result, indent=1) + "\n")
    (args.out / "profile_checks_profile.json").write_text(json.dumps(profile, indent=1) + "\n")
    return 0 if all(claims.values()) else 1


def _parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0], allow_abbrev=False)
    parser.add_argument("--bundle", type=Path, required=True, help="a decoder's bundle")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--seconds", type=float, default=60.0, help="how long the profile may take")
    parser.add_argument("--context", type=int, default=4096, help="most tokens in the KV cache")
    parser.add_argument("--turns", type=int, default=5, help="of a profile and what checks it")
    parser.add_argument("--rounds", type=int, default=9, help="of pairs with and without timers")
    parser.add_argument("--out", type=Path, default=Path("build/benchmarks"), help="folder for the JSON files")
    parser.add_argument("--child", choices=CHILDREN, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.child:
        print(json.dumps(CHILDREN[args.child](args)))
        sys.exit(0)
    return args


def _child(args: argparse.Namespace, what: str) -> Any:
    """One measurement in a process of its own, as its users would run it."""
    print(f"{what} ...", flush=True)
    given = [f"--{name}={getattr(args, name)}" for name in ("bundle", "threads", "context", "rounds")]
    command = [sys.executable, __file__, *given, "--child", what]
    variables = os.environ | {"EDGE_HUGE_PAGES": "1"}  # as in the processes of `edge profile`
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True, env=variables)
    return json.loads(done.stdout.splitlines()[-1])


def _profile(args: argparse.Namespace, seconds: float) -> tuple[dict[str, Any], float]:
    """What `edge profile --json` prints, and the seconds from its start to its end."""
    print("profile ...", flush=True)
    given = [f"--threads={args.threads}", f"--seconds={seconds}", f"--context={args.context}"]
    command = [sys.executable, "-m", "edge.cli.main", "profile", str(args.bundle), "--json", *given]
    start = time.perf_counter()
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
    return json.loads(done.stdout), time.perf_counter() - start


def _answers(args: argparse.Namespace) -> dict[str, float]:
    """Milliseconds per token by context, measured as decoder_vs_peers.py does: the median of its rounds."""
    from decoder_vs_peers import CONTEXTS
    from engines import engine_file

    contexts = [context for context in CONTEXTS if context + TOKENS < args.context]
    loaded = engine_file("edge").load(args.bundle, args.threads, max(contexts) + TOKENS + 16, kv="float32")
    prompts = Prompts(args.bundle / "tokenizer.json")
    loaded.generate(prompts.take(64), 24)
    times = defaultdict(list)
    for _ in range(ANSWERS):
        for context in contexts:
            times[context].append(1e3 * loaded.generate(prompts.take(context), TOKENS).decode_s)
    return {str(context): statistics.median(each) for context, each in times.items()}


def _decode(profile: dict[str, Any], before: dict[str, float], after: dict[str, float]) -> dict[str, Any]:
    """The profile's time per token against the mean of what was measured before and after it."""
    rows = []
    for row in profile["decode"]:
        context = str(row["context"])
        if context in before:
            benchmark = (before[context] + after[context]) / 2
            p50, mean = row["time"]["p50_ms"], 1e3 / row["tokens_per_s"]
            found = {"context": int(context), "p50_ms": p50, "mean_ms": mean, "benchmark_ms": benchmark}
            rows.append(found | {"error": p50 / benchmark - 1})
    return {"rows": rows, "error": max(abs(row["error"]) for row in rows)}


def _median_decode(turns: list[dict[str, Any]]) -> dict[str, Any]:
    """Each context's median turn, and the largest error among these."""
    rows = []
    for each in zip(*(turn["rows"] for turn in turns), strict=True):
        errors = [row["error"] for row in each]
        figures = {key: statistics.median(row[key] for row in each) for key in ("p50_ms", "mean_ms", "benchmark_ms")}
        middle = {"error": statistics.median(errors), "low": min(errors), "high": max(errors)}
        rows.append({"context": each[0]["context"], **figures, **middle})
    return {"rows": rows, "error": max(abs(row["error"]) for row in rows)}


def _steps(args: argparse.Namespace) -> list[list[float]]:
    """[size, context, ms] of every step of generations with mixed sizes: real text as drafts, some rows rejected."""
    from edge.bundle import open_bundle
    from edge.runtime.load import open_engine

    engine = open_engine(open_bundle(args.bundle), context=args.context, threads=args.threads)
    prompts, rng = Prompts(args.bundle / "tokenizer.json"), random.Random(5)
    sizes, shares = list(MIX), list(MIX.values())
    found: list[list[float]] = []
    cache = engine.new_cache()
    for length in (40, 300, 900, min(1800, args.context - 300)):
        cache.reset()
        prompt = np.asarray(prompts.take(length), np.int64)
        for start in range(0, length, 128):
            engine.step(cache, prompt[start : start + 128])
        text = np.asarray(prompts.take(1000), np.int64)
        for number in range(150):
            size = rng.choices(sizes, shares)[0]
            tokens, rows, before = text[number : number + size], np.arange(size), cache.length
            start_s = time.perf_counter()
            engine.step(cache, tokens, rows)
            ms = 1e3 * (time.perf_counter() - start_s)
            if number >= 10:  # those before warm up
                found.append([size, before, ms])
            cache.truncate(before + rng.randint(1, size))  # the accepted ones
    return found


def _curve(profile: dict[str, Any], steps: list[list[float]]) -> dict[str, Any]:
    """How far measured steps lie from what the profile's cost curve says."""
    from edge.runtime.costs.curve import CostCurve
    from edge.runtime.costs.record import CurvePoint
    from edge.typed_json import typed

    curve = CostCurve([typed(point, CurvePoint, "curve") for point in profile["curve"]])
    by_size: dict[int, list[float]] = defaultdict(list)
    for size, context, ms in steps:
        by_size[int(size)].append(ms / curve.ms(int(size), int(context)) - 1)
    errors = [abs(error) for each in by_size.values() for error in each]
    rows = [
        {"size": size, "steps": len(each), "bias": statistics.median(each), "error": statistics.median(map(abs, each))}
        for size, each in sorted(by_size.items())
    ]
    return {"rows": rows, "error": statistics.median(errors)}


def _median_curve(turns: list[dict[str, Any]]) -> dict[str, Any]:
    """Of every size, and of all steps, the median turn."""
    rows = [
        {
            "size": each[0]["size"],
            "steps": sum(row["steps"] for row in each),
            "bias": statistics.median(row["bias"] for row in each),
            "error": statistics.median(row["error"] for row in each),
        }
        for each in zip(*(turn["rows"] for turn in turns), strict=True)
    ]
    errors = [turn["error"] for turn in turns]
    return {"rows": rows, "error": statistics.median(errors), "turns": errors}


def _timers(args: argparse.Namespace) -> dict[str, float]:
    """What the clock of an answer costs: whole answers with it and without it, in turns."""
    import edge
    from edge.runtime.decode import answer

    model = edge.load(args.bundle, context=1024, threads=args.threads)
    options, rng = edge.GenerateOptions(max_tokens=TOKENS, temperature=0), random.Random(0)

    def run(question: str) -> float:
        start = time.perf_counter()
        for _ in model.stream(question, options):
            pass
        return time.perf_counter() - start

    for question in QUESTIONS:
        run(question)
    ratios = []
    for _ in range(4 * args.rounds):
        for question in QUESTIONS:
            with_first = rng.random() < 0.5
            times = {}
            for timed in (with_first, not with_first):
                with _nothing() if timed else _without_timers(answer):
                    times[timed] = run(question)
            ratios.append(times[True] / times[False] - 1)
    low, high = confidence(sorted(ratios))
    return {"cost": statistics.median(ratios), "low": low, "high": high, "pairs": len(ratios)}


@contextmanager
def _nothing() -> Iterator[None]:
    yield


@contextmanager
def _without_timers(answer: Any) -> Iterator[None]:
    """An answer that counts its tokens, which end it, and looks at no clock."""

    class NoTime:
        @staticmethod
        def perf_counter_ns() -> int:
            return 0

    def count(timings: Any, started_ns: int, resumed_ns: int) -> None:
        timings.generated_tokens += 1

    kept = answer._clock, answer.time
    answer._clock, answer.time = count, NoTime
    try:
        yield
    finally:
        answer._clock, answer.time = kept


CHILDREN: dict[str, Callable[[argparse.Namespace], Any]] = {"answers": _answers, "steps": _steps, "timers": _timers}


def _show(result: dict[str, Any]) -> None:
    print("\nnoise of one step while profiling: " + ", ".join(f"±{spread:.1%}" for spread in result["noise"]))
    print("error of the curve, turn by turn: " + ", ".join(f"{error:.1%}" for error in result["curve"]["turns"]))
    print("\nsteps of mixed sizes against the cost curve\n  S   steps    bias   error")
    for row in result["curve"]["rows"]:
        print(f"{row['size']:3d} {row['steps']:7d} {row['bias']:+7.1%} {row['error']:7.1%}")
    print("\ntime per output token, ms (the benchmark takes means)")
    print("context     p50    mean   benchmark   p50 over it (turns from, to)")
    for row in result["decode"]["rows"]:
        figures = f"{row['p50_ms']:7.3f} {row['mean_ms']:7.3f} {row['benchmark_ms']:11.3f} {row['error']:+13.1%}"
        figures += f" ({row['low']:+.1%}, {row['high']:+.1%})"
        print(f"{row['context']:7d} {figures}")
    print()


if __name__ == "__main__":
    sys.exit(main())
