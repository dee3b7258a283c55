"""bitsandbytes' forms: int8 with a scale for each row, and 4 bits that name values of a table (nf4, fp4).

Source: ``bitsandbytes.functional`` (int8: 127 is the row's largest value, SCB) and ``QuantState.as_dict``. Of two 4-bit
values the first is in the high half of a byte; blocks go on from row to row.
"""

from __future__ import annotations

import json
import math

import numpy as np
import torch
from numpy.typing import NDArray

from edge.errors import CheckpointError
from edge.export.checkpoint.quantized.packing import Integers, Parts, Settings, Unpacked, misfit, part_of
from edge.export.checkpoint.stored import Stored
from edge.export.facts.checkpoint import finite

NAME = "bitsandbytes"
HELP = "bitsandbytes: int8, nf4 and fp4"
STATE = "weight.quant_state.bitsandbytes__"
KINDS = ("nf4", "fp4")
TRAITS = {
    "called": "bitsandbytes",
    "parts": (
        "SCB",
        "weight_format",
        "weight.absmax",
        "weight.quant_map",
        "weight.nested_absmax",
        "weight.nested_quant_map",
        "weight.quant_state.bitsandbytes__nf4",
        "weight.quant_state.bitsandbytes__fp4",
    ),
}
LARGEST = 127
MAX_STATE = 1 << 16  # bytes of what is said of a tensor


def check(settings: Settings) -> None:
    """Accept all settings: the tensors show which form they have."""


def matrix(module: str, parts: Parts, settings: Settings) -> Integers | _Table:
    if "SCB" not in parts:
        return _of_table(module, parts)
    weight = part_of(module, parts, "weight", (torch.int8,), 2)
    largest = part_of(module, parts, "SCB", (torch.float32, torch.float16))
    rows, columns = weight.shape
    if not (rows and columns) or largest.shape not in ((rows,), (rows, 1)):
        raise misfit(largest, f"of shape {list(largest.shape)}")
    if "weight_format" in parts and parts["weight_format"].raw().to(torch.float32).any():
        raise misfit(parts["weight_format"], "that of a layout for one kind of processor")
    return _Int8(weight, largest, (rows, columns))


def _of_table(module: str, parts: Parts) -> _Table:
    kind = next((kind for kind in KINDS if f"{STATE}{kind}" in parts), KINDS[0])
    state = part_of(module, parts, f"{STATE}{kind}", (torch.uint8,), 1)
    shape, block, nested, offset = _said(state)
    weight = part_of(module, parts, "weight", (torch.uint8,))
    count = math.prod(shape)
    if weight.tensor.numel() != -(-count // 2):
        raise misfit(weight, f"of shape {list(weight.shape)}")
    blocks = -(-count // block)
    table = part_of(module, parts, "weight.quant_map", (torch.float32,), 1)
    if table.shape != (16,):
        raise misfit(table, f"of shape {list(table.shape)}")
    largest = part_of(module, parts, "weight.absmax", (torch.uint8,) if nested else (torch.float32,), 1)
    if largest.shape != (blocks,):
        raise misfit(largest, f"of shape {list(largest.shape)}")
    inner = None
    if nested:
        scales = part_of(module, parts, "weight.nested_absmax", (torch.float32,), 1)
        values = part_of(module, parts, "weight.nested_quant_map", (torch.float32,), 1)
        if scales.shape != (-(-blocks // nested),):
            raise misfit(scales, f"of shape {list(scales.shape)}")
        if values.shape != (256,):
            raise misfit(values, f"of shape {list(values.shape)}")
        inner = scales, values, nested, offset
    return _Table(weight, table, largest, inner, shape, block, f"bitsandbytes {kind}")


def _said(state: Stored) -> tuple[tuple[int, int], int, int, float]:
    """Shape, weights of a block, blocks of a nested one (0: none) and the offset of those."""
    wrong = CheckpointError(
        f"{state.file}: the tensor {state.name!r} does not say shape and blocks of its weight; fetch the checkpoint "
        "again."
    )
    if len(state.tensor) > MAX_STATE:
        raise wrong
    try:
        said = json.loads(bytes(state.raw().numpy()).decode())
        (rows, columns), block = said["shape"], said["blocksize"]
        nested, offset = said.get("nested_blocksize") or 0, said.get("nested_offset") or 0.0
        sound = all(isinstance(n, int) and 0 < n < 1 << 40 for n in (rows, columns, block)) and isinstance(nested, int)
        if not sound or nested < 0 or not math.isfinite(float(offset)):
            raise wrong
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
        raise wrong from None
    return (rows, columns), min(block, rows * columns), nested, float(offset)


class _Int8(Integers):
    def __init__(self, weight: Stored, largest: Stored, shape: tuple[int, int]) -> None:
        super().__init__(weight, "bitsandbytes int8", shape, 8, shape[1])
        self._largest = largest

    def unpacked(self, rows: slice) -> Unpacked:
        q = self.where.raw(rows).numpy().view(np.uint8) ^ np.uint8(0x80)  # around 128
        return Unpacked(q, self._largest.floats(rows).reshape(-1, 1) / np.float32(LARGEST), None)


class _Table:
    """4-bit values of a table, in blocks with a scale each, which may be 8-bit values of another table."""

    form = None

    def __init__(
        self,
        weight: Stored,
        table: Stored,
        largest: Stored,
        nested: tuple[Stored, Stored, int, float] | None,
        shape: tuple[int, int],
        block: int,
        type: str,
    ) -> None:
        self._weight, self._table, self._largest, self._nested = weight, table, largest, nested
        self.shape, self._block, self.type = shape, block, type

    def read(self, rows: slice | None = None) -> NDArray[np.float32]:
        start, stop, _ = (rows or slice(None)).indices(self.shape[0])
        first, last = start * self.shape[1], stop * self.shape[1]
        packed = self._weight.raw().numpy().reshape(-1)[first // 2 : -(-last // 2)]
        places = np.empty((len(packed), 2), np.uint8)
        places[:, 0], places[:, 1] = packed >> np.uint8(4), packed & np.uint8(0x0F)
        w = self._table.read()[places.reshape(-1)[first % 2 :][: last - first]]
        blocks = np.arange(first // self._block, -(-last // self._block))
        with np.errstate(all="ignore"):  # `finite` says so
            w *= np.repeat(self._scales(blocks), self._block)[first % self._block :][: len(w)]
        return finite(w.reshape(stop - start, self.shape[1]), self._weight.name, self._weight.file)

    def blocks(self) -> None:
        return None

    def _scales(self, blocks: NDArray[np.int64]) -> NDArray[np.float32]:
        largest = self._largest.raw().numpy()[blocks]
        if self._nested is None:
            return np.asarray(largest, np.float32)
        scales, values, size, offset = self._nested
        return np.asarray(values.read()[largest] * scales.read()[blocks // size] + np.float32(offset), np.float32)
