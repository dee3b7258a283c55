"""This runtime: whole tasks through `edge.load`, a fixed number of tokens through the loops that those run."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

from engines.decoding_engine import Timed

from seq2seq.seq2seq_engine import RECORDING, SPEECH, TEXT, Heard, Loaded, Transcribed, Translated

PACKAGE = "edge-lm"
MODULES = ("edge", "onnxruntime")
IMPORT = "import edge; edge.load"
VARIANTS: dict[str, dict[str, dict[str, Any]]] = {
    SPEECH: {"as it comes": {}},
    RECORDING: {"as it comes": {}},
    TEXT: {"1 thread": {"threads": 1}, "2 threads": {"threads": 2}},
}


class _Edge:
    def __init__(self, model: Path, threads: int) -> None:
        import edge

        self._model: Any = edge.load(model, threads=threads)
        self._cross: Any = None
        self._caches: dict[int, Any] = {}

    def whole_windows(self) -> None:
        """Let the encoder read whole windows alone, as that of a bundle from before it took shorter ones."""
        self._model.engine.encoder.any_length = False

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

    def transcribe(self, pcm: str, beams: int) -> Transcribed:
        import numpy as np

        import edge

        options = edge.TranscribeOptions(
            language="en",
            beams=beams,
            temperatures=(0.0,),
            compression_ratio_threshold=None,
            logprob_threshold=None,
            no_speech_threshold=None,
        )
        samples = np.load(pcm)
        start = time.perf_counter()
        said = self._model.transcribe(samples, options)
        seconds = time.perf_counter() - start
        return Transcribed(seconds, [(s.start, s.end, s.text) for s in said.segments])

    def translate(self, texts: list[str], beams: int, n: int, batch: int) -> Translated:
        import edge

        options = edge.Text2TextOptions(beams=beams, max_tokens=n)
        start = time.perf_counter()
        found = [self._model.generate(text, options).text for text in texts]
        return Translated(time.perf_counter() - start, found)

    def generate(self, ids: list[int], n: int) -> Timed:
        """As `engines.decoding_engine.Loaded` has it: encoder and first token, then `n` steps, past any end token."""
        import numpy as np

        from edge.runtime.decode.generate_options import never
        from edge.runtime.decode.loop import generate
        from edge.runtime.decode.sampling import greedy

        engine = self._model.engine
        prompt = np.array(self._model.bundle.manifest.text.decoder_start)
        start = time.perf_counter()
        self._cross = engine.encoder.encode_text(np.array(ids), into=self._cross)
        if n not in self._caches:
            self._caches[n] = engine.new_cache(len(prompt) + n, self._cross)
        cache = self._caches[n]
        cache.reset(self._cross)
        stream = generate(engine, cache, prompt, greedy, chunk=len(prompt), interrupted=never)
        tokens = [next(stream)]
        first = time.perf_counter()
        for _ in range(n):
            tokens.append(next(stream))
        return Timed(first - start, (time.perf_counter() - first) / max(n, 1), tokens)


def load(model: Path, threads: int, capacity: int, task: str = TEXT) -> Loaded:
    return _Edge(model, threads)
