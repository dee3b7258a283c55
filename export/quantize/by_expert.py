"""Bits for each expert: those that a text chooses often, with large weights, and that bear rounding worst get more.

As in MC-MoE (Huang et al., 2024, arXiv:2410.06270), which takes 1 to 3 bits by how often an expert is chosen, by its
weights and by its error. Here an expert's harm in a format is measured: the sum, over the tokens that choose it, of the
squared error of what it adds, relative to the square of the residual stream that it is added to. Texts in use choose
other experts than the one that is calibrated on. So a tenth of the tokens count as if they had chosen all experts
alike, and each expert is measured on a few tokens that chose others, too.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from edge.errors import ExportError
from edge.export.facts.experts import DOWN, EXPERT_PROJECTIONS, GATE, OF_EXPERT, UP, expert_name
from edge.export.facts.tensors import Format, LazyWeights, QTensor, Weight, matrices
from edge.export.quantize.allocate import Unit, choose
from edge.export.quantize.calibration import calibration_windows
from edge.export.quantize.gptq_efforts import EFFORTS
from edge.export.quantize.method import Options
from edge.export.quantize.rtn import round_rows, round_to_nearest
from edge.export.quantize.solve import nearest
from edge.export.reference.in_numpy import Observer, Reference
from edge.export.reference.mixture import Routed

if TYPE_CHECKING:
    from edge.export.facts.checkpoint import Checkpoint

Floats = NDArray[np.float32]

BITS = 2, 4, 8  # that an expert may get
OTHERS = 8  # tokens that chose other experts, which each is measured on
OF_OTHERS = 0.1  # share of the tokens that count as if they had chosen all experts alike


def quantize(checkpoint: Checkpoint, options: Options, few: Format, eight: Format) -> Mapping[str, Weight]:
    """Every matrix of a checkpoint with experts by its name, in `options.bits` bits a weight on average.

    few: the format that experts have where all have the same, whose block size stays. eight: that of all other
    matrices.

    Raises:
        ExportError: they need more bits than were asked for.
    """
    assert options.bits is not None
    forms = [few._replace(bits=bits) for bits in BITS]
    names = matrices(checkpoint)
    sizes = {name: checkpoint.shape(name) for name in names}
    experts = {name for name in names if OF_EXPERT.fullmatch(name)}
    count = sum(rows * columns for rows, columns in sizes.values())
    smallest = sum((forms[0] if name in experts else eight).size(*sizes[name]) for name in names)
    if options.bits * count < smallest:
        raise ExportError(
            f"int4 takes {smallest / count:.3f} bits a weight here, with {BITS[0]} bits for every expert, and "
            f"{options.bits:.3g} were asked for; name {math.floor(100 * smallest / count + 1) / 100:g} or more with "
            "--bits, or a larger --size."
        )
    windows = calibration_windows(checkpoint, options.calibration)[: EFFORTS[options.effort].windows]
    measuring = Measuring(checkpoint, forms, list(windows))
    reference = Reference(checkpoint, windows.shape[1], options.progress, measuring.doing)
    reference.hidden(measuring.texts, measuring)
    others = (Unit((name,), {eight: 0.0}, {eight: eight.size(*sizes[name])}) for name in names if name not in experts)
    chosen = choose([*measuring.units(), *others], options.bits * count)
    assert chosen is not None, "the smallest formats take less"

    def make(name: str) -> Weight:
        if name not in experts:
            return round_rows(checkpoint, name, eight)
        return rounded(checkpoint.read(name), measuring.variances[name], chosen[name])

    return LazyWeights(names, make)


class Measuring(Observer):
    """Measures what each expert of a checkpoint does in every one of `forms` while the reference reads `texts`.

    variances: of the inputs [K] of each expert's matrix, by its name, after the run.
    """

    doing = "measuring what bits bring"

    def __init__(self, checkpoint: Checkpoint, forms: Sequence[Format], texts: Sequence[NDArray[np.int64]]) -> None:
        self.texts = texts
        self.variances: dict[str, Floats] = {}
        self._checkpoint, self._forms = checkpoint, forms
        self._harms: dict[tuple[str, ...], NDArray[np.float64]] = {}  # [F], by the names of an expert's matrices
        # Of the latest block: such names, tokens [T], and errors [F, T].
        self._errors: list[tuple[tuple[str, ...], NDArray[np.int64], NDArray[np.float64]]] = []

    def experts(self, block: str, x: Floats, routed: Routed) -> None:
        mean, k = np.square(x).mean(0), routed.chosen.shape[1]
        alike = OF_OTHERS * len(x) * k / routed.count  # tokens that count as if they had chosen an expert
        for expert in range(routed.count):
            own, places = np.nonzero(routed.chosen == expert)
            others = np.setdiff1d(np.arange(len(x)), own)
            others = others[np.linspace(0, max(0, len(others) - 1), min(OTHERS, len(others)), dtype=np.int64)]
            rows = np.concatenate([own, others])
            usual = np.full(len(others), routed.shares.mean(), np.float32)
            shares = np.concatenate([routed.shares[own, places], usual])
            counts = np.concatenate([np.ones(len(own)), np.full(len(others), alike / max(1, len(others)))])
            names = {member: expert_name(block, expert, member) for member in EXPERT_PROJECTIONS}
            weights = {member: self._checkpoint.read(name) for member, name in names.items()}
            inner, exact = routed.compute(expert, rows, weights)
            weight = (np.square(shares) * counts.astype(np.float32))[:, None]
            of_x = (weight * np.square(x[rows])).sum(0) + weight.mean() * mean
            of_inner = (weight * np.square(inner)).sum(0)
            of_inner += of_inner.mean() * np.float32(0.1) + np.float32(1e-12)
            self.variances |= {names[GATE]: of_x, names[UP]: of_x, names[DOWN]: of_inner}
            errors = np.empty((len(self._forms), len(rows)))
            for i, form in enumerate(self._forms):
                coarse = {m: rounded(w, self.variances[names[m]], form).dequantize() for m, w in weights.items()}
                off = (routed.compute(expert, rows, coarse)[1] - exact) * shares[:, None]
                errors[i] = np.square(off).sum(1)
            self._errors.append((tuple(names.values()), rows, errors * counts))

    def stream(self, x: Floats) -> None:
        sizes = np.square(x).sum(1) + np.float32(1e-12)
        for names, rows, errors in self._errors:
            self._harms[names] = (errors / sizes[rows]).sum(1)
        self._errors.clear()

    def units(self) -> list[Unit]:
        """What each expert costs, and how much it harms, by format."""
        made = []
        for names, harms in self._harms.items():
            shapes = [self._checkpoint.shape(each) for each in names]
            costs = {form: sum(form.size(*shape) for shape in shapes) for form in self._forms}
            made.append(Unit(names, dict(zip(self._forms, harms.tolist(), strict=True)), costs))
        return made


def rounded(w: Floats, variances: Floats, form: Format) -> QTensor:
    """A matrix [N, K] in blocks with the scales that change its outputs least, for inputs of these variances [K], each
    weight the nearest."""
    if form.bits == 8:
        return round_to_nearest(w, *form[:2], symmetric=form.symmetric)
    return nearest(w, variances, form)
