"""Inputs of a float graph's products, recorded over a calibration text, and weights rounded to 4 bits for them."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

from edge.export.targets.npu.blocks import BLOCK, Blocks, in_blocks
from edge.export.targets.npu.qdq import FLOAT, array_of, name_of


class Products:
    """The products of a decoder's layers whose weights have a multiple of `BLOCK` inputs. What they read becomes
    outputs of `graph`, and is kept in files in `folder`. The last one, the head, suffers most and keeps 8 bits."""

    def __init__(self, graph: ir.Graph, folder: Path) -> None:
        self._readers: defaultdict[str, dict[str, NDArray[np.float32]]] = defaultdict(dict)
        outputs = {value.name for value in graph.outputs}
        for node in [node for node in graph if node.op_type == "Gemm"][:-1]:
            flat, weight = node.inputs[:2]
            assert flat is not None and weight is not None
            move = flat.producer()
            assert move is not None and move.inputs[0] is not None  # a Reshape, of what several products may read
            source, matrix = move.inputs[0], array_of(weight)
            if matrix.shape[1] % BLOCK:
                continue
            self._readers[name_of(source)][name_of(weight)] = matrix
            if source.name not in outputs:
                outputs.add(source.name)
                source.type = ir.TensorType(FLOAT)
                graph.outputs.append(source)
        self._files = {name: (folder / f"{graph.name}-{i}.rows").open("w+b") for i, name in enumerate(self._readers)}

    def keep(self, made: Mapping[str, NDArray[Any]]) -> None:
        """Store the inputs of the products, from the outputs of a run."""
        for name, file in self._files.items():
            file.write(made[name].tobytes())

    def solve(self, progress: Callable[[int, int, str], None]) -> dict[str, Blocks]:
        """Return the weights in 4 bits, by name."""
        made: dict[str, Blocks] = {}
        for i, (name, weights) in enumerate(self._readers.items()):
            progress(i, len(self._readers), "rounding the target's weights to 4 bits")
            with self._files[name] as file:
                file.seek(0)
                rows = np.fromfile(file, np.float32).reshape(-1, next(iter(weights.values())).shape[1])
            moment = rows.T @ rows
            made |= {weight: in_blocks(matrix, moment) for weight, matrix in weights.items()}
        return made
