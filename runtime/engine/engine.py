"""The engine: a bundle's graphs and one primitive, `Engine.step`."""

from __future__ import annotations

from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, overload

import numpy as np
from numpy.typing import NDArray

from edge.bundle import Bundle
from edge.errors import InputError
from edge.runtime.costs.measured import costs
from edge.runtime.engine.binding import LAST_ROW, pad_to_even
from edge.runtime.engine.cache import KVCache
from edge.runtime.engine.candidates import Candidates
from edge.runtime.engine.encoder import Cross
from edge.runtime.engine.failures import FAILURES, failed
from edge.runtime.engine.graphs import open_graphs
from edge.runtime.engine.prefill_engine import PrefillEngine
from edge.runtime.engine.slots import Slots
from edge.runtime.engine.tree import Tree
from edge.runtime.engine.variant import PLAIN, Variant
from edge.runtime.engine.want import LOGITS, Likeliest, Ranked, Want
from edge.runtime.memory.shares import Shares, closed
from edge.runtime.providers import AUTO, open_provider
from edge.runtime.providers.provider import Provider, Session

if TYPE_CHECKING:
    from edge.runtime.costs.curve import CostCurve
    from edge.runtime.engine.graphs.protocol import Graphs


class Engine:
    """A loaded decoder, with its encoder where it has one. Conversations live in `KVCache` objects, so that one engine
    serves several.

    The caller of a step need not know the kind of the engine's graphs; `Graphs` says what they can do.

    Args:
        bundle: an opened bundle whose files were checked.
        variant: which of its graphs are opened, and how steps are run; see `edge.runtime.choose.choose`.
        provider: what runs them; default: the best that this machine has.
        graphs: what runs steps; default: the variant's.

    Raises:
        InputError: the variant's context is not within the bundle's.
        BundleError: the bundle has no such graph, or it cannot be loaded.
    """

    closed = False  # whether no more steps are to run
    shares: Shares | None = None  # of a memory limit

    def __init__(
        self,
        bundle: Bundle,
        variant: Variant = PLAIN,
        provider: Provider | None = None,
        graphs: Graphs | None = None,
    ) -> None:
        self.provider = provider or open_provider(AUTO, manifest=bundle.manifest)
        self.graphs = graphs = graphs or open_graphs(bundle, variant, self.provider)
        self.bundle, self.variant, self.plan, self.exact = bundle, graphs.variant, variant.plan, variant.exact
        if variant.plan is not None:
            self.shares = Shares(variant.plan.answers_bytes, refuse=variant.refuse, name=bundle.manifest.name)
        self.threads = self.provider.threads
        self.kv, self.context, self.target = graphs.kv, graphs.context, graphs.target
        self.session, self.encoder, self.long_rope = graphs.session, graphs.encoder, graphs.long_rope
        self.chooses, self.ranks, self.takes_trees = graphs.chooses, graphs.ranks, graphs.takes_trees
        self.remote, self.chunk, self.side_by_side = graphs.remote, graphs.chunk, graphs.side_by_side
        self.routes = graphs.routes
        # Reads long prompts.
        self.prefill = PrefillEngine(bundle, self.provider, self.long_rope, self._again) if variant.prefill else None

    def close(self) -> None:
        """Close the engine: the running step finishes, and every later one raises InputError."""
        self.closed = True
        if self.prefill is not None:
            self.prefill.closed = True
        if self.shares is not None:
            self.shares.close()

    def check_open(self) -> None:
        """Raise InputError where no more steps are to run."""
        if self.closed:
            raise InputError(closed(self.bundle.manifest.name))

    def new_cache(self, capacity: int | None = None, cross: Cross | None = None) -> KVCache:
        """An empty KV cache for one conversation of up to `capacity` tokens; default: the engine's context.

        cross: what the encoder made of the input, where the model has an encoder.
        """
        capacity = self.context if capacity is None else capacity
        if capacity > self.context:
            raise InputError(f"A cache of {capacity} tokens is more than the engine's context of {self.context}.")
        return self.make_cache(capacity, cross)

    def make_cache(self, rows: int, cross: Cross | None = None) -> KVCache:
        """An empty KV cache of any size: branches side by side share positions, which the context limits, not rows."""
        return self.graphs.make_cache(rows, cross, int(self.pads or self.prefill is not None), self.pads)

    def new_slots(self, capacity: int, width: int) -> Slots:
        """Memory for up to `width` texts of up to `capacity` tokens each, which `step_all` runs together; MemoryError
        where there is none."""
        return Slots(self.new_cache(capacity), width)

    @property
    def independent(self) -> bool:
        """True if a row of a step has the same bits whatever rows are next to it. All steps are exact then."""
        return self.session.independent

    @property
    def mixes(self) -> bool:
        """True if a step of several texts can have several tokens of the last one: see `step_all`. Where rows would
        depend on their neighbours, or a text is more than its keys and values, none can."""
        plain = self.routes is None and self.long_rope is None and self.target is None and self.encoder is None
        plain = plain and not self.remote and not self.bundle.manifest.states
        return plain and self.supports_batching and self.independent and self.session.mixes

    @property
    def pads(self) -> bool:
        """True if exact steps are padded to an even number of tokens: see `pad_to_even`. Those that states take up are
        not: a state would take up the last one twice."""
        return self.exact and not self.independent and not self.bundle.manifest.states

    @cached_property
    def costs(self) -> CostCurve | None:
        """Measured costs of steps on this device; None where there are none. See
        `edge.runtime.costs.measured.costs`."""
        return costs(self.bundle, self.provider.name, self.threads, self.kv.dtype)

    @property
    def sessions(self) -> dict[str, Session]:
        """The sessions that are open, by the roles of their graphs."""
        return self.graphs.sessions | (self.prefill.opened if self.prefill is not None else {})

    def path(self, name: str) -> Path:
        """The file of the graph of one of `sessions`."""
        return self.graphs.path(name)

    def max_exact_step(self, cache: KVCache) -> int:
        """Maximum tokens of the next step in which each token comes out as in a step by itself, apart from rounding
        that depends on a step's size."""
        room = cache.room if self.long_rope is None else min(cache.room, self.long_rope.room(cache))
        if cache.exact:  # the context's last place has no row to run beside the token's: see `pad_to_even`
            room = max(1, min(room, self.bundle.manifest.context - 1 - cache.length))
        return room if self.routes is None else min(room, self.routes.max_exact_step(cache))

    @property
    def supports_batching(self) -> bool:
        """True if a step can run a token of each of several texts: see `step_all`."""
        return self.graphs.batch is not None

    @overload
    def step(
        self,
        cache: KVCache,
        tokens: NDArray[np.int64],
        rows: NDArray[np.int64] | None = None,
        *,
        tree: Tree | None = None,
        want: Literal["logits"] = "logits",
    ) -> NDArray[np.float32]: ...

    @overload
    def step(
        self,
        cache: KVCache,
        tokens: NDArray[np.int64],
        rows: NDArray[np.int64] | None = None,
        *,
        tree: Tree | None = None,
        want: Literal["tokens"],
    ) -> NDArray[np.int64]: ...

    @overload
    def step(
        self,
        cache: KVCache,
        tokens: NDArray[np.int64],
        rows: NDArray[np.int64] | None = None,
        *,
        tree: Tree | None = None,
        want: Literal["candidates"],
    ) -> list[Candidates]: ...

    @overload
    def step(
        self,
        cache: KVCache,
        tokens: NDArray[np.int64],
        rows: NDArray[np.int64] | None = None,
        *,
        tree: Tree | None = None,
        want: Likeliest,
    ) -> Ranked: ...

    def step(
        self,
        cache: KVCache,
        tokens: NDArray[np.int64],
        rows: NDArray[np.int64] | None = None,
        *,
        tree: Tree | None = None,
        want: Want = LOGITS,
    ) -> Any:
        """Run `tokens` [S] at the positions that follow the cache's rows, append them to it, and return what is wanted
        of `rows` [R], indices into the S tokens; default: the last one. `tree` says what each token attends to, where
        they do not follow each other; while a cache holds more than one branch, every step needs one.

        want: `LOGITS` [R, V]; or what the graph makes of them, which keeps them to itself: `TOKENS` [R], the one with
        the largest logit, -1 where that is not finite (where the engine `chooses`); `Likeliest(top)`, a `Ranked`
        (where it `ranks`); `CANDIDATES` [R] (where logits are `remote`).

        The result is overwritten by the next step of the same shape on the same cache, and where there are several
        rows of logits, by the next such step of any shape.
        """
        if self.closed:
            self.check_open()
        if not 0 < tokens.shape[0] <= cache.capacity - cache.length:
            cache.check_room(tokens.shape[0])
        if self.long_rope is not None:
            self.long_rope.place(cache, tokens, self._again)
        return self._placed(cache, tokens, LAST_ROW if rows is None else rows, tree, want)

    def _again(self, cache: KVCache, tokens: NDArray[np.int64]) -> NDArray[np.float32]:
        """Run tokens whose text has its factors."""
        logits: NDArray[np.float32] = self._placed(cache, tokens, LAST_ROW, None, LOGITS)
        return logits

    def _placed(
        self, cache: KVCache, tokens: NDArray[np.int64], rows: NDArray[np.int64], tree: Tree | None, want: Want
    ) -> Any:
        """A step of a text that has its factors (`long_rope`)."""
        try:
            if not cache.exact:
                return self.graphs.run(cache, tokens, rows, tree, want)
            assert tree is None, "steps over trees are not exact"
            size, count = tokens.shape[0], rows.shape[0]
            tokens, rows = pad_to_even(tokens, rows, self.bundle.manifest.context - cache.length)
            made = self.graphs.run(cache, tokens, rows, None, want)
        except FAILURES as e:
            raise failed(self.bundle, e) from e
        cache.length -= tokens.shape[0] - size
        return made[:count]

    def step_all(
        self, slots: Slots, tokens: NDArray[np.int64], *, piece: NDArray[np.int64] | None = None, want: Want = LOGITS
    ) -> Any:
        """Run one of `tokens` [B] for each of the first B texts in the slots, append it there, and return what is
        wanted of each: see `step`. The result is overwritten by the next one.

        piece: tokens [P] of the last text, which has none of `tokens`, where the engine `mixes`: a part of a prompt,
        which is read along with the others' tokens (SARATHI, Agrawal et al. 2023). The last row of the logits is of its
        last token. Where such a step fails, nothing was appended.

        A text says what it says alone, whichever texts are next to it; exactly so where steps of one are exact. Where
        the graph has one route for all rows, the texts must have the same one.
        """
        if self.closed:
            self.check_open()
        batch = self.graphs.batch
        if batch is None:
            raise InputError(f"The graphs of {self.bundle.manifest.name} run one text at a time.")
        for cache in slots.caches[: len(tokens)]:
            cache.check_room(1)
        if piece is not None:
            slots.caches[-1].check_room(len(piece))
        try:
            return batch.run(slots, tokens, want) if piece is None else batch.run_mixed(slots, tokens, piece)
        except FAILURES as e:
            raise failed(self.bundle, e) from e
