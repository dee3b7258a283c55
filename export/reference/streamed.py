"""A transformers decoder that is run layer by layer: a layer's matrices are read from the checkpoint when it is run and
freed afterwards, so that a model takes the memory of one layer and of its vocabulary.

What a layer is called with besides the hidden states (masks, rotary tables) depends on lengths alone. It is recorded
from a run of the model whose layers hand on what they read.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from edge.export.facts.experts import WHOLE
from edge.export.reference.in_torch import build_torch, load_buffers, read_torch
from edge.runtime.check.perplexity import pieces
from edge.runtime.memory.process import release_freed

if TYPE_CHECKING:
    from edge.export.facts.checkpoint import Checkpoint
    from edge.export.facts.progress import Progress


IN_TUPLES = {"FalconH1DecoderLayer"}  # layers that return their hidden states in a tuple


class StreamedModel:
    """The transformers model of `checkpoint`, float32, in which the matrices of layers are missing until they are
    fetched. Embedding and head are there.

    model: as `load_torch` gives it. copy: its values may be written, else they may be those of a mapped file. Errors
    are those of `load_torch`.
    """

    def __init__(self, checkpoint: Checkpoint, *, copy: bool) -> None:
        self.model = build_torch(checkpoint)
        self.layers: list[nn.Module] = list(self.model.model.layers)
        self._checkpoint, self._copy = checkpoint, copy
        parameters = dict(self.model.named_parameters())
        self._shapes = {name: tuple(parameter.shape) for name, parameter in parameters.items()}
        missing = {id(each) for layer in self.layers for each in matrices_of(layer)}
        for name, parameter in parameters.items():
            parameter.data = torch.empty(0) if id(parameter) in missing else self._read(name)
        load_buffers(self.model, checkpoint)

    def fetch(self, layer: int) -> None:
        """Read the matrices of a layer, as far as they are missing."""
        for name, parameter in self.layers[layer].named_parameters(f"model.layers.{layer}"):
            if not parameter.numel():
                parameter.data = self._read(name)

    def _read(self, name: str) -> torch.Tensor:
        values = read_torch(self._checkpoint, name, self._shapes[name])
        return values.clone() if self._copy else values


def forget_matrices(layer: nn.Module) -> None:
    """Free the weights of a layer's linears and experts."""
    for matrix in matrices_of(layer):
        matrix.data = torch.empty(0)


def matrices_of(layer: nn.Module) -> Iterator[nn.Parameter]:
    """The weights of a layer's linears and experts."""
    yield from (module.weight for module in layer.modules() if isinstance(module, nn.Linear))
    yield from (parameter for name, parameter in layer.named_parameters() if WHOLE.fullmatch(f".{name}"))


@contextmanager
def replaced(layers: Sequence[nn.Module], run: Callable[..., torch.Tensor]) -> Iterator[None]:
    """Call `run` with a layer's number and what it is called with, instead of each layer."""

    def stand_in(number: int) -> Callable[..., Any]:
        kind = type(layers[number])
        names = list(inspect.signature(kind.forward).parameters)[2:]  # after the hidden states

        def called(hidden_states: torch.Tensor, *others: Any, **arguments: Any) -> Any:
            made = run(number, hidden_states, **dict(zip(names, others, strict=False)), **arguments)
            return (made,) if kind.__name__ in IN_TUPLES else made

        return called

    for number, layer in enumerate(layers):
        layer.forward = stand_in(number)
    try:
        yield
    finally:
        for layer in layers:
            del layer.forward  # the class's own is there again


@dataclass
class _Piece:
    """Tokens [1, S], their hidden states, and what each layer is called with besides."""

    tokens: torch.Tensor
    hidden: torch.Tensor
    arguments: list[dict[str, Any]]


class StreamedLogits:
    """The logits of a checkpoint's decoder, bit for bit those of `TorchLogits`, with the memory of one layer: all
    pieces of a text go through a layer before the next one is read."""

    def __init__(self, checkpoint: Checkpoint, progress: Progress | None = None) -> None:
        self._streamed = StreamedModel(checkpoint, copy=False)
        self._model = self._streamed.model
        self._progress = progress
        self.vocab_size = int(self._model.config.vocab_size)

    @torch.no_grad()
    def logits(self, tokens: NDArray[np.int64]) -> Iterator[NDArray[np.float32]]:
        layers = self._streamed.layers
        recorded = self._cache()
        parts = [self._begun(torch.from_numpy(piece)[None], recorded) for piece in pieces(tokens)]
        for i, layer in enumerate(layers):
            if self._progress is not None:
                self._progress(i, len(layers), "running Torch on the check's text")
            self._streamed.fetch(i)
            cache = self._cache()  # each layer's own: the keys and values of those before are freed
            for part in parts:
                given = {name: cache if value is recorded else value for name, value in part.arguments[i].items()}
                part.hidden = only_states(layer(part.hidden, **given))
            forget_matrices(layer)
            release_freed()
        for part in parts:
            yield self._finished(part)

    def _cache(self) -> Any:
        from transformers import DynamicCache

        return DynamicCache(config=self._model.config)

    def _begun(self, tokens: torch.Tensor, cache: Any) -> _Piece:
        """A piece as the first layer reads it. cache: has as many rows of nothing as there were tokens before."""
        piece = _Piece(tokens, torch.empty(0), [])
        config = self._model.config  # the last layers may read the keys and values of others
        own = config.num_hidden_layers - (getattr(config, "num_kv_shared_layers", None) or 0)

        def record(number: int, hidden: torch.Tensor, **arguments: Any) -> torch.Tensor:
            if number == 0:
                piece.hidden = hidden
            piece.arguments.append(arguments)
            if number < own and hasattr(cache.layers[number], "update"):  # else it keeps a state
                nothing = torch.zeros(1, 1, tokens.shape[1], 1)
                cache.update(nothing, nothing, number)
            return hidden

        with replaced(self._streamed.layers, record):
            self._model.model(tokens, past_key_values=cache, use_cache=True)
        return piece

    def _finished(self, piece: _Piece) -> NDArray[np.float32]:
        """The logits [S, V] of a piece that has gone through all layers."""
        with replaced(self._streamed.layers, lambda number, hidden, **_: piece.hidden):
            logits: NDArray[np.float32] = self._model(piece.tokens, use_cache=False).logits[0].numpy()
        return logits


def only_states(output: Any) -> torch.Tensor:
    """The hidden states of what a layer returned."""
    states: torch.Tensor = output if isinstance(output, torch.Tensor) else output[0]
    return states
