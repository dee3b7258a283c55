"""Round to nearest: every block by itself. Good at 8 bits, too coarse at 4."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from edge.export.facts.tensors import (
    FloatTensor,
    Format,
    LazyWeights,
    QTensor,
    Weight,
    matrices,
    packed_with,
    stack_rows,
)
from edge.export.quantize.method import Options
from edge.export.quantize.smooth import Smoothing

if TYPE_CHECKING:
    from edge.export.facts.checkpoint import Checkpoint

NAME = "int8"
HELP = "8 bits, smoothed on text"
TRAITS = {"bits": 8, "blocks": True, "max_kl": 0.1, "encoder": True, "decoder": True, "embedder": True}

READ = 2**26  # weights of a matrix that are read at a time
CACHED = 2**16  # weights that are rounded at a time
INT8_BLOCK = 64  # as good as 32 on the models measured, and faster: docs/lab/quantization.md


def round_to_nearest(
    w: NDArray[np.float32], bits: int, block_size: int, *, symmetric: bool = True, method: str = "rtn"
) -> QTensor:
    """Quantize a weight [N, K] in blocks along K, each with the scale that covers its own range."""
    parts = [_rounded(to_blocks(rows, block_size), bits, symmetric) for rows in _cached(w)]
    q, scales, zero_points = (np.concatenate(each) for each in zip(*parts, strict=True))
    q = np.ascontiguousarray(q.reshape(len(w), -1)[:, : w.shape[1]])
    return QTensor(bits, block_size, q, scales, None if symmetric else zero_points, method)


def _cached(w: NDArray[np.float32]) -> list[NDArray[np.float32]]:
    """A matrix in parts of rows that fit into a core's cache with all that is made of them."""
    return np.array_split(w, max(1, min(len(w), w.size // CACHED)), axis=0)


def _rounded(
    blocks: NDArray[np.float32], bits: int, symmetric: bool
) -> tuple[NDArray[np.uint8], NDArray[np.float32], NDArray[np.uint8]]:
    """Integers of blocks [N, B, block], their scales and their zero points."""
    top, half = 2**bits - 1, 2 ** (bits - 1)
    if not symmetric:
        low = np.minimum(blocks.min(-1), 0)
        scales = (np.maximum(blocks.max(-1), 0) - low) / top
        zeros = np.clip(np.rint(_divide(-low, scales)), 0, top)
    else:
        if bits == 8:  # half a step of the extreme is nothing here, and a positive scale keeps -128 unused
            scales = _largest(blocks) / (half - 1)
        else:  # the range is -half..half-1: the extreme value takes the longer side, whichever sign it has
            index = np.abs(blocks).argmax(-1)[..., None]
            scales = -np.take_along_axis(blocks, index, -1)[..., 0] / half
        zeros = np.full_like(scales, half)
    q = _divide(blocks, scales[..., None])
    np.rint(q, out=q)
    q += zeros[..., None]
    np.clip(q, 0, top, out=q)
    return q.astype(np.uint8), scales.astype(np.float32), zeros.astype(np.uint8)


def _largest(blocks: NDArray[np.float32]) -> NDArray[np.float32]:
    """The largest absolute value of each block [N, B], half against half: numpy's own maximum takes three times as
    long over so short an axis."""
    found: NDArray[Any] = np.abs(blocks)
    while (width := found.shape[-1]) % 2 == 0:
        found = np.maximum(found[..., : width // 2], found[..., width // 2 :])
    largest: NDArray[np.float32] = found.max(-1)
    return largest


def to_blocks(w: NDArray[np.float32], block_size: int) -> NDArray[np.float32]:
    """Reshape [N, K] to [N, B, block_size]. If K is no multiple of the block, the last value is repeated."""
    n, k = w.shape
    missing = -k % block_size
    if missing:
        w = np.pad(w, ((0, 0), (0, missing)), mode="edge")
    return w.reshape(n, -1, block_size)


def _divide(a: NDArray[Any], b: NDArray[Any]) -> NDArray[Any]:
    """a / b; where b is 0 (a block of zeros) so is a, and the result."""
    quotients: NDArray[Any] = a / np.where(b == 0, b.dtype.type(1), b)
    return quotients


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
        form = Format(8, options.block_size or INT8_BLOCK, symmetric=True)
        if smoothing.changes(name):
            return round_to_nearest(smoothing.read(name), form.bits, form.block_size)
        return round_rows(checkpoint, name, form)

    return LazyWeights([*names, *smoothing.vectors], make)


def round_rows(checkpoint: Checkpoint, name: str, form: Format) -> QTensor:
    """Quantize a matrix of the checkpoint as `round_to_nearest` does, some of its rows at a time: a table of embeddings
    may be larger than the memory."""
    rows, columns = checkpoint.shape(name)
    size = max(1, READ // columns)
    parts = [
        round_to_nearest(values, form.bits, form.block_size, symmetric=form.symmetric)
        for values in (checkpoint.read(name, slice(i, min(i + size, rows))) for i in range(0, rows, size))
    ]
    whole = stack_rows(parts)
    assert isinstance(whole, QTensor)
    return whole


def _stored_in_8_bits(checkpoint: Checkpoint, name: str, names: list[str]) -> bool:
    return all(checkpoint.stored_type(n) == "Q8_0" for n in packed_with(name, names))
