"""The scales of a quantized model, trained until its predictions come closer to the float model's.

Integers and zero points stay; every block's scale moves by a few thousandths under Adam, on the divergence of the next
token's distribution from the float model's (distillation on scales alone, as the end-to-end phase of EfficientQAT,
Chen et al., 2024, arXiv:2407.11062). GPTQ sees one matrix at a time; this sees how their errors add up.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.checkpoint import checkpoint as recomputed

from edge.export.facts.tensors import QTensor
from edge.export.quantize.bfloat16 import fast_dtype
from edge.export.quantize.calibration_set import TextSet
from edge.export.quantize.solve import to_float16
from edge.runtime.memory.process import release_freed

LEARNING_RATE = 1e-3  # relative to each scale
WARM_UP = 5  # steps
_ROWS = 64  # of logits computed at a time, and
_CHUNK = 8192  # rows of the vocabulary made floats at a time: bounds memory
_TRIM = 4  # layers after which freed memory is given back: seldom enough not to cost time


@dataclasses.dataclass
class Teacher:
    """The float model's answers: what its head reads for each window [W, S, hidden], and the head [V, hidden]."""

    finals: torch.Tensor
    head: torch.Tensor


def tune_scales(
    decoder: TextSet,
    weights: dict[str, QTensor],
    teacher: Teacher,
    report: Callable[[int, int, str], None],
    passes: int = 1,
) -> dict[str, QTensor]:
    """`weights`, which `decoder` was quantized to, with better scales; the decoder's float weights are used up.

    passes: over the windows.
    """
    dtype, windows = fast_dtype(), decoder.windows
    linears: dict[str, _Scaled] = {}
    for name in [n for n, m in decoder.model.named_modules() if isinstance(m, nn.Linear) and n != "lm_head"]:
        parent, _, leaf = name.rpartition(".")
        bias = decoder.model.get_submodule(name).bias
        scaled = linears[f"{name}.weight"] = _Scaled(weights[f"{name}.weight"], bias, dtype)
        setattr(decoder.model.get_submodule(parent), leaf, scaled)  # and the float weight is freed
        release_freed()
    tied = decoder.head is decoder.embedding
    head_name = "model.embed_tokens.weight" if tied else "lm_head.weight"
    head = _Scaled(weights[head_name], None, dtype)
    decoder.model.requires_grad_(False)
    learned = [*linears.values(), head]
    for scaled in learned:
        scaled.change.requires_grad_(True)
    optimizer = torch.optim.Adam([s.change for s in learned], betas=(0.9, 0.95))
    generator = torch.Generator().manual_seed(0)
    order = torch.cat([torch.randperm(len(windows), generator=generator) for _ in range(passes)]).tolist()
    steps = len(order)
    for step in range(steps):
        report(step, steps, "tuning scales")
        for group in optimizer.param_groups:
            group["lr"] = LEARNING_RATE * min(1, (step + 1) / WARM_UP) * 0.5 * (1 + math.cos(math.pi * step / steps))
        window = order.pop()
        optimizer.zero_grad()
        hidden = decoder.embed(windows[window])
        for i in range(len(decoder.layers)):
            hidden = recomputed(decoder.run, i, hidden, use_reentrant=False)
            if i % _TRIM == 0:
                release_freed()
                if hidden.requires_grad:
                    hidden.register_hook(lambda _: release_freed())
        final = decoder.finish(hidden)
        final.backward(_divergence(final.detach(), head, teacher.finals[window], teacher.head.to(dtype)))
        optimizer.step()
        if tied:
            decoder.embedding.data.copy_(head.weight())
    report(steps, steps, "tuning scales")
    return weights | {name: scaled.result() for name, scaled in linears.items()} | {head_name: head.result()}


