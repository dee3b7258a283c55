"""The gain of speed by a skip policy on this device, and its cost for this bundle, compared with the whole decoder.

Both decode the same recorded prompt in turns, an answer of a few tokens at a time: of a policy whose layers fall in the
course of an answer, all that it does in one is measured.
"""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Sequence
from statistics import median

from edge.bundle import Bundle
from edge.errors import InputError
from edge.golden import GoldenCase, read_golden
from edge.runtime.choose import choose
from edge.runtime.costs.record import Skipped
from edge.runtime.engine.engine import Engine
from edge.runtime.engine.variant import AUTO, OFF
from edge.runtime.keywords import LoadKeywords
from edge.runtime.load import as_asked, open_engine
from edge.runtime.load_options import LoadOptions
from edge.runtime.profile.profile import ProfileOptions
from edge.runtime.skip.loss import SkipLoss, loss_of, read, room_for

ANSWER = 64  # tokens
LEAST_ROUNDS = 3


class _Answers:
    """Greedy answers to one prompt, one after another."""

    def __init__(self, engine: Engine, case: GoldenCase, tokens: int) -> None:
        self._engine, self.tokens, self.prompt = engine, tokens, len(case.prompt_ids)
        self._cache = room_for(engine, case, tokens)
        self._first = read(engine, self._cache, case.prompt_ids)[-1].argmax(keepdims=True)
        self.layers = float(engine.bundle.manifest.dims.num_layers)
        self.ms = list[float]()  # of a token, by answer
        self.answer()  # to warm up
        self.ms.clear()

    def answer(self) -> None:
        """Measure one more answer: milliseconds per token, and the layers that ran."""
        engine, cache, token, spent, layers = self._engine, self._cache, self._first, 0.0, 0.0
        cache.truncate(cache.prompt)
        for _ in range(self.tokens):
            started = time.perf_counter()
            logits = engine.step(cache, token)
            spent += time.perf_counter() - started
            if engine.routes is not None:
                layers += engine.routes.layers_run(cache)
            token = logits[-1].argmax(keepdims=True)
        self.ms.append(1e3 * spent / self.tokens)
        if engine.routes is not None:
            self.layers = layers / self.tokens


def check(bundle: Bundle, skips: Sequence[str], options: ProfileOptions) -> None:
    """Raise InputError where a policy is not known, or the bundle lacks what it needs."""
    for skip in skips:
        asked = LoadOptions(**_asked(skip, options))
        if choose(as_asked(bundle, asked), asked).policy is None:
            raise InputError(f"{OFF} is what policies are measured next to; name a policy.")


def measure(
    bundle: Bundle, skips: Sequence[str], options: ProfileOptions, progress: Callable[[int, int], None]
) -> list[Skipped]:
    """Measure the whole decoder's figures, and those of each policy, in about the seconds of the options.

    Raises:
        BundleError: the bundle's recorded answers cannot be read.
    """
    case = max(read_golden(bundle).cases, key=lambda case: len(case.prompt_ids) + len(case.source_ids))
    tokens = min(ANSWER, bundle.manifest.context - len(case.prompt_ids))
    whole = _Answers(_open(bundle, OFF, options), case, tokens)
    found, spent = list[Skipped](), list[float]()
    for done, skip in enumerate(skips):
        progress(done, len(skips))
        engine = _open(bundle, skip, options)
        loss = loss_of(engine, skip)
        own, until = _Answers(engine, case, tokens), time.monotonic() + options.seconds / len(skips)
        whole.ms.clear()
        while len(own.ms) < LEAST_ROUNDS or time.monotonic() < until:
            whole.answer()
            own.answer()
        spent.append(median(whole.ms))
        ratios = [a / b for a, b in zip(whole.ms, own.ms, strict=True)]
        found.append(_figures(skip, own, median(own.ms), median(ratios), loss))
        del own, engine
        gc.collect()  # its weights make room for the next one's
    progress(len(skips), len(skips))
    all_of_it = SkipLoss(found[0].tokens, found[0].tokens, 0.0)
    return [_figures(OFF, whole, median(spent), 1.0, all_of_it), *found]


def _figures(skip: str, timed: _Answers, ms: float, speed: float, loss: SkipLoss) -> Skipped:
    lost = loss.tokens, loss.same, loss.times, loss.ruins
    return Skipped(skip, timed.layers, ms, 1e3 / ms, speed, timed.prompt, timed.tokens, *lost)


def _open(bundle: Bundle, skip: str, options: ProfileOptions) -> Engine:
    """The engine that a run under a policy has."""
    return open_engine(bundle, **_asked(skip, options))


def _asked(skip: str, options: ProfileOptions) -> LoadKeywords:
    own: LoadKeywords = {"provider": options.provider, "threads": options.threads, "strict": options.strict}
    return own | {"skip": skip, "kv": AUTO}
