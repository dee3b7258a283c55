"""The seam between quantization methods and graphs: what a quantized weight is, whoever made it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True)
class QTensor:
    """A weight [N, K] in integer blocks along K: ``w = scales * (q - zero_points)``.

    q: [N, K] uint8, values below ``2**bits``. scales: [N, ceil(K / block_size)] float32. zero_points: the same
    shape, uint8, or None where every zero point is ``2**(bits - 1)``. `method` names who made it.
    """

    bits: int
    block_size: int
    q: NDArray[np.uint8]
    scales: NDArray[np.float32]
    zero_points: NDArray[np.uint8] | None
    method: str

    def dequantize(self) -> NDArray[np.float32]:
        """The float weight [N, K] that the kernels compute with."""
        n, k = self.q.shape
        zero: Any = 2 ** (self.bits - 1) if self.zero_points is None else self._spread(self.zero_points, k)
        return (self._spread(self.scales, k) * (self.q.astype(np.float32) - zero)).astype(np.float32)

    def _spread(self, per_block: NDArray[Any], k: int) -> NDArray[Any]:
        return np.repeat(per_block, self.block_size, axis=1)[:, :k].astype(np.float32)


@dataclass(frozen=True)
class FloatTensor:
    """A weight kept in floating point: float32 or float16."""

    values: NDArray[Any]
