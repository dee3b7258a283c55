"""This runtime, measured through its own decode loop."""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import Any

from engines.base import Loaded, Models, Timed

PACKAGE = "edge"
MODULES = ("edge", "onnxruntime")
IMPORT = "import edge; edge.load"
VARIANTS: dict[str, dict[str, Any]] = {"as it comes": {}, "KV cache in int8": {"kv": "int8"}}
TRIED = ("as it comes",)  # unless --variant names another


def prepare(models: Models, variant: str, threads: int) -> Path:
    import convert

    # The first run on a machine checks the bundle's sha256s and may leave in the cache what later runs start from.
    convert.run(first_token(sys.executable, models.bundle, "Hello", threads, variant))
    return models.bundle


def first_token(python: str, model: Path, prompt: str, threads: int, variant: str) -> list[str]:
    command = Path(python).with_name("edge")  # the installed command
    start = [str(command)] if command.exists() else [python, "-m", "edge.cli.main"]
    options = [text for name, value in VARIANTS[variant].items() for text in (f"--{name}", value)]
    return [*start, "run", str(model), prompt, "--max-tokens", "1", "--threads", str(threads), *options]


class _Edge:
    def __init__(self, model: Path, threads: int, capacity: int, wide: bool = True, kv: str = "auto") -> None:
        import edge
        from edge.runtime.sampling import make_sampler

        self._model = edge.load(model, context=capacity, threads=threads, kv=kv)
        if not wide:
            self._model.engine.wide = None
        self._cache = self._model.engine.new_cache(capacity)
        vocab = self._model.bundle.manifest.dims.vocab_size
        self._greedy = make_sampler(edge.GenerateOptions(), vocab, [])

    def generate(self, ids: list[int], n: int) -> Timed:
        import numpy as np

        from edge.runtime.answer import never
        from edge.runtime.generate import generate

        self._cache.reset()
        chunk = self._model.prefill_chunk
        start = time.perf_counter()
        prompt = np.asarray(ids, np.int64)
        stream = generate(self._model.engine, self._cache, prompt, self._greedy, chunk=chunk, interrupted=never)
        tokens = [next(stream)]
        first = time.perf_counter()
        for _ in range(n):
            tokens.append(next(stream))
        return Timed(first - start, (time.perf_counter() - first) / max(n, 1), tokens)


def load(model: Path, threads: int, capacity: int, **settings: Any) -> Loaded:
    return _Edge(model, threads, capacity, **settings)
