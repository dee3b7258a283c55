"""Layers of a Torch decoder, or their feed-forward blocks, that tokens may leave out while it is trained, as the
runtime's segments leave them out.

A gate g multiplies what a layer adds to the residual stream: x + g (layer(x) - x). With g = 0 the layer does not change
a token, and as all later tokens of its answer have g = 0 there too, nothing reads the keys and values that it wrote. A
gate that depends on a router's probability passes the gradient on to it. A gate of a feed-forward block multiplies what
that alone adds to the stream after attention.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from edge.errors import ExportError
from edge.export.graph.families import find_family, norms_of

Gate = Callable[[int, torch.Tensor], torch.Tensor | float]
"""Of a layer and the residual stream [B, S, H] that it, or its feed-forward block, is about to read: gates [B, S, 1],
or one number for all tokens."""

Watch = Callable[[int, torch.Tensor, torch.Tensor], None]
"""Is told a layer, and the residual stream [B, S, H] before and after its feed-forward block."""


class Gates:
    """Puts gates into the layers of a transformers decoder; while `gate` is None all tokens run through all layers.

    feed_forward: whether gates are those of feed-forward blocks. watch: sees these blocks.
    """

    def __init__(self, model: Any) -> None:
        self.layers = list(model.get_decoder().layers)
        self.gate: Gate | None = None
        self.feed_forward = False
        self.watch: Watch | None = None
        self._before: torch.Tensor | None = None  # the stream that the feed-forward block at hand reads, or its norm
        reader = norms_of(model.config.model_type, "Tuning").gates or "mlp"
        name, family = find_family(model.config.model_type)
        if family.layers is not None and family.layers(model.config).parallel:
            raise ExportError(
                f"Tuning is for layers whose feed-forward block reads what attention has added to, and those of {name} "
                "read what attention reads."
            )
        for index, layer in enumerate(self.layers):
            layer.get_submodule(reader).register_forward_pre_hook(self._keep)
            layer.forward = self._gated(index, layer.forward)

    @property
    def _by_half(self) -> bool:
        return self.feed_forward or self.watch is not None

    def _keep(self, reader: torch.nn.Module, inputs: tuple[torch.Tensor, ...]) -> None:
        if self._by_half:  # else it would keep a whole step's graph alive
            self._before = inputs[0]

    def _gated(self, index: int, forward: Callable[..., Any]) -> Callable[..., Any]:
        def gated(hidden_states: torch.Tensor, *args: Any, **options: Any) -> Any:
            if self._by_half:
                return self._half(index, forward(hidden_states, *args, **options))
            gate = 1.0 if self.gate is None else self.gate(index, hidden_states)
            if isinstance(gate, float) and gate == 0.0:
                return hidden_states
            return _mixed(hidden_states, forward(hidden_states, *args, **options), gate)

        return gated

    def _half(self, index: int, out: torch.Tensor) -> torch.Tensor:
        """Return a layer's output, with the gate applied to its feed-forward block."""
        before, self._before = self._before, None
        assert before is not None
        if self.watch is not None:
            self.watch(index, before, out)
        return _mixed(before, out, 1.0 if self.gate is None else self.gate(index, before))


def _mixed(before: torch.Tensor, out: torch.Tensor, gate: torch.Tensor | float) -> torch.Tensor:
    if isinstance(gate, float) and gate == 1.0:
        return out
    return before + gate * (out - before)
