"""A decoder like Llama in numpy, float32: what a bundle is compared with where PyTorch is not needed, and what
smoothing measures. It reads one matrix at a time.

A few texts at once, without a KV cache: for the few hundred tokens of a check. T is the number of tokens of all texts
together, S that of one, H the hidden size.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import accumulate, pairwise
from types import SimpleNamespace

import numpy as np
from numpy.typing import NDArray

from edge.errors import ExportError
from edge.export.facts.checkpoint import Checkpoint
from edge.export.facts.family import SINKS, heads_of, window_of
from edge.export.facts.progress import Progress
from edge.export.facts.tensors import EMBEDDING, HEAD, halves
from edge.export.graph.families import find_family
from edge.export.graph.llama_like import query_scales
from edge.export.graph.rope import cos_sin, short_rope
from edge.export.reference.mixture import Routed, mixture
from edge.export.reference.recurrent import mixed
from edge.runtime.check.perplexity import pieces

Floats = NDArray[np.float32]
Tokens = NDArray[np.int64]
ROWS = 2048  # of the embedding that are read at a time
ATTENDED = 128  # rows that attend together, to nothing behind the last of them


def _silu(x: Floats) -> Floats:
    y = np.tanh(x / 2)  # which overflows nowhere
    y += 1
    y *= x
    y /= 2
    return y


def _gelu(x: Floats) -> Floats:
    erf = np.frompyfunc(math.erf, 1, 1)(x / math.sqrt(2)).astype(np.float32)
    return x * (1 + erf) / 2


def _gelu_tanh(x: Floats) -> Floats:
    return x * (1 + np.tanh(np.float32(math.sqrt(2 / math.pi)) * (x + np.float32(0.044715) * x * x * x))) / 2


ACTIVATIONS: dict[str, Callable[[Floats], Floats]] = {
    "silu": _silu,
    "swish": _silu,
    "gelu": _gelu,
    "gelu_new": _gelu_tanh,
    "gelu_pytorch_tanh": _gelu_tanh,
    "relu": lambda x: np.maximum(x, 0),
    "relu2": lambda x: np.square(np.maximum(x, 0)),
}


class Observer:
    """Observer of a run of texts: its methods get intermediate values. Slices of rows [T] are those of each text.

    texts: those to observe, the last ones of the run. doing: the name of their progress.
    """

    texts: Sequence[Tokens]
    doing = "running the reference"

    def product(self, name: str, x: Floats, weight: Floats, texts: Sequence[slice]) -> None:
        """Observe a product: a matrix [N, K] by its name, and its input [T, K]."""

    def attention(self, layer: int, key: Floats, value: Floats, texts: Sequence[slice]) -> None:
        """Observe a layer's keys, rotated, and values, each [heads, T, D]."""

    def scores(self, head: int, scores: Floats, text: slice) -> None:
        """Observe attention weights [rows, S] of a head: those of some rows for each row of the text up to the last of
        them. The layer is that of the latest matrices."""

    def experts(self, block: str, x: Floats, routed: Routed) -> None:
        """Observe which experts of a block, by its name, compute with its input [T, H]."""

    def stream(self, x: Floats) -> None:
        """Observe the residual stream [T, H] after a layer."""

    def finals(self, x: Floats, texts: Sequence[slice]) -> None:
        """Observe the input of the output head [T, H]."""


