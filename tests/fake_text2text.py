"""An encoder-decoder without a model: a function of the input's text says what the output is."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
from fake_engine import BOS, END, START, byte_bundle
from path_engine import PathEngine

from edge.manifest import EncoderDims, Generation, TextFormat
from edge.runtime.cache import KVCache
from edge.runtime.engine import Tree
from edge.runtime.text import Text
from edge.runtime.text2text import Text2Text

VOCABULARY = 259
GERMAN, FRENCH, FRENCH_CANADA = 200, 201, 202  # bytes that stand for nothing in the tests' texts
LANGUAGES = {"de_DE": GERMAN, "fr_FR": FRENCH, "fr_CA": FRENCH_CANADA}


class FakeText2TextEngine(PathEngine):
    """Writes `output(text)` byte by byte and ends. What the encoder was given stands in `encoded`.

    The next best token at every place is a `?`, so that a beam search finds more than one text.
    """

    def __init__(self, output: Callable[[str], str], context: int = 1000) -> None:
        super().__init__(lambda path: np.zeros(VOCABULARY), context)
        self.encoded: list[list[int]] = []
        self.caches: set[int] = set()
        self.prompts: list[list[int]] = []  # what the decoder began with
        self.encoder = SimpleNamespace(encode_text=self._encode, max_length=40)
        self._output = output

    def _encode(self, ids: np.ndarray) -> Any:
        self.encoded.append(ids.tolist())
        text = bytes(token for token in ids.tolist() if token < GERMAN).decode()
        return SimpleNamespace(wanted=[*self._output(text).encode(), END])

    def step(
        self, cache: KVCache, tokens: np.ndarray, rows: np.ndarray | None = None, *, tree: Tree | None = None
    ) -> np.ndarray:
        self.caches.add(id(cache))
        if cache.length == 0:
            self.prompts.append(tokens.tolist())
            cache.begins = len(tokens) if rows is None else len(tokens) - len(rows) + 1  # type: ignore[attr-defined]
        self._cache = cache
        return super().step(cache, tokens, rows, tree=tree)

    def _logits(self, path: tuple[int, ...]) -> np.ndarray:
        said, wanted = path[self._cache.begins :], self._cache.cross.wanted  # type: ignore[attr-defined]
        logits = np.zeros(VOCABULARY, np.float32)
        logits[wanted[len(said)] if len(said) < len(wanted) else END] = 10
        logits[ord("?")] += 5
        return logits


def fake_text2text(
    folder: Path,
    output: Callable[[str], str] = str.upper,
    *,
    context: int = 1000,
    form: TextFormat | None = None,
    generation: Generation | None = None,
) -> tuple[Text2Text, FakeText2TextEngine]:
    """A model whose texts are bytes; an encoder takes up to 40 of them, with END behind the text."""
    bundle = byte_bundle(folder, template=None, add_bos=False)
    manifest = dataclasses.replace(
        bundle.manifest,
        kind="encoder-decoder",
        name="fake",
        encoder=EncoderDims(1, 8, 1, 40, "text"),
        text=form or TextFormat(suffix=[END], decoder_start=[START]),
        generation=generation,
    )
    engine = FakeText2TextEngine(output, context)
    engine.bundle.manifest.dims = manifest.dims
    bundle = dataclasses.replace(bundle, manifest=manifest)
    return Text2Text(bundle, engine, Text(bundle)), engine  # type: ignore[arg-type]


__all__ = ["BOS", "END", "FRENCH", "GERMAN", "LANGUAGES", "START", "FakeText2TextEngine", "fake_text2text"]
