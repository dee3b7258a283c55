"""What each of several models takes of one memory limit."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from edge.runtime.embed.memory import bytes_of
from edge.runtime.limits import DEFAULT_CONTEXT
from edge.runtime.load import chosen
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
        self._on_devices: set[str] = set()  # models whose limit is of a device's memory

    def need(self, name: str) -> int:
        """Bytes of the process with this model alone, with which nothing of it is given up: of a decoder 4,096 tokens
        of context, or those that were asked for, of others their longest text; and what the process may grow by
        meanwhile. The whole limit where that is less, or where there is no other model."""
        if name not in self._needs:
            ample = self._ample(name) + SLACK
            self._needs[name] = self._limit if len(self._bundles) == 1 else min(self._limit, ample)
        return self._needs[name]

    def fit(self, names: list[str]) -> bool:
        """True if these models can be in memory together."""
        return self._program + sum(self.need(name) - self._program for name in names) <= self._limit

    def options(self, name: str, there: Sequence[str]) -> LoadOptions:
        """How a model is loaded next to others: its limit counts from what these take now, and from no more than they
        may. A plan keeps a part of that in reserve, which it is not."""
        if name in self._on_devices:
            return self._options_of(name)
        may = sum(self.need(each) - self._program for each in there)
        taken = min(max(0, private_bytes() - self._program), may)
        return replace(self._options_of(name), memory=self.need(name) + taken + math.ceil(taken * RESERVE))

    def _ample(self, name: str) -> int:
        bundle, options = self._bundles[name], self._options_of(name)
        if bundle.manifest.embedding is not None:
            return bytes_of(bundle, self._program)
        context = options.context
        if context is None and kind_of(bundle.manifest) == DECODER:
            context = min(DEFAULT_CONTEXT, bundle.manifest.context)
        _, variant = chosen(bundle, replace(options, memory=AMPLE, context=context), present=self._program)
        if variant.plan is None:
            self._on_devices.add(name)
            return self._limit
        return needed(variant.plan.footprint)
