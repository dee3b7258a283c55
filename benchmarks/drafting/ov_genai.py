"""OpenVINO GenAI with its prompt lookup, over what it wrote after reading the GGUF file."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from drafting.drafting_engine import PLAIN, Answered, Drafting

SETTINGS: dict[str, dict[str, Any]] = {
    "2-grams, 2 tokens": {"ngram": 2, "drafts": 2},
    "3-grams, 3 tokens": {"ngram": 3, "drafts": 3},
    "3-grams, 5 tokens": {"ngram": 3, "drafts": 5},
    PLAIN: {},
}


class _OpenVino:
    def __init__(self, model: Path, threads: int, capacity: int, ngram: int = 0, drafts: int = 0) -> None:
        import openvino_genai as og

        scheduler = og.SchedulerConfig()
        scheduler.enable_prefix_caching = False
        scheduler.max_num_batched_tokens = capacity  # a prompt in one piece
        config: dict[str, Any] = {"INFERENCE_NUM_THREADS": threads, "ATTENTION_BACKEND": "PA"}
        config |= {"CACHE_DIR": str(model / "cache"), "scheduler_config": scheduler}
        self._og, self._ngram, self._drafts = og, ngram, drafts
        self._pipeline = og.LLMPipeline(str(model), "CPU", **config, **({"prompt_lookup": True} if drafts else {}))

    def answer(self, ids: list[int], n: int, ends: list[int]) -> Answered:
        import numpy as np
        import openvino

        prompt = np.asarray([ids], np.int64)
        inputs = self._og.TokenizedInputs(openvino.Tensor(prompt), openvino.Tensor(np.ones_like(prompt)))
        config = self._og.GenerationConfig()
        config.max_new_tokens, config.do_sample, config.ignore_eos = n, False, not ends
        config.stop_token_ids = set(ends)
        if self._drafts:
            config.num_assistant_tokens, config.max_ngram_size = self._drafts, self._ngram
        result = self._pipeline.generate(inputs, config)
        metrics, count = result.perf_metrics, len(result.tokens[0])
        first = metrics.get_ttft().mean / 1e3
        return Answered(count - 1, metrics.get_generate_duration().mean / 1e3 - first, first)


def load(model: Path, threads: int, capacity: int, **settings: Any) -> Drafting:
    return _OpenVino(model, threads, capacity, **settings)
