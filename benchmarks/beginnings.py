"""Prompts that begin alike, with what earlier texts left and without.

    python benchmarks/beginnings.py --bundle smollm2.edge

Loads the bundle in turns, once keeping what was read and once not. docs/lab/benchmarks.md has figures.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Iterator
from pathlib import Path
from pydoc_data.topics import topics

import machine
import report

import edge
from edge.runtime.memory.process import private_bytes

CONTEXT = 4096
HEADER, QUESTION = 310, 9  # words; some 490 and 15 tokens
QUESTIONS = 20
WORDS = " ".join(topics.values()).split()
MODES = ("afresh", "known")


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0], allow_abbrev=False)
    parser.add_argument("--bundle", type=Path, required=True)
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--tokens", type=int, default=16, help="of an answer (default: 16)")
    given = parser.parse_args()
    found: dict[str, dict[str, list[float]]] = {}
    for number in range(given.rounds):
        for mode in MODES if number % 2 == 0 else MODES[::-1]:
            with edge.load(given.bundle, context=CONTEXT, kind=edge.Model) as model:
                if mode == "afresh":
                    model.prefixes.close()
                for label, value in measured(model, given.tokens):
                    found.setdefault(label, {}).setdefault(mode, []).append(value)
    rows = [["", *MODES, "afresh / known"]]
    for label, values in found.items():
        middle = [statistics.median(values[mode]) for mode in MODES]
        rows.append([label, *(f"{value:.1f}" for value in middle), f"{middle[0] / middle[1]:.2f}"])
    print(report.table(rows))
    print(machine.cpu_name())


def measured(model: edge.Model, tokens: int) -> Iterator[tuple[str, float]]:
    """What each way of asking takes."""
    options = edge.GenerateOptions(max_tokens=tokens, temperature=0)
    header, questions = text(HEADER, 0), [f"{text(QUESTION, 1000 + 40 * i)}? Explain." for i in range(QUESTIONS)]
    model.generate("Say hello.", options)
    began = time.perf_counter()
    model.generate_all([f"{header}\n\n{question}" for question in questions], options)
    yield f"{QUESTIONS} prompts with a header of {len(model.prompt_ids(header))} tokens, s", time.perf_counter() - began
    began = time.perf_counter()
    model.generate_all(questions, options)
    yield f"{QUESTIONS} prompts of {len(model.prompt_ids(questions[0]))} tokens, s", time.perf_counter() - began
    again = [model.generate(question, options, system=header).ttft_ms or 0 for question in questions[:8]]
    yield "`generate` with the system message of the call before: first token, ms", statistics.median(again[1:])
    chat = model.chat(system=header)
    chat.generate(questions[0], options)
    chat.reset()
    yield "a chat after `reset`: first token, ms", chat.generate(questions[1], options).ttft_ms or 0
    other = model.chat(system=header)
    yield (
        "another chat with the same system message: first token, ms",
        other.generate(questions[2], options).ttft_ms or 0,
    )
    del chat, other
    yield "private memory after all, MB", private_bytes() / 1e6


def text(words: int, start: int) -> str:
    """Some words of Python's reference, which every Python brings along."""
    return " ".join(WORDS[start : start + words])


if __name__ == "__main__":
    main()
