"""The mixers of `edge.export.facts.mixers` in numpy, float32, token by token. T is the number of tokens of all texts
together, S that of one."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edge.export.facts.mixers import GatedDelta, Mixer, SelectiveScan, ShortConvolution

Floats = NDArray[np.float32]
Read = Callable[[str], Floats]  # a tensor of the mixer's block, by its name in it
Product = Callable[[str, Floats], Floats]  # a linear layer of the block, of rows [T, K]


def mixed(mixer: Mixer, x: Floats, texts: Sequence[slice], read: Read, product: Product) -> Floats:
    """What a mixer makes of rows [T, H] of texts that know nothing of each other."""
    return MIXED[type(mixer)](mixer, x, texts, read, product)


def _short_convolution(
    sizes: ShortConvolution, x: Floats, texts: Sequence[slice], read: Read, product: Product
) -> Floats:
    before, after, x = np.split(product("in_proj", x), 3, axis=-1)
    y = _convolved(before * x, texts, read("conv.weight"))
    if sizes.bias:
        y = y + read("conv.bias")
    return product("out_proj", after * y)


def _gated_delta(sizes: GatedDelta, x: Floats, texts: Sequence[slice], read: Read, product: Product) -> Floats:
    made = _silu(_convolved(product("in_proj_qkv", x), texts, read("conv1d.weight")))
    gate, rate, pace = (product(f"in_proj_{name}", x) for name in "zba")
    wide, count = sizes.keys * sizes.key_dim, sizes.values // sizes.keys
    parts = np.split(made, [wide, 2 * wide], axis=-1)
    query, key = (_directions(part.reshape(len(x), sizes.keys, -1)).repeat(count, axis=1) for part in parts[:2])
    value = parts[2].reshape(len(x), sizes.values, -1)
    keeps = np.exp(-np.exp(read("A_log")) * np.logaddexp(np.float32(0), pace + read("dt_bias")))
    learns = 1 / (1 + np.exp(-rate))
    seen = np.empty_like(value)
    for text in texts:
        state = np.zeros((sizes.values, sizes.key_dim, sizes.value_dim), np.float32)
        for t in range(text.start, text.stop):
            state *= keeps[t][:, None, None]
            error = value[t] - np.einsum("hkv,hk->hv", state, key[t])
            state += key[t][:, :, None] * (error * learns[t][:, None])[:, None]
            seen[t] = np.einsum("hkv,hk->hv", state, query[t]) / np.float32(np.sqrt(sizes.key_dim))
    size = np.sqrt(np.square(seen).mean(-1, keepdims=True) + np.float32(sizes.eps))
    y = seen / size * read("norm.weight") * _silu(gate.reshape(seen.shape))
    return product("out_proj", y.reshape(len(x), -1))


def _selective_scan(sizes: SelectiveScan, x: Floats, texts: Sequence[slice], read: Read, product: Product) -> Floats:
    inner, channels, each = sizes.inner, sum(sizes.parts), sizes.heads // sizes.groups
    widths = [inner, *sizes.parts, sizes.heads]
    made = product("in_proj", x) * np.repeat(np.array(sizes.scales, np.float32), widths)
    gate, made, pace = np.split(made, [inner, inner + channels], axis=-1)
    made = _convolved(made, texts, read("conv1d.weight"))
    made = _silu(made + read("conv1d.bias") if sizes.conv_bias else made)
    parts = np.split(made, np.cumsum(sizes.parts)[:-1], axis=-1)
    value = parts[0].reshape(len(x), sizes.heads, sizes.dim)
    key, query = (part.reshape(len(x), sizes.groups, sizes.state).repeat(each, axis=1) for part in parts[1:])
    pace = np.logaddexp(np.float32(0), pace + read("dt_bias"))
    keeps = np.exp(-np.exp(read("A_log")) * pace)
    seen = np.empty_like(value)
    for text in texts:
        state = np.zeros((sizes.heads, sizes.state, sizes.dim), np.float32)
        for t in range(text.start, text.stop):
            state *= keeps[t][:, None, None]
            state += key[t][:, :, None] * (value[t] * pace[t][:, None])[:, None]
            seen[t] = np.einsum("hkv,hk->hv", state, query[t])
    y = (seen + value * read("D")[:, None]).reshape(len(x), inner)
    gates = _silu(gate)
    if sizes.norm == "plain":
        y = _normed(y, sizes.groups, sizes.eps) * read("norm.weight") * gates
    else:
        y = y * gates
        if sizes.norm:
            y = _normed(y, sizes.groups, sizes.eps) * read("norm.weight")
    return product("out_proj", y)


MIXED: dict[type, Callable[[Any, Floats, Sequence[slice], Read, Product], Floats]] = {
    ShortConvolution: _short_convolution,
    GatedDelta: _gated_delta,
    SelectiveScan: _selective_scan,
}


def _convolved(x: Floats, texts: Sequence[slice], weight: Floats) -> Floats:
    """The convolution of x [T, C] over the last k tokens of each text, of each channel by itself. weight [C, 1, k]."""
    taps = weight.shape[2]
    y = np.empty_like(x)
    for text in texts:
        rows = np.concatenate([np.zeros((taps - 1, x.shape[1]), np.float32), x[text]])
        count = text.stop - text.start
        y[text] = np.sum([rows[i : i + count] * weight[:, 0, i] for i in range(taps)], axis=0)
    return y


def _normed(x: Floats, groups: int, eps: float) -> Floats:
    """x [T, C] divided by its root mean square, each group of channels by itself."""
    parts = x.reshape(len(x), groups, -1)
    return (parts / np.sqrt(np.square(parts).mean(-1, keepdims=True) + np.float32(eps))).reshape(x.shape)


def _directions(x: Floats) -> Floats:
    """Vectors [..., D] of length 1."""
    return x / np.sqrt(np.square(x).sum(-1, keepdims=True) + np.float32(1e-6))


def _silu(x: Floats) -> Floats:
    return x * (1 + np.tanh(x / 2)) / 2