def _divergence(final: torch.Tensor, head: _Scaled, finals: torch.Tensor, teacher: torch.Tensor) -> torch.Tensor:
    """The gradient, by `final` [S, hidden], of the mean divergence from the teacher; the head's own is added to it."""
    rows = len(final)
    w = head.weight()
    gradient = torch.empty_like(final)
    of_head = torch.zeros_like(w)
    for start in range(0, rows, _ROWS):
        part = final[start : start + _ROWS].to(w.dtype)
        wanted = torch.softmax((finals[start : start + _ROWS].to(w.dtype) @ teacher.T).float(), -1)
        off = torch.softmax((part @ w.T).float(), -1).sub_(wanted).div_(rows).to(w.dtype)
        gradient[start : start + _ROWS] = off @ w
        of_head.addmm_(off.T, part)
    head.change.grad = head.by_scale(of_head)
    return gradient


class _Scaled(nn.Module):
    """A linear with fixed integers, whose scales are ``scales * (1 + change)``.

    Floats are made of the integers when they are needed, of one matrix at a time: those of all matrices would take as
    much memory as the float model where training is in float32.
    """

    def __init__(self, weight: QTensor, bias: torch.Tensor | None, dtype: torch.dtype) -> None:
        super().__init__()
        self.stored = weight
        self.dtype = dtype
        self.scales = torch.from_numpy(weight.scales)
        self.bias = bias
        self.change = nn.Parameter(torch.zeros_like(self.scales))
        count = len(weight.q)
        self._parts = [slice(start, min(start + _CHUNK, count)) for start in range(0, count, _CHUNK)]

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y: torch.Tensor = _Product.apply(x.to(self.dtype), self.change, self).to(x.dtype)
        return y if self.bias is None else y + self.bias

    def weight(self) -> torch.Tensor:
        """Weight [N, K] in the training's type."""
        scales = (self.scales * (1 + self.change.detach())).to(self.dtype)
        made = torch.empty(self.stored.q.shape, dtype=self.dtype)
        for rows in self._parts:
            torch.mul(self._steps(rows), self._spread(scales[rows]), out=made[rows])
        return made

    def by_scale(self, by_weight: torch.Tensor) -> torch.Tensor:
        """The gradient by `change` [N, B], given that by the weight [N, K]."""
        size = self.stored.block_size
        missing = -self.stored.q.shape[1] % size
        sums = []
        for rows in self._parts:
            products = self._steps(rows).mul_(by_weight[rows])
            blocks = F.pad(products, (0, missing)).view(len(products), -1, size)
            sums.append(blocks.sum(-1, dtype=torch.float32))
        return torch.cat(sums) * self.scales

    def result(self) -> QTensor:
        """The weight with its new scales."""
        scales = to_float16((self.scales * (1 + self.change.detach())).numpy())
        return dataclasses.replace(self.stored, scales=scales, method=f"{self.stored.method}+tuned")

    def _steps(self, rows: slice) -> torch.Tensor:
        """The integers of these rows less their zero points, exact in the training's type: 8 bits and a sign."""
        steps = torch.from_numpy(self.stored.q[rows]).to(self.dtype)
        if self.stored.zero_points is None:
            return steps.sub_(2.0 ** (self.stored.bits - 1))
        return steps.sub_(self._spread(torch.from_numpy(self.stored.zero_points[rows]).to(self.dtype)))

    def _spread(self, per_block: torch.Tensor) -> torch.Tensor:
        return per_block.repeat_interleave(self.stored.block_size, 1)[:, : self.stored.q.shape[1]]


class _Product(torch.autograd.Function):
    """Product x @ W^T whose backward pass computes the weight's gradient only to sum it up by blocks."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, change: torch.Tensor, linear: _Scaled) -> torch.Tensor:
        ctx.save_for_backward(x)
        ctx.linear = linear
        return x @ linear.weight().T

    @staticmethod
    def backward(ctx: Any, by_y: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, None]:
        (x,) = ctx.saved_tensors
        by_weight = by_y.reshape(-1, by_y.shape[-1]).T @ x.reshape(-1, x.shape[-1])
        return by_y @ ctx.linear.weight(), ctx.linear.by_scale(by_weight), None
