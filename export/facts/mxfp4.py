"""MXFP4 in other forms, of the same weights: in 8-bit integers, as twice one of its values is a whole number of 5 bits,
and in the blocks of GGUF files.

Source: OCP Microscaling Formats (MX) 1.0, section 5.3.3, and ``block_mxfp4`` of ggml.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from edge.export.facts.tensors import Format, QTensor

BLOCK = 32
FORM = Format(8, BLOCK, symmetric=True)
TWICE = np.array([0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12])  # each of the 16 values
GGUF_BYTES = (1 + BLOCK // 2) / BLOCK  # of a weight in a GGUF file
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


def gguf_blocks(packed: NDArray[np.uint8], exponents: NDArray[np.uint8], out: NDArray[np.uint8]) -> None:
    """Write blocks as a GGUF file has them: the exponent, and 16 bytes whose low halves are the first 16 values.

    packed: [N, K / 32, 16], whose bytes have two successive values each, the first in the low half. exponents:
    [N, K / 32]. out: [N, K / 32, 17].
    """
    first, second = packed[..., : BLOCK // 4], packed[..., BLOCK // 4 :]
    out[..., 0] = exponents
    out[..., 1::2] = first & 0x0F | second << 4
    out[..., 2::2] = first >> 4 | second & 0xF0
