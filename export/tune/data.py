"""Training data: token sequences, each with a prompt that runs through all layers and an answer that may skip some."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from edge.errors import InputError
from edge.text_file import lines_of, read_text

MIN_TEXT = 32  # tokens of a text that is worth a training sequence
MIN_ANSWER = 8  # tokens
SORTED = 16  # batches whose sequences are sorted by length, so that little is padding


@dataclass(frozen=True)
class Row:
    """A line of a JSONL file: a prompt, with its answer where it has one; or a text without either."""

    prompt: str | None = None
    answer: str | None = None
    text: str | None = None


@dataclass(frozen=True)
class Example:
    """tokens: [S]. prompt: how many of them are the prompt's; None: of a text, which is cut anywhere. given: whether it
    comes from outside, and is no answer of the model's own."""

    tokens: NDArray[np.int64]
    prompt: int | None
    given: bool = True


@dataclass(frozen=True)
class Batch:
    """Sequences of different lengths, padded at their ends.

    tokens: [B, S]. prompts, lengths: [B]. given: [B], those from outside; None: all.
    """

    tokens: NDArray[np.int64]
    prompts: NDArray[np.int64]
    lengths: NDArray[np.int64]
    given: NDArray[np.bool_] | None = None


def read_rows(path: Path) -> list[Row]:
    """The lines of a JSONL file that hold a `prompt` (and an `answer`) or a `text`; others are left out.

    Raises:
        InputError: it cannot be read.
    """
    rows = []
    for line in lines_of(read_text(path)):
        try:
            content = json.loads(line)
        except ValueError:
            continue
        if not isinstance(content, dict):
            continue
        prompt, answer, text = (content.get(key) for key in ("prompt", "answer", "text"))
        if isinstance(prompt, str) and prompt.strip():
            rows.append(Row(prompt=prompt, answer=answer if isinstance(answer, str) else None))
        elif isinstance(text, str) and text:
            rows.append(Row(text=text))
    return rows


def read_examples(
    path: Path,
    encode: Callable[[str], list[int]],
    encode_prompt: Callable[[str], list[int]],
    ends: Sequence[int],
    length: int,
    lead: Sequence[int] = (),
) -> list[Example]:
    """Training sequences of up to `length` tokens from a JSONL file's lines, or from any other file as one text.

    encode: token ids of running text. encode_prompt: of a prompt in the model's chat format. ends: the model's end
    tokens, of which the first follows each answer. lead: what the model reads in front of every text, its first token
    where it has one: each piece of a text begins with it, as perplexity's windows do.

    Raises:
        InputError: the file cannot be read, or holds nothing that could be used.
    """
    found: list[Example] = []
    rows = read_rows(path) if path.suffix == ".jsonl" else [Row(text=read_text(path))]
    for row in rows:
        if row.prompt is not None:
            prompt = encode_prompt(row.prompt)
            answer = [*encode(row.answer), *ends[:1]] if row.answer else []
            ids = np.array([*prompt, *answer][:length], np.int64)
            if len(ids) >= len(prompt) + MIN_ANSWER:
                found.append(Example(ids, len(prompt)))
        elif row.text is not None:
            ids = np.array(encode(row.text), np.int64)
            step = length - len(lead)
            pieces = (ids[at : at + step] for at in range(0, len(ids), step))
            found += [
                Example(np.concatenate([np.array(lead, np.int64), piece]), None)
                for piece in pieces
                if len(piece) >= MIN_TEXT
            ]
    if not found:
        raise InputError(
            f"{path} holds no usable lines: a JSONL line has a prompt and an answer of {MIN_ANSWER} tokens or more, "
            f"or a text of {MIN_TEXT}; any other file is text of {MIN_TEXT} tokens or more. The prompt and the answer "
            f"must fit into {length} tokens."
        )
    return found


def batches(examples: Sequence[Example], size: int, seed: int, start: int = 0) -> Iterator[Batch]:
    """Batches without end, from the one numbered `start` on: what each holds depends on `seed` and its number alone."""
    count = per_epoch(examples, size)
    number = start
    while True:
        epoch = number // count
        order = _epoch(examples, size, np.random.default_rng([seed, 0, epoch]))
        for at in range(number % count, count):
            draw = np.random.default_rng([seed, 1, number])
            yield _batch([examples[i] for i in order[at]], draw)
            number += 1


def per_epoch(examples: Sequence[Example], size: int) -> int:
    """Batches in which no example comes twice."""
    return max(1, len(examples) // size)


def _epoch(examples: Sequence[Example], size: int, draw: np.random.Generator) -> list[NDArray[np.int64]]:
    """Indices of each batch of an epoch; the few that fill no batch are others each time."""
    order = draw.permutation(len(examples))
    runs = []
    for at in range(0, len(order), size * SORTED):
        run = order[at : at + size * SORTED]
        run = run[np.argsort([len(examples[i].tokens) for i in run], kind="stable")]
        runs += [run[i : i + size] for i in range(0, len(run), size)]
    whole = [run for run in runs if len(run) == size] or runs
    return [whole[i] for i in draw.permutation(len(whole))]


def _batch(examples: Sequence[Example], draw: np.random.Generator) -> Batch:
    lengths = np.array([len(e.tokens) for e in examples], np.int64)
    tokens = np.zeros((len(examples), int(lengths.max())), np.int64)
    prompts = np.empty(len(examples), np.int64)
    for i, example in enumerate(examples):
        tokens[i, : lengths[i]] = example.tokens
        size = len(example.tokens)
        prompts[i] = draw.integers(size // 4, size // 2 + 1) if example.prompt is None else example.prompt
    return Batch(tokens, prompts, lengths, np.array([example.given for example in examples]))
