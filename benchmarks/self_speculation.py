"""Self-speculation: how fast could drafts with layers left out be here, at best?

    python benchmarks/self_speculation.py --bundle MODEL.edge --questions spec_bench.jsonl

At each token of the model's own greedy answers the next one is asked of the model without some layers, as a draft asks,
over rows that all layers wrote. What steps cost is measured in the same process, in turns. A replay then says how fast
drafts would have been: of 1 to 8 tokens, and of those that end where the model without these layers is unsure (as in
Kangaroo), at the length and the threshold that were best for these very answers. So no way to choose sets, lengths or
exits can be faster, but for sets that were not tried. `never wrong` is what nobody can have: every draft ends before
its first wrong token, and costs nothing where it has none.

Sets: evenly spread layers, the last ones before an exit, and those without which the model alone is right most often,
improved by exchanging one at a time (`--tries`) as SWIFT's search does, on the answers that it is scored on.
"""

from __future__ import annotations

import argparse
import itertools
import random
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median

import numpy as np
from questions import chosen, read
from report import table

import edge
from edge.bundle import open_bundle
from edge.errors import EdgeError
from edge.runtime.engine.cache import KVCache, Snapshot
from edge.runtime.engine.engine import Engine
from edge.runtime.engine.graphs.segment_cache import SegmentedCache
from edge.runtime.load import open_engine
from edge.runtime.model import Model
from edge.runtime.skip.base import skippable
from edge.runtime.skip.unified import spread
from edge.runtime.text.tokenizer import Text

LENGTHS = range(1, 9)  # of drafts
SIZES = (1, 2, 3, 4, 5, 9)  # of steps that are timed
SHARES = (0.04, 0.08, 0.15, 0.25, 0.35, 0.45, 0.6)  # of the layers, that are left out
SURE = (0.0, 0.2, 0.35, 0.5, 0.65, 0.8, 0.9, 0.95)  # probabilities below which a draft ends
RANKED = 80  # tokens by which layers are ranked, one left out at a time
CONTEXT, TURNS = 1024, 15
Left = tuple[int, ...]  # the layers that are left out, by the places of their units


@dataclass
class Said:
    """What a model without some layers said at each token of an answer: was it right, and how sure was it?"""

    right: list[bool]
    sure: list[float]


class Asked:
    """Answers of a model, at whose tokens it is asked without some layers."""

    def __init__(self, engine: Engine) -> None:
        assert engine.routes is not None, "an engine whose steps run whole"
        self.engine, self.routes = engine, engine.routes
        self.units = skippable(engine.bundle.manifest.segments)
        self.answers = list[tuple[int, list[int], SegmentedCache, Snapshot]]()  # where each begins, and its rows
        self._known = dict[Left, list[Said]]()

    def add(self, prompt: Sequence[int], answer: Sequence[int]) -> None:
        """An answer of all layers."""
        cache = self.engine.new_cache(len(prompt) + len(answer))
        assert isinstance(cache, SegmentedCache)
        self.engine.step(cache, np.array(prompt, np.int64))
        self.engine.step(cache, np.array(answer[:-1], np.int64))
        self.answers.append((len(prompt), list(answer), cache, cache.snapshot(len(prompt))))

    def said(self, left: Left, limit: int | None = None) -> list[Said]:
        """Of all answers, or of the first tokens of each."""
        if left in self._known:
            return self._known[left]
        engine, found = self.engine, list[Said]()
        route = self.routes.leaving_out([i for at in left for i in self.units[at]])
        for start, answer, cache, rows in self.answers:
            pairs = list(itertools.pairwise(answer))[:limit]
            cache.restore(rows)
            cache.truncate(start + len(pairs))
            said = Said([], [])
            for token, following in reversed(pairs):  # so that all rows before a token are still there
                at = cache.length - 1
                row = cache.snapshot(at)
                cache.truncate(at)
                with self.routes.through(cache, route):
                    logits = engine.step(cache, np.array([token], np.int64))[-1]
                best = int(logits.argmax())
                said.right.insert(0, best == following)
                said.sure.insert(0, 1 / float(np.exp(logits - logits[best]).sum()))
                cache.restore(row)
                cache.truncate(at)
            found.append(said)
        if limit is None:
            self._known[left] = found
        return found

    def right(self, left: Left, limit: int | None = None) -> float:
        """The share of all answers' tokens, or of each one's first ones, that a set has right."""
        return float(np.mean(np.concatenate([said.right for said in self.said(left, limit)])))

    def ms(self, sets: Sequence[Left], prompt: int = 256) -> tuple[dict[int, float], list[float]]:
        """Milliseconds of whole steps by size, and of steps of one token without each set, in turns."""
        engine = self.engine
        routes = [self.routes.leaving_out([i for at in each for i in self.units[at]]) for each in sets]
        cache = engine.new_cache()
        engine.step(cache, np.arange(100, 100 + prompt))
        spent: dict[int, list[float]] = {i: [] for i in range(len(SIZES) + len(sets))}
        for turn in range(TURNS + 1):
            for i in range(len(spent)):
                size, route = (SIZES[i], self.routes.everything) if i < len(SIZES) else (1, routes[i - len(SIZES)])
                took = self._step(cache, size, route)
                if turn:
                    spent[i].append(took)
        found = [1000 * median(each) for each in spent.values()]
        return dict(zip(SIZES, found, strict=False)), found[len(SIZES) :]

    def _step(self, cache: KVCache, size: int, route: tuple[int, ...]) -> float:
        tokens = np.arange(200, 200 + size)
        with self.routes.through(cache, route):
            for _ in range(2):  # the first one brings what it needs into the caches
                began = time.perf_counter()
                self.engine.step(cache, tokens, np.arange(size))
                took = time.perf_counter() - began
                cache.truncate(cache.length - size)
        return took


