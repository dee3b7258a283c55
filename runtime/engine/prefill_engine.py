"""Steps of many tokens in a bundle's int8 prefill graph."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from edge.bundle import Bundle
from edge.errors import InputError
from edge.runtime.engine.binding import LAST_ROW, Step, WholeBinding, pad_to_even
from edge.runtime.engine.cache import KVCache
from edge.runtime.engine.failures import FAILURES, failed
from edge.runtime.engine.fits import check_fits
from edge.runtime.engine.long_rope import LongRope
from edge.runtime.memory.shares import closed
from edge.runtime.providers.provider import Provider, Session


class PrefillEngine:
    """The int8 prefill graph of a bundle next to an engine over its decode graph: steps over the same caches.

    again: the engine's way of running a text again for `long_rope`; it is not kept alive.
    """

    closed = False  # whether no more steps are to run

    def __init__(
        self,
        bundle: Bundle,
        provider: Provider,
        long_rope: LongRope | None = None,
        again: Callable[[KVCache, NDArray[np.int64]], object] | None = None,
    ) -> None:
        self._bundle, self._provider, self._long_rope = bundle, provider, long_rope
        self._again = None if again is None else weakref.WeakMethod(again)

    @cached_property
    def session(self) -> Session:
        """The session over the graph, opened by the first prompt that is long enough (`edge.runtime.decode.loop`)."""
        session = self._provider.open(self._bundle, "prefill")
        check_fits(self._bundle, session, "prefill")
        return session

    @property
    def opened(self) -> dict[str, Session]:
        """The session by its role, once it is open."""
        return {"prefill": self.session} if "session" in self.__dict__ else {}

    def step(
        self, cache: KVCache, tokens: NDArray[np.int64], rows: NDArray[np.int64] | None = None
    ) -> NDArray[np.float32]:
        """Run a step like `Engine.step`, without trees, and return a result that the next step does not overwrite.

        Tokens and rows are run in even numbers, so that a row has the same bits however a text is cut into steps. The
        exception is a last one that stands alone where the bundle's context ends; see `pad_to_even`.
        """
        if self.closed:
            raise InputError(closed(self._bundle.manifest.name))
        rows = LAST_ROW if rows is None else rows
        if self._long_rope is not None:
            assert self._again is not None
            again = self._again()
            assert again is not None, "the engine is closed"
            self._long_rope.place(cache, tokens, again)
        size, wanted, vocab = tokens.shape[0], rows.shape[0], self._bundle.manifest.dims.vocab_size
        cache.check_room(size)
        tokens, rows = pad_to_even(tokens, rows, self._bundle.manifest.context - cache.length)
        ran = tokens.shape[0]
        try:
            made = self._provider.allocate((1, rows.shape[0], vocab), np.float32)
            step = Step(WholeBinding(self.session, cache, ran), cache, ran, rows.shape[0], {"logits": made})
            step.fill(tokens, cache.length, rows, None)
            if self._long_rope is not None:
                self._long_rope.turn(cache, step.positions)
            step.run(cache, None)
        except FAILURES as e:
            raise failed(self._bundle, e) from e
        cache.length -= ran - size
        found: NDArray[np.float32] = step.made[0, :wanted]
        return found
