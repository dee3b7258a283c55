"""MXFP4 in 8-bit integers: twice one of its values is a whole number of 5 bits, so that these are the same weights.

Source: OCP Microscaling Formats (MX) 1.0, section 5.3.3.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from edge.export.facts.tensors import Format, QTensor

BLOCK = 32
FORM = Format(8, BLOCK, symmetric=True)
TWICE = np.array([0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12])  # each of the 16 values
MIDDLE = 128
BIAS = 127  # of exponents
SAFE = 252  # the largest exponent of which all values are float32


def exact(values: NDArray[np.uint8], exponents: NDArray[np.uint8]) -> QTensor:
    """8-bit integers of the same weights. values: [N, K], each one of 16; exponents: [N, K / 32]. The scale of a block
    with a weight that is no float32 is infinite."""
    scales = np.ldexp(np.float32(0.5), exponents.astype(np.int32) - BIAS)
    far = exponents > SAFE
    if far.any():
        twice = np.abs(TWICE)[values.reshape(*exponents.shape, BLOCK)[far]].max(-1).astype(np.float32)
        with np.errstate(over="ignore"):
            scales[far] = np.where(np.isfinite(scales[far] * twice), scales[far], np.inf)
    return QTensor(FORM.bits, BLOCK, (TWICE + MIDDLE).astype(np.uint8)[values], scales, None, "MXFP4")
