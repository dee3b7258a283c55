"""T5 in numpy, float32: what a bundle is compared with where PyTorch is not needed.

Pairs of an input and the tokens of an answer, all of them at once, so that each matrix is read once. T is the number of
tokens of all texts of one side together, S that of one, H the hidden size.
"""

from __future__ import annotations

from collections.abc import Sequence
from types import SimpleNamespace
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from edge.export.graph.t5_distances import buckets
from edge.export.reference.in_numpy import ACTIVATIONS, Floats, Tokens, places_of, read_rows, with_rows

if TYPE_CHECKING:
    from edge.export.facts.checkpoint import Checkpoint
    from edge.export.facts.progress import Progress

EMBEDDING, HEAD = "shared.weight", "lm_head.weight"


class T5Reference:
    """The model of a checkpoint of the family t5."""

    def __init__(self, checkpoint: Checkpoint, progress: Progress | None = None) -> None:
        self._checkpoint = checkpoint
        self._progress = progress
        self._config = SimpleNamespace(**checkpoint.config)
        self._activation = ACTIVATIONS[self._config.dense_act_fn]
        self.vocab_size = int(self._config.vocab_size)

    def logits(self, sources: Sequence[Tokens], answers: Sequence[Tokens]) -> list[Floats]:
        """The logits [S, V] of each answer [S] to its source."""
        config = self._config
        read, written = places_of(sources), places_of(answers)
        x = self._embedded(sources)
        for i in range(config.num_layers):
            self._tell(i)
            name = f"encoder.block.{i}.layer"
            y = self._norm(f"{name}.0", x)
            x = x + self._attention(f"{name}.0.SelfAttention", y, y, read, read, self._bias("encoder", read))
            x = x + self._feed_forward(f"{name}.1", x)
        made = self._normed("encoder.final_layer_norm.weight", x)
        x = self._embedded(answers)
        for i in range(config.num_decoder_layers):
            self._tell(config.num_layers + i)
            name = f"decoder.block.{i}.layer"
            y = self._norm(f"{name}.0", x)
            x = x + self._attention(f"{name}.0.SelfAttention", y, y, written, written, self._bias("decoder", written))
            y = self._norm(f"{name}.1", x)
            x = x + self._attention(f"{name}.1.EncDecAttention", y, made, written, read, [np.float32(0)] * len(read))
            x = x + self._feed_forward(f"{name}.2", x)
        x = self._normed("decoder.final_layer_norm.weight", x)
        if config.scale_decoder_outputs:
            x = x * np.float32(config.d_model**-0.5)
        logits = with_rows(x, self._checkpoint, EMBEDDING if config.tie_word_embeddings else HEAD, self.vocab_size)
        return [logits[place] for place in written]

    def _tell(self, layer: int) -> None:
        if self._progress is not None:
            total = self._config.num_layers + self._config.num_decoder_layers
            self._progress(layer, total, "running the reference")

    def _embedded(self, texts: Sequence[Tokens]) -> Floats:
        return read_rows(np.concatenate(texts), self._checkpoint, EMBEDDING, self.vocab_size)

    def _bias(self, stack: str, texts: Sequence[slice]) -> list[Floats]:
        """Return the bias of each text's scores [H, S, S], by distance; in a decoder it hides later tokens."""
        encodes = stack == "encoder"
        name = f"{stack}.block.0.layer.0.SelfAttention.relative_attention_bias.weight"
        learned, biases = self._checkpoint.read(name), []
        for text in texts:
            at = np.arange(text.stop - text.start)
            distances = at - at[:, None]  # key minus query
            bias = learned[buckets(self._config, distances, bidirectional=encodes)].transpose(2, 0, 1)
            biases.append(bias if encodes else np.where(distances > 0, np.float32(-np.inf), bias))
        return biases

    def _attention(
        self,
        name: str,
        x: Floats,
        seen: Floats,
        queries: Sequence[slice],
        keys: Sequence[slice],
        biases: Sequence[Floats | np.float32],
    ) -> Floats:
        """Attention of each text's rows of x [T, H] to its rows of `seen` [T', H]."""
        query, key, value = (
            self._product(f"{name}.{part}", rows).reshape(len(rows), self._config.num_heads, -1).swapaxes(0, 1)
            for part, rows in zip("qkv", (x, seen, seen), strict=True)
        )  # [heads, T, D]
        made = []
        for asks, tells, bias in zip(queries, keys, biases, strict=True):
            scores = query[:, asks] @ key[:, tells].swapaxes(1, 2) + bias
            scores = np.exp(scores - scores.max(-1, keepdims=True))
            made.append(scores / scores.sum(-1, keepdims=True) @ value[:, tells])
        return self._product(f"{name}.o", np.concatenate(made, 1).swapaxes(0, 1).reshape(len(x), -1))

    def _feed_forward(self, name: str, x: Floats) -> Floats:
        y, dense = self._norm(name, x), f"{name}.DenseReluDense"
        if self._config.is_gated_act:
            y = self._activation(self._product(f"{dense}.wi_0", y)) * self._product(f"{dense}.wi_1", y)
        else:
            y = self._activation(self._product(f"{dense}.wi", y))
        return self._product(f"{dense}.wo", y)

    def _product(self, name: str, x: Floats) -> Floats:
        return x @ self._checkpoint.read(f"{name}.weight").T

    def _norm(self, layer: str, x: Floats) -> Floats:
        return self._normed(f"{layer}.layer_norm.weight", x)

    def _normed(self, weight: str, x: Floats) -> Floats:
        mean = np.square(x).mean(-1, keepdims=True)
        normed: NDArray[np.float32] = x / np.sqrt(mean + np.float32(self._config.layer_norm_epsilon))
        return normed * self._checkpoint.read(weight)
