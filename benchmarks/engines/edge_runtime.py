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


class ByPrompt:
    """The model as `edge run` loads it for a prompt: behind long ones over a KV cache in int8, where that is faster."""

    def __init__(self, path: Path, drafts: bool, **settings: Any) -> None:
        import edge

        self.bundle = edge.open_bundle(path)
        self._drafts, self._settings = drafts, settings
        self._models: dict[str, Any] = {}

    def model(self, prompt: int) -> Any:
        """The model for a prompt of so many tokens, loaded when the first of its kind comes."""
        import edge
        from edge.runtime.faster_kv import faster_kv

        settings = {"kv": faster_kv(self.bundle, prompt, drafts=self._drafts, threads=self._settings["threads"])}
        settings |= self._settings
        if settings["kv"] not in self._models:
            self._models[settings["kv"]] = edge.load(self.bundle.root, **settings)
            _ = self._models[settings["kv"]].engine
        return self._models[settings["kv"]]


class _Edge:
    def __init__(self, model: Path, threads: int, capacity: int, wide: bool = True, **settings: Any) -> None:
        import edge
        from edge.runtime.sampling import make_sampler

        self._models = ByPrompt(model, drafts=False, context=capacity, threads=threads, **settings)
        self._wide = wide
        self._caches: dict[str, Any] = {}
        vocab = self._models.bundle.manifest.dims.vocab_size
        self._greedy = make_sampler(edge.GenerateOptions(), vocab, [])

    def generate(self, ids: list[int], n: int) -> Timed:
        import numpy as np

        from edge.runtime.answer import never
        from edge.runtime.generate import generate

        model = self._models.model(len(ids))
        if not self._wide:
            model.engine.wide = None
        kind = model.engine.kv.dtype
        if kind not in self._caches:
            self._caches[kind] = model.engine.new_cache()
        cache, chunk = self._caches[kind], model.prefill_chunk
        cache.reset()
        start = time.perf_counter()
        prompt = np.asarray(ids, np.int64)
        stream = generate(model.engine, cache, prompt, self._greedy, chunk=chunk, interrupted=never)
        tokens = [next(stream)]
        first = time.perf_counter()
        for _ in range(n):
            tokens.append(next(stream))
        return Timed(first - start, (time.perf_counter() - first) / max(n, 1), tokens)


def load(model: Path, threads: int, capacity: int, **settings: Any) -> Loaded:
    return _Edge(model, threads, capacity, **settings)
