"""The decode loop: a prompt goes into the KV cache chunk by chunk, then tokens come out one by one."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from edge.runtime.sampling import Sampler, greedy

# Tokens of a prompt from which on it is read in the wide form, where the bundle has one. The same number on every
# device and at every call: what was measured, or asked before, must not decide what an answer says.
WIDE_FROM = 256
LONGER = 2  # steps of the wide form are so many times as long: 256 tokens were 10% faster than 128, and as fast as 512

if TYPE_CHECKING:
    from edge.runtime.cache import KVCache
    from edge.runtime.engine import Engine


def prefill(
    engine: Engine, cache: KVCache, prompt: NDArray[np.int64], *, chunk: int, interrupted: Callable[[], bool]
) -> NDArray[np.float32] | None:
    """Append `prompt` [P], P >= 1, to the cache in steps of at most `chunk` tokens; logits [1, V] of what follows, or
    None where it was interrupted."""
    cache.prompt = cache.length + prompt.shape[0]
    step: Callable[[KVCache, NDArray[np.int64]], NDArray[np.float32]] = engine.step
    total = prompt.shape[0]
    if engine.wide is not None and total >= WIDE_FROM:
        step, chunk = engine.wide.step, LONGER * chunk
    for start in range(0, total, chunk):
        if interrupted():
            return None
        logits = step(cache, prompt[start : start + chunk])
    return logits


def reader(
    engine: Engine, sampler: Sampler, *, logits: bool = False
) -> tuple[Callable[..., NDArray[Any]], Callable[[Any], int]]:
    """What runs a step of an answer, and what makes a token of each row that it gives.

    Where nobody but a greedy sampler reads logits, they stay inside the graph, if it can be asked for tokens. logits:
    whether somebody else wants them.
    """
    if sampler is greedy and engine.chooses and not logits:
        return engine.choose, int
    return engine.step, sampler


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
    step, choose = reader(engine, sampler)
    token = np.array([sampler(logits[-1])], np.int64)
    while not interrupted():
        yield int(token[0])
        if cache.length == cache.capacity:
            return
        token[0] = choose(step(cache, token)[-1])
