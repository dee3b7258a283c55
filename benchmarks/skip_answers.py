"""What answers are like for which layers are left out: how near they are to the whole model's, and how many circle.

    python benchmarks/skip_answers.py --bundle smollm2-135m-instruct.edge --questions spec_bench.jsonl --count 24 \\
        --skip unified:0.034 --skip skipdecode:24-30 --skip ffn:token=0.1

Greedy answers to questions from all of Spec-Bench's tasks, side by side, without the rule against circles. F1 is that
of the words of an answer and of the whole model's to the same question, as in SQuAD. An answer goes in circles where
more than half of its 8-grams of tokens were in it before.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from circles import MOST, repeated
from questions import read


def main() -> int:
    """Answer and compare. Returns the exit status."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0], allow_abbrev=False)
    parser.add_argument("--bundle", type=Path, required=True)
    parser.add_argument("--questions", type=Path, required=True, help="Spec-Bench's question.jsonl")
    parser.add_argument("--skip", action="append", required=True, help="a policy; may be given several times")
    parser.add_argument("--count", type=int, default=24, help="questions, evenly from all (default: 24)")
    parser.add_argument("--tokens", type=int, default=128, help="of an answer, at most (default: 128)")
    args = parser.parse_args()

    from edge.bundle import open_bundle
    from edge.cli.scores import question_answering
    from edge.runtime.load import open_engine
    from edge.runtime.model import Model
    from edge.runtime.text.tokenizer import Text

    asked = [question["turns"][0] for questions in read(args.questions).values() for question in questions]
    prompts = [asked[len(asked) * i // args.count] for i in range(args.count)]
    bundle, whole = open_bundle(args.bundle), list[str]()
    print(f"{'policy':24} {'F1':>6} {'equal':>6} {'circles':>8}")
    for skip in ("off", *args.skip):
        engine = open_engine(bundle, skip=skip)
        model = Model(engine.bundle, engine, Text(bundle), speculate="off")
        found = model.generate_all(prompts, max_tokens=args.tokens, circles="allow")
        texts = [each.text for each in found]
        whole = whole or texts
        scores = question_answering(texts, [[text] for text in whole])
        circled = sum(repeated(each.token_ids) > MOST for each in found)
        equal = sum(a == b for a, b in zip(texts, whole, strict=True))
        print(f"{skip:24} {scores['f1']:6.1f} {equal:3} of {len(texts)} {circled:3} of {len(texts)}", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
