"""Spec-Bench's articles as lines for `edge eval --summarize`; the beginning of each stands for the reference it lacks.

    python benchmarks/summaries.py --questions spec_bench.jsonl --out sum.jsonl
    edge eval MODEL.edge --summarize sum.jsonl --limit 40 --max-tokens 128 --skip first --sweep skip=2
"""

from __future__ import annotations

import argparse
import json
import re
import sys
from pathlib import Path

from questions import read

TASK = "summarization"
ASKED = "Summarize: "  # before each article
SENTENCES = 3  # of an article, which are its reference


def main() -> int:
    """Write the lines. Returns the exit status."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0], allow_abbrev=False)
    parser.add_argument("--questions", type=Path, required=True, help="Spec-Bench's question.jsonl")
    parser.add_argument("--out", type=Path, required=True)
    args = parser.parse_args()
    rows = [row(question["turns"][0]) for question in read(args.questions)[TASK]]
    args.out.write_text("".join(json.dumps(each, ensure_ascii=False) + "\n" for each in rows), encoding="utf-8")
    print(f"{args.out}: {len(rows)} articles")
    return 0


def row(asked: str) -> dict[str, str]:
    """An article and its first sentences."""
    text = asked.removeprefix(ASKED).strip()
    return {"text": text, "summary": " ".join(re.split(r"(?<=[.!?])\s+", text)[:SENTENCES])}


if __name__ == "__main__":
    sys.exit(main())