class Reference:
    """The model of a checkpoint; a source of logits for `perplexity`.

    max_context: that of the bundle, for rotary tables that depend on it. doing: the name of its progress.

    Raises:
        ExportError: its family is unknown, not like Llama, or has another activation.
    """

    def __init__(
        self, checkpoint: Checkpoint, max_context: int, progress: Progress | None = None, doing: str = Observer.doing
    ) -> None:
        name, family = find_family(str(checkpoint.config.get("model_type")))
        if family.layers is None or family.norms is None:
            raise ExportError(f"There is no reference in numpy for models of the family {name}, only PyTorch's.")
        self._checkpoint = checkpoint
        self._progress, self._doing = progress, doing
        self._config = config = SimpleNamespace(**checkpoint.config)
        self._like, self._norms = family.layers(config), family.norms
        self._heads, self._eps = heads_of(config), getattr(config, family.norms.eps)
        self._have = set(checkpoint.names())
        activation = self._like.activation or config.hidden_act
        if activation not in ACTIVATIONS:
            raise ExportError(f"The activation {activation!r} is not known; known are: {', '.join(ACTIVATIONS)}.")
        self._activation = ACTIVATIONS[activation]
        stated = config.rope_parameters
        tables = {"rope": stated} if "rope_type" in stated else stated
        self._rope = {name: cos_sin(config, parameters, max_context) for name, parameters in tables.items()}
        self._short = short_rope(config, max_context)
        if self._short is not None:  # another table for short texts, after the one for long ones
            more, (cos, sin) = cos_sin(config, stated, self._short), self._rope["rope"]
            self._rope["rope"] = np.concatenate([cos, more[0]]), np.concatenate([sin, more[1]])
        self._max_context = max_context
        self.vocab_size = int(config.vocab_size)

    def logits(self, tokens: Tokens) -> Iterator[Floats]:
        """The logits [piece, V] of `tokens` [S], piece by piece."""
        return self.predictions(self.hidden([tokens])[0])

    def predictions(self, hidden: Floats) -> Iterator[Floats]:
        """Yield the logits [piece, V] of a text's hidden states, as `hidden` returns them, piece by piece."""
        stream = hidden * np.float32(self._like.head_scale)
        head = EMBEDDING if self._config.tie_word_embeddings else HEAD
        for piece in pieces(np.arange(len(stream))):
            logits = with_rows(stream[piece], self._checkpoint, head, self.vocab_size)
            yield _capped(logits, self._like.softcap)

    def rotated(self, layer: int) -> int:
        """Return the number of channels of a head that are rotated by position. A pair has one channel from each half
        of them."""
        table = self._like.rope(layer)
        return 0 if table is None else 2 * self._rope[table][0].shape[1]

    def hidden(self, texts: Sequence[Tokens], observer: Observer | None = None) -> list[Floats]:
        """Return the input of the output head [S, H] for each text [S]. All texts run together, so that each matrix is
        read once."""
        config, like, norms = self._config, self._like, self._norms
        places = places_of(texts)
        x = read_rows(np.concatenate(texts), self._checkpoint, EMBEDDING, self.vocab_size)
        x = x * np.float32(like.embedding_scale or 1)
        for i in range(config.num_hidden_layers):
            if self._progress is not None:
                self._progress(i, config.num_hidden_layers, self._doing)
            name = f"model.layers.{i}"
            read = x
            for block, before, after, scale in zip(
                (self._mixing, self._feed_forward),
                (norms.attention, norms.gates),
                norms.outputs,
                (1.0, like.mlp_scales[1]),
                strict=True,
            ):
                if like.parallel:
                    before = norms.attention
                else:
                    read = x
                normed = read if before is None else self._stream_norm(f"{name}.{before}", read)
                made = block(i, normed, places, observer)
                if after is not None:
                    made = self._norm(f"{name}.{after}", made)
                x = x + made * np.float32(like.residual_scale * scale)
            if observer is not None:
                observer.stream(x)
        x = self._stream_norm(f"model.{norms.final}", x)
        if observer is not None:
            observer.finals(x, places)
        return [x[place] for place in places]

    def _mixing(self, layer: int, x: Floats, texts: Sequence[slice], observer: Observer | None) -> Floats:
        """Attention, a mixer, or both next to each other."""
        like = self._like
        if (mixer := like.mixer(layer)) is None:
            return self._attention(layer, x, texts, observer)
        name = f"model.layers.{layer}.{mixer.name}"
        read = partial(_read_in, self._checkpoint, name)
        made = mixed(mixer, x, texts, read, lambda m, rows: self._product(f"{name}.{m}", rows, texts, observer))
        if like.beside is None:
            return made
        of_attention, of_mixer = map(np.float32, like.beside)
        return self._attention(layer, x, texts, observer) * of_attention + made * of_mixer

    def _attention(self, layer: int, x: Floats, texts: Sequence[slice], observer: Observer | None) -> Floats:
        name, heads, like = f"model.layers.{layer}.self_attn", self._heads, self._like
        *inputs, output = like.attention
        rows = (heads.query, heads.key_value, heads.key_value)
        made = np.concatenate([self._product(f"{name}.{member}", x, texts, observer) for member in inputs], -1)
        if like.output_gate:
            both, rest = np.split(made, [2 * heads.query * heads.dim], axis=-1)
            of_query, gate = (
                part.reshape(len(x), -1) for part in np.split(both.reshape(len(x), heads.query, -1), 2, axis=-1)
            )
            made = np.concatenate([of_query, rest], -1)
        parts = np.split(made, np.cumsum(rows)[:-1] * heads.dim, axis=-1)
        query, key, value = (
            part.reshape(len(x), n, heads.dim).swapaxes(0, 1) for part, n in zip(parts, rows, strict=True)
        )  # [heads, T, D]
        if like.interleaved:
            query, key = (part[..., halves(heads.dim, 1)] for part in (query, key))
        if like.qk_norm is not None and not like.qk_rotated:
            query, key = self._qk_norms(name, query, key)
        at = np.concatenate([np.arange(text.stop - text.start) for text in texts])
        if (table := like.rope(layer)) is not None:
            shifted = np.concatenate([self._positions(text.stop - text.start) for text in texts])
            cos, sin = (each[shifted] for each in self._rope[table])
            query, key = (_turned(part, cos, sin) for part in (query, key))
        if like.qk_norm is not None and like.qk_rotated:
            query, key = self._qk_norms(name, query, key)
        if observer is not None:
            observer.attention(layer, key, value, texts)
        window = window_of(self._config, layer) if like.windowed else None
        query = query * np.float32(heads.dim**-0.5 if like.scale is None else like.scale)
        if like.query_growth is not None:
            query = query * query_scales(like.query_growth, len(x))[at, None]
        cap = like.attention_softcap
        sinks = self._checkpoint.read(f"{name}.{SINKS}") if like.sinks else None
        y = np.concatenate([_attended(query, key, value, text, window, cap, sinks, observer) for text in texts], 1)
        y = y.swapaxes(0, 1).reshape(len(x), -1)
        if like.output_gate:
            y = y / (1 + np.exp(-gate))
        if like.output_norms is not None:
            y = self._norm(f"{name}.{like.output_norms[0]}", y)
        return self._product(f"{name}.{output}", y, texts, observer)

    def _positions(self, size: int) -> NDArray[np.int64]:
        """The rows of a rotary table for a text of this many tokens."""
        rows = np.arange(size)
        return rows + self._max_context if self._short is not None and size <= self._short else rows

    def _feed_forward(self, layer: int, x: Floats, texts: Sequence[slice], observer: Observer | None) -> Floats:
        if (experts := self._like.experts(layer)) is None:
            return self._dense(layer, x, texts, observer)
        name = f"model.layers.{layer}.{self._like.expert_block or self._like.mlp}"
        told = (lambda routed: None) if observer is None else partial(observer.experts, name, x)
        made = mixture(experts, x, partial(_read_in, self._checkpoint, name), self._activation, told)
        if not self._like.is_dense(layer):
            return made
        shared = self._dense(layer, x, texts, observer)
        if (gate := self._like.shared_gate) is not None:
            shared = shared / (1 + np.exp(-(x @ self._checkpoint.read(f"{name}.{gate}.weight").T)))
        return made + shared

    def _dense(self, layer: int, x: Floats, texts: Sequence[slice], observer: Observer | None) -> Floats:
        name = f"model.layers.{layer}.{self._like.mlp}"
        made = [self._product(f"{name}.{member}", x, texts, observer) for member in self._like.gates]
        if self._like.gated:
            gate, up = made if len(made) == 2 else np.split(made[0], 2, axis=-1)
            inner = self._activation(gate * np.float32(self._like.mlp_scales[0]))
            inner *= up
        else:
            inner = self._activation(made[0])
        if self._like.output_norms is not None:
            inner = self._norm(f"{name}.{self._like.output_norms[1]}", inner)
        return self._product(f"{name}.{self._like.down}", inner, texts, observer)

    def _product(self, name: str, x: Floats, texts: Sequence[slice], observer: Observer | None) -> Floats:
        weight = self._checkpoint.read(f"{name}.weight")
        if observer is not None:
            observer.product(f"{name}.weight", x, weight, texts)
        y = x @ weight.T
        return y + self._checkpoint.read(f"{name}.bias") if f"{name}.bias" in self._have else y

    def _qk_norms(self, name: str, query: Floats, key: Floats) -> list[Floats]:
        """The norms of all heads [heads, T, D] of queries and of keys."""
        normed = []
        for norm, part in zip(self._like.qk_names, (query, key), strict=True):
            if self._like.qk_norm == "head":
                normed.append(self._norm(f"{name}.{norm}", part))
                continue
            rows = part.swapaxes(0, 1)
            normed.append(self._norm(f"{name}.{norm}", rows.reshape(len(rows), -1)).reshape(rows.shape).swapaxes(0, 1))
        return normed

    def _stream_norm(self, name: str, x: Floats) -> Floats:
        """The norm of the residual stream."""
        if not self._norms.centred:
            return self._norm(name, x)
        y = self._norm(name, x - x.mean(-1, keepdims=True))
        return y + self._checkpoint.read(f"{name}.bias") if self._norms.bias else y

    def _norm(self, name: str, x: Floats) -> Floats:
        weight = self._checkpoint.read(f"{name}.weight") + np.float32(self._norms.offset)
        mean = np.square(x).mean(-1, keepdims=True)
        return x / np.sqrt(mean + np.float32(self._eps)) * weight


