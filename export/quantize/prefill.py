"""Weights of the int8 prefill graph: a decoder's body in int8, one scale for each output, for steps of many tokens.

Its activations are rounded to 8 bits too, and a few channels of the residual stream are a hundred times larger than the
rest, so that whatever scale covers them rounds the rest to nothing. Three things keep that error small, none of which
costs the runtime an operator more:

- The residual stream is **rotated** by an orthogonal matrix, which spreads what stood in one channel over all (QuaRot,
  Ashkboos et al., arXiv:2404.00456, section 4; the norm's weights move into the matrices after it). A norm's output
  then looks like independent normal numbers of variance one whatever the row, so that one step serves all rows: no
  row is measured, and none depends on another.
- What down reads is **smoothed** (`edge.export.quantize.smooth`).
- Keys and values stay as they are, because both forms read and write the same cache.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from edge.errors import ExportError
from edge.export.facts.experts import OF_EXPERT
from edge.export.facts.tensors import FloatTensor, LazyWeights, RowsTensor, Weight, matrices
from edge.export.graph.families import is_like_llama
from edge.export.quantize.method import Options
from edge.export.quantize.rows import rows_to_nearest
from edge.export.quantize.smooth import Smoothing, find_sites, layer_norms, may_rotate

if TYPE_CHECKING:
    from edge.export.facts.checkpoint import Checkpoint

LARGEST = 4.5  # of a norm's rotated output, in multiples of its root mean square; what is beyond is cut to it
SEED = 20240404

_WRITERS = re.compile(r"\.(o|down)_proj\.(weight|bias)$")
_SMOOTHED = re.compile(r"\.(up|gate_up|down)_proj\.(weight|bias)$")


def rotation(size: int) -> NDArray[np.float32]:
    """The orthogonal matrix [size, size] that turns the residual stream: the same one for every model of this size."""
    normal = np.random.default_rng(SEED).standard_normal((size, size))
    q, r = np.linalg.qr(normal)
    return np.asarray(q * np.sign(np.diag(r)), np.float32)


def prefill_weights(checkpoint: Checkpoint, options: Options) -> Mapping[str, Weight]:
    """The matrices of all layers by name, rotated and rounded, and the norms and biases that change with them.

    Raises:
        ExportError: the decoder's layers are not pre-norm ones, as Llama's are.
    """
    normed = ExportError(
        f"--prefill-weights int8 is for layers that read root mean square norms of the residual stream and add to it "
        f"what they make, and {checkpoint.name} norms it otherwise; choose --prefill-weights none."
    )
    if not is_like_llama(str(checkpoint.config.get("model_type"))):
        raise normed
    if any(map(OF_EXPERT.fullmatch, checkpoint.names())):
        raise ExportError(
            f"--prefill-weights int8 is for layers without experts, and {checkpoint.name} has experts; choose "
            "--prefill-weights none."
        )
    sites, layer = find_sites(checkpoint), layer_norms(checkpoint)
    if not may_rotate(checkpoint):
        raise normed
    body = [n for n in matrices(checkpoint) if ".layers." in n]
    smoothing = Smoothing(checkpoint, (n for n in body if _SMOOTHED.search(n)), options)
    norm_of = {reader: site.norm for site in sites if site.norm for reader in site.readers}
    turn = rotation(int(checkpoint.config["hidden_size"]))
    offset = np.float32(layer.offset)

    def make(name: str) -> Weight:
        if name in norms:  # moved into the matrices that read it
            return FloatTensor(np.full_like(checkpoint.read(name), 1 - offset))
        values = smoothing.read(name)
        if values.ndim == 1:
            return FloatTensor(values @ turn if _WRITERS.search(name) else values)
        if _WRITERS.search(name):
            return rows_to_nearest(turn.T @ values)
        weight = (smoothing.read(norm_of[name]) + offset) if name in norm_of else 1
        rounded = rows_to_nearest((values * weight) @ turn)
        return RowsTensor(rounded.q, rounded.scales, rounded.method, LARGEST / 127)

    norms = set(norm_of.values())
    biases = [n for n in checkpoint.names() if ".layers." in n and n.endswith("_proj.bias")]
    return LazyWeights([*body, *sorted(norms), *biases], make)
