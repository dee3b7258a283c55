"""Golden vectors: recorded at export, replayed by any host to prove that it computes what the exporter computed."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from edge.embedding_format import EmbeddingFormat
from edge.golden_vectors import GoldenVectors, VectorCase
from edge.runtime.embed.encoded import Encoded
from edge.runtime.embed.text_model import TextModel

# Cosine distance of two right hosts: kernels differ in the last bits, and where activations are rounded to 8 bits that
# becomes a rounding step here and there (MiniLM in int8: 0.0013 between our kernels and onnxruntime's).
TOLERANCE = {True: 0.01, False: 1e-5}  # whether activations are rounded
OF_SCORES = {True: 0.05, False: 1e-3}  # the same of `score_distance`
DIGITS = 7


@dataclass
class VectorReport:
    """Result of a replay. `faults` are sentences. largest: cosine distance from what was recorded."""

    tolerance: float
    texts: int = 0
    largest: float = 0.0
    faults: list[str] = field(default_factory=list)


def record_vectors(model: TextModel, texts: Sequence[Encoded]) -> GoldenVectors:
    """Record the vectors of token ids, which have the model's own tokens around them; or the scores of pairs."""
    import onnxruntime

    made = model.run(texts)
    rounds = any(group.block_size for group in model.bundle.manifest.groups)
    tolerance = (TOLERANCE if model.format.pair is None else OF_SCORES)[rounds]
    cases = [
        VectorCase([*map(int, text.ids)], [float(f"{x:.{DIGITS}g}") for x in vector], text.second)
        for text, vector in zip(texts, made, strict=True)
    ]
    return GoldenVectors(f"onnxruntime {onnxruntime.__version__}", tolerance, cases)


def replay_vectors(
    model: TextModel, golden: GoldenVectors, progress: Callable[[int], object] = lambda texts: None
) -> VectorReport:
    """Make every recorded vector here. progress: gets the texts just checked."""
    report, apart_of = VectorReport(golden.tolerance), distance_of(model.format)
    made_of = "vector" if model.format.pair is None else "score"
    for case in golden.cases:
        (made,) = model.run([Encoded(case.ids, case.second)])
        apart = apart_of(made, np.array(case.vector, np.float32))
        report.texts += 1
        report.largest = max(report.largest, apart)
        if not apart <= golden.tolerance:
            report.faults.append(f"text {report.texts}: its {made_of} is {apart:.3g} from the recorded one")
        progress(1)
    return report


def distance_of(form: EmbeddingFormat) -> Callable[[NDArray[np.float32], NDArray[np.float32]], float]:
    """The measure of how far apart two vectors are, or two scores [1]."""
    return distance if form.pair is None else score_distance


def score_distance(a: NDArray[np.float32], b: NDArray[np.float32]) -> float:
    """The difference of two scores [1] as the model makes them, relative to one more than the second one."""
    return float(abs(a[0] - b[0]) / (1 + abs(b[0])))


def distance(a: NDArray[np.float32], b: NDArray[np.float32]) -> float:
    """1 - the cosine of two vectors; 2 where one has no length."""
    x, y = a.astype(np.float64), b.astype(np.float64)
    length = float(np.linalg.norm(x) * np.linalg.norm(y))
    return max(0.0, 1 - float(x @ y) / length) if length else 2.0