def _read_in(checkpoint: Checkpoint, block: str, name: str) -> Floats:
    return checkpoint.read(f"{block}.{name}")


def places_of(texts: Sequence[Tokens]) -> list[slice]:
    """Return the slice of each text in the rows of all texts."""
    return [slice(*pair) for pair in pairwise(accumulate(map(len, texts), initial=0))]


def read_rows(tokens: Tokens, checkpoint: Checkpoint, embedding: str, vocab: int) -> Floats:
    """The rows [T, H] of an embedding, of which only those are kept that occur."""
    used, places = np.unique(tokens, return_inverse=True)
    found = np.empty((len(used), checkpoint.shape(embedding)[1]), np.float32)
    for start in range(0, vocab, ROWS):
        here = (used >= start) & (used < start + ROWS)
        if here.any():
            rows = checkpoint.read(embedding, slice(start, min(start + ROWS, vocab)))
            found[here] = rows[used[here] - start]
    return found[places]


def with_rows(x: Floats, checkpoint: Checkpoint, head: str, vocab: int) -> Floats:
    """The logits [T, V] of rows x [T, H]."""
    logits = np.empty((len(x), vocab), np.float32)
    for start in range(0, vocab, ROWS):
        rows = slice(start, min(start + ROWS, vocab))
        logits[:, rows] = x @ checkpoint.read(head, rows).T
    return logits


