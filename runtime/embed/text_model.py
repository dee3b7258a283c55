"""The common base of `Embedder` and `Reranker`: a bundle, its engine and its tokenizer, and steps of texts."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator, Sequence
from typing import Self

import numpy as np
from numpy.typing import NDArray

from edge.bundle import Bundle
from edge.errors import InputError
from edge.runtime.background import Background
from edge.runtime.embed.encoded import Encoded
from edge.runtime.embed.engine import EmbedEngine
from edge.runtime.memory.process import release_freed
from edge.runtime.memory.shares import closed
from edge.runtime.options import shown
from edge.runtime.text.tokenizer import Text


class TextModel:
    """A model in memory that reads whole texts and answers nothing. Several threads may use it at a time.

    Args:
        bundle: the opened bundle.
        engine: the engine over it, which may still be loading.
        text: its tokenizer.
    """

    def __init__(self, bundle: Bundle, engine: EmbedEngine | Background[EmbedEngine], text: Text) -> None:
        assert bundle.manifest.embedding is not None
        self.bundle, self.text, self.format = bundle, text, bundle.manifest.embedding
        self._engine: EmbedEngine | Background[EmbedEngine] | None = engine

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Release the weights. It reads no more texts: those under way end at their next step with an InputError."""
        engine, self._engine = self._engine, None
        if engine is not None and not isinstance(engine, Background):
            engine.close()
        gc.collect()
        release_freed()

    @property
    def engine(self) -> EmbedEngine:
        """The engine, as soon as it has loaded; InputError where the model was closed."""
        engine = self._engine
        if engine is None:
            raise InputError(closed(self.bundle.manifest.name))
        if isinstance(engine, Background):
            self._engine = engine = engine.result()
            release_freed()
        return engine

    def wait(self) -> None:
        """Wait until the engine has loaded. Its errors are raised here, and not as a fault of a text."""
        self.engine.check_open()

    def run(self, texts: Sequence[Encoded], *, interrupted: Callable[[], bool] = lambda: False) -> NDArray[np.float32]:
        """Return what the graph makes of each text, [texts, width]. interrupted: is asked before each step; True ends
        the work with an InputError."""
        engine = self.engine
        made = np.empty((len(texts), self.format.width), np.float32)
        typed = self.format.pair is not None and self.format.pair.types
        for places in _steps([len(text.ids) for text in texts], engine.room.step):
            if interrupted():
                raise InputError("The work was interrupted.")
            ids = np.array([texts[place].ids for place in places], np.int64)
            types = None
            if typed:
                seconds = np.array([[texts[place].second] for place in places])
                types = (np.arange(ids.shape[1]) >= seconds).astype(np.int64)
            made[places] = engine.step(ids, types)
        return made

    def encode(self, text: object, named: str, before: str = "") -> list[int]:
        """Return the token ids of a text without blanks around, and with `before` in front. named: it, in a sentence.

        Raises:
            InputError: it is no text.
        """
        if not isinstance(text, str):
            raise InputError(f"{self.bundle.manifest.name} reads texts, not {shown(text)}, which is {named}.")
        whole = (before + text).strip()
        return self.text.encode_content(whole.lower() if self.format.lowercase else whole) if whole else []

    def too_long(self, named: str, tokens: int) -> InputError:
        """The error of a text of more tokens than the model takes."""
        room = self.engine.room
        why = " in the memory that it may take" if room.limited else ""
        return InputError(
            f"{named} has {tokens} tokens, and {self.bundle.manifest.name} takes {room.context} at most{why}; shorten "
            "it, or let it be cut (--truncate)."
        )


def _steps(lengths: Sequence[int], room: int) -> Iterator[list[int]]:
    """The places of texts of one length, as many as fit into a step of `room` tokens; the longest first, for which
    memory is taken once."""
    by_length: dict[int, list[int]] = {}
    for place, length in enumerate(lengths):
        by_length.setdefault(length, []).append(place)
    for length in sorted(by_length, reverse=True):
        places, count = by_length[length], max(1, room // length)
        for start in range(0, len(places), count):
            yield places[start : start + count]
