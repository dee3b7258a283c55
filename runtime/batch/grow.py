"""Answers that grow in parallel in memory that is taken for them, until all have ended."""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from contextlib import nullcontext

from edge.runtime.batch.answer import BatchAnswer
from edge.runtime.batch.batch import Batch
from edge.runtime.engine.engine import Engine
from edge.runtime.engine.prefixes import Prefixes
from edge.runtime.text.tokenizer import Text


def grown(
    engine: Engine,
    text: Text,
    answers: Sequence[BatchAnswer],
    *,
    width: int,
    chunk: int,
    prefixes: Prefixes,
    interrupted: Callable[[], bool],
) -> Generator[BatchAnswer, None, None]:
    """Yield answers as they end, of which up to `width` grow at a time, also those that ended by an error. They begin
    in their order.

    Args:
        chunk: maximum prompt tokens of one step.
        prefixes: texts that the prompts may begin like.
        interrupted: is asked before each step; once it returns True, all answers end where they are.
    """
    capacity = max(each.capacity for each in answers)
    width = min(width, len(answers))
    share = None
    if engine.plan is not None:
        assert engine.shares is not None
        share = engine.shares.take(engine.plan.answer_bytes(width * capacity), interrupted)
    with share or nullcontext():  # none where it was interrupted, before any memory is written
        batch = Batch(engine, text, capacity=capacity, width=width, chunk=chunk, prefixes=prefixes)
        for answer in answers:
            batch.add(answer)
        while not batch.idle:
            ends = interrupted()
            yield from batch.interrupt() if ends else batch.step()
            if ends:
                return
