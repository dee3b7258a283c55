"""Smoothing: outlier channels of what matrices read, moved out of the activations into the weights.

The kernels round activations to 8 bits, in blocks as long as those of the weights, and one large channel coarsens its
whole block. What a matrix reads divided by s, and its columns multiplied by s, give the same products with smaller
outliers (SmoothQuant, Xiao et al., arXiv:2211.10438, equation 3). Where a norm or a linear comes before, the division
goes into its weights and costs nothing at run time: query, key and value and gate and up read a norm; down reads
act(gate) * up, and the rows of up are divided.

The noise of both roundings is least, maxima of blocks aside, where sum(x^2 / s^2) * sum(w^2 s^2) is, x and w being a
channel of the activations and its column: s = sqrt(rms(x) / rms(w)). docs/quantization.md compares other choices.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from edge.export.quantize.base import Options

if TYPE_CHECKING:
    from edge.export.checkpoint.base import Checkpoint

WINDOWS = 2  # of the calibration text: the largest channels are the same ones everywhere
LEAST = 1 / 16  # of the median s: a channel that was silent on the calibration text may still speak
NORM_OFFSET = {"gemma3_text": 1.0}  # these checkpoints hold their norms' weights less one

_MATRIX = re.compile(r"(model\.layers\.\d+)\.(?:self_attn|mlp)\.(\w+)_proj\.weight")
_READERS = {"attention": ("q", "k", "v", "qkv"), "gates": ("gate", "up", "gate_up"), "down": ("down",)}


@dataclass(frozen=True)
class _Site:
    """Matrices of a layer that read the same input, and the tensors that this input comes from."""

    readers: tuple[str, ...]
    norm: str | None = None
    rows: tuple[str, ...] = ()  # a linear's weight and bias, or those whose last rows are that linear's


class Smoothing:
    """Reads a checkpoint's tensors, smoothed where they belong to a site that can be.

    rounded: the matrices that will be rounded anew. A site one of whose matrices keeps its blocks stays as it is.
    The activations are measured with Torch, once, when the first smoothed tensor is read.
    """

    def __init__(self, checkpoint: Checkpoint, rounded: Iterable[str], options: Options) -> None:
        self._checkpoint = checkpoint
        self._options = options
        names = set(rounded)
        sites = [
            site
            for site in find_sites(checkpoint.names())
            if names.issuperset([*site.readers, *(n for n in site.rows if n.endswith(".weight"))])
        ]
        self._columns = {name: site for site in sites for name in site.readers}
        self._norms = {site.norm: site for site in sites if site.norm is not None}
        self._rows = {name: site for site in sites for name in site.rows}

    @property
    def vectors(self) -> list[str]:
        """The norms and biases whose values change."""
        return [*self._norms, *(name for name in self._rows if name.endswith(".bias"))]

    def read(self, name: str) -> NDArray[np.float32]:
        values = self._checkpoint.read(name)
        if name in self._norms:
            offset = np.float32(NORM_OFFSET.get(str(self._checkpoint.config.get("model_type")), 0.0))
            return np.asarray((values + offset) / self._scales[self._norms[name]] - offset)
        if name in self._columns:
            values = values * self._scales[self._columns[name]]
        if name in self._rows:
            s = self._scales[self._rows[name]]
            values = values.copy()
            values[-len(s) :] /= s if values.ndim == 1 else s[:, None]
        return values

    @cached_property
    def _scales(self) -> dict[_Site, NDArray[np.float32]]:
        """s [K] of each site, 1 at the median."""
        sites = set(self._columns.values())
        scales = {}
        for site, (inputs, columns) in _mean_squares(self._checkpoint, sites, self._options).items():
            seen = (inputs > 0) & (columns > 0)
            s = np.divide(inputs, columns, out=np.ones_like(inputs), where=seen) ** 0.25
            median = float(np.median(s[seen])) if seen.any() else 1.0
            scales[site] = np.where(seen, np.maximum(s / median, LEAST), 1).astype(np.float32)
        return scales


def find_sites(names: Iterable[str]) -> list[_Site]:
    """The sites of all layers, of a decoder with the usual names."""
    have = set(names)
    layers: dict[str, dict[str, str]] = {}
    for name in names:
        if match := _MATRIX.fullmatch(name):
            layers.setdefault(match[1], {})[match[2]] = name
    sites = []
    for layer, matrices in layers.items():
        groups = {k: tuple(matrices[p] for p in parts if p in matrices) for k, parts in _READERS.items()}
        norms = [f"{layer}.{n}_layernorm.weight" for n in ("pre_feedforward", "post_attention")]
        if groups["attention"]:
            sites.append(_Site(groups["attention"], norm=f"{layer}.input_layernorm.weight"))
        if groups["gates"]:
            up = groups["gates"][-1].removesuffix(".weight")
            sites.append(_Site(groups["gates"], norm=next((n for n in norms if n in have), None)))
            rows = tuple(n for n in (f"{up}.weight", f"{up}.bias") if n in have)
            sites.append(_Site(groups["down"], rows=rows))
    return sites


def _mean_squares(
    checkpoint: Checkpoint, sites: Iterable[_Site], options: Options
) -> dict[_Site, tuple[NDArray[np.float64], NDArray[np.float64]]]:
    """Mean squares [K] of each site's inputs on the calibration text, and of its readers' columns."""
    import torch

    from edge.export.quantize.calibration import calibration_windows
    from edge.export.torch_reference import load_torch

    windows = calibration_windows(checkpoint, options.calibration)[:WINDOWS]
    model = load_torch(checkpoint, progress=options.progress)
    inputs: dict[_Site, NDArray[np.float64]] = {}
    columns: dict[_Site, NDArray[np.float64]] = {}

    def watch(site: _Site) -> Any:
        def hook(module: Any, args: tuple[torch.Tensor, ...]) -> None:
            squares = args[0].square().mean(dim=(0, 1), dtype=torch.float64).numpy()
            inputs[site] = inputs.get(site, 0) + squares / len(windows)

        return hook

    with torch.no_grad():
        for site in sites:
            linears = [model.get_submodule(n.removesuffix(".weight")) for n in site.readers]
            linears[0].register_forward_pre_hook(watch(site))
            rows = sum(linear.out_features for linear in linears)
            sums = [linear.weight.square().sum(0, dtype=torch.float64).numpy() for linear in linears]
            columns[site] = np.sum(sums, axis=0) / rows
        for done, window in enumerate(windows):
            options.report(done, len(windows), "measuring activations")
            model.model(torch.from_numpy(window)[None], use_cache=False)
    return {site: (inputs[site], columns[site]) for site in inputs}
