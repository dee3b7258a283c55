"""Drafts on top of skipped layers: faster than either alone?"""

from __future__ import annotations

import itertools
from collections import Counter
from pathlib import Path

from questions import chosen, read

import edge
from edge.bundle import Bundle

TOKENS, CONTEXT = 80, 1280
OFF, DRAFTED = "off", "auto"


def report(bundle: Bundle, skip: str, questions: Path, count: int) -> dict[str, float]:
    """Decode tokens per second over those of the whole decoder without drafts, for the first `count` questions of each
    task whose prompts fit; printed. Answers are greedy, and each form's are its own."""
    forms = list(itertools.product((OFF, skip), (OFF, DRAFTED)))
    room = min(CONTEXT, bundle.manifest.context)
    models = {
        form: edge.load(bundle.root, skip=form[0], skip_anyway=True, speculate=form[1], context=room) for form in forms
    }
    tokens, seconds = Counter[tuple[str, str]](), Counter[tuple[str, str]]()
    options = edge.GenerateOptions(max_tokens=TOKENS, temperature=0)
    for number, (_, question) in enumerate(chosen(read(questions), 0, count)):
        prompt = question["turns"][0]
        if len(models[OFF, OFF].prompt_ids(prompt)) > CONTEXT - TOKENS:
            continue
        for form in forms if number % 2 else forms[::-1]:
            result = models[form].generate(prompt, options)
            if result.decode_tokens_per_s:
                tokens[form] += result.generated_tokens - 1
                seconds[form] += (result.generated_tokens - 1) / result.decode_tokens_per_s
    rates = {form: tokens[form] / seconds[form] for form in forms}
    ratios = {f"{policy}, drafts {drafts}": rates[policy, drafts] / rates[OFF, OFF] for policy, drafts in forms}
    print(f"\n{skip} with drafts: " + "; ".join(f"{name} {ratio:.2f}" for name, ratio in ratios.items()))
    best = max(rates[OFF, DRAFTED], rates[skip, OFF])
    print(f"  both are {rates[skip, DRAFTED] / best:.2f} times the faster of either alone; more than 1 is wanted")
    return {name: round(ratio, 3) for name, ratio in ratios.items()}
