"""The decode loop: a prompt goes into the KV cache chunk by chunk, then tokens come out one by one."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from edge.runtime.sampling import Sampler

if TYPE_CHECKING:
    from edge.runtime.cache import KVCache
    from edge.runtime.engine import Engine


def prefill(
    engine: Engine, cache: KVCache, prompt: NDArray[np.int64], *, chunk: int, interrupted: Callable[[], bool]
) -> NDArray[np.float32] | None:
    """Append `prompt` [P], P >= 1, to the cache in steps of at most `chunk` tokens; logits [1, V] of what follows, or
    None where it was interrupted."""
    for start in range(0, prompt.shape[0], chunk):
        if interrupted():
            return None
        logits = engine.step(cache, prompt[start : start + chunk])
    return logits


def generate(
    engine: Engine,
    cache: KVCache,
    prompt: NDArray[np.int64],
    sampler: Sampler,
    *,
    chunk: int,
    interrupted: Callable[[], bool],
) -> Iterator[int]:
    """Append `prompt` [P], P >= 1, to the cache in steps of at most `chunk` tokens, then sample token after token
    until the cache is full or `interrupted`.

    A token is run when the next one is asked for, so the last token yielded is never in the cache. Which token ends
    an answer is the caller's business.
    """
    logits = prefill(engine, cache, prompt, chunk=chunk, interrupted=interrupted)
    if logits is None:
        return
    token = np.empty(1, np.int64)
    while not interrupted():
        token[0] = sampled = sampler(logits[-1])
        yield sampled
        if cache.length == cache.capacity:
            return
        logits = engine.step(cache, token)
