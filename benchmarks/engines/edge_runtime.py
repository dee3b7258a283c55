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
VARIANTS: dict[str, dict[str, Any]] = {
    "as it comes": {},
    "KV cache in float32": {"kv": "float32"},
    "KV cache in int8": {"kv": "int8"},
}
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
    """The model over the KV cache that `edge run` takes for a prompt: in int8 behind long ones, where that is faster.

    settings: of `edge.load`; with `kv`, that is taken for all.
    """

    def __init__(self, path: Path, drafts: bool, **settings: Any) -> None:
        import edge

        self.bundle = edge.open_bundle(path)
        self._drafts, self._kv, self._settings = drafts, settings.pop("kv", None), settings
        self._models: dict[str, Any] = {}

    def model(self, prompt: int, answer: int) -> Any:
        """The model for a prompt and an answer of so many tokens, loaded when the first of its kind comes."""
        import edge
        from edge.runtime.faster_kv import Once, faster_kv

        once, threads = Once(prompt, answer), self._settings["threads"]
        kv = self._kv or faster_kv(self.bundle, once, drafts=self._drafts, threads=threads)
        found = self._models.get(kv)
        if found is None:
            found = self._models[kv] = edge.load(self.bundle.root, kv=kv, **self._settings)
        return found


class _Edge:
    def __init__(self, model: Path, threads: int, capacity: int, wide: bool = True, **settings: Any) -> None:
        import edge
        from edge.runtime.sampling import make_sampler

        self._models = ByPrompt(model, drafts=False, context=capacity, threads=threads, **settings)
        self._wide = wide
        self._caches: dict[str, Any] = {}
        vocab = self._models.bundle.manifest.dims.vocab_size
        self._greedy = make_sampler(edge.GenerateOptions(), vocab, [])

    def model(self, prompt: int, answer: int) -> Any:
        """The model for a prompt and an answer of so many tokens."""
        model = self._models.model(prompt, answer)
        if not self._wide:
            model.engine.wide = None
        return model

    def generate(self, ids: list[int], n: int) -> Timed:
        import numpy as np

        from edge.runtime.answer import never
        from edge.runtime.generate import generate

        model = self.model(len(ids), n)
        kind = model.engine.kv.dtype
        cache, chunk = self._caches.get(kind), model.prefill_chunk
        if cache is None:
            cache = self._caches[kind] = model.engine.new_cache()
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
