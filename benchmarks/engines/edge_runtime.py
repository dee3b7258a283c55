"""This runtime, measured through its own decode loop."""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import Any

from engines.decoding_engine import Loaded, Models, Timed

PACKAGE = "edge-lm"
MODULES = ("edge", "onnxruntime")
IMPORT = "import edge; edge.load"
VARIANTS: dict[str, dict[str, Any]] = {
    "one token a step": {"exact": False},  # as the peers run
    "KV cache in int8": {"exact": False, "kv": "int8"},
    "exact": {"exact": True},  # as `edge run` does, which drafts besides
}
TRIED = ("one token a step",)  # unless --variant names another


def prepare(models: Models, variant: str, threads: int) -> Path:
    import convert

    # The first run on a machine checks the bundle's sha256s and may leave in the cache what later runs start from.
    convert.run(first_token(sys.executable, models.bundle, "Hello", threads, variant))
    return models.bundle


def first_token(python: str, model: Path, prompt: str, threads: int, variant: str) -> list[str]:
    command = Path(python).with_name("edge")  # the installed command
    start = [str(command)] if command.exists() else [python, "-m", "edge.cli.main"]
    settings = VARIANTS[variant]
    options = ["--exact" if settings["exact"] else "--no-exact", "--kv", settings.get("kv", "auto")]
    return [*start, "run", str(model), prompt, "--max-tokens", "1", "--threads", str(threads), *options]


class _Edge:
    def __init__(self, path: Path, threads: int, capacity: int, prefill: bool = True, **settings: Any) -> None:
        import edge
        from edge.runtime.decode.sampling import make_sampler

        self.model = edge.load(path, threads=threads, context=capacity, **settings)
        if not prefill:
            self.model.engine.prefill = None
        self._cache = self.model.engine.new_cache()
        self._greedy = make_sampler(edge.GenerateOptions(circles="allow"))

    def generate(self, ids: list[int], n: int) -> Timed:
        import numpy as np

        from edge.runtime.decode.generate_options import never
        from edge.runtime.decode.loop import generate

        self._cache.reset()
        start, prompt = time.perf_counter(), np.asarray(ids, np.int64)
        chunk = self.model.prefill_chunk
        stream = generate(self.model.engine, self._cache, prompt, self._greedy, chunk=chunk, interrupted=never)
        tokens = [next(stream)]
        first = time.perf_counter()
        for _ in range(n):
            tokens.append(next(stream))
        return Timed(first - start, (time.perf_counter() - first) / max(n, 1), tokens)


def load(model: Path, threads: int, capacity: int, **settings: Any) -> Loaded:
    return _Edge(model, threads, capacity, **settings)
