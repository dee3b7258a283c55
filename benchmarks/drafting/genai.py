"""onnxruntime-genai with its n-gram decoding, over a model of its own builder whose head gives logits of all rows."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

from drafting.drafting_engine import PLAIN, Answered, Drafting

# The names are those of version 0.18's speculative options; N-grams match the last N - 1 tokens.
SETTINGS: dict[str, dict[str, Any]] = {
    "2-grams, 2 tokens": {"ngram_size": 2, "max_draft_tokens": 2},
    "3-grams, 2 tokens": {"ngram_size": 3, "max_draft_tokens": 2},
    "3-grams, 3 tokens": {"ngram_size": 3, "max_draft_tokens": 3},
    "4-grams, 4 tokens": {"ngram_size": 4, "max_draft_tokens": 4},
    "4-grams, 8 tokens": {"ngram_size": 4, "max_draft_tokens": 8},
    "3-grams, adaptive": {"ngram_size": 3, "min_adaptive_k": 2, "ngram_chained_lookup": True, "cooldown": True},
    PLAIN: {},
}


class _Genai:
    def __init__(self, model: Path, threads: int, options: dict[str, Any]) -> None:
        import onnxruntime_genai as og

        config = og.Config(str(model))
        sessions = {"session_options": {"intra_op_num_threads": threads}}
        config.overlay(json.dumps({"model": {"decoder": sessions}}))
        self._og, self._model, self._options = og, og.Model(config), options

    def answer(self, ids: list[int], n: int, ends: list[int]) -> Answered:
        import numpy as np

        params = self._og.GeneratorParams(self._model)
        length = len(ids) + n
        # What ends an answer stands in its configuration; the minimum keeps it from being chosen.
        params.set_search_options(do_sample=False, max_length=length, min_length=0 if ends else length)
        if self._options:
            params.set_speculative_options(**self._options)
        generator = self._og.Generator(self._model, params)
        start = time.perf_counter()
        generator.append_tokens(np.asarray(ids, np.int32))
        generator.generate_next_token()
        first = time.perf_counter()
        before = generator.token_count()
        while not generator.is_done():
            generator.generate_next_token()
        return Answered(generator.token_count() - before, time.perf_counter() - first, first - start)


def load(model: Path, threads: int, capacity: int, **settings: Any) -> Drafting:
    # Its KV buffers are as long as each generator asks for.
    return _Genai(model, threads, settings)
