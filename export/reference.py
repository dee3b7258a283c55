"""A decoder like Llama in numpy, float32: what a bundle is compared with where PyTorch is not needed, and what
smoothing measures. It reads one matrix at a time.

A sequence at once, without a KV cache: for the few hundred tokens of a check. W is the number of texts, S their length
in tokens, H the hidden size.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from types import SimpleNamespace

import numpy as np
from numpy.typing import NDArray

from edge.errors import ExportError
from edge.export.checkpoint.base import Checkpoint
from edge.export.graph.families import find_family
from edge.export.graph.families.base import heads_of, window_of
from edge.export.graph.rope import cos_sin
from edge.export.quantize.base import EMBEDDING, HEAD, Progress
from edge.runtime.check.perplexity import pieces

Floats = NDArray[np.float32]
Watch = Callable[[str, Floats, Floats], None]  # told each matrix by its name, what it reads [W, S, K], and it [N, K]
ROWS = 8192  # of the embedding that are read at a time


def _silu(x: Floats) -> Floats:
    return x * (1 + np.tanh(x / 2)) / 2  # which overflows nowhere


def _gelu(x: Floats) -> Floats:
    erf = np.frompyfunc(math.erf, 1, 1)(x / math.sqrt(2)).astype(np.float32)
    return x * (1 + erf) / 2


def _gelu_tanh(x: Floats) -> Floats:
    return x * (1 + np.tanh(np.float32(math.sqrt(2 / math.pi)) * (x + np.float32(0.044715) * x**3))) / 2


ACTIVATIONS: dict[str, Callable[[Floats], Floats]] = {
    "silu": _silu,
    "swish": _silu,
    "gelu": _gelu,
    "gelu_new": _gelu_tanh,
    "gelu_pytorch_tanh": _gelu_tanh,
    "relu": lambda x: np.maximum(x, 0),
}


class Reference:
    """The model of a checkpoint; a source of logits, as `perplexity` takes them.

    max_context: that of the bundle, for rotary tables that depend on it.

    Raises:
        ExportError: its family is unknown, not like Llama, or has another activation.
    """

    def __init__(self, checkpoint: Checkpoint, max_context: int, progress: Progress | None = None) -> None:
        name, family = find_family(str(checkpoint.config.get("model_type")))
        if family.layers is None or family.norms is None:
            raise ExportError(f"There is no reference in numpy for models of the family {name}, only PyTorch's.")
        self._checkpoint = checkpoint
        self._progress = progress
        self._config = config = SimpleNamespace(**checkpoint.config)
        self._like, self._norms = family.layers(config), family.norms
        self._heads = heads_of(config)
        self._have = set(checkpoint.names())
        activation = self._like.activation or config.hidden_act
        if activation not in ACTIVATIONS:
            raise ExportError(f"The activation {activation!r} is not known; known are: {', '.join(ACTIVATIONS)}.")
        self._activation = ACTIVATIONS[activation]
        stated = config.rope_parameters
        tables = {"rope": stated} if "rope_type" in stated else stated
        self._rope = {name: cos_sin(config, parameters, max_context) for name, parameters in tables.items()}
        self.vocab_size = int(config.vocab_size)

    def logits(self, tokens: NDArray[np.int64]) -> Iterator[Floats]:
        """The logits [piece, V] of `tokens` [S], piece by piece."""
        stream = self.hidden(tokens[None])[0] * np.float32(self._like.head_scale)
        head = EMBEDDING if self._config.tie_word_embeddings else HEAD
        logits = np.empty((len(tokens), self.vocab_size), np.float32)
        for start in range(0, self.vocab_size, ROWS):
            rows = slice(start, min(start + ROWS, self.vocab_size))
            logits[:, rows] = stream @ self._checkpoint.read(head, rows).T
        if (cap := self._like.softcap) is not None:
            logits = np.float32(cap) * np.tanh(logits / np.float32(cap))
        for piece in pieces(np.arange(len(tokens))):
            yield logits[piece]

    def hidden(self, tokens: NDArray[np.int64], watch: Watch | None = None) -> Floats:
        """What the output head reads [W, S, H] of `tokens` [W, S]."""
        config, like, norms = self._config, self._like, self._norms
        x = self._embedded(tokens) * np.float32(like.embedding_scale or 1)
        for i in range(config.num_hidden_layers):
            if self._progress is not None:
                self._progress(i, config.num_hidden_layers, "running the reference")
            name = f"model.layers.{i}"
            for block, before, after in zip(
                (self._attention, self._feed_forward), (norms.attention, norms.gates), norms.outputs, strict=True
            ):
                made = block(i, x if before is None else self._norm(f"{name}.{before}", x), watch)
                if after is not None:
                    made = self._norm(f"{name}.{after}", made)
                x = x + made * np.float32(like.residual_scale)
        return self._norm("model.norm", x)

    def _embedded(self, tokens: NDArray[np.int64]) -> Floats:
        """The embedding's rows, of which only those are kept that occur."""
        used, places = np.unique(tokens, return_inverse=True)
        found = np.empty((len(used), self._config.hidden_size), np.float32)
        for start in range(0, self.vocab_size, ROWS):
            here = (used >= start) & (used < start + ROWS)
            if here.any():
                rows = self._checkpoint.read(EMBEDDING, slice(start, min(start + ROWS, self.vocab_size)))
                found[here] = rows[used[here] - start]
        return found[places.reshape(tokens.shape)]

    def _attention(self, layer: int, x: Floats, watch: Watch | None) -> Floats:
        name, heads = f"model.layers.{layer}.self_attn", self._heads
        *inputs, output = self._like.attention
        rows = (heads.query, heads.key_value, heads.key_value)
        made = np.concatenate([self._product(f"{name}.{member}", x, watch) for member in inputs], -1)
        parts = np.split(made, np.cumsum(rows)[:-1] * heads.dim, axis=-1)
        if self._like.qk_norm is not None:
            parts[:2] = [self._qk_norm(f"{name}.{n}_norm", part) for n, part in zip("qk", parts, strict=False)]
        query, key, value = (
            part.reshape(*x.shape[:2], n, heads.dim).swapaxes(1, 2) for part, n in zip(parts, rows, strict=True)
        )  # [W, heads, S, D]
        if (table := self._like.rope(layer)) is not None:
            query, key = (_turned(part, *self._rope[table]) for part in (query, key))
        window = window_of(self._config, layer) if self._like.windowed else None
        scale = heads.dim**-0.5 if self._like.scale is None else self._like.scale
        y = _attended(query * np.float32(scale), key, value, window)
        return self._product(f"{name}.{output}", y.swapaxes(1, 2).reshape(*x.shape[:2], -1), watch)

    def _feed_forward(self, layer: int, x: Floats, watch: Watch | None) -> Floats:
        name = f"model.layers.{layer}.mlp"
        made = np.concatenate([self._product(f"{name}.{member}", x, watch) for member in self._like.gates], -1)
        gate, up = np.split(made, 2, axis=-1)
        return self._product(f"{name}.down_proj", self._activation(gate) * up, watch)

    def _product(self, name: str, x: Floats, watch: Watch | None) -> Floats:
        weight = self._checkpoint.read(f"{name}.weight")
        if watch is not None:
            watch(f"{name}.weight", x, weight)
        y = x @ weight.T
        return y + self._checkpoint.read(f"{name}.bias") if f"{name}.bias" in self._have else y

    def _qk_norm(self, name: str, x: Floats) -> Floats:
        if self._like.qk_norm == "all":
            return self._norm(name, x)
        return self._norm(name, x.reshape(*x.shape[:2], -1, self._heads.dim)).reshape(x.shape)

    def _norm(self, name: str, x: Floats) -> Floats:
        weight = self._checkpoint.read(f"{name}.weight") + np.float32(self._norms.offset)
        mean = np.square(x).mean(-1, keepdims=True)
        return x / np.sqrt(mean + np.float32(self._config.rms_norm_eps)) * weight


def _turned(x: Floats, cos: Floats, sin: Floats) -> Floats:
    """x [..., S, D] with pairs of channels, one of each half of those that are rotated, turned by their position."""
    half = cos.shape[1]
    cos, sin = cos[: x.shape[-2]], sin[: x.shape[-2]]
    a, b = x[..., :half], x[..., half : 2 * half]
    return np.concatenate([a * cos - b * sin, b * cos + a * sin, x[..., 2 * half :]], -1)


def _attended(query: Floats, key: Floats, value: Floats, window: int | None) -> Floats:
    """Causal attention of [W, heads, S, D], with as many heads of keys as divide those of queries."""
    group = query.shape[1] // key.shape[1]
    at = np.arange(query.shape[2])
    back = at[:, None] - at
    hidden = (back < 0) | (back >= (window or len(at)))
    y = np.empty_like(query)
    for head in range(query.shape[1]):
        scores = query[:, head] @ key[:, head // group].swapaxes(1, 2)
        scores[:, hidden] = -np.inf
        scores = np.exp(scores - scores.max(-1, keepdims=True))
        y[:, head] = scores / scores.sum(-1, keepdims=True) @ value[:, head // group]
    return y
