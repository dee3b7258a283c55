"""transformers, eager mode (nothing compiled), float weights."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

from engines.decoding_engine import SCRIPTS, Loaded, Models, Timed

PACKAGE = "transformers"
MODULES = ("torch", "transformers")
IMPORT = "import torch; from transformers import AutoModelForCausalLM, AutoTokenizer"
VARIANTS: dict[str, dict[str, Any]] = {"float32": {"dtype": "float32"}, "bfloat16": {"dtype": "bfloat16"}}


def prepare(models: Models, variant: str, threads: int) -> Path:
    import convert

    return convert.transformers_folder(models, VARIANTS[variant]["dtype"])


def first_token(python: str, model: Path, prompt: str, threads: int, variant: str) -> list[str]:
    return [python, str(SCRIPTS / "eager.py"), str(model), prompt, str(threads)]


class _Eager:
    def __init__(self, model: Path, threads: int, dtype: str) -> None:
        import torch
        from transformers import AutoModelForCausalLM, AutoTokenizer

        torch.set_num_threads(threads)
        torch.set_grad_enabled(False)
        self._torch = torch
        self._model = AutoModelForCausalLM.from_pretrained(str(model), dtype=getattr(torch, dtype)).eval()
        self._tokenizer = AutoTokenizer.from_pretrained(str(model))

    def generate(self, ids: list[int], n: int) -> Timed:
        from transformers import DynamicCache

        past = DynamicCache(config=self._model.config)
        start = time.perf_counter()
        tokens = [self._step(past, ids)]
        first = time.perf_counter()
        for _ in range(n):
            tokens.append(self._step(past, tokens[-1:]))
        return Timed(first - start, (time.perf_counter() - first) / max(n, 1), tokens)

    def _step(self, past: Any, ids: list[int]) -> int:
        out = self._model(self._torch.tensor([ids]), past_key_values=past, use_cache=True, logits_to_keep=1)
        return int(out.logits[0, -1].argmax())


def load(model: Path, threads: int, capacity: int, **settings: Any) -> Loaded:
    # Its KV cache grows as it goes; `capacity` has no counterpart.
    return _Eager(model, threads, **settings)
