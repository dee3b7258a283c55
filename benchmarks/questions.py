"""Spec-Bench's questions: six tasks, read from its `question.jsonl`."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

CHAT = "chat"  # MT-Bench: eight categories in the file, two turns each
TASKS = (CHAT, "translation", "summarization", "qa", "math_reasoning", "rag")

Question = dict[str, Any]


def read(path: Path) -> dict[str, list[Question]]:
    """Questions by task."""
    tasks: dict[str, list[Question]] = defaultdict(list)
    for line in filter(str.strip, path.read_text(encoding="utf-8").splitlines()):
        question = json.loads(line)
        tasks[question["category"] if question["category"] in TASKS else CHAT].append(question)
    return tasks


def chosen(
    tasks: dict[str, list[Question]], skip: int, count: int, only: Sequence[str] = TASKS
) -> Iterator[tuple[str, Question]]:
    """Up to `count` questions of each task in `only`, behind the first `skip`, with their tasks; all tasks in turns."""
    for number in range(skip, skip + count):
        for task, questions in tasks.items():
            if task in only and number < len(questions):
                yield task, questions[number]
