"""A transformers encoder-decoder's decoder taken apart, so that methods can run it layer by layer on pairs of an input
and an answer."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol

import torch
from torch import nn

from edge.export.quantize.kept import Kept

Report = Callable[[int, int, str], None]


@dataclass(frozen=True)
class Pair:
    """The encoder's output for an input, and the tokens [1, S] that the decoder reads with it."""

    encoded: Any
    answer: torch.Tensor

    def run(self, model: Any) -> torch.Tensor:
        """Return a model's logits [1, S, vocabulary]. All tokens count, also those with the padding token's id."""
        logits: torch.Tensor = model(
            encoder_outputs=self.encoded,
            decoder_input_ids=self.answer,
            decoder_attention_mask=torch.ones_like(self.answer),
            use_cache=False,
        ).logits
        return logits


class Material(Protocol):
    """The inputs that a decoder is calibrated on. key: differs for other inputs."""

    @property
    def key(self) -> object: ...

    def pairs(self, model: Any, report: Report, kept: Kept) -> list[Pair]:
        """Return inputs with a model's answers to them. kept: provides answers that were written before, and stores the
        others."""
        ...


class PairDecoder:
    """The layers of a decoder, of which each runs all pairs before the next one does.

    What a layer is called with besides the hidden states (the encoder's output, masks, biases) is recorded from one run
    of the whole model on each pair.
    """

    def __init__(self, model: Any, pairs: Sequence[Pair]) -> None:
        stack = model.get_decoder()
        self._names = {id(parameter): name for name, parameter in model.named_parameters()}
        self.layers: list[nn.Module] = list(stack.layers if hasattr(stack, "layers") else stack.block)
        self.hidden: list[torch.Tensor] = []  # [1, S, hidden] of each pair, what the next layer reads
        self.finals: list[torch.Tensor] = []  # [S, hidden] of each pair, what the head read
        self._calls: list[list[tuple[tuple[Any, ...], dict[str, Any]]]] = [[] for _ in self.layers]
        handles = [
            layer.register_forward_pre_hook(partial(self._record, calls), with_kwargs=True)
            for layer, calls in zip(self.layers, self._calls, strict=True)
        ]
        handles.append(model.get_output_embeddings().register_forward_pre_hook(self._keep_final))
        try:
            for pair in pairs:
                pair.run(model)
        finally:
            for handle in handles:
                handle.remove()

    def run(self, layer: int) -> Iterator[torch.Tensor]:
        """Run a layer on the hidden states [1, S, hidden] of each pair; yield its outputs."""
        for hidden, (args, kwargs) in zip(self.hidden, self._calls[layer], strict=True):
            made = self.layers[layer](hidden, *args, **kwargs)
            yield made if isinstance(made, torch.Tensor) else made[0]

    def advance(self, layer: int) -> None:
        """Replace the hidden states by a layer's outputs for them."""
        for i, made in enumerate(self.run(layer)):
            self.hidden[i] = made

    @contextmanager
    def watch(self, layer: int) -> Iterator[dict[str, torch.Tensor]]:
        """Record the inputs [1, S, K] of a layer's linears, by their weights' names, of its latest run in the block."""
        inputs: dict[str, torch.Tensor] = {}

        def keep(name: str, linear: nn.Module, args: tuple[torch.Tensor, ...]) -> None:
            inputs[name] = args[0]

        linears = [module for module in self.layers[layer].modules() if isinstance(module, nn.Linear)]
        handles = [m.register_forward_pre_hook(partial(keep, self._names[id(m.weight)])) for m in linears]
        try:
            yield inputs
        finally:
            for handle in handles:
                handle.remove()

    def readers(self, layer: int, names: Collection[str]) -> list[tuple[str, ...]]:
        """A layer's matrices among `names`, those together that read the same input."""
        with self.watch(layer) as inputs:
            next(self.run(layer))
        groups: dict[int, list[str]] = {}
        for name, read in inputs.items():
            if name in names:
                groups.setdefault(id(read), []).append(name)
        return [tuple(group) for group in groups.values()]

    def _record(self, calls: list[Any], layer: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        hidden, *others = args or (kwargs["hidden_states"],)
        if calls is self._calls[0]:
            self.hidden.append(hidden)
        calls.append((tuple(others), {name: value for name, value in kwargs.items() if name != "hidden_states"}))

    def _keep_final(self, head: nn.Module, args: tuple[torch.Tensor, ...]) -> None:
        self.finals.append(args[0][0])
