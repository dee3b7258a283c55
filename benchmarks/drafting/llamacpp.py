"""llama-cpp-python with its prompt lookup, through its own `Llama.generate`."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

from drafting.drafting_engine import PLAIN, Answered, Drafting

SETTINGS: dict[str, dict[str, Any]] = {
    "2-grams, 2 tokens": {"ngram": 2, "drafts": 2},
    "2-grams, 4 tokens": {"ngram": 2, "drafts": 4},
    "3-grams, 3 tokens": {"ngram": 3, "drafts": 3},
    "2-grams, 10 tokens": {"ngram": 2, "drafts": 10},  # its default
    PLAIN: {},
}


class _LlamaCpp:
    def __init__(self, model: Path, threads: int, capacity: int, ngram: int = 0, drafts: int = 0) -> None:
        import llama_cpp
        from llama_cpp.llama_speculative import LlamaPromptLookupDecoding

        lookup = LlamaPromptLookupDecoding(max_ngram_size=ngram, num_pred_tokens=drafts) if drafts else None
        self._llama = llama_cpp.Llama(
            str(model),
            n_ctx=capacity,
            n_threads=threads,
            n_threads_batch=threads,
            flash_attn=True,
            logits_all=bool(drafts),  # its prompt lookup needs them
            draft_model=lookup,
            verbose=False,
        )

    def answer(self, ids: list[int], n: int, ends: list[int]) -> Answered:
        self._llama.reset()
        start = time.perf_counter()
        first, count = start, 0
        for token in self._llama.generate(ids, temp=0.0, top_k=1, repeat_penalty=1.0, reset=True):
            count += 1
            if count == 1:
                first = time.perf_counter()
            if count == n or token in ends:
                break
        return Answered(count - 1, time.perf_counter() - first, first - start)


def load(model: Path, threads: int, capacity: int, **settings: Any) -> Drafting:
    return _LlamaCpp(model, threads, capacity, **settings)
