"""The parts of a graph, bound as one."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import numpy as np

from edge.runtime.providers.provider import Binding, Buffer, Provider, Session


class Chain:
    """A `Binding` of sessions that run one after the other. An output of one that the next one reads is passed on; an
    input of several is bound to each."""

    def __init__(self, provider: Provider, sessions: Sequence[Session]) -> None:
        self._parts: list[tuple[Session, Binding]] = [(session, session.bind()) for session in sessions]
        self._passed: list[Buffer] = []  # which bindings do not keep alive
        for maker, taker in pairwise(sessions):
            for value in maker.inference.get_outputs():
                if value.name in taker.inputs:
                    buffer = provider.allocate(tuple(value.shape), np.float32)
                    self._passed.append(buffer)
                    self.output(value.name, buffer)
                    self.input(value.name, buffer)

    def input(self, name: str, buffer: Buffer) -> None:
        """Read an input from this memory."""
        for session, binding in self._parts:
            if name in session.inputs:
                binding.input(name, buffer)

    def output(self, name: str, buffer: Buffer) -> None:
        """Write an output to this memory."""
        for session, binding in self._parts:
            if name in session.outputs:
                binding.output(name, buffer)

    def run(self) -> None:
        for _, binding in self._parts:
            binding.run()
