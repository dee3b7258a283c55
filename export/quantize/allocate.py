"""Which matrices get 8 bits where 4 bits are too few, under a budget: those that bring the model's answers closest to
the float model's.

Every unit, matrices that a graph packs together, is put back into float in turn while all others stay quantized. What
the divergence of the next token's distribution loses by that is its benefit; its cost are the bytes that it grows by.
Units are taken by benefit per byte. Benefits nearly add up (Malinovskii et al., 2024, arXiv:2411.17525), so that one
measurement of each is enough.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from edge.export.quantize.base import QTensor, packed_with
from edge.export.quantize.decoder import Decoder
from edge.export.quantize.rtn import INT8_BLOCK, round_to_nearest
from edge.export.quantize.tune import Teacher

WINDOWS = 2  # of the text that benefits are measured on
_ROWS = 128  # of logits computed at a time: bounds memory

Read = Callable[[str], NDArray[np.float32]]


@dataclass(frozen=True)
class Unit:
    """Matrices of one format. benefit: nats a token. cost: bits."""

    names: tuple[str, ...]
    benefit: float
    cost: float


def bits_of(weights: Mapping[str, QTensor]) -> float:
    """Bits a weight, scales and zero points included."""
    return sum(map(_size, weights.values())) / sum(weight.q.size for weight in weights.values())


def in_8_bits(weights: dict[str, QTensor], units: Iterable[Unit], bits: float, read: Read) -> dict[str, QTensor]:
    """The weights, of which those units are in 8 bits that bring most, to `bits` bits a weight at most."""
    room = (bits - bits_of(weights)) * sum(weight.q.size for weight in weights.values())
    result = dict(weights)
    for unit in sorted(units, key=lambda unit: unit.benefit / unit.cost, reverse=True):
        if unit.benefit <= 0:
            break
        if unit.cost <= room:
            room -= unit.cost
            result |= {name: _precise(read(name)) for name in unit.names}
    return result


@torch.no_grad()
def measure(
    decoder: Decoder,
    weights: Mapping[str, QTensor],
    windows: torch.Tensor,
    teacher: Teacher,
    read: Read,
    report: Callable[[int, int, str], None],
) -> list[Unit]:
    """The units of a decoder whose matrices are `weights`, with their benefits.

    windows [W, S], and the teacher's answers to them. read: gives float weights. The decoder's own are those of
    `weights` afterwards.
    """
    windows, finals = windows[:WINDOWS], teacher.finals[:WINDOWS]
    parameters: dict[str, Any] = dict(decoder.model.named_parameters())
    for name, weight in weights.items():
        parameters[name].data = torch.from_numpy(weight.dequantize())
    starts = [[decoder.embed(window) for window in windows]]  # what each layer reads
    for i in range(len(decoder.layers)):
        starts.append([decoder.run(i, hidden) for hidden in starts[-1]])

    def divergence(layer: int | None) -> float:
        """From the teacher's answers, of the model as it is from `layer`, or from the embedding, on."""
        total = 0.0
        begun = [decoder.embed(window) for window in windows] if layer is None else starts[layer]
        for hidden, wanted in zip(begun, finals, strict=True):
            for following in range(layer or 0, len(decoder.layers)):
                hidden = decoder.run(following, hidden)
            total += _divergence(decoder.finish(hidden), decoder.head, wanted, teacher.head)
        return total / len(windows)

    whole = divergence(len(decoder.layers))
    units, names, told = list[Unit](), list(weights), set[str]()
    for done, name in enumerate(names):
        report(done, len(names), "measuring what 8 bits bring")
        if name in told:
            continue
        packed = packed_with(name, names)
        told.update(packed)
        layer = next((int(part) for part in name.split(".") if part.isdecimal()), None)
        for member in packed:
            parameters[member].data.copy_(torch.from_numpy(read(member)))
        benefit = whole - divergence(layer)
        for member in packed:
            parameters[member].data.copy_(torch.from_numpy(weights[member].dequantize()))
        cost = sum(_size_in_8_bits(weights[member]) - _size(weights[member]) for member in packed)
        units.append(Unit(tuple(packed), benefit, cost))
    return units


def _precise(weight: NDArray[np.float32]) -> QTensor:
    return round_to_nearest(weight, 8, INT8_BLOCK, symmetric=False)


def _size(weight: QTensor) -> float:
    """Bits that it takes."""
    blocks = weight.scales.size
    return weight.q.size * weight.bits + blocks * (32 + (0 if weight.zero_points is None else weight.bits))


def _size_in_8_bits(weight: QTensor) -> float:
    rows, columns = weight.q.shape
    return weight.q.size * 8 + rows * -(-columns // INT8_BLOCK) * (32 + 8)


def _divergence(final: torch.Tensor, head: torch.Tensor, wanted: torch.Tensor, teacher: torch.Tensor) -> float:
    """Mean KL divergence, in nats a token, of what `head` makes of `final` [S, hidden] from what the teacher makes of
    `wanted`."""
    total = 0.0
    for start in range(0, len(final), _ROWS):
        rows = slice(start, start + _ROWS)
        p = torch.log_softmax((wanted[rows].to(teacher.dtype) @ teacher.T).float(), -1)
        q = torch.log_softmax(final[rows] @ head.T, -1)
        total += float((p.exp() * (p - q)).sum())
    return total / len(final)
