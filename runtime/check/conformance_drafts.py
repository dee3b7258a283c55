"""The part of a conformance corpus that says what drafters propose and planners choose, for another host to repeat.

`drafts.jsonl` has lines of two kinds, in which nothing depends on a clock.

Of a drafter: its name as `drafter`, the `context` that it is made for, the `text`, the number of tokens that it
`begins` with, and `rounds`, each after the first `length` tokens: the budget (`most`, `min_chance`), and the `tokens`
and `grades` of the draft. The text grows from one round to the next.

Of a planner: the drafter whose grades it starts from as `planner`, the maximum tokens of a step (`width`) and what
sizes are a `multiple` of, without a cost curve; and `answers`, each `drawn` or not, with `rounds`: the `context`, the
tokens that have room (`most`), what is asked for of them (`budget`, `min_chance`), a draft of `tokens` and `grades`
that took `draft_s` seconds, how many of it to run (`cut`), and what came: the step's `seconds` and the tokens
`sampled`.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

from edge.bundle import Bundle
from edge.runtime.decode.draft import Draft
from edge.runtime.decode.generate_options import GenerateOptions
from edge.runtime.model import Model
from edge.runtime.speculate.drafter import Budget, Setting, find
from edge.runtime.speculate.planner import Planner, StepCosts

DRAFTERS = ("lookup", "blend")
QUOTED = "The library opens at ten and closes at six. On Mondays it stays closed. "
TEXTS = (
    "Repeat this: " + QUOTED + "Again: " + QUOTED + "And once more: " + QUOTED,
    "def smallest(a, b):\n    return min(a, b)\n\n\ndef largest(a, b):\n    return max(a, b)\n\n\ndef sum(a, b):\n",
    "la la la la la la, ta ta ta, la la la la ta",
)
ANSWERED = 120  # tokens that the model goes on with
BUDGETS = ((15, 0.0), (7, 0.11), (3, 0.3), (1, 0.0), (15, 0.02))
STEPS = (1, 3, 1, 2, 5, 1)  # tokens that a text grows by
SMALL = 200  # tokens of a context whose index forgets the beginning of the longest text
ROUNDS = 150  # of a planner's answer


def lines(model: Model) -> Iterator[dict[str, Any]]:
    """All lines, of a decoder that drafts nothing while it answers."""
    texts = list[list[int]]()
    for prompt in TEXTS:
        ids = model.prompt_ids(prompt, raw=True)
        if len(ids) < model.engine.context:
            said = model.generate(prompt, GenerateOptions(max_tokens=ANSWERED), raw=True)
            texts.append([*ids, *said.token_ids])
    for name in DRAFTERS:
        for text in texts:
            yield _drafted(model.bundle, name, text, model.engine.context)
        yield _drafted(model.bundle, name, [token for text in texts for token in text], SMALL)
        for multiple in (1, 2):
            yield _planned(model.bundle, name, multiple)


def _drafted(bundle: Bundle, name: str, text: list[int], context: int) -> dict[str, Any]:
    module, _ = find(name)
    drafter = module.make(Setting(bundle, context))
    begins = len(text) // 4
    drafter.begin(text[:begins])
    rounds, length = list[dict[str, Any]](), begins
    while length < len(text):
        most, min_chance = BUDGETS[len(rounds) % len(BUDGETS)]
        draft = drafter.propose(text[:length], Budget(most, min_chance))
        proposed = {"tokens": list(draft.tokens), "grades": list(draft.grades)}
        rounds.append({"length": length, "most": most, "min_chance": min_chance} | proposed)
        grown = text[length : length + STEPS[len(rounds) % len(STEPS)]]
        drafter.accept(grown)
        length += len(grown)
    return {"drafter": name, "context": context, "text": text, "begins": begins, "rounds": rounds}


def _planned(bundle: Bundle, name: str, multiple: int) -> dict[str, Any]:
    """Four answers; in the last, drafting has taken so long that less is asked for."""
    width, dice = 8, random.Random(len(name) + multiple)
    module, _ = find(name)
    drafter = module.make(Setting(bundle, SMALL))
    planner = Planner(drafter.priors, StepCosts(lambda: None, width, multiple), width)
    answers = []
    for drawn, draft_s in ((False, 1e-5), (True, 1e-5), (False, 2e-3), (False, 2e-3)):
        planner.begin(drawn)
        rounds, context = list[dict[str, Any]](), dice.randrange(400)
        for _ in range(ROUNDS):
            rounds.append(_round(planner, dice, len(drafter.priors), context, draft_s))
            context += len(rounds[-1]["sampled"])
        answers.append({"drawn": drawn, "rounds": rounds})
    return {"planner": name, "width": width, "multiple": multiple, "answers": answers}


def _round(planner: Planner, dice: random.Random, grades: int, context: int, draft_s: float) -> dict[str, Any]:
    most = dice.choice((0, 1, 3, 7, 20))
    budget = planner.budget(most, context)
    size = dice.randint(0, budget.tokens) if budget.tokens > 0 else 0
    draft = Draft([dice.randrange(3) for _ in range(size)], [dice.randrange(grades) for _ in range(size)])
    if budget.tokens > 0:
        planner.drafted(size, draft_s * max(1, size))
    cut = len(planner.cut(draft).tokens)
    sampled = list[int]()
    while len(sampled) <= cut and (not sampled or sampled[-1] == draft.tokens[len(sampled) - 1]):
        right = len(sampled) < size and dice.random() < 0.8
        sampled.append(draft.tokens[len(sampled)] if right else 9)
    seconds = 0.01 * (1 + 0.15 * cut) * dice.uniform(0.8, 1.3)
    planner.costs.took(cut + 1, seconds)
    planner.observe(draft, sampled)
    drafted = {"tokens": draft.tokens, "grades": draft.grades, "draft_s": draft_s * max(1, size)}
    chosen = {"budget": budget.tokens, "min_chance": budget.min_chance, "cut": cut}
    return {"context": context, "most": most} | chosen | drafted | {"seconds": seconds, "sampled": sampled}
