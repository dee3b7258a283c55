"""Tensors in the files of a model directory that are several of the model's: each is some of their rows."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from edge.export.checkpoint.stored import Tensor
from edge.export.facts.mixers import Places
from edge.export.facts.tensors import Format, QTensor, in_order


class Rows:
    """Some rows of a tensor, which is read when they are."""

    def __init__(self, of: Tensor, places: Places) -> None:
        self._of, self._places = of, places

    @property
    def shape(self) -> tuple[int, ...]:
        return len(self._places), *self._of.shape[1:]

    @property
    def type(self) -> str:
        return self._of.type

    @property
    def form(self) -> Format | None:
        return self._of.form

    def read(self, rows: slice | None = None) -> NDArray[np.float32]:
        places = self._places if rows is None else self._places[rows]
        return np.ascontiguousarray(self._of.read()[places])

    def blocks(self) -> QTensor | None:
        blocks = self._of.blocks()
        if blocks is None:
            return None
        made = in_order(blocks, self._places)
        assert isinstance(made, QTensor)
        return made


def taken_apart(found: Mapping[str, Tensor], fused: Mapping[str, Mapping[str, Places]]) -> dict[str, Tensor]:
    """The tensors of a directory, those that are several taken apart. fused: by their names within a layer, the places
    of each one's rows."""
    made: dict[str, Tensor] = {}
    for name, tensor in found.items():
        end = next((end for end in fused if name.endswith(f".{end}")), None)
        if end is None or tensor.shape[:1] != (sum(map(len, fused[end].values())),):
            made[name] = tensor
            continue
        made |= {name.removesuffix(end) + member: Rows(tensor, places) for member, places in fused[end].items()}
    return made
