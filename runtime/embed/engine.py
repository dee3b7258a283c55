"""The graph of a model that makes vectors, or scores pairs: token ids go in, and a vector of each text comes out."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from edge.bundle import Bundle
from edge.embedding_format import EMBEDDER, IDS, TYPES, VECTORS
from edge.errors import BundleError, InputError
from edge.runtime.embed.memory import Room
from edge.runtime.engine.failures import FAILURES, failed
from edge.runtime.engine.fits import check_given, check_stated
from edge.runtime.memory.shares import closed
from edge.runtime.providers.provider import Provider, Session


class EmbedEngine:
    """The session of such a graph.

    Args:
        bundle: an opened bundle whose files were checked.
        provider: what runs it.
        room: of a text, and of a step.

    Raises:
        BundleError: the graph cannot be loaded, or is not the manifest's.
    """

    closed = False

    def __init__(self, bundle: Bundle, provider: Provider, room: Room) -> None:
        manifest = bundle.manifest
        assert manifest.embedding is not None
        check_stated(bundle)
        self.bundle, self.provider, self.room, self.width = bundle, provider, room, manifest.embedding.width
        self.session: Session = provider.open(bundle, EMBEDDER)
        pair = manifest.embedding.pair
        given = [IDS, *([TYPES] if pair is not None and pair.types else [])]
        check_given(bundle, self.session, EMBEDDER, given)
        if lacking := sorted(set(given) - self.session.inputs):
            raise BundleError(
                f"{bundle.root}: the graph {EMBEDDER} does not read {lacking[0]}; export the model again."
            )
        shape = self.session.shapes.get(VECTORS, ())
        if len(shape) != 2 or shape[1] != self.width:
            raise BundleError(
                f"{bundle.root}: {VECTORS} of the graph {EMBEDDER} has the shape {str(shape)[:100]}, and the manifest "
                f"states {self.width} for its dimension 2; export the model again."
            )

    @property
    def threads(self) -> int:
        return self.provider.threads

    @property
    def independent(self) -> bool:
        """True if a text's vector has the same bits whatever texts are next to it in a step."""
        return self.session.independent

    def check_open(self) -> None:
        """Raise InputError where no more steps are to run."""
        if self.closed:
            raise InputError(closed(self.bundle.manifest.name))

    def close(self) -> None:
        """Close the engine: the running step finishes, and every later one raises InputError."""
        self.closed = True

    def step(self, ids: NDArray[np.int64], types: NDArray[np.int64] | None = None) -> NDArray[np.float32]:
        """The vectors [B, W] of texts of the same length, token ids [B, T]; of pairs with the types of their tokens,
        where the model has some.

        Raises:
            InputError: the engine is closed, or there is no memory for the step.
            BundleError: the graph fails, or gives what is no finite number.
        """
        self.check_open()
        try:
            made: NDArray[np.float32] = self.session.run({IDS: ids} if types is None else {IDS: ids, TYPES: types})[0]
        except FAILURES as e:
            raise failed(self.bundle, e) from e
        if not np.isfinite(made).all():
            raise BundleError(
                f"What {self.bundle.manifest.name} makes of a text has numbers that are not finite; check the "
                "bundle with edge verify, or export it again."
            )
        return made
