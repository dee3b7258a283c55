"""Acceptance rates of each drafter on this bundle's answers, by the position in its drafts."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from edge.runtime.decode.draft import Draft
from edge.runtime.decode.generate_options import GenerateOptions
from edge.runtime.model import Model
from edge.runtime.speculate.drafter import OFF
from edge.runtime.speculate.planner import Planner

PROMPTS = (
    "Summarize in two sentences: The library in our town opens at ten and closes at six. On Mondays it stays closed. "
    "Children under twelve borrow books for free; everybody else pays ten euros a year. Last year the library lent "
    "40,000 books, most of them novels, and next year it will open on Mondays as well.",
    "Translate to French: The library in our town opens at ten and closes at six.",
    "Write a Python function that returns the largest of three numbers, then one that returns the smallest.",
    "Why is the sky blue? Answer in a few sentences.",
    "A train leaves at nine and arrives at eleven, another leaves at ten and arrives at one. Which takes longer?",
    "Write a short story about a cat that looks at the moon every night.",
)
TOKENS = 96  # of an answer
POSITIONS = 6


@dataclass(frozen=True)
class Acceptance:
    """Figures of one drafter. seen, right: by position in a draft, how often all before it were right, and how often it
    was right as well. share: of the steps that had a draft."""

    drafter: str
    seen: list[int]
    right: list[int]
    share: float
    tokens_per_s: float
    accepted_per_step: float
    draft_ms: float  # of a step


class _Counter:
    """Stands before a planner's `observe`, and counts."""

    def __init__(self, planner: Planner) -> None:
        self.seen, self.right, self.rounds, self.drafts = [0] * POSITIONS, [0] * POSITIONS, 0, 0
        self._observe = planner.observe
        planner.observe = self  # type: ignore[method-assign]

    def __call__(self, draft: Draft, sampled: Sequence[int]) -> None:
        self.rounds += 1
        self.drafts += bool(draft.tokens)
        for position, (token, actual) in enumerate(zip(draft.tokens[:POSITIONS], sampled, strict=False)):
            self.seen[position] += 1
            self.right[position] += token == actual
            if token != actual:
                break
        self._observe(draft, sampled)


def measure(
    model: Callable[[str], Model],
    drafters: Sequence[str],
    seconds: float,
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> list[Acceptance]:
    """Answer `PROMPTS` plainly and with each drafter, in turns, for about `seconds`; the result in this order. model:
    gives the model with a drafter's name or ``off``, all over one engine."""
    models = {name: model(name) for name in (OFF, *drafters)}
    counters = {
        name: _Counter(each.speculation.planner) for name, each in models.items() if each.speculation is not None
    }
    sums = {name: [0.0] * 5 for name in models}  # tokens, seconds, accepted, steps, seconds of drafting
    options, began, done = GenerateOptions(max_tokens=TOKENS, temperature=0), time.monotonic(), 0
    for number, prompt in enumerate(PROMPTS):
        if number and (time.monotonic() - began) * (number + 1) / number > seconds:
            break
        for name, each in models.items():
            progress(done, len(PROMPTS) * len(models))
            result, done = each.generate(prompt, options), done + 1
            if result.decode_tokens_per_s is None:
                continue
            tokens, did = result.generated_tokens - 1, result.speculation or {}
            taken = tokens / result.decode_tokens_per_s
            counted = did.get("accepted", 0), did.get("steps", tokens), did.get("draft_s", 0.0)
            for i, value in enumerate((tokens, taken, *counted)):
                sums[name][i] += value
    found = []
    for name, (said, taken, accepted, run, drafting) in sums.items():
        counter = counters.get(name)
        seen, right = ([0] * POSITIONS, [0] * POSITIONS) if counter is None else (counter.seen, counter.right)
        share = 0.0 if counter is None else counter.drafts / max(1, counter.rounds)
        rate, steps = said / taken if taken else 0.0, max(1.0, run)
        found.append(Acceptance(name, seen, right, share, rate, accepted / steps, 1e3 * drafting / steps))
    return found
