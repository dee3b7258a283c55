"""llama.cpp through llama-cpp-python's C interface, on the GGUF file itself."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

from engines import DECODER, Models, Timed

PACKAGE = "llama-cpp-python"
MODULES = ("llama_cpp",)
IMPORT = "import llama_cpp"
VARIANTS: dict[str, dict[str, dict[str, Any]]] = {
    DECODER: {"flash attention": {"flash_attn": True}, "no flash attention": {"flash_attn": False}}
}
BATCH = 512
FIRST_TOKEN = """
import sys
from llama_cpp import Llama

path, prompt, threads, flash = sys.argv[1:]
llm = Llama(path, n_threads=int(threads), n_threads_batch=int(threads), flash_attn=flash == "1", verbose=False)
messages = [{"role": "user", "content": prompt}]
for part in llm.create_chat_completion(messages, max_tokens=1, temperature=0, stream=True):
    print(part["choices"][0]["delta"].get("content", ""), end="", flush=True)
"""


def prepare(models: Models, variant: str, threads: int) -> Path:
    return models.gguf


def first_token(python: str, model: Path, prompt: str, threads: int, variant: str) -> list[str]:
    flash = "1" if VARIANTS[DECODER][variant]["flash_attn"] else "0"
    return [python, "-c", FIRST_TOKEN, str(model), prompt, str(threads), flash]


def from_gguf(python: str, gguf: Path, cache: Path, prompt: str, threads: int) -> list[str]:
    return first_token(python, gguf, prompt, threads, "flash attention")


class _LlamaCpp:
    def __init__(self, model: Path, threads: int, capacity: int, flash_attn: bool) -> None:
        import llama_cpp

        self._c = llama_cpp
        self._llama = llama_cpp.Llama(
            str(model),
            n_ctx=capacity,
            n_batch=BATCH,
            n_ubatch=BATCH,
            n_threads=threads,
            n_threads_batch=threads,
            flash_attn=flash_attn,
            logits_all=False,
            use_mlock=False,
            verbose=False,
        )
        self._greedy = llama_cpp.llama_sampler_init_greedy()

    def generate(self, ids: list[int], n: int) -> Timed:
        c, context = self._c, self._llama.ctx
        c.llama_memory_clear(c.llama_get_memory(context), True)
        one = (c.llama_token * 1)()
        start = time.perf_counter()
        for i in range(0, len(ids), BATCH):
            chunk = ids[i : i + BATCH]
            self._decode((c.llama_token * len(chunk))(*chunk), len(chunk))
        tokens = [c.llama_sampler_sample(self._greedy, context, -1)]
        first = time.perf_counter()
        for _ in range(n):
            one[0] = tokens[-1]
            self._decode(one, 1)
            tokens.append(c.llama_sampler_sample(self._greedy, context, -1))
        return Timed(first - start, (time.perf_counter() - first) / max(n, 1), tokens)

    def _decode(self, tokens: Any, size: int) -> None:
        status = self._c.llama_decode(self._llama.ctx, self._c.llama_batch_get_one(tokens, size))
        if status != 0:
            raise RuntimeError(f"llama_decode returned {status}")


def load(model: Path, threads: int, capacity: int, task: str, **settings: Any) -> _LlamaCpp:
    return _LlamaCpp(model, threads, capacity, **settings)
