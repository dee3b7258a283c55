"""Golden vectors: recorded at export, replayed by any host to prove that it computes what the exporter computed."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from edge.golden_vectors import GoldenVectors, VectorCase
from edge.runtime.embed.embedder import Embedder

# Cosine distance of two right hosts: kernels differ in the last bits, and where activations are rounded to 8 bits that
# becomes a rounding step here and there (MiniLM in int8: 0.0013 between our kernels and onnxruntime's).
TOLERANCE = {True: 0.01, False: 1e-5}  # whether activations are rounded
DIGITS = 7


@dataclass
class VectorReport:
    """Result of a replay. `faults` are sentences. largest: cosine distance from what was recorded."""

    tolerance: float
    texts: int = 0
    largest: float = 0.0
    faults: list[str] = field(default_factory=list)


def record_vectors(embedder: Embedder, texts: Sequence[Sequence[int]]) -> GoldenVectors:
    """Record the vectors of token ids, which have the model's own tokens around them."""
    import onnxruntime

    made = embedder.vectors(texts)
    rounds = any(group.block_size for group in embedder.bundle.manifest.groups)
    cases = [
        VectorCase([*map(int, ids)], [float(f"{x:.{DIGITS}g}") for x in vector])
        for ids, vector in zip(texts, made, strict=True)
    ]
    return GoldenVectors(f"onnxruntime {onnxruntime.__version__}", TOLERANCE[rounds], cases)


def replay_vectors(
    embedder: Embedder, golden: GoldenVectors, progress: Callable[[int], object] = lambda texts: None
) -> VectorReport:
    """Make every recorded vector here. progress: gets the texts just checked."""
    report = VectorReport(golden.tolerance)
    for case in golden.cases:
        (made,) = embedder.vectors([case.ids])
        apart = distance(made, np.array(case.vector, np.float32))
        report.texts += 1
        report.largest = max(report.largest, apart)
        if not apart <= golden.tolerance:
            report.faults.append(f"text {report.texts}: its vector is {apart:.3g} from the recorded one")
        progress(1)
    return report


def distance(a: NDArray[np.float32], b: NDArray[np.float32]) -> float:
    """1 - the cosine of two vectors; 2 where one has no length."""
    x, y = a.astype(np.float64), b.astype(np.float64)
    length = float(np.linalg.norm(x) * np.linalg.norm(y))
    return max(0.0, 1 - float(x @ y) / length) if length else 2.0
