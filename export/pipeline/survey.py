"""All that a quick export measures of a model, in one run of the reference in numpy, so that weights are read once."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from edge.export.reference.in_numpy import Observer, Reference
from edge.export.reference.in_torch import RecordedLogits
from edge.export.targets.cpu.kv8 import Largest, no_rows, take_largest

if TYPE_CHECKING:
    from edge.export.facts.checkpoint import Checkpoint
    from edge.export.facts.progress import Progress

Floats = NDArray[np.float32]


class Survey(Observer):
    """The largest keys and values of each layer, and the logits of the check's text; `method` is told the rest.

    method: knows its texts. check: the check's text [S]; None: there is no check. file: where its logits are kept.
    """

    recorded: RecordedLogits | None = None

    def __init__(
        self,
        checkpoint: Checkpoint,
        context: int,
        method: Observer,
        check: NDArray[np.int64] | None,
        file: Path,
        progress: Progress | None = None,
    ) -> None:
        self.largest: list[Largest] = []
        self.method = method
        self._reference = reference = Reference(checkpoint, context, progress, method.doing)
        texts = [text[:context] for text in method.texts]
        if check is None:
            reference.hidden(texts, self)
            return
        read, *_ = reference.hidden([check, *texts], self)
        self.recorded = RecordedLogits(_Read(reference, read), [check], file)

    def product(self, name: str, x: Floats, weight: Floats, texts: Sequence[slice]) -> None:
        self.method.product(name, x, weight, texts)

    def attention(self, layer: int, key: Floats, value: Floats, texts: Sequence[slice]) -> None:
        found = no_rows(len(key), key.shape[-1])
        own = slice(texts[-len(self.method.texts)].start, texts[-1].stop)
        take_largest(found, key[:, own], value[:, own], self._reference.rotated(layer))
        self.largest.append(found)

    def scores(self, head: int, scores: Floats, text: slice) -> None:
        self.method.scores(head, scores, text)

    def finals(self, x: Floats, texts: Sequence[slice]) -> None:
        self.method.finals(x, texts)


class _Read:
    """The logits of a text whose hidden states before the output head are known."""

    def __init__(self, reference: Reference, hidden: Floats) -> None:
        self.vocab_size = reference.vocab_size
        self._reference, self._hidden = reference, hidden

    def logits(self, tokens: NDArray[np.int64]) -> Iterator[Floats]:
        return self._reference.predictions(self._hidden)
