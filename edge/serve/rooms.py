"""What each of several models takes of one memory limit."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING

from edge.runtime.choose import choose
from edge.runtime.embed.memory import bytes_of
from edge.runtime.limits import DEFAULT_CONTEXT
from edge.runtime.load_options import LoadOptions
from edge.runtime.memory.footprint import SLACK
from edge.runtime.memory.plan import RESERVE, needed
from edge.runtime.memory.process import private_bytes
from edge.runtime.options import DECODER, kind_of
from edge.runtime.sizes import parse_size

if TYPE_CHECKING:
    from edge.bundle import Bundle

AMPLE = 1 << 60  # bytes, which no model needs


class Rooms:
    """The memory of a server's models.

    Args:
        bundles: by the names of the models.
        limit: private bytes of the process.
        options_of: how a model is loaded.
    """

    def __init__(self, bundles: Mapping[str, Bundle], limit: int | str, options_of: Callable[[str], LoadOptions]):
        self._bundles, self._options_of = bundles, options_of
        self._limit = parse_size(limit) if isinstance(limit, str) else limit
        self._program = private_bytes()  # before there is a model
        self._needs: dict[str, int] = {}

    def need(self, name: str) -> int:
        """Bytes of the process with this model alone, with which nothing of it is given up: 4,096 tokens of context, or
        those that were asked for; and what the process may grow by meanwhile. The whole limit where that is less, or
        where there is no other model."""
        if name not in self._needs:
            alone = len(self._bundles) == 1
            self._needs[name] = self._limit if alone else min(self._limit, self._ample(name) + SLACK)
        return self._needs[name]

    def fit(self, names: list[str]) -> bool:
        """True if these models can be in memory together."""
        return self._program + sum(self.need(name) - self._program for name in names) <= self._limit

    def options(self, name: str) -> LoadOptions:
        """How a model is loaded next to those that are there: its limit counts from what the process takes now."""
        there = max(0, private_bytes() - self._program)  # a plan keeps a part of it in reserve, which it is not
        return replace(self._options_of(name), memory=self.need(name) + there + math.ceil(there * RESERVE))

    def _ample(self, name: str) -> int:
        bundle, options = self._bundles[name], self._options_of(name)
        if bundle.manifest.embedding is not None:
            return bytes_of(bundle, options.context, self._program)
        context = options.context
        if context is None and kind_of(bundle.manifest) == DECODER:
            context = min(DEFAULT_CONTEXT, bundle.manifest.context)
        plan = choose(bundle, replace(options, memory=AMPLE, context=context), present=self._program).plan
        return self._limit if plan is None else needed(plan.footprint)
