"""A decoder's weights as its graphs for NPUs take them: in memory, each matrix by itself, on a rotated residual stream.

A few channels of the residual stream are a hundred times larger than the rest, and one scale serves all of them. An
orthogonal matrix spreads them over all channels (QuaRot, Ashkboos et al., arXiv:2404.00456, section 4; see
`edge.export.quantize.prefill`). Here the embedding and the head are rotated too, which costs the graph nothing.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

from edge.errors import ExportError
from edge.export.facts.tensors import EMBEDDING, HEAD, FloatTensor, LazyWeights, Weight, matrices
from edge.export.graph.weights import Stored, StoredFloat, Weights
from edge.export.quantize.prefill import rotation
from edge.export.quantize.smooth import find_sites, layer_norms, may_rotate

if TYPE_CHECKING:
    from edge.export.facts.checkpoint import Checkpoint

FINAL_NORM = "model.norm.weight"
WRITERS = (".o_proj.weight", ".o_proj.bias", ".down_proj.weight", ".down_proj.bias")


class NPUWeights(Weights):
    """The NPU's `Weights`: nothing is written, and no two matrices are packed, because each output has a separate
    scale."""

    def __init__(self, source: Checkpoint, matrices: Mapping[str, Weight]) -> None:
        self._source, self._matrices = source, matrices
        self._cached: dict[str, ir.Tensor] = {}
        self._paired: dict[str, int] = {}

    def matrices(self, names: Sequence[str], stored_as: str, group: str) -> list[Stored]:
        return [self._keep(name) for name in names]

    def _count(self, stored_as: str, group: str, values: NDArray[np.float32]) -> None:
        """The manifest has the groups of the CPU's graphs alone."""

    def _keep(self, name: str) -> StoredFloat:
        weight = self._matrix(name)
        assert isinstance(weight, FloatTensor)
        rows, columns = weight.values.shape
        return StoredFloat(self._tensor(name, weight.values), rows, columns)

    def _tensor(self, name: str, values: NDArray[Any]) -> Any:
        if name not in self._cached:
            self._cached[name] = ir.Tensor(np.ascontiguousarray(values), name=name)
        return self._cached[name]


def npu_shapes(checkpoint: Checkpoint) -> Mapping[str, Weight]:
    """Zeros instead of what `npu_weights` reads: enough to see which graph there will be, without the memory."""
    shapes = {name: checkpoint.shape(name) for name in checkpoint.names()}
    zeros = {shape: FloatTensor(np.zeros(shape, np.float32)) for shape in shapes.values()}
    return LazyWeights([*shapes, HEAD], lambda name: zeros[shapes[name if name in shapes else EMBEDDING]])


def npu_weights(checkpoint: Checkpoint) -> Mapping[str, Weight]:
    """Every matrix, norm and bias of a decoder in float32. They are rotated where its layers are pre-norm ones, as
    Llama's are; others are left as they are."""
    names = [n for n in matrices(checkpoint)]
    if not _is_rotatable(checkpoint):
        return LazyWeights(names, lambda name: FloatTensor(checkpoint.read(name).astype(np.float32)))
    layer, turn = layer_norms(checkpoint), rotation(int(checkpoint.config["hidden_size"]))
    norm_of = {reader: site.norm for site in find_sites(checkpoint) if site.norm for reader in site.readers}
    offset, tied = np.float32(layer.offset), HEAD not in checkpoint.names()
    norm_of[HEAD] = FINAL_NORM
    folded = set(norm_of.values())

    def make(name: str) -> Weight:
        if name in folded:
            return FloatTensor(np.full_like(checkpoint.read(name), 1 - offset, np.float32))
        values = checkpoint.read(EMBEDDING if name == HEAD and tied else name).astype(np.float32)
        if name.endswith(WRITERS):
            return FloatTensor(values @ turn if values.ndim == 1 else turn.T @ values)
        if name in norm_of:
            values = values * (checkpoint.read(norm_of[name]) + offset)
        elif name != EMBEDDING:
            return FloatTensor(values)
        return FloatTensor(np.asarray(values @ turn, np.float32))

    biases = [n for n in checkpoint.names() if n.endswith(WRITERS) and n.endswith(".bias")]
    return LazyWeights([*dict.fromkeys([*names, HEAD]), *sorted(folded), *biases], make)


def _is_rotatable(checkpoint: Checkpoint) -> bool:
    try:
        find_sites(checkpoint)
    except ExportError:
        return False
    return may_rotate(checkpoint)
