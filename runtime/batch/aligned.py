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

from edge.errors import InputError
from edge.runtime.batch.answer import Asked, BatchAnswer
from edge.runtime.batch.grow import grown
from edge.runtime.decode.answer import Piece, Timings, pieces
from edge.runtime.decode.generate_options import GenerateOptions
from edge.runtime.decode.grammar import Weighed
from edge.runtime.decode.sampling import greedy
from edge.runtime.engine.engine import Engine
from edge.runtime.engine.prefixes import Prefixes
from edge.runtime.memory.process import held
from edge.runtime.text.tokenizer import Text


def aligned(
    engine: Engine,
    text: Text,
    asked: Asked,
    options: GenerateOptions,
    prefixes: Prefixes,
    *,
    width: int,
    chunk: int,
    started_ns: int,
) -> Generator[Piece, None, None]:
    """Stream one of `options.particles` answers, once all of them have ended, or an interrupted one without a text.
    Answers that reached their maximum length are drawn only where all did, and none that the form led to a dead end.

    Args:
        prefixes, width, chunk: those of `grown`.
        started_ns: `time.perf_counter_ns()` when the answer was asked for.

    Raises:
        InputError: the form cannot be obeyed. While the answer is made: all came to a dead end.
    """
    random = np.random.default_rng(None if isinstance(options.seed, str) else options.seed)
    seeds = random.integers(1 << 63, size=options.particles)
    answers = [
        BatchAnswer(i, asked, dataclasses.replace(options, seed=int(seed)), engine, text)
        for i, seed in enumerate(seeds)
    ]
    timings = Timings(len(asked[0]), simulated=engine.provider.simulated, together=True)

    def tokens() -> Generator[int, None, None]:
        weights, interrupted = np.zeros(len(answers)), options.interrupted
        for each in grown(engine, text, answers, width=width, chunk=chunk, prefixes=prefixes, interrupted=interrupted):
            if each.error is not None and not isinstance(each.error, InputError):
                raise each.error
            weights[each.place] = _weight(each)
            each.sampler = greedy  # memory that the others may have
            held()  # the peak, while the keys and values of all are there
        if any(each.finish == "interrupted" for each in answers):
            return
        timings.cached_tokens = answers[0].timings.cached_tokens
        alive = [each for each in answers if each.error is None]
        if not alive:
            assert answers[0].error is not None
            raise answers[0].error
        ended = [each for each in alive if each.finish == "stop"] or alive
        yield from _drawn(ended, weights, random).tokens

    return pieces(tokens(), text, timings, answers[0].ends, started_ns=started_ns, block=asked[1])


def _drawn(answers: list[BatchAnswer], weights: NDArray[np.float64], random: np.random.Generator) -> BatchAnswer:
    """One of the answers. weights: the logarithm of each one's, by its place."""
    own = weights[[each.place for each in answers]]
    shares = np.exp(own - own.max())
    return answers[random.choice(len(answers), p=shares / shares.sum())]


def _weight(answer: BatchAnswer) -> float:
    assert isinstance(answer.sampler, Weighed), "the sampler of one of several answers in a form"
    return answer.sampler.weight
