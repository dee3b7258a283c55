"""One of several answers in a form, drawn as likely as the model finds them.

Masks draw each token among those that the form allows at that point, so that a beginning is drawn as often as if all
that the model would say after it were allowed, too. Of N answers that were drawn so, one is drawn by p / q, where p is
its probability by the model and q that with which it was drawn: the more answers, the nearer its distribution is to the
model's own over the texts of the form (importance resampling, Rubin 1987; the estimate of the AWRS sampler of Lipkin et
al. 2025 where each mask is known and none of the answers is given up on the way).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Generator

import numpy as np
from numpy.typing import NDArray

from edge.runtime.batch.answer import Asked, BatchAnswer
from edge.runtime.batch.grow import grown
from edge.runtime.decode.answer import Piece, Timings, pieces
from edge.runtime.decode.generate_options import GenerateOptions
from edge.runtime.decode.grammar import Weighed
from edge.runtime.engine.engine import Engine
from edge.runtime.engine.prefixes import Prefixes
from edge.runtime.text.tokenizer import Text


def aligned(
    engine: Engine,
    text: Text,
    asked: Asked,
    options: GenerateOptions,
    *,
    width: int,
    chunk: int,
    prefixes: Prefixes,
    started_ns: int,
) -> Generator[Piece, None, None]:
    """Stream one of `options.particles` answers, once all of them have ended, or an interrupted one without a text.
    Answers that reached their maximum length are drawn only where all did.

    Args:
        width, chunk, prefixes: those of `grown`.
        started_ns: `time.perf_counter_ns()` when the answer was asked for.
    """
    random = np.random.default_rng(None if isinstance(options.seed, str) else options.seed)
    seeds = random.integers(1 << 63, size=options.particles)
    answers = [
        BatchAnswer(i, asked, dataclasses.replace(options, seed=int(seed)), engine, text)
        for i, seed in enumerate(seeds)
    ]

    def tokens() -> Generator[int, None, None]:
        growing = grown(
            *(engine, text, answers), width=width, chunk=chunk, prefixes=prefixes, interrupted=options.interrupted
        )
        if any(each.finish == "interrupted" for each in growing):
            growing.close()
            return
        ended = [each for each in answers if each.finish == "stop"] or answers
        yield from ended[random.choice(len(ended), p=_shares(ended))].tokens

    timings = Timings(len(asked[0]), simulated=engine.provider.simulated, together=True)
    yield from pieces(tokens(), text, timings, answers[0].ends, started_ns=started_ns, block=asked[1])


def _shares(answers: list[BatchAnswer]) -> NDArray[np.float64]:
    """The probability of each answer: its share of all weights."""
    weights = np.array([_weight(each) for each in answers])
    shares: NDArray[np.float64] = np.exp(weights - weights.max())
    shares /= shares.sum()
    return shares


def _weight(answer: BatchAnswer) -> float:
    assert isinstance(answer.sampler, Weighed), "an answer in a form has no thoughts before it"
    return answer.sampler.weight
