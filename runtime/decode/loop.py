"""The decode loop: a prompt goes into the KV cache chunk by chunk, then tokens come out, several of a step where drafts
are right."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import AbstractContextManager, closing, nullcontext
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edge.manifest import LONGER
from edge.runtime.decode.draft import NOTHING, Draft
from edge.runtime.decode.sampling import Categorical, Sampler, Uncircling, greedy
from edge.runtime.engine.binding import all_rows
from edge.runtime.engine.cache import KVCache
from edge.runtime.engine.engine import Engine
from edge.runtime.engine.failures import no_token
from edge.runtime.engine.want import CANDIDATES, LOGITS, TOKENS

# Prompts of this many tokens and more run through the int8 prefill graph, where the bundle has one. The same on every
# device and at every call: what was measured, or asked before, must not decide what an answer says.
PREFILL_GRAPH_FROM = 256

Step = Callable[..., Any]
"""`Engine.step`, with what is wanted of it."""
Choose = Callable[[Any], int | None]
"""Makes a token of a row that a step gives; None where the row says too little: it must be logits."""


class Drafts:
    """The drafts of one answer: none, for plain decoding. `edge.runtime.speculate.speculation` has others."""

    def over(
        self, engine: Engine, cache: KVCache, sampler: Sampler, last: int
    ) -> AbstractContextManager[tuple[Step, Choose]]:
        """Begin to draft for a text whose `last` token alone is not in the cache. Gives two functions: one runs the
        text's steps, one chooses a token from each row of their results."""
        return nullcontext(reader(engine, sampler))

    def propose(self, forced: Sequence[int] = (), allowed: Callable[[Sequence[int]], int] = len) -> Draft:
        """Return a draft of the next tokens, as long as pays. forced: tokens with which the text goes on for certain;
        the draft is of what follows them. allowed: gives the number of tokens that may follow, of some in a row."""
        return NOTHING

    def accept(self, tokens: NDArray[np.int64], rows: NDArray[Any], sampled: Sequence[int]) -> None:
        """Learn from a step: it ran `tokens` [S], gave `rows` of what follows the last ones, and the text goes on with
        `sampled`."""


PLAIN = Drafts()


def reader(engine: Engine, sampler: Sampler, *, logits: bool = False) -> tuple[Step, Choose]:
    """Return two functions: one runs a step of an answer, one chooses a token from each row of its result.

    Where nobody but a greedy sampler reads logits, they stay inside the graph, if it can be asked for tokens. logits:
    whether somebody else wants them.
    """
    if engine.chooses and not logits:
        if sampler is greedy:
            return partial(engine.step, want=TOKENS), chosen
        if isinstance(sampler, Uncircling):
            return _uncircling(engine, sampler)
    if engine.remote and isinstance(sampler, Categorical) and not logits:
        return partial(engine.step, want=CANDIDATES), sampler.among
    return engine.step, sampler


def _uncircling(engine: Engine, sampler: Uncircling) -> tuple[Step, Choose]:
    """Logits leave the graph only where the text may be in a circle."""

    def step(*given: Any, **more: Any) -> Any:
        return engine.step(*given, want=LOGITS if sampler.unsure else TOKENS, **more)

    def choose(row: Any) -> int | None:
        if isinstance(row, np.ndarray) and row.ndim:
            return sampler(row)
        token = chosen(row)
        return token if sampler.accepts(token) else None

    return step, choose


def chosen(token: int) -> int:
    """Return the token that a step asked for `TOKENS` chose; BundleError where it found none."""
    if token < 0:
        raise no_token()
    return int(token)


def prefill(
    engine: Engine,
    cache: KVCache,
    tokens: NDArray[np.int64],
    *,
    chunk: int,
    interrupted: Callable[[], bool],
    prompt: int | None = None,
) -> NDArray[np.float32] | None:
    """Append the prompt's `tokens` [P], P >= 1, to the cache in steps of at most `chunk` tokens; logits [1, V] of what
    follows, or None where it was interrupted. prompt: the whole prompt's length; default: with these it is complete."""
    cache.prompt = cache.length + tokens.shape[0] if prompt is None else prompt
    step: Callable[[KVCache, NDArray[np.int64]], NDArray[np.float32]] = engine.step
    total = tokens.shape[0]
    if engine.prefill is not None and total >= PREFILL_GRAPH_FROM:
        step, chunk = engine.prefill.step, LONGER * chunk
    for start in range(0, total, chunk):
        if interrupted():
            return None
        if start + chunk >= total:  # what follows may become another text
            cache.mark(lasting=True)
        logits = step(cache, tokens[start : start + chunk])
    return logits


