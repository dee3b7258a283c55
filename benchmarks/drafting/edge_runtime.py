"""This runtime as `edge run` uses it: drafts by `auto`, and what it chose to run of them."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import numpy as np

from drafting.drafting_engine import Answered, Drafting

SETTINGS: dict[str, dict[str, Any]] = {"auto": {}}


class _Edge:
    def __init__(self, model: Path, threads: int, capacity: int) -> None:
        import edge

        self._model = edge.load(model, context=capacity, threads=threads)

    def answer(self, ids: list[int], n: int, ends: list[int]) -> Answered:
        from edge.runtime.decode.generate_options import never
        from edge.runtime.decode.loop import generate
        from edge.runtime.decode.sampling import SamplingOptions, make_sampler
        from edge.runtime.speculate.speculation import AnswerDrafts

        model = self._model
        cache = model.engine.new_cache(len(ids) + n)
        drafts = AnswerDrafts(model.speculation, ids, n, ends=frozenset(ends))
        start, first, count = time.perf_counter(), 0.0, 0
        prompt = np.array(ids, np.int64)
        sampler = make_sampler(SamplingOptions(), ids)
        for token in generate(
            model.engine, cache, prompt, sampler, chunk=model.prefill_chunk, interrupted=never, drafts=drafts
        ):
            count += 1
            if count == 1:
                first = time.perf_counter()
            if count == n or token in ends:
                break
        return Answered(count - 1, time.perf_counter() - first, first - start, drafts.figures.steps)


def load(model: Path, threads: int, capacity: int, **settings: Any) -> Drafting:
    return _Edge(model, threads, capacity)
