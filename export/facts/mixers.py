"""What a layer may have in place of attention: recurrent and convolutional mixers, which keep states of fixed size.

Each says the `name` of its block in the checkpoint, the `tensors` there with their shapes, which of its matrices are
`readers` of what the norm before it makes, and the `states` that it keeps of a text, with their shapes.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

import numpy as np
from numpy.typing import NDArray

Shapes = dict[str, tuple[int, ...]]
Places = NDArray[np.int64]


@dataclass(frozen=True)
class ShortConvolution:
    """LFM 2's: a projection makes b, c and x [S, width]; the result is a projection of c * conv(b * x), where conv
    weighs the last `taps` tokens, of each channel by itself. bias: of projections and convolution."""

    name: ClassVar[str] = "conv"
    readers: ClassVar[tuple[str, ...]] = ("in_proj",)
    width: int
    taps: int
    bias: bool = False

    @property
    def tensors(self) -> Shapes:
        sizes: Shapes = {
            "in_proj.weight": (3 * self.width, self.width),
            "conv.weight": (self.width, 1, self.taps),
            "out_proj.weight": (self.width, self.width),
        }
        return sizes | ({f"{n.removesuffix('weight')}bias": s[:1] for n, s in sizes.items()} if self.bias else {})

    @property
    def states(self) -> Shapes:
        return {"conv": (self.taps - 1, self.width)}


@dataclass(frozen=True)
class GatedDelta:
    """Qwen 3.5's linear attention by the gated delta rule. Queries, keys and values are made by one projection, and a
    convolution over the last `taps` tokens; each value head has a state [key dim, value dim].

    width: of the residual stream. keys, values: heads. eps: of the norm of what is read. fused: transformers has two
    parameters for the four projections, with the rows of a key head together, as Qwen3-Next's (`fused_rows`).
    """

    name: ClassVar[str] = "linear_attn"
    readers: ClassVar[tuple[str, ...]] = ("in_proj_qkv", "in_proj_z", "in_proj_b", "in_proj_a")
    width: int
    keys: int
    values: int
    key_dim: int
    value_dim: int
    taps: int
    eps: float
    fused: bool = False

    @property
    def fused_rows(self) -> dict[str, dict[str, Places]]:
        """The parameters that are several of `tensors`, and the places of each one's rows in them."""
        if not self.fused:
            return {}
        each = self.values // self.keys
        query, key, value, gate = self._by_key_head(self.key_dim, self.key_dim, *[each * self.value_dim] * 2)
        rate, pace = self._by_key_head(each, each)
        mixed = np.concatenate([query, key, value])
        return {
            "in_proj_qkvz.weight": {"in_proj_qkv.weight": mixed, "in_proj_z.weight": gate},
            "in_proj_ba.weight": {"in_proj_b.weight": rate, "in_proj_a.weight": pace},
        }

    def _by_key_head(self, *rows: int) -> list[Places]:
        """The places of the rows of each part, of which each key head has so many."""
        places = np.arange(self.keys * sum(rows)).reshape(self.keys, -1)
        return [part.reshape(-1) for part in np.split(places, np.cumsum(rows)[:-1], axis=1)]

    @property
    def channels(self) -> int:
        """Channels of queries, keys and values together."""
        return 2 * self.keys * self.key_dim + self.values * self.value_dim

    @property
    def tensors(self) -> Shapes:
        inner = self.values * self.value_dim
        return {
            "dt_bias": (self.values,),
            "A_log": (self.values,),
            "conv1d.weight": (self.channels, 1, self.taps),
            "norm.weight": (self.value_dim,),
            "in_proj_qkv.weight": (self.channels, self.width),
            "in_proj_z.weight": (inner, self.width),
            "in_proj_b.weight": (self.values, self.width),
            "in_proj_a.weight": (self.values, self.width),
            "out_proj.weight": (self.width, inner),
        }

    @property
    def states(self) -> Shapes:
        return {"conv": (self.taps - 1, self.channels), "delta": (self.values, self.key_dim, self.value_dim)}


@dataclass(frozen=True)
class SelectiveScan:
    """Mamba 2: one projection makes a gate, values, the keys and queries of groups of heads, and a pace for each head.
    A convolution weighs the last `taps` tokens of values, keys and queries. Each head has a state [state, dim], of
    which it keeps the less the larger its pace is.

    width: of the residual stream. bias: of the first projection; conv_bias, out_bias: of the others. norm: of what is
    read, each group by itself, after its gate has multiplied it ("gated") or before ("plain"). scales: what the parts
    of the first projection are multiplied by: gate, values, keys, queries, pace.
    """

    name: ClassVar[str] = "mamba"
    readers: ClassVar[tuple[str, ...]] = ("in_proj",)
    width: int
    heads: int
    dim: int
    groups: int
    state: int
    taps: int
    eps: float
    bias: bool = False
    conv_bias: bool = True
    out_bias: bool = False
    norm: Literal["gated", "plain"] | None = "gated"
    scales: tuple[float, float, float, float, float] = (1.0, 1.0, 1.0, 1.0, 1.0)

    @property
    def inner(self) -> int:
        """Channels of the values."""
        return self.heads * self.dim

    @property
    def parts(self) -> tuple[int, int, int]:
        """Channels of values, keys and queries."""
        return self.inner, self.groups * self.state, self.groups * self.state

    @property
    def tensors(self) -> Shapes:
        channels, made = sum(self.parts), self.inner + sum(self.parts) + self.heads
        found: Shapes = {
            "dt_bias": (self.heads,),
            "A_log": (self.heads,),
            "D": (self.heads,),
            "conv1d.weight": (channels, 1, self.taps),
            "in_proj.weight": (made, self.width),
            "out_proj.weight": (self.width, self.inner),
        }
        biases = {
            "in_proj": (self.bias, made),
            "conv1d": (self.conv_bias, channels),
            "out_proj": (self.out_bias, self.width),
        }
        found |= {f"{name}.bias": (size,) for name, (there, size) in biases.items() if there}
        return found | ({"norm.weight": (self.inner,)} if self.norm else {})

    @property
    def states(self) -> Shapes:
        return {"conv": (self.taps - 1, sum(self.parts)), "scan": (self.heads, self.state, self.dim)}


Mixer = ShortConvolution | GatedDelta | SelectiveScan
