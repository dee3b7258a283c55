"""One matrix in integer blocks, so that its outputs on calibration data change least.

Minimises ``tr((W' - W) H (W' - W)^T)`` over integers, scales and zero points, H being the second moment of the
matrix's inputs. Zero points and first scales come from a search of each block, weighted by conditional variances;
integers from GPTQ (Frantar et al., 2023, arXiv:2210.17323) in order of falling variance with fixed blocks; then
coordinate descent over the integers and least squares over the scales take turns. On SmolLM2 the last two lower the
error of plain GPTQ by a fifth (docs/lab/quantization.md).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.nn.functional as F

from edge.export.quantize.base import QTensor

DAMPING = 0.01  # of the mean variance, added to each
ROUNDS = 2  # of descent and refitting; a third gains 1% of the error
COARSE = torch.linspace(1.04, 0.6, 7)  # shares of a block's full range that are tried as its scale
FINE = (-2 / 3, -1 / 3, 0.0, 1 / 3, 2 / 3)  # then these parts of their distance, around the best of them
_LAZY = 64  # columns whose effect on the others is applied together, as one matrix product
_CACHED = 2**17  # weights whose scales are searched at a time: in a core's cache that takes half the time


@dataclass
class Solution:
    """``w = scales * steps``, ``steps = q - zeros``: [N, K] float32 integers, scales and zeros [N, blocks].

    symmetric: all zeros are ``2**(bits - 1)``.
    """

    bits: int
    block_size: int
    steps: torch.Tensor
    scales: torch.Tensor
    zeros: torch.Tensor
    symmetric: bool = False

    def dequantize(self) -> torch.Tensor:
        return self.steps * spread(self.scales, self.block_size, self.steps.shape[1])

    def pack(self, method: str) -> QTensor:
        """The solution as a bundle stores it."""
        q = self.steps + spread(self.zeros, self.block_size, self.steps.shape[1])
        return QTensor(
            bits=self.bits,
            block_size=self.block_size,
            q=q.to(torch.uint8).numpy(),
            scales=self.scales.numpy().copy(),
            zero_points=None if self.symmetric else self.zeros.to(torch.uint8).numpy(),
            method=method,
        )


def solve(
    w: torch.Tensor, h: torch.Tensor, bits: int, block_size: int, rounds: int = ROUNDS, *, symmetric: bool = False
) -> Solution:
    """Quantize `w` [N, K] for inputs whose second moment is `h` [K, K]; both float32. Scales are float16 values.

    symmetric: without zero points.
    """
    k = w.shape[1]
    h = h.clone()
    diagonal = h.diagonal()
    seen = diagonal > 0
    mean = float(diagonal[seen].mean()) if bool(seen.any()) else 1.0
    diagonal[~seen] = mean  # inputs that calibration never saw: plain rounding
    order = torch.argsort(diagonal, descending=True)
    back = torch.argsort(order)
    h.diagonal().add_(DAMPING * mean)
    h = h[order][:, order].contiguous()
    upper = _factor_of_inverse(h)

    variances = upper.diagonal()[back] ** -2  # of each input, given those that are rounded after it
    scales, zeros = search(w, variances, bits, block_size, symmetric=symmetric)
    block_of = torch.div(order, block_size, rounding_mode="floor")
    target = w.T[order].contiguous()  # [K, N], like all below
    zero = zeros.T[block_of].contiguous()
    scale = scales.T[block_of].contiguous()
    top = 2**bits - 1
    steps = _gptq(target, upper, scale, zero, top)
    for _ in range(rounds):
        _descend(steps, target, h, scale, zero, top)
        scales = _refit(steps.T[:, back], w, h[back][:, back], scales, block_size)
        scale = scales.T[block_of].contiguous()
    return Solution(bits, block_size, steps.T[:, back].contiguous()[:, :k], scales, zeros, symmetric)


def _factor_of_inverse(h: torch.Tensor) -> torch.Tensor:
    """The upper triangular U with ``U^T U = h^-1``, in float32 by way of float64. Of h = R R^T, R upper triangular, it
    is R^-1; backwards, rows and columns, R is the usual lower factor. A third of the work of inverting h first."""
    lower = torch.linalg.cholesky(h.flip(0, 1).double())
    inverse = torch.linalg.solve_triangular(lower, torch.eye(len(h), dtype=lower.dtype), upper=False)
    return inverse.float().flip(0, 1)


def spread(per_block: torch.Tensor, block_size: int, columns: int) -> torch.Tensor:
    """[N, blocks] as [N, columns]."""
    return per_block.repeat_interleave(block_size, 1)[:, :columns]


def to_float16(scales: torch.Tensor) -> torch.Tensor:
    """Scales as float16 values. A zero scale stays usable: it becomes the smallest that float16 has."""
    return scales.half().float().clamp(min=2.0**-24)


def search(
    w: torch.Tensor, weights: torch.Tensor, bits: int, block_size: int, *, symmetric: bool = False
) -> tuple[torch.Tensor, torch.Tensor]:
    """Scale and zero point of each block [N, B] with the least squared error under `weights` [K].

    symmetric: all zero points are ``2**(bits - 1)``.
    """
    missing = -w.shape[1] % block_size
    weights = F.pad(weights, (0, missing)).view(1, -1, block_size)
    found = []
    for rows in w.split(max(1, _CACHED // w.shape[1])):
        blocks = F.pad(rows[:, None], (0, missing), mode="replicate")[:, 0].view(len(rows), -1, block_size)
        found.append(_search(blocks, weights, 2**bits - 1, symmetric))
    scales, zeros = zip(*found, strict=True)
    return torch.cat(scales), torch.cat(zeros)


def _search(
    blocks: torch.Tensor, weights: torch.Tensor, top: int, symmetric: bool
) -> tuple[torch.Tensor, torch.Tensor]:
    """The same of `blocks` [N, B, block_size], whose integers go up to `top`."""
    low, high = blocks.amin(-1).clamp(max=0), blocks.amax(-1).clamp(min=0)
    full, middle = (high - low) / top, (high + low) / 2
    half = torch.full_like(full, (top + 1) / 2)
    if symmetric:
        full, middle = 2 * torch.maximum(high, -low) / top, torch.zeros_like(middle)
    least = torch.full_like(full, math.inf)
    shrinks, scales, zeros = torch.ones_like(full), full.clone(), half.clone()

    def attempt(shrink: torch.Tensor, roundings: tuple[Callable[[torch.Tensor], torch.Tensor], ...]) -> None:
        scale = to_float16(full * shrink)
        centre = top / 2 - middle / scale
        for zero in (half,) if symmetric else [rounding(centre).clamp_(0, top) for rounding in roundings]:
            q = torch.round(blocks / scale[..., None]).add_(zero[..., None]).clamp_(0, top)
            off = q.sub_(zero[..., None]).mul_(scale[..., None]).sub_(blocks)
            error = off.square_().mul_(weights).sum(-1)
            better = error < least
            least[better], scales[better], zeros[better] = error[better], scale[better], zero[better]
            shrinks[better] = shrink.expand_as(full)[better]

    for shrink in COARSE:
        attempt(shrink, (torch.round,))
    middles, distance = shrinks.clone(), float(COARSE[0] - COARSE[1])
    for part in FINE:
        attempt(middles + part * distance, (torch.floor, torch.ceil))
    return scales, zeros


def _gptq(target: torch.Tensor, upper: torch.Tensor, scale: torch.Tensor, zero: torch.Tensor, top: int) -> torch.Tensor:
    """Round row after row of `target` [K, N], spreading each error over the rows that follow."""
    k, n = target.shape
    rest, steps = target.clone(), torch.empty_like(target)
    for start in range(0, k, _LAZY):
        stop = min(start + _LAZY, k)
        errors = torch.empty(stop - start, n)
        for j in range(start, stop):
            steps[j] = torch.round(rest[j] / scale[j]).add_(zero[j]).clamp_(0, top).sub_(zero[j])
            errors[j - start] = (rest[j] - steps[j] * scale[j]).div_(upper[j, j])
            if j + 1 < stop:
                rest[j + 1 : stop].addr_(upper[j, j + 1 : stop], errors[j - start], alpha=-1)
        if stop < k:
            rest[stop:].addmm_(upper[start:stop, stop:].T, errors, alpha=-1)
    return steps


def _descend(
    steps: torch.Tensor, target: torch.Tensor, h: torch.Tensor, scale: torch.Tensor, zero: torch.Tensor, top: int
) -> None:
    """One sweep of coordinate descent: every integer in turn takes its best value, the others fixed. In place."""
    k, n = target.shape
    gradient = h @ (steps * scale - target)
    diagonal = h.diagonal().tolist()
    for start in range(0, k, _LAZY):
        stop = min(start + _LAZY, k)
        changes = torch.empty(stop - start, n)
        for j in range(start, stop):
            best = torch.round(steps[j] - gradient[j] / (diagonal[j] * scale[j])).add_(zero[j]).clamp_(0, top)
            best.sub_(zero[j])
            changes[j - start] = (best - steps[j]).mul_(scale[j])
            steps[j] = best
            if j + 1 < stop:
                gradient[j + 1 : stop].addr_(h[j + 1 : stop, j], changes[j - start])
        if stop < k:
            gradient[stop:].addmm_(h[stop:, start:stop], changes)


def _refit(
    steps: torch.Tensor, w: torch.Tensor, h: torch.Tensor, scales: torch.Tensor, block_size: int
) -> torch.Tensor:
    """Scales [N, B] by least squares, block after block, the integers [N, K] fixed."""
    steps, scales = steps.contiguous(), scales.clone()
    k = steps.shape[1]
    gradient = (steps * spread(scales, block_size, k) - w) @ h
    for block in range(scales.shape[1]):
        span = slice(block * block_size, min((block + 1) * block_size, k))
        part = steps[:, span]
        pull = part @ h[span]  # [N, K]
        curvature = (pull[:, span] * part).sum(-1).clamp(min=1e-12)
        old = scales[:, block]
        new = old - (gradient[:, span] * part).sum(-1) / curvature
        new = to_float16(torch.minimum(torch.maximum(new, 0.8 * old), 1.2 * old))
        gradient.addcmul_(pull, (new - old)[:, None])
        scales[:, block] = new
    return scales
