"""Recorded greedy answers, and what they would have cost with drafts: no noise, and many settings in a minute."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from edge.bundle import Bundle

CONTEXT, WIDTH = 4096, 16


@dataclass(frozen=True)
class Recorded:
    """One greedy answer: its task and question, and the token ids of prompt and answer."""

    task: str
    question: int
    prompt: list[int]
    answer: list[int]


@dataclass(frozen=True)
class Replayed:
    """What an answer would have taken: tokens after the first, and times a plain step behind no text at all."""

    task: str
    tokens: int
    cost: float


class Line:
    """The cost of steps where each further token costs `slope` plain steps, whatever the context."""

    def __init__(self, slope: float) -> None:
        self._slope = slope

    def ms(self, size: int, context: int) -> float:
        """In plain steps."""
        return 1 + self._slope * (size - 1)


def write(path: Path, answers: Iterable[Recorded]) -> None:
    """One answer a line."""
    with path.open("w") as file:
        for answer in answers:
            file.write(json.dumps(dataclasses.asdict(answer)) + "\n")


def read(path: Path) -> list[Recorded]:
    """What `write` wrote."""
    return [Recorded(**json.loads(line)) for line in path.read_text().splitlines()]


class Setting:
    """A drafter whose drafts are always run, up to `length` tokens, where `match` tokens or more matched: what a user
    would set once and for all. Without a length the planner chooses."""

    def __init__(self, drafter: str, length: int | None = None, match: int = 1) -> None:
        self.drafter, self.length, self.match = drafter, length, match

    def __str__(self) -> str:
        if self.length is None:
            return self.drafter
        return f"{self.drafter}:{self.length}" + (f"/{self.match}" if self.match > 1 else "")

    def cut(self, draft: Any) -> Any:
        """What the setting runs of a draft."""
        from edge.runtime.decode.draft import NOTHING

        if not draft.tokens or (self.drafter == "lookup" and draft.grades[0] < self.match):  # graded by the match
            return NOTHING
        return draft._replace(tokens=draft.tokens[: self.length], grades=draft.grades[: self.length])

    def budget(self, most: int, context: int) -> Any:
        """What the setting asks a drafter for."""
        from edge.runtime.speculate.base import Budget

        return Budget(min(most, self.length or most), 0.0, False)

    def decide(self, planner: Any) -> None:
        """Let the setting say what is drafted and run, in the place of what the planner expects to pay."""
        planner.budget, planner.cut = self.budget, self.cut

    def planner(self, made: Any, costs: Any) -> Any:
        """The runtime's own, or one that goes by the setting alone."""
        from edge.runtime.speculate.planner import Planner, StepCosts

        planner = Planner(made.priors, StepCosts(lambda: costs, WIDTH), WIDTH)
        if self.length is not None:
            self.decide(planner)
        return planner


def replay(bundle: Bundle, recorded: Iterable[Recorded], setting: Setting, costs: Any) -> Iterator[Replayed]:
    """Answer after answer with one drafter and planner, as a process would.

    costs: what `ms(size, context)` of a cost curve gives. Drafters' own time is left out. What they would learn from
    logits of drafted tokens that turned out wrong was not recorded; `recycle` alone learns from those.
    """
    from edge.runtime.decode.draft import NOTHING
    from edge.runtime.speculate.base import Setting as Made
    from edge.runtime.speculate.base import find

    module, argument = find(setting.drafter)
    drafter = module.make(Made(bundle, CONTEXT, argument))
    planner = setting.planner(drafter, costs)
    logits = np.zeros((WIDTH + 1, bundle.manifest.dims.vocab_size), np.float32)  # [S, V], of which one is 1 in each row
    unit = costs.ms(1, 0)
    for each in recorded:
        text, answer, at, cost = [*each.prompt, each.answer[0]], each.answer, 1, 0.0
        drafter.begin(text)
        planner.begin()
        while at < len(answer):
            context = len(text) - 1
            budget, proposed = planner.budget(len(answer) - at - 1, context), NOTHING
            if budget.tokens > 0:
                proposed = drafter.propose(text, budget)
            draft = planner.cut(proposed)
            held = 0
            while held < len(draft.tokens) and draft.tokens[held] == answer[at + held]:
                held += 1
            said = answer[at : at + held + 1]
            cost += costs.ms(1 + len(draft.tokens), context) / unit
            planner.observe(proposed, said)
            if drafter.reads_logits:
                _verified(drafter, [text[-1], *said[:-1]], said, logits)
            drafter.accept(said)
            text += said
            at += len(said)
        yield Replayed(each.task, len(answer) - 1, cost)


def _verified(drafter: Any, tokens: list[int], following: list[int], logits: np.ndarray) -> None:
    """Tell the drafter that `following` were the likeliest behind `tokens`."""
    rows = range(len(tokens))
    logits[rows, following] = 1
    drafter.verified(np.array(tokens, np.int64), logits[: len(tokens)])
    logits[rows, following] = 0


def record(
    model: Any, asked: Iterable[tuple[str, int, str]], tokens: int, said: Callable[[str], None]
) -> Iterator[Recorded]:
    """Plain greedy answers, of up to so many tokens."""
    import edge

    for number, (task, question, prompt) in enumerate(asked, 1):
        result = model.generate(prompt, edge.GenerateOptions(max_tokens=tokens, temperature=0))
        if number % 20 == 0:
            said(f"{number} answers recorded")
        if result.generated_tokens > 1:
            yield Recorded(task, question, model.prompt_ids(prompt), result.token_ids)
