"""This runtime, measured through its own loops."""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import Any

from engines import DECODER, SPEECH, TEXT, Heard, Models, Timed, Translated

PACKAGE = "edge-lm"
MODULES = ("edge", "onnxruntime")
IMPORT = "import edge; edge.load"
VARIANTS: dict[str, dict[str, dict[str, Any]]] = {
    DECODER: {
        "one token a step": {"exact": False},  # as the peers run
        "KV cache in int8": {"exact": False, "kv": "int8"},
        "without the int8 prefill graph": {"exact": False, "prefill": False},
        "exact": {"exact": True},  # as `edge run` does, which drafts besides
    },
    SPEECH: {"as it comes": {}},
    TEXT: {"1 thread": {"threads": 1}, "2 threads": {"threads": 2}},
}
TRIED = ("one token a step",)  # of a decoder, unless --variant names another


def prepare(models: Models, variant: str, threads: int) -> Path:
    import convert

    # The first run on a machine checks the bundle's sha256s and may leave in the cache what later runs start from.
    convert.run(first_token(sys.executable, models.bundle, "Hello", threads, variant))
    return models.bundle


def first_token(python: str, model: Path, prompt: str, threads: int, variant: str) -> list[str]:
    command = Path(python).with_name("edge")  # the installed command
    start = [str(command)] if command.exists() else [python, "-m", "edge.cli.main"]
    settings = VARIANTS[DECODER][variant]
    options = ["--exact" if settings["exact"] else "--no-exact", "--kv", settings.get("kv", "auto")]
    return [*start, "run", str(model), prompt, "--max-tokens", "1", "--threads", str(threads), *options]


def from_gguf(python: str, gguf: Path, cache: Path, prompt: str, threads: int) -> list[str]:
    return first_token(python, gguf, prompt, threads, "exact")  # EDGE_HOME is the cache


class _Decoder:
    def __init__(self, path: Path, threads: int, capacity: int, prefill: bool = True, **settings: Any) -> None:
        import edge
        from edge.runtime.decode.sampling import make_sampler

        self.model: Any = edge.load(path, threads=threads, context=capacity, **settings)
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


class _EncoderDecoder:
    def __init__(self, model: Path, threads: int) -> None:
        import edge

        self._model: Any = edge.load(model, threads=threads)
        self._cross: Any = None
        self._caches: dict[int, Any] = {}

    def hear(self, pcm: str, features: str, prompt: list[int], suppress: list[int], beams: int, n: int) -> Heard:
        import numpy as np

        samples = np.load(pcm)
        start = time.perf_counter()
        self._cross = self._model.engine.encoder.encode_audio(samples, into=self._cross)
        encoded = time.perf_counter()
        tokens = self._decode(prompt, suppress, beams, n)
        return Heard(encoded - start, time.perf_counter() - encoded, tokens)

    def _decode(self, prompt: list[int], suppress: list[int], beams: int, n: int) -> list[int]:
        import numpy as np

        from edge.runtime.decode.beam import beam_search, new_cache
        from edge.runtime.decode.beam_options import BeamOptions
        from edge.runtime.decode.generate_options import never
        from edge.runtime.decode.loop import generate
        from edge.runtime.decode.rules.suppress import Suppress
        from edge.runtime.decode.sampling import ProcessedSampler, greedy

        engine, eos = self._model.engine, self._model.text.eos
        options = BeamOptions(beams, max_tokens=n)
        if beams not in self._caches:
            self._caches[beams] = new_cache(engine, len(prompt), options, self._cross)
        cache = self._caches[beams]
        cache.reset(self._cross)
        forbidden = Suppress([*suppress, *eos])
        if beams > 1:
            return beam_search(engine, cache, prompt, options, eos=eos, processors=[forbidden])[0].token_ids
        sampler = ProcessedSampler([forbidden], greedy, prompt)
        stream = generate(engine, cache, np.array(prompt), sampler, chunk=len(prompt), interrupted=never)
        return [next(stream) for _ in range(n)]

    def translate(self, texts: list[str], beams: int, n: int) -> Translated:
        import edge

        options = edge.Text2TextOptions(beams=beams, max_tokens=n)
        start = time.perf_counter()
        found = [self._model.generate(text, options).text for text in texts]
        return Translated(time.perf_counter() - start, found)


def load(model: Path, threads: int, capacity: int, task: str, **settings: Any) -> _Decoder | _EncoderDecoder:
    return _Decoder(model, threads, capacity, **settings) if task == DECODER else _EncoderDecoder(model, threads)
