"""Answers that go in circles: how many of Spec-Bench's do, raw and with the rule, and what the rule changes and costs.

    python benchmarks/circles.py --bundle smollm2-135m-instruct.edge --questions spec_bench.jsonl --count 40

An answer goes in circles where more than half of its 8-grams of tokens were in it before. Questions are taken evenly
from all tasks; the rule was fitted to `--count 72`, and `--fitted 72` chooses others. Raw answers are kept in
`--answers` and read from there the next time. The rule sees tokens alone: an answer none of whose tokens it would have
made less likely is the same with it, and is not made again.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from statistics import median

from questions import read

GRAM, MOST = 8, 0.5


def repeated(tokens: Sequence[int]) -> float:
    """The share of an answer's 8-grams that were in it before."""
    grams = [tuple(tokens[i : i + GRAM]) for i in range(len(tokens) - GRAM + 1)]
    return 1 - len(set(grams)) / len(grams) if grams else 0.0


def touched(prompt: Sequence[int], tokens: Sequence[int]) -> int | None:
    """Where the rule would first have made a token of an answer less likely; None: nowhere."""
    from edge.runtime.decode.rules.circles import Circles

    circles = Circles(prompt)
    for place, token in enumerate(tokens):
        if token in circles.losses:
            return place
        circles.push(token)
    return None


def cost_us(answers: Sequence[Sequence[int]]) -> float:
    """Microseconds of a processor that following a text takes for each token: the median of five."""
    from edge.runtime.decode.rules.circles import Circles

    taken = []
    for _ in range(5):
        began = time.process_time()
        for tokens in answers:
            circles = Circles()
            for token in tokens:
                circles.push(token)
        taken.append(time.process_time() - began)
    return 1e6 * median(taken) / sum(map(len, answers))


def main() -> int:
    """Answer and count. Returns the exit status."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0], allow_abbrev=False)
    parser.add_argument("--bundle", type=Path, required=True)
    parser.add_argument("--questions", type=Path, required=True, help="Spec-Bench's question.jsonl")
    parser.add_argument("--count", type=int, default=40, help="questions, evenly from all (default: 40)")
    parser.add_argument("--fitted", type=int, default=0, help="choose none of those that --count of this chooses")
    parser.add_argument("--tokens", type=int, default=512)
    parser.add_argument("--answers", type=Path, help="raw answers, kept from one run to the next")
    parser.add_argument("--show", action="store_true", help="print the answers that went in circles or were changed")
    args = parser.parse_args()

    import edge

    asked = [question["turns"][0] for questions in read(args.questions).values() for question in questions]
    fitted = {len(asked) * i // args.fitted for i in range(args.fitted)}
    others = [i for i in range(len(asked)) if i not in fitted]
    chosen = [others[len(others) * i // args.count] for i in range(args.count)]
    model = edge.load(args.bundle)
    prompts = [asked[i] for i in chosen]
    raw = _raw(model, prompts, args.tokens, args.answers)
    places = [touched(model.prompt_ids(prompt), tokens) for prompt, tokens in zip(prompts, raw, strict=True)]
    again = [i for i, place in enumerate(places) if place is not None]
    led = list(raw)
    options = edge.GenerateOptions(max_tokens=args.tokens)
    for i, result in zip(again, model.generate_all([prompts[i] for i in again], options), strict=True):
        led[i] = result.token_ids
    circled = [repeated(tokens) > MOST for tokens in raw]
    others = [i for i, circles in enumerate(circled) if not circles]
    same = sum(led[i] == raw[i] for i in others)
    still = [i for i, tokens in enumerate(led) if repeated(tokens) > MOST]
    print(f"answers in circles: {sum(circled)} of {len(raw)} raw, {len(still)} with the rule")
    print(f"others unchanged: {same} of {len(others)} ({100 * same / max(1, len(others)):.1f}%)")
    print(f"the rule takes {cost_us(led):.1f} us a token")
    if args.show:
        for i in again:
            if led[i] != raw[i] or i in still:
                print(
                    f"\n=== {chosen[i]}: repeated {repeated(raw[i]):.2f} raw, {repeated(led[i]):.2f} with the rule; "
                    f"{len(raw[i])} and {len(led[i])} tokens; touched at {places[i]}\n{model.text.decode(led[i])}"
                )
    return 0


def _raw(model, prompts: Sequence[str], tokens: int, path: Path | None) -> list[list[int]]:
    kept: dict[str, list[int]] = {}
    if path is not None and path.exists():
        kept = {row["prompt"]: row["ids"] for row in map(json.loads, path.read_text(encoding="utf-8").splitlines())}
    missing = [prompt for prompt in prompts if prompt not in kept]
    for i, result in model.answers(missing, max_tokens=tokens, circles="allow"):
        kept[missing[i]] = result.token_ids
        if path is not None:
            with path.open("a", encoding="utf-8") as out:
                out.write(json.dumps({"prompt": missing[i], "ids": result.token_ids}) + "\n")
    return [kept[prompt] for prompt in prompts]


if __name__ == "__main__":
    sys.exit(main())
