"""All that a quick export measures of a model, in one run of the reference in numpy: reading the weights is most of the
time."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from edge.export.lower.cpu.kv8 import Largest, no_rows, take_largest
from edge.export.quantize.smooth import TOKENS, Moments
from edge.export.reference import Reference
from edge.export.torch_reference import RecordedLogits

if TYPE_CHECKING:
    from edge.export.checkpoint.base import Checkpoint
    from edge.export.quantize.base import Progress

Floats = NDArray[np.float32]


class Survey(Moments):
    """What smoothing needs and the largest keys and values of each layer, on the calibration text's beginning, and the
    logits of the check's text.

    calibration: [S]. check: the check's text [S]; None: there is no check. file: where its logits are kept.
    """

    recorded: RecordedLogits | None = None

    def __init__(
        self,
        checkpoint: Checkpoint,
        context: int,
        calibration: NDArray[np.int64],
        check: NDArray[np.int64] | None,
        file: Path,
        progress: Progress | None = None,
    ) -> None:
        super().__init__()
        self.largest: list[Largest] = []
        self._reference = reference = Reference(checkpoint, context, progress)
        texts = [calibration[: min(TOKENS, context)]]
        if check is None:
            reference.hidden(texts, self)
            return
        read, _ = reference.hidden([check, *texts], self)
        self.recorded = RecordedLogits(_Read(reference, read), [check], file)

    def attention(self, layer: int, key: Floats, value: Floats, texts: Sequence[slice]) -> None:
        found = no_rows(len(key), key.shape[-1])
        take_largest(found, key[:, texts[-1]], value[:, texts[-1]], self._reference.rotated(layer))
        self.largest.append(found)


class _Read:
    """The logits of a text, of which it is known what the output head reads."""

    def __init__(self, reference: Reference, hidden: Floats) -> None:
        self.vocab_size = reference.vocab_size
        self._reference, self._hidden = reference, hidden

    def logits(self, tokens: NDArray[np.int64]) -> Iterator[Floats]:
        return self._reference.predictions(self._hidden)