def _turned(x: Floats, cos: Floats, sin: Floats) -> Floats:
    """Rotate x [..., T, D] by position: pairs of channels, one of each half of the rotated ones."""
    half = cos.shape[1]
    a, b = x[..., :half], x[..., half : 2 * half]
    return np.concatenate([a * cos - b * sin, b * cos + a * sin, x[..., 2 * half :]], -1)


def _capped(x: Floats, cap: float | None) -> Floats:
    return x if cap is None else np.float32(cap) * np.tanh(x / np.float32(cap))


def _attended(
    query: Floats,
    key: Floats,
    value: Floats,
    text: slice,
    window: int | None,
    cap: float | None,
    sinks: Floats | None,
    observer: Observer | None,
) -> Floats:
    """Causal attention of a text's rows among those of all [heads, T, D]. The heads of keys divide those of queries.
    cap: what bounds scores. sinks: of each head, another score, whose value is zeros."""
    query, key, value = query[:, text], key[:, text], value[:, text]
    group, count = len(query) // len(key), query.shape[1]
    y = np.empty_like(query)
    for start in range(0, count, ATTENDED):
        stop = min(start + ATTENDED, count)
        back = np.arange(start, stop)[:, None] - np.arange(stop)
        hidden = (back < 0) | (back >= (window or count))
        for head, each in enumerate(query[:, start:stop]):
            scores = _capped(each @ key[head // group, :stop].T, cap)
            np.copyto(scores, -np.inf, where=hidden)
            most = scores.max(-1, keepdims=True)
            scores -= most
            np.exp(scores, out=scores)
            total = scores.sum(-1, keepdims=True)
            scores /= total if sinks is None else total + np.exp(sinks[head] - most)
            if observer is not None:
                observer.scores(head, scores, slice(text.start, text.start + stop))
            y[head, start:stop] = scores @ value[head // group, :stop]
    return y
