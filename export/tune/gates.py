"""Layers of a Torch decoder that tokens may leave out while it is trained, as the runtime's segments leave them out.

A gate g multiplies what a layer adds to the residual stream: x + g (layer(x) - x). With g = 0 the layer does not change
a token, and as all later tokens of its answer have g = 0 there too, nothing reads the keys and values that it wrote. A
gate that hangs on a router's probability passes the gradient on to it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

Gate = Callable[[int, torch.Tensor], torch.Tensor | float]
"""Of a layer and the residual stream [B, S, H] it is about to read: gates [B, S, 1], or one number for all tokens."""


class Gates:
    """Puts gates into the layers of a transformers decoder; while `gate` is None all tokens run through all layers."""

    def __init__(self, model: Any) -> None:
        self.layers = list(model.get_decoder().layers)
        self.gate: Gate | None = None
        for index, layer in enumerate(self.layers):
            layer.forward = self._gated(index, layer.forward)

    def _gated(self, index: int, forward: Callable[..., Any]) -> Callable[..., Any]:
        def gated(hidden_states: torch.Tensor, *args: Any, **options: Any) -> Any:
            gate = 1.0 if self.gate is None else self.gate(index, hidden_states)
            if isinstance(gate, float) and gate == 0.0:
                return hidden_states
            out = forward(hidden_states, *args, **options)
            if isinstance(gate, float) and gate == 1.0:
                return out
            return hidden_states + gate * (out - hidden_states)

        return gated
