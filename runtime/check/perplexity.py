"""Perplexity of one source of logits, and how far two of them agree: numpy and the engine, no torch.

Tokens are cut into windows that do not overlap; every token of a window but the first is predicted, and the perplexity
is the exponential of the mean negative log-likelihood over all predicted tokens (docs/guide/export.md). Where the
tokenizer asks for a beginning-of-text token every window starts with one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray

from edge.bundle import Bundle
from edge.errors import InputError
from edge.manifest import Tokens
from edge.runtime.decode.log_softmax import log_softmax
from edge.runtime.engine.engine import Engine

ROWS = 4  # of logits that are judged at a time, which takes six times their memory; pieces have a multiple of them
CHUNK = 64  # rows of logits at a time: 13 MB of float32 at a vocabulary of 49,152

N = TypeVar("N", np.int64, np.float32)
Progress = Callable[[int, int], None]  # windows done, windows in all


class LogitsSource(Protocol):
    """The protocol of models that can be measured: a bundle's engine, or the Torch model that it came from."""

    @property
    def vocab_size(self) -> int: ...

    def logits(self, tokens: NDArray[np.int64]) -> Iterator[NDArray[np.float32]]:
        """Yield the logits of `tokens` [S], an independent text, in consecutive pieces [CHUNK or fewer, V], each valid
        until the next one."""
        ...


class EngineLogits:
    """The logits of a bundle, on a separate KV cache for `window` tokens. prefill: those of its int8 prefill graph.
    chunk: maximum tokens of a step."""

    def __init__(self, engine: Engine, window: int, *, prefill: bool = False, chunk: int = CHUNK) -> None:
        self.vocab_size = engine.bundle.manifest.dims.vocab_size
        assert not prefill or engine.prefill is not None
        self._step = engine.prefill.step if prefill and engine.prefill is not None else engine.step
        self._cache = engine.new_cache(window)
        self._chunk = chunk

    def logits(self, tokens: NDArray[np.int64]) -> Iterator[NDArray[np.float32]]:
        self._cache.reset()
        for piece in pieces(tokens):
            for step in pieces(piece, self._chunk):
                yield self._step(self._cache, step, np.arange(len(step)))


def pieces(tokens: NDArray[N], size: int = CHUNK) -> Iterator[NDArray[N]]:
    """`tokens` [S], or rows, in consecutive pieces of `size`."""
    for start in range(0, len(tokens), size):
        yield tokens[start : start + size]


@dataclass(frozen=True)
class Perplexity:
    perplexity: float
    tokens: int  # that were predicted


@dataclass(frozen=True)
class Agreement:
    """Comparison of a candidate with a reference, on the same predicted tokens."""

    tokens: int
    top1: float  # share of positions where both find the same token most likely
    kl_mean: float  # Kullback-Leibler divergence of the candidate from the reference, in nats a token
    kl_p95: float
    reference: float  # perplexity
    candidate: float  # perplexity


def check_decoder(bundle: Bundle) -> None:
    """Raise InputError where a bundle is not a decoder alone: others need an input besides the text."""
    if bundle.manifest.speech is not None:
        raise InputError(f"{bundle.manifest.name} reads audio, and the perplexity of a text is of decoders alone.")
    if bundle.manifest.encoder is not None:
        raise InputError(
            f"{bundle.manifest.name} is an encoder-decoder, and the perplexity of a text is of decoders alone; "
            "--translate or --summarize measures this one."
        )


def check_window(window: int, context: int) -> None:
    """Raise InputError where a window is too short to predict anything, or longer than the model's context."""
    if window < 2:
        raise InputError(f"A window of {window} tokens leaves nothing to predict; choose --window 2 or more.")
    if window > context:
        raise InputError(
            f"A window of {window} tokens is more than the model's context of {context}; choose --window {context} "
            "or less."
        )


def windows(ids: Sequence[int], special: Tokens, *, window: int, limit: int | None = None) -> list[NDArray[np.int64]]:
    """A text's token ids, at most `limit` of them, as windows of `window` tokens (`check_window`), the last one perhaps
    shorter; InputError where the limit is less than 2, or the text has fewer than 2 tokens."""
    if limit is not None and limit < 2:
        raise InputError(f"--tokens {limit} leaves nothing to predict; choose 2 or more.")
    taken = np.asarray(ids[:limit], np.int64)
    if len(taken) < 2:
        raise InputError(f"The text has {len(taken)} tokens, and a perplexity needs at least 2; give a longer one.")
    size = window - len(special.lead)
    cut = [np.concatenate([special.lead, taken[i : i + size]]).astype(np.int64) for i in range(0, len(taken), size)]
    return [w for w in cut if len(w) >= 2]


