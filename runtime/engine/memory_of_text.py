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
    """What some layers of a model keep of one text."""

    @property
    def nbytes(self) -> int:
        """Bytes of all its buffers."""

    def snapshot(self, start: int = 0) -> Any:
        """A copy of what is kept of the tokens from `start` on, at least."""

    def restore(self, snapshot: Any) -> None:
        """Keep what was copied again, and nothing after it."""

    def truncate(self, length: int) -> int:
        """Drop the tokens from `length` on, and more where what was kept before is not known any more; how many tokens
        are left. The others are run again."""

    def copy_rows(self, rows: Sequence[int] | NDArray[np.intp]) -> None:
        """Keep only these rows, or the states of these branches, in their order."""
