"""Golden vectors as a bundle holds them: token ids of texts, and their vectors.

`edge.runtime.check.vectors` records and replays them.
"""

from __future__ import annotations

from dataclasses import dataclass

from edge.bundle import GOLDEN, Bundle
from edge.errors import BundleError
from edge.typed_json import typed

MAX_TOLERANCE = 0.05  # a distance that no right host comes near
MAX_CASES, MAX_TOKENS = 64, 1 << 14  # of all cases together; exports write 4 of up to 40 tokens
MAX_NUMBER = 1e30
MOST_BYTES = 16 << 20  # of the file


@dataclass(frozen=True)
class VectorCase:
    """The token ids of a text, with those around it, and its vector. second: of a pair, the place of the second text's
    first token."""

    ids: list[int]
    vector: list[float]
    second: int = 0


@dataclass(frozen=True)
class GoldenVectors:
    """The content of such a bundle's `golden.json`. tolerance: distance of a vector from the recorded one that is no
    fault, by the cosine; of a pair's score that of `edge.runtime.check.vectors.distance_of`."""

    recorder: str
    tolerance: float
    cases: list[VectorCase]


def read_vectors(bundle: Bundle) -> GoldenVectors:
    """The bundle's golden vectors; BundleError where the file cannot be read, or is not what an export writes."""
    raw, path = bundle.read_json(GOLDEN, MOST_BYTES)
    golden, manifest = typed(raw, GoldenVectors, path), bundle.manifest
    assert manifest.embedding is not None
    advice = "export the model again."
    if not 1 <= len(golden.cases) <= MAX_CASES or sum(len(case.ids) for case in golden.cases) > MAX_TOKENS:
        raise BundleError(f"{path} has {len(golden.cases)} recorded vectors, or long ones; {advice}")
    if not 0 <= golden.tolerance <= MAX_TOLERANCE:
        raise BundleError(
            f"{path} tolerates a distance of {golden.tolerance:g}, and at most {MAX_TOLERANCE:g}; {advice}"
        )
    for i, case in enumerate(golden.cases):
        known = all(0 <= token < manifest.dims.vocab_size for token in case.ids)
        sound = len(case.vector) == manifest.embedding.width and all(abs(x) <= MAX_NUMBER for x in case.vector)
        parted = (1 <= case.second < len(case.ids)) if manifest.embedding.pair is not None else not case.second
        if not known or not 1 <= len(case.ids) <= manifest.context or not sound or not parted:
            raise BundleError(f"{path}: cases[{i}] is no recorded vector of this model; {advice}")
    return golden