def generate(
    engine: Engine,
    cache: KVCache,
    prompt: NDArray[np.int64],
    sampler: Sampler,
    *,
    chunk: int,
    interrupted: Callable[[], bool],
    drafts: Drafts = PLAIN,
) -> Generator[int, None, None]:
    """Append `prompt` [P], P >= 1, to the cache in steps of at most `chunk` tokens, then yield what `decode` does."""
    last = int(prompt[-1])
    if cache.length + prompt.shape[0] == 1:  # an encoder-decoder's start: its first step may have a draft
        cache.prompt = 1
    else:
        logits = prefill(engine, cache, prompt, chunk=chunk, interrupted=interrupted)
        if logits is None or interrupted():
            return
        last = sampler(logits[-1])
        yield last
    yield from decode(engine, cache, last, sampler, drafts, interrupted)


def decode(
    engine: Engine, cache: KVCache, last: int, sampler: Sampler, drafts: Drafts, interrupted: Callable[[], bool]
) -> Iterator[int]:
    """Yield the tokens of `decode_steps` one by one.

    The last token yielded is never in the cache, whenever the loop is left. Which token ends an answer is the caller's
    business.
    """
    with closing(decode_steps(engine, cache, last, sampler, drafts, interrupted)) as steps:
        for sampled in steps:
            start = cache.length - len(sampled)
            for n, token in enumerate(sampled, 1):
                cache.length = start + n
                yield token


def decode_steps(
    engine: Engine, cache: KVCache, last: int, sampler: Sampler, drafts: Drafts, interrupted: Callable[[], bool]
) -> Generator[list[int], None, None]:
    """Speculative decoding (Leviathan et al. 2023, algorithm 1) of what follows a text whose `last` token alone is not
    in the cache, until the cache is full or somebody interrupts. Yields the tokens of each step, one or more, of which
    the last one is not in the cache.

    Here the approximation model is certain of each guess, q(x) = 1: drawing t from p and comparing accepts x with
    probability p(x), as the paper does, and what is drawn elsewhere has p's distribution without x. Without a drafter
    gamma is 0, and this is plain decoding.
    """
    t = np.array([last], np.int64)
    with drafts.over(engine, cache, sampler, last) as (step, choose):
        while cache.length < cache.capacity:
            start = cache.length
            x = drafts.propose()  # x_1 to x_gamma, cut to what pays
            if not x.tokens:
                p = step(cache, t)
                if interrupted():
                    return
                token = choose(p[-1])
                assert token is not None, "a step of one token gives what its choice needs"
                drafts.accept(t, p, [token])
                t[0] = token
                yield [token]
                continue
            tokens = np.array([t[0], *x.tokens], np.int64)
            cache.mark()
            p = step(cache, tokens, all_rows(tokens.shape[0])[x.forced :])  # p_1 to p_gamma+1, in one run
            if interrupted():
                cache.truncate(start + 1)
                return
            sampled = accept(p, x, choose)
            if cache.truncate(start + len(sampled)) < start + len(sampled):  # states go back further
                engine.step(cache, tokens[cache.length - start : len(sampled)])
            drafts.accept(tokens, p, sampled)
            t[0] = sampled[-1]
            yield sampled


def accept(p: NDArray[Any], x: Draft, choose: Choose) -> list[int]:
    """Draw tokens until one was not drafted, or one cannot be drawn from its row. Returns the forced ones and those
    drawn; all but the last were drafted.

    Each is drawn from the model's own logits, in the order of the text, exactly as if there were no draft: whatever
    the sampler keeps (random numbers, tokens that were said) goes the same way, and so does the answer.

    Args:
        p: of what follows the text with the forced tokens, then each of the draft's N others: logits [1 + N, V], or
            what else is chosen from, [1 + N].
    """
    rows = p.tolist() if isinstance(p, np.ndarray) and p.ndim == 1 else p
    first = choose(rows[0])
    assert first is not None, "a step gives what its first choice needs"
    sampled = [*x.tokens[: x.forced], first]
    for drafted, row in zip(x.tokens[x.forced :], rows[1:], strict=True):
        if drafted != sampled[-1]:
            break
        token = choose(row)
        if token is None:  # the step that begins with this token will say
            break
        sampled.append(token)
    return sampled
