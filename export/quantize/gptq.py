"""4 bits by GPTQ: layer after layer, each calibrated on the activations of the layers already quantized."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import nn

from edge.export.quantize.base import Options, QTensor, Weight, matrices
from edge.export.quantize.calibration import calibration_windows
from edge.export.quantize.solve import solve
from edge.export.torch_reference import load_torch

if TYPE_CHECKING:
    from edge.export.checkpoint.base import Checkpoint

INT4_BLOCK = 32
HEAD_ROWS = 8192  # of the vocabulary, solved at a time: bounds memory


def int4(checkpoint: Checkpoint, options: Options) -> Mapping[str, Weight]:
    """4-bit blocks for every matrix, embedding and head included.

    Peak memory: the model in float32, its integers, and what one layer's solution takes.
    """
    windows = torch.from_numpy(calibration_windows(checkpoint, options.calibration))
    model = load_torch(checkpoint, progress=options.progress)
    block_size = options.block_size or INT4_BLOCK
    with torch.no_grad():
        return _Walk(model, windows, block_size, options.report).quantize(matrices(checkpoint))


class _Walk:
    """The way through a transformers decoder, one layer at a time, the hidden states of all windows in hand."""

    def __init__(
        self, model: Any, windows: torch.Tensor, block_size: int, report: Callable[[int, int, str], None]
    ) -> None:
        self.model = model
        self.windows = windows  # [W, S]
        self.block_size = block_size
        self.report = report
        self.layers: list[nn.Module] = list(model.model.layers)
        self.done: dict[str, Weight] = {}
        self._names = {id(p): n for n, p in model.named_parameters()}

    def quantize(self, names: list[str]) -> Mapping[str, Weight]:
        """Quantize the matrices `names` of the model, in place, and return them."""
        inputs, final = self._float_pass()
        total = len(self.layers) + 1
        self.report(0, total, "quantizing the embedding and the head")
        self._vocabulary(final)
        hidden = [self.model.model.embed_tokens(w[None]) for w in self.windows]  # each [1, S, hidden]
        for i, layer in enumerate(self.layers):
            self.report(i + 1, total, "quantizing layers")
            for linears, moment in self._moments(layer, hidden, inputs[i]):
                self._solve(linears, moment)
            hidden = [_first(layer(h, **inputs[i])) for h in hidden]
        self.report(total, total, "quantizing layers")
        return {name: self.done[name] for name in names}

    def _float_pass(self) -> tuple[list[dict[str, Any]], torch.Tensor]:
        """Keyword arguments that each layer is called with (the same for all windows, which are equally long),
        and the second moment [hidden, hidden] of what the head reads."""
        inputs: list[dict[str, Any]] = [{} for _ in self.layers]
        handles = [
            layer.register_forward_pre_hook(_remember(inputs[i]), with_kwargs=True)
            for i, layer in enumerate(self.layers)
        ]
        moment = torch.zeros(())
        for i, window in enumerate(self.windows):
            self.report(i, len(self.windows), "running the calibration text")
            final = _rows(self.model.model(window[None], use_cache=False).last_hidden_state)
            moment = moment + final.T @ final
            while handles:
                handles.pop().remove()
        return inputs, moment

    def _vocabulary(self, moment: torch.Tensor) -> None:
        """Embedding and head. Where they are one matrix, errors of a lookup count as much as those of a logit."""
        embedding, head = self.model.model.embed_tokens.weight, self.model.lm_head.weight
        plain = torch.eye(len(moment)) * moment.diagonal().mean()
        if head is embedding:
            self._solve([embedding], moment + plain)
        else:
            self._solve([embedding], plain)
            self._solve([head], moment)

    def _moments(
        self, layer: nn.Module, hidden: list[torch.Tensor], inputs: dict[str, Any]
    ) -> list[tuple[list[torch.Tensor], torch.Tensor]]:
        """Second moments of what the layer's linears read; linears that read the same tensor share one."""
        moments: dict[tuple[str, ...], torch.Tensor] = {}
        linears = {n: m for n, m in layer.named_modules() if isinstance(m, nn.Linear)}
        for h in hidden:
            with _captured(linears) as seen:
                layer(h, **inputs)
            readers: dict[int, list[str]] = {}
            for name, tensor in seen.items():
                readers.setdefault(id(tensor), []).append(name)
            for same in readers.values():
                x = _rows(seen[same[0]])
                key = tuple(same)
                moments[key] = moments[key].addmm_(x.T, x) if key in moments else x.T @ x
        return [([linears[n].weight for n in same], moment) for same, moment in moments.items()]

    def _solve(self, weights: list[torch.Tensor], moment: torch.Tensor) -> None:
        """Quantize weights that read the same input, and put what the kernels will compute with in their place."""
        stacked = weights[0].data if len(weights) == 1 else torch.cat([w.data for w in weights])
        parts = []
        for rows in stacked.split(HEAD_ROWS):
            solution = solve(rows, moment, 4, self.block_size)
            rows.copy_(solution.dequantize())
            parts.append(solution.pack("gptq"))
        whole, start = _join(parts), 0
        for weight in weights:
            stop = start + len(weight)
            weight.data.copy_(stacked[start:stop])
            self.done[self._names[id(weight)]] = _rows_of(whole, start, stop)
            start = stop


def _remember(place: dict[str, Any]) -> Callable[..., None]:
    def hook(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        place.update(kwargs)

    return hook


@contextmanager
def _captured(linears: Mapping[str, nn.Linear]) -> Iterator[dict[str, torch.Tensor]]:
    """The inputs of linears while a layer runs, by name."""
    seen: dict[str, torch.Tensor] = {}
    handles = []
    for name, linear in linears.items():

        def hook(module: nn.Module, args: tuple[torch.Tensor, ...], name: str = name) -> None:
            seen[name] = args[0]

        handles.append(linear.register_forward_pre_hook(hook))
    try:
        yield seen
    finally:
        for handle in handles:
            handle.remove()


def _rows(x: torch.Tensor) -> torch.Tensor:
    return x.reshape(-1, x.shape[-1])


def _first(output: Any) -> torch.Tensor:
    return output if isinstance(output, torch.Tensor) else output[0]


def _join(parts: list[QTensor]) -> QTensor:
    if len(parts) == 1:
        return parts[0]
    zeros = [p.zero_points for p in parts if p.zero_points is not None]
    return dataclasses.replace(
        parts[0],
        q=np.concatenate([p.q for p in parts]),
        scales=np.concatenate([p.scales for p in parts]),
        zero_points=np.concatenate(zeros),
    )


def _rows_of(whole: QTensor, start: int, stop: int) -> QTensor:
    zeros = None if whole.zero_points is None else whole.zero_points[start:stop]
    return dataclasses.replace(
        whole, q=whole.q[start:stop], scales=whole.scales[start:stop], zero_points=zeros
    )
