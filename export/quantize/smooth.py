"""Smoothing: outlier channels of what attention reads, moved out of the activations into the weights.

The kernels round activations to 8 bits, in blocks as long as those of the weights, and one large channel coarsens its
whole block. A norm's weights divided by s and the columns of the projections that read it multiplied by s give the same
products with smaller outliers (SmoothQuant, Xiao et al., arXiv:2211.10438, equation 3). It costs nothing at run time.

Query, key and value alone are smoothed: with float activations in them 8-bit SmolLM2 loses next to nothing, with float
activations in any other product nearly as much as before. Its perplexity (docs/export.md says how it is measured) is
29.31 in float32, 29.53 in 8-bit blocks of 64, and 29.40 in those blocks smoothed.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from edge.export.quantize.base import Options

if TYPE_CHECKING:
    from edge.export.checkpoint.base import Checkpoint

WINDOWS = 2  # of the calibration text: the largest channels are the same ones everywhere
STRENGTH = 0.5  # s = (largest / median) ** STRENGTH: half of an outlier stays, or the weights' own blocks coarsen
_NORM_OFFSET = {"gemma3_text": 1.0}  # these checkpoints hold their norms' weights less one

_READER = re.compile(r"(model\.layers\.\d+)\.self_attn\.(?:q|k|v|qkv)_proj\.weight")


class Smoothing:
    """Reads a checkpoint's tensors, smoothed where they belong to the attention inputs of layers.

    rounded: the matrices that will be rounded anew. A layer one of whose projections keeps its blocks stays as it is.
    The activations are measured with Torch, once, when the first smoothed tensor is read.
    """

    def __init__(self, checkpoint: Checkpoint, rounded: Iterable[str], options: Options) -> None:
        self._checkpoint = checkpoint
        self._options = options
        names = set(rounded)
        readers = {n: match[1] for n in checkpoint.names() if (match := _READER.fullmatch(n))}
        untouched = {layer for name, layer in readers.items() if name not in names}
        self._readers = {name: layer for name, layer in readers.items() if layer not in untouched}
        self._norms = {f"{layer}.input_layernorm.weight": layer for layer in self._readers.values()}

    @property
    def norms(self) -> list[str]:
        """The norms whose weights change."""
        return list(self._norms)

    def read(self, name: str) -> NDArray[np.float32]:
        values = self._checkpoint.read(name)
        if name in self._readers:
            return values * self._scales[self._readers[name]]
        if name in self._norms:
            offset = np.float32(_NORM_OFFSET.get(str(self._checkpoint.config.get("model_type")), 0.0))
            smoothed: NDArray[np.float32] = (values + offset) / self._scales[self._norms[name]] - offset
            return smoothed
        return values

    @cached_property
    def _scales(self) -> dict[str, NDArray[np.float32]]:
        """s [H] of each layer: 1 for an ordinary channel, more for one that is larger."""
        largest = _largest_activations(self._checkpoint, self._options)
        return {
            layer: np.maximum(1, most / max(float(np.median(most)), 1e-9)).astype(np.float32) ** np.float32(STRENGTH)
            for layer, most in largest.items()
        }


def _largest_activations(checkpoint: Checkpoint, options: Options) -> dict[str, NDArray[np.float32]]:
    """The largest absolute value [H] that each channel of each layer's attention input takes."""
    import torch

    from edge.export.quantize.calibration import calibration_windows
    from edge.export.torch_reference import load_torch

    windows = calibration_windows(checkpoint, options.calibration)[:WINDOWS]
    model = load_torch(checkpoint, progress=options.progress)
    largest: dict[str, NDArray[np.float32]] = {}

    def watch(layer: str) -> Any:
        def hook(module: Any, args: Any, output: torch.Tensor) -> None:
            most = output.abs().amax(dim=(0, 1)).numpy()
            largest[layer] = np.maximum(largest[layer], most) if layer in largest else most

        return hook

    for i, layer in enumerate(model.model.layers):
        layer.input_layernorm.register_forward_hook(watch(f"model.layers.{i}"))
    with torch.no_grad():
        for done, window in enumerate(windows):
            options.report(done, len(windows), "measuring activations")
            model.model(torch.from_numpy(window)[None], use_cache=False)
    return largest
