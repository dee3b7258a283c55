"""The loss of quality and the gain of speed by a skip policy, compared with the same decoder with nothing skipped."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from edge.bundle import Bundle
from edge.errors import InputError
from edge.runtime.check.perplexity import CHUNK, EngineLogits, Progress, compare, pieces
from edge.runtime.engine.engine import Engine
from edge.runtime.engine.variant import Variant
from edge.runtime.providers import AUTO, open_provider
from edge.runtime.providers.provider import Provider
from edge.runtime.skip import OFF, make_policy, of_halves
from edge.runtime.skip.units import in_units

ROUNDS = 5  # of timed decoding, each engine's in turns, so that a drift of the machine's speed meets both
TIMED = 32  # tokens of a round
WARM = 4  # tokens before them, that are not timed


@dataclass(frozen=True)
class SkipFigures:
    """Figures of a policy and of the whole decoder, on the same tokens."""

    skip: str
    tokens: int  # that were predicted
    perplexity: float
    perplexity_unskipped: float
    top1_agreement: float
    kl_mean: float
    layers_run: float  # mean over the tokens predicted, a feed-forward block or an attention counts half
    tokens_per_s: float  # decoding behind a prompt, alone
    tokens_per_s_unskipped: float

    @property
    def speedup(self) -> float:
        return self.tokens_per_s / self.tokens_per_s_unskipped


class PolicyLogits:
    """The logits of texts whose first `given` tokens are a prompt and whose others run as an answer's do."""

    def __init__(self, engine: Engine, window: int, given: int) -> None:
        assert engine.routes is not None, "an engine without a policy"
        self.vocab_size = engine.bundle.manifest.dims.vocab_size
        self.run = 0.0  # layers, over all tokens behind the prompts
        self.answered = 0  # these tokens
        self._engine, self._routes, self._given = engine, engine.routes, given
        self._cache = engine.new_cache(window)
        self._logits = np.empty((CHUNK, self.vocab_size), np.float32)

    def logits(self, tokens: NDArray[np.int64]) -> Iterator[NDArray[np.float32]]:
        cache, engine, routes = self._cache, self._engine, self._routes
        cache.reset()
        cache.prompt = min(self._given, len(tokens))
        for piece in pieces(tokens):
            at = 0
            while at < len(piece):
                prompt = cache.prompt - cache.length
                size = min(len(piece) - at, prompt if prompt > 0 else engine.max_exact_step(cache))
                self._logits[at : at + size] = engine.step(cache, piece[at : at + size], np.arange(size))
                if prompt <= 0:
                    self.run += routes.layers_run(cache)
                    self.answered += size
                at += size
            yield self._logits[: len(piece)]


def measure(
    bundle: Bundle,
    skips: Sequence[str],
    texts: Sequence[NDArray[np.int64]],
    *,
    window: int,
    given: int,
    provider: Provider | None = None,
    progress: Progress | None = None,
) -> list[SkipFigures]:
    """Figures of each policy of `skips` over windows [S] of a text, of which the first `given` tokens are a prompt.

    Raises:
        InputError: a policy is not known or the bundle lacks what it needs, or nothing is left to predict.
    """
    if not 1 <= given <= window - 2 or all(len(text) < given + 2 for text in texts):
        raise InputError(f"A prompt of {given} tokens leaves nothing of windows of {window} to predict.")
    texts = [text for text in texts if len(text) >= given + 2]
    provider = provider or open_provider(AUTO, manifest=bundle.manifest)
    bundles = [in_units(bundle, provider, halves=of_halves(skip)) for skip in skips]
    # What is wrong with any is said before the first is run.
    policies = [make_policy(skip, each) for skip, each in zip(skips, bundles, strict=True)]
    whole = Engine(bundle, Variant(context=window), provider)
    found = []
    for i, (skip, policy) in enumerate(zip(skips, policies, strict=True)):
        if policy is None:
            raise InputError(f"{OFF} is what policies are measured beside; name a policy.")
        engine = Engine(bundles[i], Variant(context=window, policy=policy), provider)

        def advance(done: int, total: int, i: int = i) -> None:
            if progress is not None:
                progress(i * len(texts) + done, len(skips) * len(texts))

        source = PolicyLogits(engine, window, given)
        agreement = compare(EngineLogits(whole, window), source, texts, advance, given=given)
        speeds = decode_speeds([whole, engine], texts[0][:given], window)
        found.append(
            SkipFigures(
                skip=skip,
                tokens=agreement.tokens,
                perplexity=agreement.candidate,
                perplexity_unskipped=agreement.reference,
                top1_agreement=agreement.top1,
                kl_mean=agreement.kl_mean,
                layers_run=source.run / max(1, source.answered),
                tokens_per_s=speeds[1],
                tokens_per_s_unskipped=speeds[0],
            )
        )
    return found


def decode_speeds(
    engines: Sequence[Engine], prompt: NDArray[np.int64], capacity: int, *, rounds: int = ROUNDS, timed: int = TIMED
) -> list[float]:
    """Tokens per second of greedy decoding after a prompt, for each engine: the median step of rounds in turns. An
    answer is as long as the rounds together, or as the capacity allows."""
    caches, tokens, spent = [], [], [list[float]() for _ in engines]
    for engine in engines:
        cache = engine.new_cache(capacity)
        cache.prompt = len(prompt)
        caches.append(cache)
        tokens.append(engine.step(cache, prompt)[-1].argmax(keepdims=True))
    for _ in range(rounds):
        for i, (engine, cache) in enumerate(zip(engines, caches, strict=True)):
            for step in range(WARM + timed):
                if not cache.room:
                    cache.truncate(len(prompt))
                started = time.perf_counter()
                logits = engine.step(cache, tokens[i])
                if step >= WARM:
                    spent[i].append(time.perf_counter() - started)
                tokens[i] = logits[-1].argmax(keepdims=True)
    return [1 / float(np.median(each)) for each in spent]
