"""Golden answers as a bundle holds them: prompts, greedy answers, and a few of their logits.

`edge.runtime.check.golden` records and replays them.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import repeat

import numpy as np
from numpy.typing import NDArray

from edge.bundle import GOLDEN, Bundle
from edge.errors import BundleError
from edge.manifest import Manifest
from edge.typed_json import typed

MAX_TOLERANCE = 32.0  # exports wrote up to 2.9 (SmolLM2-135M, 4 bits); one this much larger lets anything pass
MAX_CASES, MAX_TOKENS, MAX_TOP = 256, 1 << 16, 64  # of all cases together, and of a step; exports write 4, 400 and 5
MAX_LOGIT = 1e30  # a float32 holds it, and distances between two
MOST_BYTES = 16 << 20  # of the file


@dataclass(frozen=True)
class TopLogits:
    """The best tokens of one step, best first, and their logits."""

    ids: list[int]
    logits: list[float]


@dataclass(frozen=True)
class FormCase:
    """The outputs of a graph along a recorded answer: its best token at each step, and the top logits of the first and
    the last step."""

    ids: list[int]
    first: TopLogits
    last: TopLogits

    def at(self, step: int) -> TopLogits | None:
        """Return the logits recorded of the first or the last step; None of any other step."""
        return {0: self.first, len(self.ids) - 1: self.last}.get(step)

    def fits(self, tokens: int, vocab: int) -> bool:
        """True if it records so many tokens, at least one, and all ids are in a vocabulary of `vocab` tokens."""
        tops = self.first, self.last
        return (
            len(self.ids) == tokens > 0
            and all(0 < len(top.ids) == len(top.logits) <= MAX_TOP for top in tops)
            and all(abs(logit) <= MAX_LOGIT for top in tops for logit in top.logits)
            and all(0 <= token < vocab for token in (*self.ids, *self.first.ids, *self.last.ids))
        )


@dataclass(frozen=True)
class GoldenCase:
    """One prompt and its greedy answer, with the top logits of its first and last token. For an encoder-decoder the
    prompt is what its decoder begins with; the encoder's input is `source_ids`, or `noise(source_seed)` for audio."""

    prompt_ids: list[int]
    greedy_ids: list[int]
    first: TopLogits
    last: TopLogits
    source_ids: list[int] = field(default_factory=list)
    source_seed: int | None = None
    date: str | None = None  # YYYY-MM-DD that the chat template told the model, where it does

    @property
    def own(self) -> FormCase:
        """The outputs of the decode graph itself."""
        return FormCase(self.greedy_ids, self.first, self.last)


@dataclass(frozen=True)
class GoldenForm:
    """The outputs of a graph that rounds differently from the decode graph, along the answers of all cases."""

    role: str
    tolerance: float
    cases: list[FormCase]


@dataclass(frozen=True)
class Golden:
    """The content of `golden.json`."""

    recorder: str
    tolerance: float  # by how much the distance between two of a step's best logits may differ
    cases: list[GoldenCase]
    forms: list[GoldenForm]  # of graphs that round otherwise

    def form(self, role: str) -> GoldenForm:
        """Return the expected outputs of the graph with this role: those recorded of it, else those of the decode
        graph."""
        own = GoldenForm(role, self.tolerance, [case.own for case in self.cases])
        return next((form for form in self.forms if form.role == role), own)


def read_golden(bundle: Bundle) -> Golden:
    """The bundle's golden answers; BundleError where the file cannot be read, or is not what `record_golden` writes."""
    raw, path = bundle.read_json(GOLDEN, MOST_BYTES)
    golden, manifest = typed(raw, Golden, path), bundle.manifest
    vocab, advice = manifest.dims.vocab_size, "export the model again."
    if not golden.cases:
        raise BundleError(f"{path} has no recorded answers; {advice}")
    if len(golden.cases) > MAX_CASES or sum(map(_tokens_of, golden.cases)) > MAX_TOKENS:
        raise BundleError(
            f"{path} has more than {MAX_CASES} recorded answers, or {MAX_TOKENS} tokens of them, which no export "
            f"records; {advice}"
        )
    for i, case in enumerate(golden.cases):
        known = all(0 <= token < vocab for token in (*case.prompt_ids, *case.source_ids))
        if not case.prompt_ids or not known or not case.own.fits(len(case.greedy_ids), vocab):
            raise BundleError(f"{path}: cases[{i}] is no recorded answer of this model; {advice}")
        if len(case.prompt_ids) + len(case.greedy_ids) > manifest.context or not _is_source(case, manifest):
            raise BundleError(f"{path}: cases[{i}] is longer than this model takes, or no input of it; {advice}")
    for form in golden.forms:
        sizes = [len(case.greedy_ids) for case in golden.cases]
        if len(form.cases) != len(sizes) or not all(map(FormCase.fits, form.cases, sizes, repeat(vocab))):
            where = f"{path}: forms {form.role[:60]!r}"
            raise BundleError(f"{where} is no record of this model's answers; {advice}")
    for tolerance in (golden.tolerance, *(form.tolerance for form in golden.forms)):
        if not 0 <= tolerance <= MAX_TOLERANCE:
            raise BundleError(
                f"{path} tolerates that logits differ by {tolerance:g}, and at most {MAX_TOLERANCE:g} says anything of "
                f"a model; {advice}"
            )
    return golden


def _tokens_of(case: GoldenCase) -> int:
    return len(case.prompt_ids) + len(case.greedy_ids) + len(case.source_ids)


def _is_source(case: GoldenCase, manifest: Manifest) -> bool:
    """True if a case has the input that this kind of model reads: none for a decoder, a seed for audio, else token
    ids."""
    seed, ids, encoder = case.source_seed, len(case.source_ids), manifest.encoder
    if encoder is None:
        return seed is None and not ids
    if encoder.input == "audio":
        return seed is not None and 0 <= seed < 2**32 and not ids
    return seed is None and 1 <= ids <= encoder.max_length


def noise(seed: int, samples: int = 32_000) -> NDArray[np.float32]:
    """Audio that any host can make alike: a linear congruential generator's upper half words (Numerical Recipes'
    constants, modulo 2**32), as samples from -0.1 to 0.1."""
    state, words = seed, np.empty(samples, np.float32)
    for i in range(samples):
        state = (1664525 * state + 1013904223) % 2**32
        words[i] = state >> 16
    return (words - 32768) * np.float32(0.1 / 32768)
