"""Sequences of tokens that methods run through a transformers decoder layer by layer, all of them through one layer
before the next: `TextSet` of a decoder alone, `AnswerSet` of an encoder-decoder."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import nn

from edge.export.facts.tensors import QTensor
from edge.export.graph.families import find_family
from edge.export.quantize.gptq_efforts import ATTENTION_STRIDE
from edge.export.reference.streamed import StreamedModel, forget_matrices, only_states, replaced
from edge.runtime.memory.process import release_freed

if TYPE_CHECKING:
    from transformers.modeling_outputs import BaseModelOutput

SHRINKAGE = (
    0.3  # of an answer set's moments towards uncorrelated inputs: it is little and never quite what will be read
)


class Group(NamedTuple):
    """Names of weights that are solved together, and the second moment [K, K] of their input."""

    names: tuple[str, ...]
    moment: torch.Tensor


@dataclass
class Inputs:
    """Inputs [1, S, K] of a layer's linears by their weights' names, several of those that a layer reads with more than
    once, and its attention weights [heads, S, S], where they are recorded."""

    by_weight: dict[str, list[torch.Tensor]] = field(default_factory=dict)
    attention: torch.Tensor | None = None

    def by_readers(self) -> dict[tuple[str, ...], torch.Tensor]:
        """The rows [N, K] of each input by the names of all weights that read it; of a value projection's input under
        attention, as `gptq_quick.Calibrating.scores` says."""
        readers: dict[tuple[tuple[int, ...], bool], list[str]] = {}
        for name, read in self.by_weight.items():
            value = self.attention is not None and name.endswith("v_proj.weight")
            readers.setdefault((tuple(map(id, read)), value), []).append(name)
        found = {}
        for (_, value), names in readers.items():
            read = [flat(x) for x in self.by_weight[names[0]]]
            x = read[0] if len(read) == 1 else torch.cat(read)
            found[tuple(names)] = x if not value or self.attention is None else flat(self._averaged(x))
        return found

    def _averaged(self, x: torch.Tensor) -> torch.Tensor:
        assert self.attention is not None
        return self.attention[:, ::ATTENTION_STRIDE] @ x


class CalibrationSet(ABC):
    """Sequences, and the decoder that they run through.

    names: of the matrices that are calibrated; None for all linears of the layers. hidden: the hidden states
    [1, S, hidden] of each sequence, which the next layer reads.
    """

    def __init__(self, model: Any, layers: Sequence[nn.Module], names: Collection[str] | None = None) -> None:
        self.model = model
        self.layers = list(layers)
        self.parameters: dict[str, nn.Parameter] = dict(model.named_parameters())
        self.hidden: list[torch.Tensor] = []
        self._names = {id(p): name for name, p in self.parameters.items() if names is None or name in names}

    @abstractmethod
    def begin(self) -> None:
        """Set `hidden` to what the first layer reads."""

    @abstractmethod
    def run(self, layer: int, hidden: torch.Tensor, sequence: int = 0) -> torch.Tensor:
        """Return a layer's output for the hidden states of one sequence."""

    @abstractmethod
    def groups(self, layer: int) -> list[Group]:
        """Run all sequences through a layer, and return its matrices by what they are judged by."""

    @abstractmethod
    def advance(self, layer: int, weights: Mapping[str, QTensor]) -> None:
        """Set `hidden` to what the next layer is calibrated on. weights: of this layer, as they were quantized."""

    def outputs(self, layer: int) -> Iterator[torch.Tensor]:
        """Yield a layer's output for each sequence."""
        for sequence, hidden in enumerate(self.hidden):
            yield self.run(layer, hidden, sequence)

    def readers(self, layer: int) -> list[tuple[str, ...]]:
        """A layer's matrices, those together that read the same input."""
        with self.watch(layer) as inputs:
            self.run(layer, self.hidden[0])
        return list(inputs.by_readers())

    @contextmanager
    def watch(self, layer: int) -> Iterator[Inputs]:
        """Record the values inside a layer during each run in the block."""
        inputs = Inputs()
        handles = list(self._hooks(layer, inputs))
        try:
            yield inputs
        finally:
            for handle in handles:
                handle.remove()

    def _hooks(self, layer: int, inputs: Inputs) -> Iterator[Any]:
        def begin(module: nn.Module, args: tuple[Any, ...]) -> None:
            inputs.by_weight.clear()

        def keep(name: str, linear: nn.Module, args: tuple[torch.Tensor, ...]) -> None:
            inputs.by_weight.setdefault(name, []).append(args[0])

        yield self.layers[layer].register_forward_pre_hook(begin)
        for module in self.layers[layer].modules():
            if isinstance(module, nn.Linear) and (name := self._names.get(id(module.weight))) is not None:
                yield module.register_forward_pre_hook(partial(keep, name))

    def _measured(self, layer: int) -> tuple[list[Group], list[torch.Tensor]]:
        """A layer's matrices with the second moments of their inputs, and its outputs for all sequences."""
        moments: dict[tuple[str, ...], torch.Tensor] = {}
        outputs = list[torch.Tensor]()
        with self.watch(layer) as inputs:
            for output in self.outputs(layer):
                outputs.append(output)
                for names, x in inputs.by_readers().items():
                    moments[names] = moments[names].addmm_(x.T, x) if names in moments else x.T @ x
        release_freed()
        return list(map(Group, moments, moments.values())), outputs


