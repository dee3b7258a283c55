"""The protocol of what layers keep of a text.

Attention keeps a row for each token (`edge.runtime.engine.cache.KVCache`), of which the last ones can be dropped.
Recurrent and convolutional layers keep a state (`edge.runtime.engine.states.States`), which can only be copied and put
back. A cache may have both, and whoever drops tokens asks it how far back it went.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray


class TextMemory(Protocol):
    """The memory that some layers of a model have of one text."""

    @property
    def nbytes(self) -> int:
        """Bytes of all its buffers."""

    def snapshot(self, start: int = 0) -> Any:
        """A copy of the memory of the tokens from `start` on, at least."""

    def restore(self, snapshot: Any) -> None:
        """Put a snapshot back, and drop everything after it."""

    def truncate(self, length: int) -> int:
        """Drop the tokens from `length` on, and more where an earlier state is no longer known. Returns the number of
        tokens that are left; the caller runs the others again."""

    def copy_rows(self, rows: Sequence[int] | NDArray[np.intp]) -> None:
        """Keep only these rows, or the states of these branches, in their order."""
