"""Training text for `edge tune` from one text file: its pieces, and prompts about it that the model answers itself.

    python benchmarks/tuning_text.py rest.txt --out tuning
    edge tune MODEL --policy first --data tuning/pieces.jsonl --prompts tuning/prompts.jsonl --length 768 ...

Prompts are of three kinds: passages to be summarized, beginnings to be continued, and the prompts that come with
`edge tune`. A passage with its summary takes up to 640 tokens, so that a shorter `--length` leaves out the longest.
"""

from __future__ import annotations

import argparse
import json
import random
import re
import sys
from pathlib import Path

from edge.errors import EdgeError, InputError
from edge.export.drafts.prompts import built_in
from edge.text_file import lines_of, read_text

ASKS = (
    "Summarize this text in a few sentences.\n\n{}",
    "Summarize: {}",
    "Write a short summary of the following article.\n\n{}",
    "{}\n\nSummarize the text above.",
    "Summarize the following text.\n\n{}",
    "What are the main points of this text?\n\n{}",
)
PASSAGES = (120, 200, 300, 400)  # words
BEGINNINGS = (24, 36, 48, 72)  # words
PIECE = 190  # words: 250 tokens
LEAST = 40  # words of a line that is a paragraph, not a heading
SPLIT_MARKS = ((" @-@ ", "-"), (" @,@ ", ","), (" @.@ ", "."), (" <unk>", ""))  # as WikiText writes them


def passages(text: str, count: int, draw: random.Random) -> list[str]:
    """Requests to summarize `count` passages of whole paragraphs, drawn anywhere.

    Raises:
        InputError: the text has no paragraph of LEAST words.
    """
    paragraphs = [words for line in text.splitlines() if len(words := line.split()) >= LEAST]
    if not paragraphs:
        raise InputError(f"The text has no line of {LEAST} words or more, which could be summarized.")
    asked = []
    for _ in range(count):
        at, length = draw.randrange(len(paragraphs)), draw.choice(PASSAGES)
        words = [word for paragraph in paragraphs[at : at + 1 + length // LEAST] for word in paragraph]
        asked.append(draw.choice(ASKS).format(plain(" ".join(words[:length]))))
    return asked


def plain(text: str) -> str:
    """WikiText's tokens as people write them."""
    for mark, meant in SPLIT_MARKS:
        text = text.replace(mark, meant)
    return re.sub(r" ([,.;:)'])", r"\1", text)


def word_starts(text: str) -> list[int]:
    return [match.start() for match in re.finditer(r"\S+", text)]


def beginnings(text: str, count: int, draw: random.Random) -> list[str]:
    """As they stand in the text, line breaks included."""
    starts = word_starts(text)
    found = []
    for _ in range(count):
        length = draw.choice(BEGINNINGS)
        at = draw.randrange(max(1, len(starts) - length))
        found.append(text[starts[at] : starts[min(at + length, len(starts) - 1)]].rstrip())
    return found


def pieces(text: str) -> list[str]:
    starts = word_starts(text)[::PIECE]
    return [text[start:end] for start, end in zip(starts, [*starts[1:], len(text)], strict=True)]


def write(args: argparse.Namespace) -> None:
    text, draw = read_text(args.text), random.Random(args.seed)
    with built_in() as own_path:
        own = [line for line in lines_of(read_text(own_path)) if line]
    prompts: list[dict[str, str]] = [{"prompt": asked} for asked in passages(text, args.summaries, draw)]
    prompts += [json.loads(line) for line in own] * args.times
    prompts += [{"text": begun} for begun in beginnings(text, args.continued, draw)]
    args.out.mkdir(parents=True, exist_ok=True)
    for name, rows in (("prompts", prompts), ("pieces", [{"text": piece} for piece in pieces(text)])):
        path = args.out / f"{name}.jsonl"
        path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
        print(f"{path}: {len(rows)} lines")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("text", type=Path)
    parser.add_argument("--out", type=Path, required=True, help="folder for pieces.jsonl and prompts.jsonl")
    parser.add_argument("--summaries", type=int, default=900)
    parser.add_argument("--continued", type=int, default=2048)
    parser.add_argument("--times", type=int, default=2, help="how often each prompt that comes with edge tune is asked")
    parser.add_argument("--seed", type=int, default=7)
    write(parser.parse_args())


if __name__ == "__main__":
    try:
        main()
    except EdgeError as e:
        sys.exit(f"tuning_text: {e}")
