"""How far answers drawn under masks are from the model's own distribution over the texts of a form, how much nearer
aligned sampling comes, and what it takes.

    python benchmarks/aligned.py MODEL

Forms that have few texts: every way of some weight that the masks allow is run, which gives the exact distribution p of
the model's texts given that they have the form. Next to it, by simulation over the same tree:
    masks      a token at a time among those allowed; adaptive rejection (AWRS, Lipkin et al. 2025) draws the same
    aligned:N  N answers under masks, one drawn by its weight, the product of what the masks left each time
    ASAp       after N answers whose lost probability was remembered (Park et al. 2024, section 4)
Figures are total variation distances from p: the share of answers that come out otherwise. The last columns are the
seconds of an answer, its prompt known: in turns, medians.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from report import table

import edge
from edge.errors import EdgeError
from edge.runtime.decode.form import REGEX, Form
from edge.runtime.decode.grammar import constrained
from edge.runtime.engine.cache import KVCache
from edge.runtime.model import Model

DRAWS = 20_000
PARTICLES = (2, 4, 8, 16)
TRIALS = 300  # of ASAp
TURNS = 5  # of what is timed
DEEPEST = 64  # tokens of a text
RARE = 1e-3  # of what the masks leave: tokens below this are left out of the tree, for all alike
CASES = [
    ("sentiment", "The review says: I have seen worse, but not often. Is it positive or negative?",
     "positive|negative|neutral|mixed"),
    ("yes or no", "Is a whale a fish?", "yes|no|maybe|unknown|it depends"),
    ("city", "Name a large city in Europe.", "Paris|London|Berlin|Rome|Madrid|Vienna|Lisbon|St\\. Petersburg|Kyiv"),
    ("number", "Pick a number between 10 and 99.", "[1-9][0-9]"),
    ("JSON", "Which animal lives in the sea, and how many legs has it?",
     '\\{"animal": "(whale|crab|octopus|dog)", "legs": (0|4|8|10)\\}'),
]  # fmt: skip


@dataclass
class Node:
    """A text so far. children: of each allowed token, its probability by the model and what follows; none at an end."""

    children: list[tuple[float, Node]] = field(default_factory=list)
    mass: float = 1.0  # ASAp's estimate of the probability that a text of the form follows

    @property
    def left(self) -> float:
        """The probability that the masks leave here."""
        return sum(p for p, _ in self.children)


class Noted:
    """A sampler that notes the logits that are left, and takes a token that is told."""

    def __init__(self) -> None:
        self.left = np.empty(0, np.float32)
        self.token = 0

    def __call__(self, logits: np.ndarray) -> int:
        self.left = logits.copy()
        return self.token


def grow(model: Model, prompt: Sequence[int], form: Form) -> Node:
    """The tree of all tokens that the masks of a form allow after a prompt."""
    cache = model.engine.new_cache(len(prompt) + DEEPEST)
    return _grow(model, cache, model.engine.step(cache, np.array(prompt, np.int64))[-1], form, [])


def _grow(model: Model, cache: KVCache, row: np.ndarray, form: Form, ids: list[int]) -> Node:
    noted = Noted()
    sampler = constrained(noted, model.text, form)
    for noted.token in ids:
        sampler(np.zeros_like(row))
    logits = row.astype(np.float64)
    chances = np.exp(logits - logits.max())
    chances /= chances.sum()
    node, ends = Node(), model.text.eos
    noted.token = next(iter(ends))
    sampler(logits.astype(np.float32))
    allowed = np.flatnonzero(noted.left > -np.inf)
    length = cache.length
    for token in map(int, allowed[chances[allowed] >= RARE * chances[allowed].sum()]):
        child = Node()
        if token not in ends:
            below = model.engine.step(cache, np.array([token], np.int64))[-1]
            child = _grow(model, cache, below, form, [*ids, token])
            cache.truncate(length)
        node.children.append((float(chances[token]), child))
    return node


def seconds(model: Model, question: str, regex: str) -> list[float]:
    """Of an answer under masks, and of an aligned one."""
    found: list[list[float]] = [[], []]
    for seed in range(TURNS + 1):
        for taken, how in zip(found, ("masks", "aligned"), strict=True):
            began = time.perf_counter()
            model.generate(question, regex=regex, temperature=1.0, seed=seed, grammar_sampling=how)
            taken.append(time.perf_counter() - began)
    return [statistics.median(each[1:]) for each in found]


def texts(node: Node, p: float = 1.0, q: float = 1.0) -> Iterator[tuple[float, float]]:
    """Of each text: its probability by the model, and by masks."""
    if not node.children:
        yield p, q
    for chance, child in node.children:
        yield from texts(child, p * chance, q * chance / node.left)


def distance(found: np.ndarray, wanted: np.ndarray) -> float:
    """Total variation distance of two distributions."""
    return float(np.abs(found / found.sum() - wanted / wanted.sum()).sum() / 2)


def best_of(p: np.ndarray, q: np.ndarray, particles: int, random: np.random.Generator) -> np.ndarray:
    """The distribution of one of so many answers drawn by q, by weights p / q."""
    drawn = random.choice(len(q), (DRAWS, particles), p=q / q.sum())
    weights = (p / q)[drawn]
    shares = weights / weights.sum(1, keepdims=True)
    return np.bincount(drawn.ravel(), shares.ravel(), len(q))


def by_masses(node: Node, q: float = 1.0) -> Iterator[float]:
    """The probability of each text where children are drawn by what is known of their masses."""
    if not node.children:
        yield q
    total = sum(p * child.mass for p, child in node.children)
    for chance, child in node.children:
        yield from by_masses(child, q * chance * child.mass / total)


def asap(root: Node, answers: int, random: np.random.Generator) -> np.ndarray:
    """The distribution of the answer after so many others."""
    _forget(root)
    for _ in range(answers):
        path, node = [], root
        while node.children:
            path.append(node)
            weights = np.array([p * child.mass for p, child in node.children])
            node = node.children[random.choice(len(weights), p=weights / weights.sum())][1]
        for node in reversed(path):
            node.mass = sum(p * child.mass for p, child in node.children)
    return np.array([*by_masses(root)])


def _forget(node: Node) -> None:
    node.mass = 1.0
    for _, child in node.children:
        _forget(child)


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=Path)
    given = parser.parse_args(argv)
    model, random = edge.load(given.model, kind=Model), np.random.default_rng(1)
    ways = [f"aligned:{n}" for n in PARTICLES]
    rows = [["form", "texts", "p(form)", "masks", *ways, "ASAp after 7", "after 63", "masks, s", "aligned, s"]]
    for name, question, regex in CASES:
        for told in (False, True):
            said = f"{question} Answer with nothing but a text that matches {regex}" if told else question
            root = grow(model, model.prompt_ids(said), Form(REGEX, regex))
            p, q = np.array([*texts(root)]).T
            row = [name + (", told" if told else ""), str(len(p)), f"{p.sum():.3g}", f"{distance(q, p):.3f}"]
            row += [f"{distance(best_of(p, q, n, random), p):.3f}" for n in PARTICLES]
            for answers in (7, 63):
                found = np.mean([asap(root, answers, random) for _ in range(TRIALS)], axis=0)
                row.append(f"{distance(found, p):.3f}")
            row += [f"{each:.3f}" for each in seconds(model, said, regex)]
            rows.append(row)
            print(" ".join(row), file=sys.stderr, flush=True)
    print(table(rows))
    return 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except EdgeError as e:
        sys.exit(f"aligned: {e}")
