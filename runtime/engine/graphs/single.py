"""The members of `Graphs` that are alike where one session over a graph of the bundle's own runs every step."""

from __future__ import annotations

import dataclasses
from pathlib import Path

from edge.bundle import Bundle
from edge.runtime.engine.encoder import Encoder
from edge.runtime.engine.fits import check_fits
from edge.runtime.engine.graphs.protocol import context_of
from edge.runtime.engine.long_rope import long_rope
from edge.runtime.engine.variant import Variant
from edge.runtime.kernels.nodes import LIKELIEST_TOKENS
from edge.runtime.limits import PREFILL_CHUNK, SIDE_BY_SIDE
from edge.runtime.providers.provider import Provider, Session


class SingleSession:
    """See `Graphs`: the encoder, where the bundle has one, and one session over the decoder's graph."""

    remote = False
    chunk, side_by_side = PREFILL_CHUNK, SIDE_BY_SIDE
    target = None

    def __init__(self, bundle: Bundle, variant: Variant, provider: Provider) -> None:
        self.context = context_of(bundle, variant)
        self.bundle, self.variant, self.provider = bundle, variant, provider
        self.kv = dataclasses.replace(bundle.manifest.kv, dtype=variant.kv)
        self.long_rope = long_rope(bundle.manifest)
        self.encoder = open_encoder(bundle, variant, provider)
        self.session = self._open()
        self.chooses = "tokens" in self.session.outputs
        self.ranks = LIKELIEST_TOKENS in self.session.outputs
        self.takes_trees = self.long_rope is None and any("attention_bias" in n for n in self.session.inputs)
        check_sessions(bundle, self.sessions, self.encoder)

    def _open(self) -> Session:
        """Open the decoder's graph."""
        return self.provider.open(self.bundle, self.variant.role)

    @property
    def sessions(self) -> dict[str, Session]:
        return (self.encoder.sessions if self.encoder is not None else {}) | {self.variant.role: self.session}

    def path(self, name: str) -> Path:
        return self.bundle.path(self.bundle.manifest.graph(name).path)


def open_encoder(bundle: Bundle, variant: Variant, provider: Provider) -> Encoder | None:
    """The bundle's encoder, where it has one; of a text as long as the plan has memory for."""
    if bundle.manifest.encoder is None:
        return None
    return Encoder(bundle, provider, None if variant.plan is None else variant.plan.demand.source)


def check_sessions(bundle: Bundle, sessions: dict[str, Session], encoder: Encoder | None) -> None:
    """BundleError where a graph has other sizes than the manifest states, of which memory is taken."""
    turned = encoder is not None and encoder.turned
    for name, session in sessions.items():
        check_fits(bundle, session, name, turned=turned)
