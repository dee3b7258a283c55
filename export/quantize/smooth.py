"""Smoothing: outlier channels of what matrices read, moved out of the activations into the weights.

The kernels round activations to 8 bits, in blocks as long as those of the weights, and one large channel coarsens its
whole block. What a matrix reads divided by s, and its columns multiplied by s, give the same products with smaller
outliers (SmoothQuant, Xiao et al., arXiv:2211.10438, equation 3). Where a norm or a linear comes before, the division
goes into its weights and costs nothing at run time: query, key and value and gate and up read a norm; down reads
act(gate) * up, and the rows of up are divided.

The noise of both roundings is least, maxima of blocks aside, where sum(x^2 / s^2) * sum(w^2 s^2) is, x and w being a
channel of the activations and its column: s = sqrt(rms(x) / rms(w)). docs/lab/quantization.md compares other choices.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from types import SimpleNamespace
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from edge.errors import ExportError
from edge.export.facts.family import BLOCKS, LlamaLike, Norms, has_bias
from edge.export.graph.families import find_family, is_like_llama, norms_of
from edge.export.quantize.calibration import calibration_windows
from edge.export.quantize.method import Options
from edge.export.reference.in_numpy import Observer, Reference

if TYPE_CHECKING:
    from edge.export.facts.checkpoint import Checkpoint

TOKENS = 256  # of the calibration text: the largest channels are the same ones everywhere
MIN_SCALE = 1 / 16  # of the median s: a channel that was silent on the calibration text may still speak

_LAYER = re.compile(r"(model\.layers\.\d+)\.(.+)")
_SITED = re.compile(r"model\.layers\.\d+\.(?!.*\.(?:o|down)_proj\.weight$).+")  # each site has one of them


@dataclass(frozen=True)
class _Site:
    """Matrices of a layer that read the same input, and the tensors that this input comes from."""

    readers: tuple[str, ...]
    norm: str | None = None
    norm_bias: str | None = None
    rows: tuple[str, ...] = ()  # a linear's weight and bias, or those whose last rows are that linear's


class Smoothing:
    """Reads a checkpoint's tensors, smoothed where they belong to a site that can be.

    rounded: the matrices that will be rounded anew. A site one of whose matrices keeps its blocks stays as it is.
    The activations are measured once, when the first smoothed tensor is read.

    Raises:
        ExportError: there is something to smooth in layers whose layout is unknown.
    """

    def __init__(self, checkpoint: Checkpoint, rounded: Iterable[str], options: Options) -> None:
        self._checkpoint = checkpoint
        self._options = options
        names = set(rounded)
        sites = [
            site
            for site in (find_sites(checkpoint) if any(map(_SITED.fullmatch, names)) else [])
            if names.issuperset([*site.readers, *(n for n in site.rows if n.endswith(".weight"))])
        ]
        self._columns = {name: site for site in sites for name in site.readers}
        self._norms = {site.norm: site for site in sites if site.norm is not None}
        self._norm_biases = {site.norm_bias: site for site in sites if site.norm_bias is not None}
        self._rows = {name: site for site in sites for name in site.rows}

    @property
    def vectors(self) -> list[str]:
        """The norms and biases whose values change."""
        return [*self._norms, *self._norm_biases, *(name for name in self._rows if name.endswith(".bias"))]

    def changes(self, name: str) -> bool:
        """True if a tensor is not read as the checkpoint has it."""
        return any(name in each for each in (self._norms, self._norm_biases, self._columns, self._rows))

    def read(self, name: str) -> NDArray[np.float32]:
        values = self._checkpoint.read(name)
        if name in self._norms:
            offset = np.float32(layer_norms(self._checkpoint).offset)
            return np.asarray((values + offset) / self._scales[self._norms[name]] - offset)
        if name in self._norm_biases:
            return values / self._scales[self._norm_biases[name]]
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
            scales[site] = np.where(seen, np.maximum(s / median, MIN_SCALE), 1).astype(np.float32)
        return scales


def find_sites(checkpoint: Checkpoint) -> list[_Site]:
    """The sites of all layers; of a decoder that is not like Llama none is known.

    Raises:
        ExportError: what the matrices of a layer read is unknown.
    """
    if not is_like_llama(str(checkpoint.config.get("model_type"))):
        return []
    norms, like, config = layer_norms(checkpoint), _layout(checkpoint), SimpleNamespace(**checkpoint.config)
    layers = defaultdict[str, set[str]](set)
    for match in map(_LAYER.fullmatch, checkpoint.names()):
        if match:
            layers[match[1]].add(match[2])
    for layer, names in layers.items():
        if names != like.layer_shapes(config, norms, _number(layer)).keys():
            raise ExportError(
                f"The layers of {checkpoint.name} cannot be smoothed for 8 bits, because {layer} has "
                f"{', '.join(sorted(names))}, not the tensors of its family; choose --weights int4 or fp32, without "
                "--prefill-weights."
            )
    return [site for layer in layers for site in _sites_of(layer, norms, like)]


def _number(layer: str) -> int:
    return int(layer.rpartition(".")[2])


def _sites_of(layer: str, norms: Norms, like: LlamaLike) -> list[_Site]:
    *inputs, output = (f"{layer}.self_attn.{name}.weight" for name in like.attention)
    if (mixer := like.mixer(_number(layer))) is not None:
        of_mixer = [f"{layer}.{mixer.name}.{name}.weight" for name in mixer.readers]
        inputs = of_mixer if like.beside is None else inputs + of_mixer
    *gates, down = (f"{layer}.{like.mlp}.{name}.weight" for name in (*like.gates, like.down))
    read = (
        [(norms.attention, [*inputs, *gates])] if like.parallel else [(norms.attention, inputs), (norms.gates, gates)]
    )
    if like.experts(_number(layer)) is not None:  # each of which reads a few rows of its own
        read.pop()
    sites = [
        _Site(tuple(readers), f"{layer}.{norm}.weight", f"{layer}.{norm}.bias" if norms.bias else None)
        for norm, readers in read
        if norm is not None
    ]
    if like.output_norms is not None:
        for block, norm, reader in zip(BLOCKS, like.output_norms, (output, down), strict=True):
            sites.append(_Site((reader,), f"{layer}.{block}.{norm}.weight"))
    elif like.gated and like.is_dense(_number(layer)):
        up = gates[-1]
        biased = has_bias(like.mlp_bias, like.gates[-1])
        sites.append(_Site((down,), rows=(up, up.removesuffix("weight") + "bias") if biased else (up,)))
    return sites


def may_rotate(checkpoint: Checkpoint) -> bool:
    """True if the residual stream between a model's layers may be turned by an orthogonal matrix: its blocks read root
    mean square norms of it, and add to it what their last matrices make."""
    norms, like = layer_norms(checkpoint), _layout(checkpoint)
    normed = norms.attention is not None and (norms.gates is not None or like.parallel)
    plain = not any(norms.outputs) and like.output_norms is None
    layers = range(int(checkpoint.config["num_hidden_layers"]))
    others = any(map(like.mixer, layers)) or any(map(like.experts, layers))
    return normed and plain and not norms.centred and not others


def _layout(checkpoint: Checkpoint) -> LlamaLike:
    family = find_family(str(checkpoint.config.get("model_type")))[1]
    assert family.layers is not None, "a family that says its norms is like Llama"
    return family.layers(SimpleNamespace(**checkpoint.config))


def layer_norms(checkpoint: Checkpoint) -> Norms:
    """Return the norms of a model's layers, as its family states them.

    Raises:
        ExportError: the family is unknown, or does not say.
    """
    return norms_of(str(checkpoint.config.get("model_type")), "Smoothing for 8 bits")


class Moments(Observer):
    """Observer of inputs: for each matrix, by its name, the mean squares [K] of its inputs in the last of several
    texts, and the sums of its columns' squares.

    windows: of the calibration text [W, S].
    """

    def __init__(self, windows: NDArray[np.int64]) -> None:
        self.texts = [windows[0, :TOKENS]]
        self.inputs: dict[str, NDArray[np.float64]] = {}
        self.columns: dict[str, NDArray[np.float64]] = {}

    def product(self, name: str, x: NDArray[np.float32], weight: NDArray[np.float32], texts: Sequence[slice]) -> None:
        self.inputs[name] = np.square(x[texts[-1]]).mean(0, dtype=np.float64)
        self.columns[name] = np.einsum("nk,nk->k", weight, weight).astype(np.float64)


def _mean_squares(
    checkpoint: Checkpoint, sites: Iterable[_Site], options: Options
) -> dict[_Site, tuple[NDArray[np.float64], NDArray[np.float64]]]:
    """Mean squares [K] of each site's inputs on the calibration text, and of its readers' columns."""
    moments = options.measured
    if not isinstance(moments, Moments):
        moments = Moments(calibration_windows(checkpoint, options.calibration))
        Reference(checkpoint, len(moments.texts[0]), options.progress).hidden(moments.texts, moments)
    found = {}
    for site in sites:
        rows = sum(checkpoint.shape(reader)[0] for reader in site.readers)
        columns = np.sum([moments.columns[reader] for reader in site.readers], axis=0) / rows
        found[site] = moments.inputs[site.readers[0]], columns
    return found
