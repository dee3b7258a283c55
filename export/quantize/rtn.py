"""Round to nearest: every block by itself. Good at 8 bits, too coarse at 4."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from edge.export.quantize.base import (
    FloatTensor,
    LazyWeights,
    Options,
    QTensor,
    Weight,
    matrices,
    packed_with,
    stack_rows,
)
from edge.export.quantize.smooth import Smoothing

if TYPE_CHECKING:
    from edge.export.checkpoint.base import Checkpoint

NAME = "int8"
HELP = "8 bits, smoothed on text"
TRAITS = {"bits": 8, "max_kl": 0.1}

ROWS = 4096  # of a matrix that are rounded at a time: bounds memory
INT8_BLOCK = 64  # as good as 32 on the models measured, and faster: docs/lab/quantization.md


def round_to_nearest(
    w: NDArray[np.float32], bits: int, block_size: int, *, symmetric: bool = True, method: str = "rtn"
) -> QTensor:
    """Quantize a weight [N, K] in blocks along K, each with the scale that covers its own range."""
    parts = (w[start : start + ROWS] for start in range(0, len(w), ROWS))
    whole = stack_rows([_rounded(part, bits, block_size, symmetric, method) for part in parts])
    assert isinstance(whole, QTensor)
    return whole


def _rounded(w: NDArray[np.float32], bits: int, block_size: int, symmetric: bool, method: str) -> QTensor:
    blocks = to_blocks(w, block_size)  # [N, B, block]
    top = 2**bits - 1
    if symmetric:
        half = 2 ** (bits - 1)
        # The range is -half..half-1: the extreme value takes the longer side, whichever sign it has.
        index = np.abs(blocks).argmax(-1)[..., None]
        extreme = np.take_along_axis(blocks, index, -1)[..., 0]
        scales = -extreme / half
        if bits == 8:  # half a step of the extreme is nothing here, and a positive scale keeps -128 unused
            scales = np.abs(extreme) / (half - 1)
        q = np.rint(_divide(blocks, scales[..., None])) + half
        zero_points = None
    else:
        low = np.minimum(blocks.min(-1), 0)
        high = np.maximum(blocks.max(-1), 0)
        scales = (high - low) / top
        zeros = np.clip(np.rint(_divide(-low, scales)), 0, top)
        q = np.rint(_divide(blocks, scales[..., None])) + zeros[..., None]
        zero_points = zeros.astype(np.uint8)
    q = np.clip(q, 0, top).astype(np.uint8).reshape(len(w), -1)[:, : w.shape[1]]
    return QTensor(bits, block_size, np.ascontiguousarray(q), scales.astype(np.float32), zero_points, method)


def to_blocks(w: NDArray[np.float32], block_size: int) -> NDArray[np.float32]:
    """[N, K] as [N, B, block_size]; where K is no multiple of the block, the last value is repeated."""
    n, k = w.shape
    missing = -k % block_size
    if missing:
        w = np.pad(w, ((0, 0), (0, missing)), mode="edge")
    return w.reshape(n, -1, block_size)


def _divide(a: NDArray[Any], b: NDArray[Any]) -> NDArray[Any]:
    """a / b, and 0 where b is 0 (a block of zeros)."""
    return np.divide(a, b, out=np.zeros(np.broadcast_shapes(a.shape, b.shape), a.dtype), where=b != 0)


def quantize(checkpoint: Checkpoint, options: Options) -> Mapping[str, Weight]:
    """8 bits, symmetric, inputs smoothed. A GGUF's own Q8_0 blocks stay as they are where the block size
    allows.
    """
    names = matrices(checkpoint)
    own = {n for n in names if options.block_size in (None, 32) and _stored_in_8_bits(checkpoint, n, names)}
    smoothing = Smoothing(checkpoint, (n for n in names if n not in own), options)

    def make(name: str) -> Weight:
        if name in own and (blocks := checkpoint.blocks(name)) is not None:
            return blocks
        if name in smoothing.vectors:
            return FloatTensor(smoothing.read(name))
        return round_to_nearest(smoothing.read(name), 8, options.block_size or INT8_BLOCK)

    return LazyWeights([*names, *smoothing.vectors], make)


def _stored_in_8_bits(checkpoint: Checkpoint, name: str, names: list[str]) -> bool:
    return all(checkpoint.stored_type(n) == "Q8_0" for n in packed_with(name, names))
