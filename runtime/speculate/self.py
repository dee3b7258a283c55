"""`self`: the model drafts with some of its layers, and checks its drafts with all of them.

Zhang et al. 2023, "Draft & Verify: Lossless Large Language Model Acceleration via Self-Speculative Decoding"; which
layers, `edge.runtime.speculate.layers` says. Drafting runs on the answer's own KV cache: the layers that run read the
rows that the whole model wrote, and write rows of drafted tokens after them, which are dropped before the draft is
checked. The step that checks it runs all layers over the same places, so that no row of a draft is ever read by it.

The engine is one over units that drafts leave out: of the graph of all layers where our kernels run it, else of the
bundle's graph `skip`.
"""

from __future__ import annotations

import contextlib
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from edge.bundle import Bundle
from edge.errors import BundleError, InputError
from edge.manifest import SKIP
from edge.runtime.decode.draft import NOTHING, Draft
from edge.runtime.decode.loop import reader
from edge.runtime.decode.sampling import greedy
from edge.runtime.engine.cache import KVCache
from edge.runtime.engine.engine import Engine
from edge.runtime.engine.graphs.segment_cache import SegmentedCache
from edge.runtime.memory.footprint import GRAPH
from edge.runtime.skip.skip_policy import AllLayers, middle
from edge.runtime.speculate.drafter import Budget, Drafter, Setting
from edge.runtime.speculate.layers import APART, WINDOW, Choice, Unit, choice
from edge.runtime.speculate.model import PRIORS, written

NAME = "self"
HELP = "what the model says with some of its layers left out"
TRAITS = {"serves": ("decoder",), "asked": "self[=LAYERS]", "segments": True}

PART = 2**18  # bytes of each branch of the graph: thirty of SmolLM2 had 175 kB each next to the whole one


def nbytes(setting: Setting) -> int:
    """Bytes that the graph of all units takes beyond the whole one, and of the rows that a trial puts aside."""
    policy(setting.bundle, setting.argument)  # or what is wrong with it, in a sentence
    manifest, aside = setting.bundle.manifest, WINDOW * setting.bundle.manifest.kv.bytes_per_token
    if setting.bundle.routed:
        return aside
    sizes = {file.path: file.size for file in manifest.files}
    more = max(0, sizes[manifest.graph(SKIP).path] - sizes[manifest.graph("decoder").path])
    return (len(manifest.segments) - 1) * PART + GRAPH * more + aside


def make(setting: Setting) -> SelfDraft:
    """The drafter over the engine that verifies; InputError where that has no segments, or the memory has no room."""
    setting.check_limit("The drafter self", nbytes(setting))
    engine, chosen = setting.engine, choice(setting.bundle, setting.argument)
    if engine is None or engine.routes is None or not isinstance(engine.routes.policy, AllLayers):
        raise InputError("The drafter self runs parts of the model; load the bundle with speculate='self'.")
    return SelfDraft(engine, chosen)


def policy(bundle: Bundle, setting: str | None) -> AllLayers:
    """Return the policy where no draft leaves anything out: all layers. InputError where the bundle has no segments of
    whole layers, or the setting is not understood."""
    middle(bundle, parts=("layers", "attention"), what="self")
    choice(bundle, setting)
    return AllLayers(bundle)


class SelfDraft(Drafter):
    """Drafts with the layers that the choice `chosen` does not leave out."""

    name = NAME
    priors = PRIORS
    needs_cache = True

    def __init__(self, engine: Engine, chosen: Choice) -> None:
        assert engine.routes is not None, "an engine whose steps run whole"
        self._engine, self._routes = engine, engine.routes
        self._choice = chosen
        self._cache: SegmentedCache | None = None
        self._drafted: tuple[Sequence[Unit], Sequence[int]] = ((), ())  # the last draft: what it left out, its tokens
        self._answer = 0  # where the answer begins in the text
        self._tried_at = 0  # tokens of the text when other layers were tried last
        groups = {group.name: group.bytes for group in engine.bundle.manifest.groups}
        self._head = groups.get("head", max((size for name, size in groups.items() if "embedding" in name), default=0))
        self._body = sum(size for name, size in groups.items() if not name.endswith(("embedding", "head", "norm")))
        self.cost = self._share(chosen.left_out(1))

    def _share(self, left_out: Sequence[Unit]) -> float:
        """Cost of a step without these units, in steps of the whole model, by the bytes of their weights."""
        weight, layers = self._routes.weight, self._engine.bundle.manifest.dims.num_layers
        left = sum(map(weight, self._routes.everything)) - sum(weight(u) for unit in left_out for u in unit)
        return (self._head + self._body * left / layers) / (self._head + self._body)

    def share(self, cache: KVCache | None) -> None:
        """Receive the next text's cache, which drafting uses as well; None where that text has ended."""
        assert cache is None or isinstance(cache, SegmentedCache)
        self._cache = cache

    def begin(self, tokens: Sequence[int], source: Sequence[int] = ()) -> None:
        self._drafted = ((), ())
        self._answer = self._tried_at = len(tokens)

    def accept(self, tokens: Sequence[int]) -> None:
        units, drafted = self._drafted
        self._drafted = ((), ())
        for token, actual in zip(drafted, tokens, strict=False):
            self._choice.drafted(units, token == actual)
            if token != actual:
                break

    def propose(self, context: Sequence[int], budget: Budget) -> Draft:
        cache = self._cache
        assert cache is not None, "a cache is shared before a text begins"
        count = min(budget.tokens, cache.room)
        if count < 1:
            return NOTHING
        if self._choice.tries and len(context) - max(self._tried_at + APART, self._answer + WINDOW) > 0:
            self._try(cache, context, budget)
        units, length = self._choice.left_out(count), cache.length
        cache.mark()
        share = self._share(units)
        route = self._routes.leaving_out([i for unit in units for i in unit])
        try:
            with self._routes.through(cache, route):

                def run(tokens: Sequence[int]) -> NDArray[np.float32] | None:
                    if not budget.afford(share, len(tokens)):
                        return None
                    logits: NDArray[np.float32] = self._engine.step(cache, np.array(tokens, np.int64))[-1]
                    return logits

                draft = written(run, run(context[-1:]), budget._replace(tokens=count))
        finally:
            cache.truncate(length)
        self._drafted = units, draft.tokens
        return draft

    def _try(self, cache: SegmentedCache, context: Sequence[int], budget: Budget) -> None:
        """Run the end of the answer through other layers in one step, and count how often they say the same, where the
        answer can afford to."""
        units, start = self._choice.trial(), cache.length - WINDOW
        if not budget.afford(self._share(units), WINDOW):
            return
        self._tried_at = len(context)
        route = self._routes.leaving_out([i for unit in units for i in unit])
        kept, right = cache.snapshot(start), 0
        cache.truncate(start)
        try:
            text, rows = np.array(context[start : start + WINDOW], np.int64), np.arange(WINDOW)
            step, choose = reader(self._engine, greedy)
            with self._routes.through(cache, route), contextlib.suppress(BundleError):  # no token can be chosen
                for row, token in zip(step(cache, text, rows), context[start + 1 :], strict=False):
                    right += choose(row) == token
        finally:
            cache.restore(kept)
        self._choice.tried(units, right / WINDOW)
