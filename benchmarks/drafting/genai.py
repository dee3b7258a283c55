"""onnxruntime-genai with its n-gram decoding, over a model of its own builder whose head gives logits of all rows."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

from drafting.base import Answered


class _Genai:
    def __init__(self, model: Path, ngram: int, drafts: int) -> None:
        import onnxruntime_genai as og

        self._og, self._model = og, og.Model(str(model))
        self._speculative = {"ngram_size": ngram, "max_draft_tokens": drafts} if drafts else {}

    def answer(self, ids: list[int], n: int, ends: list[int]) -> Answered:
        import numpy as np

        params = self._og.GeneratorParams(self._model)
        length = len(ids) + n
        params.set_search_options(do_sample=False, max_length=length)
        if self._speculative:
            params.set_speculative_options(**self._speculative)
        generator = self._og.Generator(self._model, params)
        start = time.perf_counter()
        generator.append_tokens(np.asarray(ids, np.int32))
        generator.generate_next_token()
        first = time.perf_counter()
        before = generator.token_count()
        while not generator.is_done():
            generator.generate_next_token()
        return Answered(generator.token_count() - before, time.perf_counter() - first, first - start)


def load(model: Path, threads: int, capacity: int, **settings: Any) -> _Genai:
    return _Genai(model, settings.get("ngram", 0), settings.get("drafts", 0))
