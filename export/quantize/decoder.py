"""A transformers decoder taken apart, so that methods can run it layer by layer."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
from torch import nn

from edge.export.graph.families import find_family
from edge.export.reference.streamed import StreamedModel, forget_matrices, only_states, replaced


class Decoder:
    """Embedding, layers, final norm and head of a causal language model, for windows of one length.

    What a layer is called with besides the hidden states depends on the length alone.
    """

    def __init__(self, source: StreamedModel | Any, window: torch.Tensor) -> None:
        """source: a model of transformers, or one whose layers must be fetched before they are run. window [S]: any
        tokens of the length that will be run."""
        self._streamed = source if isinstance(source, StreamedModel) else None
        model: Any = source if self._streamed is None else self._streamed.model
        self.model = model
        model.set_attn_implementation("eager")  # the one that hands out attention weights
        self.layers: list[nn.Module] = list(model.model.layers)
        self._arguments: list[dict[str, Any]] = []

        def record(number: int, hidden: torch.Tensor, **arguments: Any) -> torch.Tensor:
            self._arguments.append(arguments)
            return hidden

        with torch.no_grad(), replaced(self.layers, record):
            model.model(window[None], use_cache=False)
        _, family = find_family(model.config.model_type)
        self.head_scale = 1.0 if family.layers is None else family.layers(model.config).head_scale

    @property
    def embedding(self) -> nn.Parameter:
        weight: nn.Parameter = self.model.model.embed_tokens.weight
        return weight

    @property
    def head(self) -> nn.Parameter:
        """Weight of the head [vocabulary, hidden]; the embedding if the two are tied."""
        weight: nn.Parameter = self.model.lm_head.weight
        return weight

    def embed(self, window: torch.Tensor) -> torch.Tensor:
        """Tokens [S] to what the first layer reads: [1, S, hidden]. Families scale embeddings in their own ways."""
        read: list[torch.Tensor] = []

        def keep(layer: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
            read.append(args[0] if args else kwargs["hidden_states"])
            raise _Enough

        handle = self.layers[0].register_forward_pre_hook(keep, with_kwargs=True)
        with suppress(_Enough):
            self.model.model(window[None], use_cache=False)
        handle.remove()
        return read[0]

    def run(self, layer: int, hidden: torch.Tensor) -> torch.Tensor:
        return only_states(self.layers[layer](hidden, **self._arguments[layer]))

    def fetch(self, layer: int) -> None:
        """Read the weights of a layer's linears, where they are not there."""
        if self._streamed is not None:
            self._streamed.fetch(layer)

    def forget(self, layer: int) -> None:
        """Free the weights of a layer's linears; it cannot be run again before they are fetched or replaced."""
        forget_matrices(self.layers[layer])

    def finish(self, hidden: torch.Tensor) -> torch.Tensor:
        """Apply the final norm: return the head's input [S, hidden]."""
        final: torch.Tensor = self.model.model.norm(hidden)[0]
        return final * self.head_scale

    @contextmanager
    def watch(self, layer: int) -> Iterator[Seen]:
        """Record the values inside a layer during each run in the block."""
        seen = Seen()
        handles = []

        def attention(module: nn.Module, args: tuple[Any, ...], output: Any) -> None:
            seen.attention = output[1][0]

        for name, module in self.layers[layer].named_modules():
            if isinstance(module, nn.Linear):
                keep = partial(_keep_input, seen.inputs, name)
                handles.append(module.register_forward_pre_hook(keep))
            elif name.endswith("self_attn"):
                handles.append(module.register_forward_hook(attention))
        try:
            yield seen
        finally:
            for handle in handles:
                handle.remove()


class _Enough(Exception):
    """Raised when the wanted values are found, so that the rest of the model need not run."""


@dataclass
class Seen:
    """Inputs of a layer's linears by name, and its attention weights [heads, S, S]."""

    inputs: dict[str, torch.Tensor] = field(default_factory=dict)
    attention: torch.Tensor | None = None


def _keep_input(inputs: dict[str, torch.Tensor], name: str, module: nn.Module, args: tuple[torch.Tensor, ...]) -> None:
    inputs[name] = args[0]
