"""A drafter and its planner at work: the drafts of one answer after the other, timed and counted."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from functools import partial
from time import perf_counter as clock
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edge.manifest import FLOAT32, KV8_STEP
from edge.runtime.decode.draft import NOTHING, Draft
from edge.runtime.decode.loop import Choose, Drafts, Step, reader
from edge.runtime.decode.sampling import Sampler
from edge.runtime.engine.cache import KVCache
from edge.runtime.engine.engine import Engine
from edge.runtime.kernels.library import find_kernels
from edge.runtime.speculate.drafter import AUTO, OFF, WIDTHS, Drafter, Setting, find, source_tokens, widest_draft
from edge.runtime.speculate.planner import GUESSED_SLOPE, OWN_SLOPE, OWN_SLOPES, Planner, StepCosts

_log = logging.getLogger(__name__)


@dataclass
class Figures:
    """Counts and times of speculation in one answer: steps after the prompt, drafted tokens that were run and that were
    accepted, and the seconds of drafting and of steps with drafts."""

    drafter: str
    steps: int = 0
    drafted: int = 0
    accepted: int = 0
    draft_s: float = 0.0
    verify_s: float = 0.0

    def summary(self) -> dict[str, Any]:
        """These figures, and accepted tokens per step; None before the first step."""
        return {**asdict(self), "accepted_per_step": self.accepted / self.steps if self.steps else None}


class Speculation:
    """A drafter and its planner at work for one model, answer after answer."""

    def __init__(self, drafter: Drafter, planner: Planner) -> None:
        self.drafter = drafter
        self.planner = planner
        self.taken = threading.Lock()  # while an answer has the drafter: others at the same time have no drafts

    @property
    def drafts(self) -> partial[AnswerDrafts]:
        """Return a function that makes the drafts of one answer."""
        return partial(AnswerDrafts, self)


class AnswerDrafts(Drafts):
    """The drafts of one answer to `prompt`, of up to `maximum` tokens. Times its steps, for the planner.

    ends: tokens that end the answer. drawn: whether tokens are drawn at random. source: see `Drafter.begin`. figures:
    what is added to.
    """

    def __init__(
        self,
        speculation: Speculation,
        prompt: Sequence[int],
        maximum: int,
        *,
        ends: frozenset[int] = frozenset(),
        drawn: bool = False,
        source: Sequence[int] = (),
        figures: Figures | None = None,
    ) -> None:
        self.figures = figures or Figures(speculation.drafter.name)
        self._speculation, self._planner = speculation, speculation.planner
        self._prompt, self._source, self._ends, self._drawn = prompt, source, ends, drawn
        self._enough = len(prompt) + maximum
        self._drafter: Drafter | None = None
        self._proposed = NOTHING
        self._forced = 0  # tokens of the step that are certain
        self._stepped = 0.0  # seconds of the last step
        self._proposing = self._drafting = 0.0  # the same of the last proposal, and of what the drafter took of them

    @contextmanager
    def over(self, engine: Engine, cache: KVCache, sampler: Sampler, last: int) -> Iterator[tuple[Step, Choose]]:
        if not self._speculation.taken.acquire(blocking=False):
            yield reader(engine, sampler)
            return
        drafter = self._drafter = self._speculation.drafter
        try:
            began = clock()
            self._engine, self._cache = engine, cache
            self._run, choose = reader(engine, sampler, logits=drafter.reads_logits)
            drafter.share(cache)
            drafter.begin(self._prompt, self._source)
            self._text = [*self._prompt]
            if cache.length == len(self._prompt):  # the first token was chosen from the prompt's logits
                self._text.append(last)
                drafter.accept([last])
            self._planner.begin(self._drawn, cache.exact)
            self.figures.draft_s += clock() - began
            yield self._step, choose
        finally:
            drafter.share(None)
            self._speculation.taken.release()

    def propose(self, forced: Sequence[int] = (), allowed: Callable[[Sequence[int]], int] = len) -> Draft:
        self._proposed = draft = NOTHING
        self._forced = len(forced)
        drafter = self._drafter
        if drafter is None:
            return draft
        began, text, planner = clock(), self._text, self._planner
        if forced:
            text.extend(forced)
            drafter.accept(forced)
        # Tokens that the next step may bring after those.
        maximum = min(self._engine.max_exact_step(self._cache) - self._forced, self._enough - len(text))
        if forced and drafter.needs_cache:
            maximum = 0
        budget = planner.budget(maximum - 1, self._cache.length, self._forced)
        self._drafting = 0.0
        if budget.tokens > 0:
            asked = clock()
            proposed = drafter.propose(text, budget)
            self._drafting = clock() - asked
            planner.drafted(len(proposed.tokens), self._drafting)
            if proposed.tokens:
                self._proposed = _first(proposed, allowed(proposed.tokens))
                draft = planner.cut(_before_an_end(self._proposed, self._ends))
        self._proposing = clock() - began
        return draft

    def _step(self, *given: Any, **more: Any) -> Any:
        started = clock()
        made = self._run(*given, **more)
        self._stepped = clock() - started
        return made

    def accept(self, tokens: NDArray[np.int64], rows: NDArray[Any], sampled: Sequence[int]) -> None:
        figures, drafter, size = self.figures, self._drafter, tokens.shape[0]
        figures.steps += 1
        if drafter is None:
            return
        began = clock()
        if size > 1:
            figures.verify_s += self._stepped
            figures.drafted += size - 1
            figures.accepted += len(sampled) - 1
        self._text.extend(sampled)
        if not self._forced:
            self._planner.costs.took(size, self._stepped)
        self._planner.observe(self._proposed, sampled)
        if drafter.reads_logits:
            drafter.verified(tokens, rows)
        drafter.accept(sampled)
        took = self._proposing + clock() - began
        figures.draft_s += took
        self._planner.rounded(took, self._drafting)


def _before_an_end(draft: Draft, ends: frozenset[int]) -> Draft:
    """A draft up to a token that ends the answer, which the row before it brings anyway."""
    if not ends.isdisjoint(draft.tokens):
        return _first(draft, next(i for i, token in enumerate(draft.tokens) if token in ends))
    return draft


def _first(draft: Draft, length: int) -> Draft:
    """The first `length` tokens of a draft."""
    return draft if length == len(draft.tokens) else Draft(draft.tokens[:length], draft.grades[:length])


def make_speculation(name: str, engine: Engine) -> Speculation | None:
    """Make the speculation that ``auto`` or a drafter's name asks for. None where nothing drafts, or where a memory
    budget has no room for steps of two tokens; InputError where there is no such drafter, or it cannot be made."""
    if name == OFF:
        return None
    plan, manifest, encoder = engine.plan, engine.bundle.manifest, engine.encoder
    width = widest_draft(manifest.dims.vocab_size) if plan is None else min(WIDTHS[0], plan.demand.width)
    own = engine.independent
    if engine.kv.dtype != FLOAT32 and not own:
        width = min(width, KV8_STEP)  # all of its steps attend in the same way
    if width < 2:
        if name != AUTO:
            _log.warning(
                f"The memory limit has no room for the drafter {name}: {manifest.name} answers without it, more slowly."
            )
        return None
    module, argument = find(name)
    limit = None if plan is None else plan.demand.drafts
    context = engine.context + source_tokens(manifest, 0 if encoder is None else encoder.max_length)
    drafter = module.make(Setting(engine.bundle, context, argument, limit, engine.threads, engine))
    kernels = find_kernels() if own else None
    slope = GUESSED_SLOPE if kernels is None else OWN_SLOPES.get(kernels.form, OWN_SLOPE)
    costs, even = (StepCosts(lambda: engine.costs, width, multiple, slope) for multiple in (1, 2))
    return Speculation(drafter, Planner(drafter.priors, costs, width, cost=drafter.cost, even=even))
