"""This runtime as `edge run` uses it: drafts by `auto`, and what it chose to run of them."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

from drafting.base import Answered, Drafting

SETTINGS: dict[str, dict[str, Any]] = {"auto": {}}


class _Edge:
    def __init__(self, model: Path, threads: int, capacity: int) -> None:
        import edge
        from edge.runtime.sampling import make_sampler

        self._model = edge.load(model, context=capacity, threads=threads)
        self._greedy = make_sampler(edge.GenerateOptions(), self._model.bundle.manifest.dims.vocab_size, [])

    def answer(self, ids: list[int], n: int, ends: list[int]) -> Answered:
        from edge.runtime.answer import never

        model = self._model
        speculation = model.speculation
        cache, figures = model.engine.new_cache(len(ids) + n), speculation.figures()
        start, first, count = time.perf_counter(), 0.0, 0
        tokens = speculation.generate(model.engine, cache, ids, self._greedy, figures, chunk=model.prefill_chunk,
                                      most=n, ends=frozenset(ends), interrupted=never)
        for token in tokens:
            count += 1
            if count == 1:
                first = time.perf_counter()
            if count == n or token in ends:
                break
        return Answered(count - 1, time.perf_counter() - first, first - start, figures.steps)


def load(model: Path, threads: int, capacity: int, **settings: Any) -> Drafting:
    return _Edge(model, threads, capacity)