def perplexity(
    source: LogitsSource, texts: Sequence[NDArray[np.int64]], progress: Progress | None = None
) -> Perplexity:
    """The perplexity of `source` on windows [S] made by `windows`."""
    nll, count = 0.0, 0
    for tokens in _told(texts, progress):
        for logits, targets in _predictions(source, tokens):
            nll -= float(_of_targets(log_softmax(logits), targets).sum())
            count += len(targets)
    return Perplexity(_exp(nll / count), count)


def compare(
    reference: LogitsSource,
    candidate: LogitsSource,
    texts: Sequence[NDArray[np.int64]],
    progress: Progress | None = None,
    *,
    given: int = 1,
) -> Agreement:
    """Compare `candidate` with `reference` on the same windows, whose first `given` tokens are not predicted;
    InputError where their vocabularies have different sizes."""
    if reference.vocab_size != candidate.vocab_size:
        raise InputError(
            f"The vocabularies differ: {candidate.vocab_size} tokens and {reference.vocab_size}; only models with "
            "the same vocabulary can be compared."
        )
    same, nll_reference, nll_candidate = 0, 0.0, 0.0
    divergences: list[NDArray[np.float32]] = []
    for tokens in _told(texts, progress):
        for (p, targets), (q, _) in zip(
            _predictions(reference, tokens, given), _predictions(candidate, tokens, given), strict=True
        ):
            log_p, log_q = log_softmax(p), log_softmax(q)
            divergence = _divergence(log_p, log_q)
            same += int(((log_p.argmax(-1) == log_q.argmax(-1)) & ~np.isnan(divergence)).sum())
            nll_reference -= float(_of_targets(log_p, targets).sum())
            nll_candidate -= float(_of_targets(log_q, targets).sum())
            divergences.append(divergence)
    kl = np.concatenate(divergences)
    return Agreement(
        tokens=len(kl),
        top1=same / len(kl),
        kl_mean=float(kl.mean(dtype=np.float64)),
        kl_p95=float(np.percentile(kl, 95)),
        reference=_exp(nll_reference / len(kl)),
        candidate=_exp(nll_candidate / len(kl)),
    )


def _told(texts: Sequence[NDArray[np.int64]], progress: Progress | None) -> Iterator[NDArray[np.int64]]:
    """The texts, with progress told before each and after the last."""
    tell = progress or (lambda done, total: None)
    for done, tokens in enumerate(texts):
        tell(done, len(texts))
        yield tokens
    tell(len(texts), len(texts))


def _predictions(
    source: LogitsSource, tokens: NDArray[np.int64], given: int = 1
) -> Iterator[tuple[NDArray[np.float32], NDArray[np.int64]]]:
    """A few rows of logits [R, V] at a time and the R tokens that follow, from token `given` on."""
    start = 1
    for logits in chain.from_iterable(pieces(piece, ROWS) for piece in source.logits(tokens)):
        targets = tokens[start : start + len(logits)]  # the window's last token predicts nothing
        left_out = max(0, given - start)
        start += len(logits)
        if len(targets) > left_out:
            yield logits[left_out : len(targets)], targets[left_out:]


def _of_targets(log_p: NDArray[np.float32], targets: NDArray[np.int64]) -> NDArray[np.float64]:
    return log_p[np.arange(len(targets)), targets].astype(np.float64)


def _divergence(log_p: NDArray[np.float32], log_q: NDArray[np.float32]) -> NDArray[np.float32]:
    """KL(p || q) [R]. A token that p rules out (a log-probability of -inf) contributes nothing; NaN in either
    is NaN in the result."""
    p = np.exp(log_p)
    terms = p * np.subtract(log_p, log_q, out=np.zeros_like(p), where=p != 0)
    divergence: NDArray[np.float32] = np.maximum(terms.sum(-1), 0).astype(np.float32)
    return divergence


def _exp(nll: float) -> float:
    """exp, infinite where it overflows: a broken model's perplexity."""
    return float(np.exp(np.float64(nll))) if nll < 700 else float("inf")
