"""A bundle's file of candidates, with which the drafter `recycle` begins."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from edge.bundle import BundleWriter
from edge.export.quantize.method import Options
from edge.runtime.engine.engine import Engine
from edge.runtime.speculate.recycle import CANDIDATES, SEED, matrix_rows, write_seed

ROWS = 64  # of logits at a time: 13 MB at a 49k vocabulary


def write_candidates(writer: BundleWriter, engine: Engine, windows: NDArray[np.int64], options: Options) -> None:
    """Run `windows` [W, S] of text, and write the model's likely tokens after each token's last occurrence."""
    vocab, windows = engine.bundle.manifest.dims.vocab_size, windows[:, : engine.context]
    size = windows.shape[1]
    count = min(CANDIDATES, vocab)
    candidates, sure = np.zeros((vocab, count), np.uint32), np.zeros(vocab, np.uint8)
    seen = np.zeros(vocab, np.bool_)
    cache = engine.new_cache(size)
    for done, window in enumerate(windows):
        options.report(done, len(windows), "collecting candidates for drafts")
        cache.reset()
        for start in range(0, size, ROWS):
            tokens = window[start : start + ROWS]
            logits = engine.step(cache, tokens, np.arange(tokens.shape[0]))
            candidates[tokens], sure[tokens] = matrix_rows(logits, count)
            seen[tokens] = True
    tokens = np.flatnonzero(seen)
    writer.write_file(SEED, write_seed(tokens, candidates[tokens], sure[tokens]))