class TextSet(CalibrationSet):
    """Windows of one length that a decoder alone reads. Layers are calibrated on what they read in the float model.

    What a layer is called with besides the hidden states depends on the length alone.
    """

    def __init__(self, source: StreamedModel | Any, windows: torch.Tensor) -> None:
        """source: a model of transformers, or one whose layers must be fetched before they are run. windows [W, S]."""
        self._streamed = source if isinstance(source, StreamedModel) else None
        model: Any = source if self._streamed is None else self._streamed.model
        super().__init__(model, model.model.layers)
        model.set_attn_implementation("eager")  # the one that hands out attention weights
        self.windows = windows
        self._arguments: list[dict[str, Any]] = []
        self._advanced = False

        def record(number: int, hidden: torch.Tensor, **arguments: Any) -> torch.Tensor:
            self._arguments.append(arguments)
            return hidden

        with torch.no_grad(), replaced(self.layers, record):
            model.model(windows[:1], use_cache=False)
        _, family = find_family(model.config.model_type)
        self.head_scale = 1.0 if family.layers is None else family.layers(model.config).head_scale
        self._final: nn.Module = getattr(model.model, "norm" if family.norms is None else family.norms.final)

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

    def begin(self) -> None:
        self.hidden = [self.embed(window) for window in self.windows]

    def run(self, layer: int, hidden: torch.Tensor, sequence: int = 0) -> torch.Tensor:
        return only_states(self.layers[layer](hidden, **self._arguments[layer]))

    def groups(self, layer: int) -> list[Group]:
        self.fetch(layer)
        groups, self.hidden = self._measured(layer)
        self._advanced = True
        return groups

    def advance(self, layer: int, weights: Mapping[str, QTensor]) -> None:
        if not self._advanced:
            self.fetch(layer)
            self.hidden = list(self.outputs(layer))
        self._advanced = False
        self.forget(layer)  # tuning builds the weights from the integers

    def fetch(self, layer: int) -> None:
        """Read the weights of a layer's linears, where they are not there."""
        if self._streamed is not None:
            self._streamed.fetch(layer)

    def forget(self, layer: int) -> None:
        """Free the weights of a layer's linears; it cannot be run again before they are fetched or replaced."""
        forget_matrices(self.layers[layer])

    def finish(self, hidden: torch.Tensor) -> torch.Tensor:
        """Apply the final norm: return the head's input [S, hidden]."""
        final: torch.Tensor = self._final(hidden)[0]
        return final * self.head_scale

    def _hooks(self, layer: int, inputs: Inputs) -> Iterator[Any]:
        def attention(module: nn.Module, args: tuple[Any, ...], output: Any) -> None:
            inputs.attention = output[1][0]

        yield from super()._hooks(layer, inputs)
        for name, module in self.layers[layer].named_modules():
            if name.endswith("self_attn"):
                yield module.register_forward_hook(attention)


class _Enough(Exception):
    """Raised when the wanted values are found, so that the rest of the model need not run."""


@dataclass(frozen=True)
class Example:
    """The encoder's output for an input, and the tokens [1, S] of the answer that the decoder reads with it."""

    encoded: BaseModelOutput
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


class AnswerSet(CalibrationSet):
    """Answers that an encoder-decoder's decoder reads, each with its input. Layers are calibrated on what the layers
    already quantized hand them.

    What a layer is called with besides the hidden states (the encoder's output, masks, biases) is recorded from one run
    of the whole model on each example.
    """

    def __init__(self, model: Any, examples: Sequence[Example], names: Collection[str]) -> None:
        stack = model.get_decoder()
        super().__init__(model, stack.layers if hasattr(stack, "layers") else stack.block, names)
        self.examples = examples
        self._calls: list[list[tuple[tuple[Any, ...], dict[str, Any]]]] = []

    def begin(self) -> None:
        self.hidden, self._calls = [], [[] for _ in self.layers]
        handles = [
            layer.register_forward_pre_hook(partial(self._record, calls), with_kwargs=True)
            for layer, calls in zip(self.layers, self._calls, strict=True)
        ]
        try:
            for example in self.examples:
                example.run(self.model)
        finally:
            for handle in handles:
                handle.remove()

    def run(self, layer: int, hidden: torch.Tensor, sequence: int = 0) -> torch.Tensor:
        args, kwargs = self._calls[layer][sequence]
        return only_states(self.layers[layer](hidden, *args, **kwargs))

    def groups(self, layer: int) -> list[Group]:
        """The moments are shrunk, and each matrix is solved by itself."""
        groups, _ = self._measured(layer)
        for _, moment in groups:
            moment.lerp_(torch.diag(moment.diagonal()), SHRINKAGE)
        return [Group((name,), moment) for names, moment in groups for name in names]

    def advance(self, layer: int, weights: Mapping[str, QTensor]) -> None:
        for name, weight in weights.items():
            self.parameters[name].copy_(torch.from_numpy(weight.dequantize()))
        for sequence, output in enumerate(self.outputs(layer)):
            self.hidden[sequence] = output

    def _record(self, calls: list[Any], layer: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        hidden, *others = args or (kwargs["hidden_states"],)
        if calls is self._calls[0]:
            self.hidden.append(hidden)
        calls.append((tuple(others), {name: value for name, value in kwargs.items() if name != "hidden_states"}))


def flat(x: torch.Tensor) -> torch.Tensor:
    """Rows [N, K] of [..., K]."""
    return x.reshape(-1, x.shape[-1])
