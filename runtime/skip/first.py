"""FiRST: a router for each layer reads the prompt and decides whether the answer needs the layer.

Source: Jain et al. 2024, FiRST: Finetuning Router-Selective Transformers for Input-Adaptive Latency Reduction (arXiv
2410.12513). Here the prompt runs through all layers and routers decide for the answer's tokens, so that an answer's
keys and values are consistent and no decision hangs on how the prompt was cut into steps. `edge tune` trains routers.
"""

from __future__ import annotations

import io
import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edge.bundle import Bundle
from edge.errors import BundleError, InputError, on_one_line
from edge.runtime.engine.graphs.segment_cache import SegmentedCache
from edge.runtime.skip.prompt import PromptPolicy
from edge.runtime.skip.skip_policy import middle

NAME = "first"
HELP = "the layers that routers, trained by edge tune, find the prompt does not need"
TRAITS = {"asked": "first[:threshold=P|:skip=N]"}

THRESHOLD = 0.5  # of the mean probability that a layer is needed
HEADER = 1 << 16  # bytes: more than numpy writes before an array
EPSILON = 1e-6  # of the root mean square that a router divides the stream by


class First(PromptPolicy):
    """Leaves out units by the mean probability that they are needed: those below `threshold`, or the `skip` lowest.

    routers: [units, H + 1], for each unit the weights of the stream, divided by its root mean square, and the bias of a
    logit. An infinite bias keeps a unit always.
    """

    def __init__(self, bundle: Bundle, routers: NDArray[np.float32], threshold: float, skip: int | None) -> None:
        units = [i for i, segment in enumerate(bundle.manifest.segments) if segment.part == "layers"]
        routed = np.flatnonzero(np.isfinite(routers[:, -1]))
        candidates = [units[i] for i in routed]
        super().__init__(bundle, candidates, watched=candidates)
        self._weights, self._bias = routers[routed, :-1], routers[routed, -1]
        self._threshold, self._skip = threshold, skip

    def observe(self, cache: SegmentedCache, start: int, unit: int, stream: NDArray[np.float32]) -> None:
        place = self.places[unit]
        scale = np.sqrt(np.mean(np.square(stream), axis=1) + EPSILON)  # [S]
        logits = stream @ self._weights[place] / scale + self._bias[place]
        self.scores(cache)[place, start : start + len(stream)] = 1 / (1 + np.exp(-logits))

    def choose(self, means: NDArray[np.float32]) -> NDArray[np.bool_]:
        if self._skip is None:
            return means < self._threshold
        out = np.zeros(len(means), bool)
        out[np.argsort(means, kind="stable")[: self._skip]] = True
        return out


def make(bundle: Bundle, setting: str) -> First:
    units = middle(bundle, what="first")
    routers = read_routers(bundle, len(units))
    key, _, value = setting.partition("=")
    most = int(np.isfinite(routers[:, -1]).sum())
    if not setting:
        return First(bundle, routers, THRESHOLD, None)
    if key == "skip" and value.isdecimal() and int(value) <= most:
        return First(bundle, routers, THRESHOLD, int(value))
    if key == "threshold":
        try:
            threshold = float(value)
        except ValueError:
            threshold = -1.0
        if 0 <= threshold <= 1:
            return First(bundle, routers, threshold, None)
    raise InputError(
        f"first:{setting} is not understood; write first, first:threshold=P with P from 0 to 1, or first:skip=N with N "
        f"up to {most}."
    )


def read_routers(bundle: Bundle, units: int) -> NDArray[np.float32]:
    """The bundle's routers [units, H + 1].

    Raises:
        InputError: it has none.
        BundleError: they belong to another model.
    """
    manifest = bundle.manifest
    if manifest.routers is None:
        raise InputError(f"{manifest.name} has no routers, which the policy first needs; edge tune trains them.")
    path, shape = bundle.path(manifest.routers), (units, manifest.dims.hidden_size + 1)
    raw = io.BytesIO(bundle.read(manifest.routers, HEADER + 4 * math.prod(shape)))
    try:
        found, in_columns, dtype = read_header(raw)
    except Exception as e:  # numpy gives the header to Python's parser, which raises many types
        raise BundleError(f"{path} cannot be read as routers: {on_one_line(e)}.") from None
    values = raw.read()
    if found != shape or dtype != np.float32 or len(values) != 4 * math.prod(shape):
        raise BundleError(
            f"{path} holds routers of another model: {dtype} of shape {str(found)[:100]}, not float32 of {shape}."
        )
    return np.frombuffer(values, np.float32).reshape(shape, order="F" if in_columns else "C")


def read_header(raw: io.BytesIO) -> tuple[tuple[int, ...], bool, np.dtype[Any]]:
    """Return the header of an array in numpy's format: its shape, whether it is stored by columns, and its type."""
    version = np.lib.format.read_magic(raw)
    if version not in ((1, 0), (2, 0)):
        raise ValueError(f"it is of version {version}")
    read = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
    shape, in_columns, dtype = read(raw)
    return shape, in_columns, dtype
