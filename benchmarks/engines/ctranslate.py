"""CTranslate2, int8, through its own classes: no faster-whisper around it, whose imports would count as its memory."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

from engines import SPEECH, TEXT, Heard, Translated

PACKAGE = "ctranslate2"
MODULES = ("ctranslate2", "tokenizers", "numpy")
IMPORT = "import ctranslate2"
VARIANTS: dict[str, dict[str, dict[str, Any]]] = {
    SPEECH: {"int8": {}},
    TEXT: {"1 thread": {"threads": 1}, "2 threads": {"threads": 2}},
}


class _Speech:
    def __init__(self, model: Path, settings: dict[str, Any]) -> None:
        import ctranslate2

        self._c = ctranslate2
        self._model = ctranslate2.models.Whisper(str(model), **settings)

    def hear(self, pcm: str, features: str, prompt: list[int], suppress: list[int], beams: int, n: int) -> Heard:
        import numpy as np

        view = self._c.StorageView.from_array(np.load(features))
        start = time.perf_counter()
        encoded = self._model.encode(view)
        middle = time.perf_counter()
        # Half of max_length is what it generates. A suppressed end token keeps it from ending before that.
        found = self._model.generate(
            encoded, [prompt], beam_size=beams, max_length=2 * n, suppress_tokens=suppress, suppress_blank=False
        )
        return Heard(middle - start, time.perf_counter() - middle, list(found[0].sequences_ids[0]))


class _Text:
    def __init__(self, model: Path, settings: dict[str, Any]) -> None:
        import ctranslate2
        from tokenizers import Tokenizer

        self._tokenizer = Tokenizer.from_file(str(model / "tokenizer.json"))
        self._model = ctranslate2.Translator(str(model), **settings)

    def translate(self, texts: list[str], beams: int, n: int) -> Translated:
        start = time.perf_counter()
        found = [self._one(text, beams, n) for text in texts]
        return Translated(time.perf_counter() - start, found)

    def _one(self, text: str, beams: int, n: int) -> str:
        tokens = self._tokenizer.encode(text).tokens
        best = self._model.translate_batch([tokens], beam_size=beams, max_decoding_length=n)[0].hypotheses[0]
        return str(self._tokenizer.decode([self._tokenizer.token_to_id(token) for token in best]))


def load(model: Path, threads: int, capacity: int, task: str) -> _Speech | _Text:
    settings = {"device": "cpu", "compute_type": "int8", "intra_threads": threads, "inter_threads": 1}
    return (_Speech if task == SPEECH else _Text)(model, settings)