def searched(asked: Asked, count: int, ranked: Sequence[int], tries: int, seed: int = 0) -> Left:
    """The best set of so many layers that was found: the least harmful ones, then one exchanged at a time."""
    dice, best = random.Random(seed), tuple(sorted(ranked[:count]))
    right = asked.right(best)
    for _ in range(tries):
        others = [at for at in ranked[: 3 * count] if at not in best]
        if not others:
            break
        trial = tuple(sorted({*best, dice.choice(others)} - {dice.choice(best)}))
        found = asked.right(trial)
        if found > right:
            best, right = trial, found
    return best


def replay(answers: Sequence[Said], share: float, costs: Sequence[float], length: int, sure: float) -> float:
    """Tokens for the time of a plain step. share: what a draft's token costs. costs: of steps by size."""
    tokens = time = 0.0
    for said in answers:
        at, end = 0, len(said.right)
        while at < end:
            most, drafted, ran = min(length, end - at - 1), 0, 0
            while drafted < most:
                ran += 1
                if said.sure[at + drafted] < sure:
                    break
                drafted += 1
            held = 0
            while held < drafted and said.right[at + held]:
                held += 1
            time += ran * share + costs[drafted + 1]
            tokens += held + 1
            at += held + 1
    return tokens / time


def never_wrong(answers: Sequence[Said], share: float, costs: Sequence[float]) -> float:
    """The same of drafts that end before their first wrong token, which costs nothing."""
    tokens = time = 0.0
    for said in answers:
        at, end = 0, len(said.right)
        while at < end:
            held = 0
            while held < min(LENGTHS[-1], end - at - 1) and said.right[at + held]:
                held += 1
            best = min(range(held + 1), key=lambda n: (n * share + costs[n + 1]) / (n + 1))
            time += best * share + costs[best + 1]
            tokens += best + 1
            at += best + 1
    return tokens / time


def by_size(ms: dict[int, float]) -> list[float]:
    """What steps of 0 to 9 tokens cost, in plain ones."""
    sizes = sorted(ms)
    return [0.0, *(float(np.interp(size, sizes, [ms[each] / ms[1] for each in sizes])) for size in range(1, 10))]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--bundle", type=Path, required=True)
    parser.add_argument("--questions", type=Path, required=True, help="Spec-Bench's question.jsonl")
    parser.add_argument("--count", type=int, default=2, help="questions of each task")
    parser.add_argument("--tokens", type=int, default=60, help="of each answer")
    parser.add_argument("--longest", type=int, default=300, help="tokens of a prompt; longer ones are left out")
    parser.add_argument("--tries", type=int, default=10, help="sets tried for each number of layers")
    parser.add_argument("--threads", type=int)
    given = parser.parse_args()
    bundle = open_bundle(given.bundle)
    context = min(CONTEXT, bundle.manifest.context)
    engine = open_engine(bundle, speculate="self", context=context, threads=given.threads, kv="auto")
    asked, model = Asked(engine), Model(engine.bundle, engine, Text(bundle), speculate="off")
    for _, question in chosen(read(given.questions), 0, given.count):
        prompt = model.prompt_ids(question["turns"][0])
        if len(prompt) <= given.longest:
            said = model.generate(question["turns"][0], edge.GenerateOptions(max_tokens=given.tokens, temperature=0))
            asked.add(prompt, said.token_ids)
    layers, total = len(asked.units), bundle.manifest.dims.num_layers
    first = max(2, RANKED // len(asked.answers))
    alone = [asked.right((at,), first) for at in range(layers)]
    ranked = sorted(range(layers), key=lambda at: -alone[at])
    sets = dict[str, Left]()
    for count in sorted({min(layers, max(1, round(share * total))) for share in SHARES}):
        sets[f"{count} evenly"] = tuple(spread(count, layers))
        sets[f"{count} searched"] = searched(asked, count, ranked, given.tries)
        sets[f"exit {layers - count + 1}"] = tuple(range(layers - count, layers))
    ms, without = asked.ms(list(sets.values()))
    costs = by_size(ms)
    tokens = sum(len(answer) - 1 for _, answer, _, _ in asked.answers)
    print(f"{bundle.manifest.name}, {tokens} tokens of {len(asked.answers)} answers; a plain step {ms[1]:.2f} ms")
    print("steps of " + ", ".join(f"{size} tokens {costs[size]:.2f}" for size in SIZES[1:]) + " plain ones\n")
    rows = [["left out", "a draft's token", "right", *(f"{n}" for n in (1, 2, 4, 8)), "best length and threshold",
             "never wrong"]]  # fmt: skip
    best = 0.0
    for (name, left), took in zip(sets.items(), without, strict=True):
        answers, share, right = asked.said(left), took / ms[1], asked.right(left)
        fixed = [replay(answers, share, costs, length, 0.0) for length in (1, 2, 4, 8)]
        speeds = {(n, sure): replay(answers, share, costs, n, sure) for n in LENGTHS for sure in SURE}
        length, sure = max(speeds, key=lambda each: speeds[each])
        best = max(best, speeds[length, sure])
        chosen_best = f"{speeds[length, sure]:.2f} ({length}, {sure:g})"
        cells = [f"{share:.2f}", f"{right:.0%}", *(f"{each:.2f}" for each in fixed), chosen_best]
        rows.append([name, *cells, f"{never_wrong(answers, share, costs):.2f}"])
    print(table(rows) + "\n")
    print(f"at best {best:.2f} times plain decoding; more than 1 is wanted: {'met' if best > 1 else 'MISSED'}")
    return 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except EdgeError as e:
        sys.exit(f"self_speculation: {e}")
