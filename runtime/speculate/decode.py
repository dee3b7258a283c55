"""The decode loop with drafts, and what it keeps from answer to answer."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from edge.manifest import FLOAT32, KV8_STEP
from edge.runtime.generate import prefill, reader
from edge.runtime.sampling import Sampler
from edge.runtime.speculate.base import (
    AUTO,
    NOTHING,
    OFF,
    WIDTHS,
    Draft,
    Drafter,
    Setting,
    SharesCache,
    find,
    widest_draft,
)
from edge.runtime.speculate.planner import Planner, StepCosts
from edge.runtime.speculate.verify import accept, keep, tree_step
from edge.runtime.step import all_rows

if TYPE_CHECKING:
    from edge.runtime.cache import KVCache
    from edge.runtime.engine import Engine

_log = logging.getLogger(__name__)


@dataclass
class Figures:
    """What speculation did in one answer: steps after the prompt, tokens drafted and run, those of them that held, and
    the seconds that drafting and the steps with drafts took."""

    drafter: str
    steps: int = 0
    drafted: int = 0
    accepted: int = 0
    draft_s: float = 0.0
    verify_s: float = 0.0

    def summary(self) -> dict[str, Any]:
        """These figures and `accepted_per_step`: drafted tokens that held, per step; None before the first step."""
        return {**asdict(self), "accepted_per_step": self.accepted / self.steps if self.steps else None}


class Speculation:
    """A drafter and its planner at work for one model, answer after answer.

    Args:
        drafter: what guesses.
        planner: what says how much of a guess is run.
    """

    def __init__(self, drafter: Drafter, planner: Planner) -> None:
        self.drafter = drafter
        self.planner = planner
        self._taken = threading.Lock()  # while an answer has the drafter: others at the same time have no drafts

    def figures(self) -> Figures:
        """Those of an answer that begins."""
        return Figures(self.drafter.name)

    def generate(
        self,
        engine: Engine,
        cache: KVCache,
        prompt: Sequence[int],
        sampler: Sampler,
        figures: Figures,
        *,
        chunk: int,
        most: int,
        ends: frozenset[int],
        interrupted: Callable[[], bool],
        drawn: bool = False,
    ) -> Iterator[int]:
        """What `edge.runtime.generate.generate` yields for `prompt`, whose first `cache.length` tokens are in the cache
        already, in fewer steps where drafts hold.

        As there, the last token yielded is never in the cache, whenever the loop is left.

        Args:
            most: tokens after which nobody asks for more. ends: tokens after which nobody does either.
            drawn: whether the sampler draws at random.
        """
        new = np.asarray(prompt[cache.length :], np.int64)
        logits = prefill(engine, cache, new, chunk=chunk, interrupted=interrupted)
        if logits is None or interrupted():
            return
        token = sampler(logits[-1])
        yield token
        drafter = self.drafter if self._taken.acquire(blocking=False) else None
        try:
            text = [*prompt, token]
            if drafter is not None:
                started = time.perf_counter()
                if isinstance(drafter, SharesCache):
                    drafter.share(cache)
                drafter.begin(text)
                self.planner.begin(drawn, cache.exact)
                figures.draft_s += time.perf_counter() - started
            for sampled in self._rounds(engine, cache, text, sampler, figures, drafter, most, ends, interrupted):
                length = cache.length
                for ahead, token in enumerate(sampled, 1 - len(sampled)):
                    cache.length = length + ahead
                    yield token
        finally:
            if drafter is not None:  # whoever had none has none to give back
                if isinstance(drafter, SharesCache):
                    drafter.share(None)
                self._taken.release()

    def _rounds(
        self,
        engine: Engine,
        cache: KVCache,
        text: list[int],
        sampler: Sampler,
        figures: Figures,
        drafter: Drafter | None,
        most: int,
        ends: frozenset[int],
        interrupted: Callable[[], bool],
    ) -> Iterator[list[int]]:
        """The tokens that each step brought. `text` ends with the one token that is not in the cache."""
        planner, clock = self.planner, time.perf_counter
        single = np.empty(1, np.int64)
        step, choose = reader(engine, sampler, logits=drafter is not None and drafter.reads_logits)
        enough = len(text) - 1 + most
        while not interrupted() and cache.room:
            length, began = cache.length, clock()
            proposed = draft = NOTHING
            if drafter is not None:
                budget = planner.budget(min(engine.steady(cache), enough - len(text)) - 1, length)
                if budget.tokens > 0:
                    proposed = drafter.propose(text, budget)
                    planner.drafted(len(proposed.tokens), clock() - began)
                    draft = planner.cut(_up_to_an_end(proposed, ends))
            started = clock()
            if draft.tokens:
                tokens = np.array([text[-1], *draft.tokens], np.int64)
                rows = step(cache, tokens, all_rows(tokens.shape[0]), tree=tree_step(draft, length))
            else:
                single[0] = text[-1]
                tokens, rows = single, step(cache, single)
            stepped = clock()
            if interrupted():
                cache.truncate(length + 1)
                return
            # Tokens that the graph chose are taken all at once.
            sampled, path = accept(rows.tolist() if choose is int else rows, draft, choose)
            if draft.tokens:
                keep(cache, length, draft, path)
                figures.verify_s += stepped - started
                figures.drafted += len(draft.tokens)
                figures.accepted += len(path)
            text.extend(sampled)
            figures.steps += 1
            if drafter is not None:
                ready = clock()
                planner.costs.took(tokens.shape[0], stepped - started)
                planner.observe(proposed, sampled)
                if drafter.reads_logits:
                    drafter.verified(tokens, rows)
                drafter.accept(sampled)
                figures.draft_s += started - began + clock() - ready
            yield sampled


def _up_to_an_end(draft: Draft, ends: frozenset[int]) -> Draft:
    """A chain without what follows a token that ends the answer."""
    if draft.parents is None and not ends.isdisjoint(draft.tokens):
        length = next(i for i, token in enumerate(draft.tokens, 1) if token in ends)
        return Draft(draft.tokens[:length], draft.grades[:length])
    return draft


def make_speculation(name: str, engine: Engine) -> Speculation | None:
    """What ``auto`` or a drafter's name stands for; None where a memory budget has no room for steps of two tokens,
    which is logged where a drafter was named.

    Raises:
        InputError: there is no such drafter, or it cannot be made.
    """
    plan, vocab = engine.plan, engine.bundle.manifest.dims.vocab_size
    width = widest_draft(vocab) if plan is None else min(WIDTHS[0], plan.demand.width)
    if engine.kv.dtype != FLOAT32:
        width = min(width, KV8_STEP)  # all of its steps attend in the same way
    if width < 2:
        if name not in (AUTO, OFF):
            _log.warning(
                f"The memory limit has no room for the drafter {name}: {engine.bundle.manifest.name} answers without "
                "it, more slowly."
            )
        return None
    module, argument = find(name)
    limit = None if plan is None else plan.demand.drafts
    drafter = module.make(Setting(engine.bundle, engine.context, argument, limit, engine.threads, engine))
    trees = engine.takes_trees and not engine.exact
    costs, even = (StepCosts(lambda: engine.costs, width, multiple) for multiple in (1, 2))
    return Speculation(drafter, Planner(drafter.priors, costs, width, trees=trees, cost=drafter.cost, even=even))
