"""The forms of llm-compressor (compressed-tensors): packed integers, plain int8, and FP8 with scales.

Source: ``compressed_tensors.compressors`` there. Integers are stored with half their range added; those of a word are
filled from the low bits up, and a word holds whole ones alone.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray

from edge.errors import CheckpointError
from edge.export.checkpoint.quantized.gptq import group_index
from edge.export.checkpoint.quantized.packing import (
    WORD,
    Integers,
    Parts,
    Scaled,
    Settings,
    Unpacked,
    misfit,
    part_of,
    unpack,
)
from edge.export.checkpoint.stored import Stored

NAME = "compressed-tensors"
HELP = "compressed-tensors: packed integers, int8, FP8"
TRAITS = {
    "called": "compressed-tensors",
    "parts": ("weight_packed", "weight_scale", "weight_zero_point", "weight_shape", "weight_g_idx"),
}

FORMATS = ("pack-quantized", "int-quantized", "naive-quantized", "float-quantized", "dense")
FLOATS = (torch.float16, torch.bfloat16, torch.float32)
WHOLE = (torch.int32, torch.int64)
FP8 = torch.float8_e4m3fn

T = TypeVar("T", np.float32, np.uint8)


def check(settings: Settings) -> None:
    given = [settings.text("format", "dense"), *(str(each.get("format") or "dense") for each in _groups(settings))]
    for name in given:
        if name not in FORMATS and name != "mixed-precision":
            raise settings.refused("format", name, f"known are {', '.join(FORMATS)}")
    sparsity = settings.values.get("sparsity_config")
    kind = sparsity.get("format") if isinstance(sparsity, Mapping) else None
    if kind not in (None, "dense"):
        raise settings.refused("a sparsity_config of the format", kind, "only dense weights are known")
    if settings.values.get("transform_config"):
        raise settings.refused("a", "transform_config", "transforms of activations are not known")


def matrix(module: str, parts: Parts, settings: Settings) -> Integers | Scaled:
    if "weight_packed" in parts:
        return _packed(module, parts, settings)
    weight = part_of(module, parts, "weight", (torch.int8, FP8), 2)
    scale = part_of(module, parts, "weight_scale", FLOATS)
    if weight.tensor.dtype == FP8:
        blocks = [block for args in _weights(settings) if (block := pair(args.get("block_structure")))]
        return scaled(weight, scale, blocks, "compressed-tensors FP8")
    zeros = None
    if "weight_zero_point" in parts:
        zeros = part_of(module, parts, "weight_zero_point", (torch.int8,))
        if zeros.shape != scale.shape:
            raise misfit(zeros, f"of shape {list(zeros.shape)}")
    rows, columns = weight.shape
    return _Int8(weight, scale, zeros, (rows, columns), _group(weight, scale, settings, rows, columns))


def scaled(weight: Stored, scale: Stored, blocks: list[tuple[int, int]], type: str) -> Scaled:
    """FP8 with one scale in all, for each row, or for each block of one of these shapes.

    Raises:
        CheckpointError: the scales are of another shape.
    """
    rows, columns = weight.shape
    if scale.tensor.numel() == 1 and rows and columns:
        return Scaled(weight, scale, (rows, columns), type)
    if rows and columns and scale.shape in ((rows, 1), (rows,)):
        return Scaled(weight, scale, (1, columns), type)
    for block in blocks:
        if rows and columns and scale.shape == (-(-rows // block[0]), -(-columns // block[1])):
            return Scaled(weight, scale, block, type)
    raise misfit(scale, f"of shape {list(scale.shape)}")


def pair(value: Any) -> tuple[int, int] | None:
    """Two numbers above zero, which a list or a text like ``128x128`` may say; None where it does not."""
    each = value.split("x") if isinstance(value, str) else value
    if not isinstance(each, list) or len(each) != 2:
        return None
    sizes = [int(size) for size in each if str(size).isascii() and str(size).isdecimal() and len(str(size)) < 10]
    return (sizes[0], sizes[1]) if len(sizes) == 2 and min(sizes) > 0 else None


def _groups(settings: Settings) -> Iterator[Mapping[str, Any]]:
    groups = settings.values.get("config_groups")
    if groups is not None and not isinstance(groups, Mapping):
        raise CheckpointError(
            f"{settings.path} gives config_groups as {str(groups)[:60]!r}, not by name; fetch it again."
        )
    for group in (groups or {}).values():
        if isinstance(group, Mapping):
            yield group


def _weights(settings: Settings) -> Iterator[Mapping[str, Any]]:
    """Yield the settings for weights of each group of modules."""
    for group in _groups(settings):
        if isinstance(weights := group.get("weights"), Mapping):
            yield weights


def _numbers(settings: Settings, key: str) -> list[int]:
    given = (args.get(key) for args in _weights(settings))
    return [n for n in given if isinstance(n, int) and not isinstance(n, bool) and n > 0]


def _group(where: Stored, scale: Stored, settings: Settings, rows: int, columns: int) -> int:
    """Return the number of columns that share a scale; CheckpointError if the scales' shape does not fit."""
    if rows and columns:
        if scale.tensor.numel() == 1 or scale.shape in ((rows, 1), (rows,)):
            return columns
        for size in _numbers(settings, "group_size"):
            if scale.shape == (rows, -(-columns // size)):
                return size
    raise misfit(scale, f"of shape {list(scale.shape)}")


def _packed(module: str, parts: Parts, settings: Settings) -> Integers:
    packed = part_of(module, parts, "weight_packed", (torch.int32,), 2)
    scale = part_of(module, parts, "weight_scale", FLOATS)
    shape = part_of(module, parts, "weight_shape", WHOLE, 1)
    if len(shape.tensor) != 2:
        raise misfit(shape, f"of shape {list(shape.shape)}")
    rows, columns = (int(size) for size in shape.raw())
    fitting = [
        bits
        for bits in _numbers(settings, "num_bits")
        if bits <= 8 and packed.shape == (rows, -(-columns // (WORD // bits)))
    ]
    if not fitting or columns < 1:
        raise misfit(shape, f"[{rows}, {columns}]")
    bits = fitting[0]
    group = _group(packed, scale, settings, rows, columns)
    groups = 1 if group == columns else scale.shape[1]
    zeros = None
    if "weight_zero_point" in parts:
        zeros = part_of(module, parts, "weight_zero_point", (torch.int32,), 2)
        if zeros.shape != (-(-rows // (WORD // bits)), groups):
            raise misfit(zeros, f"of shape {list(zeros.shape)}")
    index = None
    if "weight_g_idx" in parts:
        stored = part_of(module, parts, "weight_g_idx", WHOLE, 1)
        index = group_index(stored, groups)
        if index is not None and len(index) != columns:
            raise misfit(stored, f"of shape {list(stored.shape)}")
    return _Packed(packed, scale, zeros, (rows, columns), bits, group, index)


def _rows_of(values: NDArray[T], rows: slice, count: int) -> NDArray[T]:
    """Scales or zero points [rows, groups] of a matrix of `count` rows: one in all, one for each row, or several."""
    values = np.broadcast_to(values.reshape(1, 1), (count, 1)) if values.size == 1 else values.reshape(count, -1)
    return values[rows]


class _Packed(Integers):
    def __init__(
        self,
        packed: Stored,
        scale: Stored,
        zeros: Stored | None,
        shape: tuple[int, int],
        bits: int,
        group: int,
        index: NDArray[np.int64] | None,
    ) -> None:
        super().__init__(packed, f"compressed-tensors int{bits}", shape, bits, group, index)
        self._scale, self._zeros = scale, zeros

    def unpacked(self, rows: slice) -> Unpacked:
        q = _whole(self.where.raw(rows).numpy(), self.bits)[:, : self.shape[1]]
        scales = _rows_of(self._scale.floats(), rows, self.shape[0])
        if self._zeros is None:
            return Unpacked(q, scales, None)
        zeros = _whole(self._zeros.raw().numpy().T, self.bits)[:, : self.shape[0]]
        return Unpacked(q, scales, zeros.T[rows])


def _whole(words: NDArray[np.int32], bits: int) -> NDArray[np.uint8]:
    """Integers of words that hold whole ones alone."""
    if WORD % bits == 0:
        return unpack(words, bits)
    shifts = np.arange(WORD // bits, dtype=np.int32) * bits
    values = (words[..., None] >> shifts) & np.int32(2**bits - 1)
    return np.asarray(values.astype(np.uint8).reshape(len(words), -1))


class _Int8(Integers):
    def __init__(self, weight: Stored, scale: Stored, zeros: Stored | None, shape: tuple[int, int], group: int) -> None:
        super().__init__(weight, "compressed-tensors int8", shape, 8, group)
        self._scale, self._zeros = scale, zeros

    def unpacked(self, rows: slice) -> Unpacked:
        q = self.where.raw(rows).numpy().view(np.uint8) ^ np.uint8(0x80)  # around 128
        scales = _rows_of(self._scale.floats(), rows, self.shape[0])
        if self._zeros is None:
            return Unpacked(q, scales, None)
        zeros = self._zeros.raw().numpy().view(np.uint8) ^ np.uint8(0x80)
        return Unpacked(q, scales, _rows_of(zeros, rows, self.shape[0]))
