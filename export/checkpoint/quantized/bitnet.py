"""BitNet's ternary weights, four to a byte: those of the four quarters of a matrix's rows, and one scale for all.

Source: ``transformers.integrations.bitnet`` (`unpack_weights`, `BitLinear`, `AutoBitLinear`). The model was trained
with activations that are rounded to 8 bits by rows; graphs round them in blocks.
"""

from __future__ import annotations

import numpy as np
import torch

from edge.export.checkpoint.quantized.packing import Integers, Parts, Settings, Unpacked, misfit, part_of
from edge.export.checkpoint.stored import Stored
from edge.export.facts.tensors import Format

NAME = "bitnet"
HELP = "BitNet's ternary weights"
TRAITS = {"called": "BitNet", "parts": ("weight_scale",)}
FORM = Format(2, 128)
QUARTERS = 4


def check(settings: Settings) -> None:
    if (mode := settings.text("quantization_mode", "offline")) != "offline":
        raise settings.refused("quantization_mode", mode, "weights that are rounded beforehand (offline) are read")
    if (kind := settings.text("linear_class", "bitlinear")) not in ("bitlinear", "autobitlinear"):
        raise settings.refused("linear_class", kind, "bitlinear and autobitlinear are known")
    if settings.flag("use_rms_norm"):
        raise settings.refused("use_rms_norm", True, "products without a norm of their own are known")


def matrix(module: str, parts: Parts, settings: Settings) -> _Ternary:
    weight = part_of(module, parts, "weight", (torch.uint8,), 2)
    scale = part_of(module, parts, "weight_scale", (torch.float16, torch.bfloat16, torch.float32))
    if scale.tensor.numel() != 1:
        raise misfit(scale, f"of shape {list(scale.shape)}")
    return _Ternary(weight, scale, divides=settings.text("linear_class", "bitlinear") == "bitlinear")


class _Ternary(Integers):
    """divides: weights are divided by the scale, not multiplied."""

    form = FORM

    def __init__(self, weight: Stored, scale: Stored, *, divides: bool) -> None:
        rows, columns = weight.shape
        super().__init__(weight, "BitNet", (QUARTERS * rows, columns), FORM.bits, columns)
        self._scale, self._divides = scale, divides

    def unpacked(self, rows: slice) -> Unpacked:
        packed = self.where.raw().numpy()
        places = np.arange(self.shape[0])[rows]
        shifts = (2 * (places // len(packed))).astype(np.uint8)[:, None]
        q = (packed[places % len(packed)] >> shifts & np.uint8(3)) + np.uint8(1)  # around 2
        if (q > 3).any():
            raise misfit(self.where, "of numbers that are not ternary")
        scale = self._scale.floats().reshape(1, 1)
        with np.errstate(all="ignore"):  # `finite` says so
            each = np.float32(1) / scale if self._divides else scale
        return Unpacked(q, np.repeat(each, len(q), axis=0), None)
