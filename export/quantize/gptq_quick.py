"""4 bits by GPTQ in one run of the reference in numpy: each matrix is calibrated on what it reads in the float model,
and solved as soon as that is known.

Nothing but a matrix and those that read the same is in memory; what is solved is in a file. On SmolLM2 the result is as
good as that of calibrating layers on the outputs of those already quantized, which runs each layer three times
(docs/lab/quantization.md).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from edge.export.facts.tensors import EMBEDDING, HEAD, Format, QTensor, matrices, stack_rows
from edge.export.quantize.calibration import calibration_windows
from edge.export.quantize.conditioned import Inputs, Moment, Uncorrelated, inputs_of
from edge.export.quantize.gptq_efforts import ATTENTION_STRIDE, EFFORTS, LOOKUP, format_of
from edge.export.quantize.method import Options
from edge.export.quantize.solve import Solver
from edge.export.quantize.solved_file import SolvedFile
from edge.export.reference.in_numpy import Observer, Reference

if TYPE_CHECKING:
    from edge.export.facts.checkpoint import Checkpoint

Floats = NDArray[np.float32]

HEAD_ROWS = 8192  # of the vocabulary, read and solved at a time: bounds memory
GATHERED = 1024  # rows of averaged inputs whose moments are taken together


def calibrate(checkpoint: Checkpoint, options: Options) -> Mapping[str, QTensor]:
    """Every matrix of the checkpoint by its name, in one format."""
    return calibrated(checkpoint, options).weights.in_order(matrices(checkpoint))


def calibrated(checkpoint: Checkpoint, options: Options, doing: str | None = None) -> Calibrating:
    """Return the finished calibration: every matrix by its name, and the head's inputs. doing: the name of the
    progress."""
    if isinstance(options.measured, Calibrating):
        return options.measured
    windows = calibration_windows(checkpoint, options.calibration)[: EFFORTS["quick"].windows]
    calibrating = Calibrating(checkpoint, format_of(options), windows)
    reference = Reference(checkpoint, windows.shape[1], options.progress, doing or calibrating.doing)
    reference.hidden(calibrating.texts, calibrating)
    return calibrating


class Calibrating(Observer):
    """Solves the matrices of a checkpoint while the reference reads `windows` [W, S], the last of its texts.

    weights: those that are solved, by name; all of them after the run. read: what the output head reads [W, S, hidden],
    after the run.
    """

    read: Floats

    doing = "quantizing to 4 bits"

    def __init__(self, checkpoint: Checkpoint, form: Format, windows: NDArray[np.int64]) -> None:
        self.texts = list(windows)
        self.weights = SolvedFile()
        self._checkpoint, self._form = checkpoint, form
        self._inputs: Floats | None = None  # what the last matrices read
        self._readers: list[tuple[str, Floats]] = []  # these matrices, and
        self._values: list[tuple[str, Floats]] = []  # the value projection among them
        self._averaged: list[Floats] = []
        self._own = slice(0)  # the rows of all windows
        self._value_moment: Floats | None = None

    def product(self, name: str, x: Floats, weight: Floats, texts: Sequence[slice]) -> None:
        if x is not self._inputs:
            self._solve_readers()
            self._inputs = x
        (self._values if name.endswith(".v_proj.weight") else self._readers).append((name, weight))
        self._own = slice(texts[-len(self.texts)].start, texts[-1].stop)

    def scores(self, head: int, scores: Floats, text: slice) -> None:
        """A value projection is judged by what attention makes of it. Attention averages values over tokens, and so
        their errors: only errors on *averaged* inputs reach the output, hence the moment is that of the inputs under
        attention. On SmolLM2 at block 64 this takes a third off the divergence of the whole model."""
        if self._values and self._inputs is not None and text.start >= self._own.start:
            self._averaged.append(scores[::ATTENTION_STRIDE] @ self._inputs[text])
            if sum(map(len, self._averaged)) >= GATHERED:
                self._gather()

    def finals(self, x: Floats, texts: Sequence[slice]) -> None:
        self._solve_readers()
        self._inputs = None
        self.read = x[self._own].reshape(len(self.texts), -1, x.shape[1])
        moment = Moment(_moment(x[self._own]))
        mean = moment.variances.mean()
        if HEAD in self._checkpoint.names():
            self._solve_rows(EMBEDDING, Uncorrelated(np.full(x.shape[1], mean)))
            self._solve_rows(HEAD, moment)
        else:  # errors of a lookup count in addition to those of a logit
            moment.values[np.diag_indices(x.shape[1])] += np.float32(LOOKUP) * mean
            self._solve_rows(EMBEDDING, moment)

    def _gather(self) -> None:
        made = _moment(np.concatenate(self._averaged))
        self._value_moment = made if self._value_moment is None else self._value_moment + made
        self._averaged.clear()

    def _solve_readers(self) -> None:
        """Solve the matrices that read the last inputs."""
        if self._readers and self._inputs is not None:
            self._solve(self._readers, inputs_of(self._inputs[self._own]))
        if self._averaged:
            self._gather()
        if self._values and self._value_moment is not None:
            self._solve(self._values, Moment(self._value_moment))
        self._readers, self._values, self._value_moment = [], [], None

    def _solve(self, readers: Sequence[tuple[str, Floats]], inputs: Inputs) -> None:
        solver = Solver(inputs, self._form)
        for name, weight in readers:
            self.weights.add(name, solver.solve(weight))

    def _solve_rows(self, name: str, inputs: Inputs) -> None:
        """Solve a matrix of the vocabulary, one part of its rows after another."""
        solver, count = Solver(inputs, self._form), self._checkpoint.shape(name)[0]
        parts = [
            solver.solve(self._checkpoint.read(name, slice(i, min(i + HEAD_ROWS, count))))
            for i in range(0, count, HEAD_ROWS)
        ]
        whole = stack_rows(parts)
        del parts
        assert isinstance(whole, QTensor)
        self.weights.add(name, whole)


def _moment(x: Floats) -> Floats:
    """Return the second moment [K, K] of rows [T, K]."""
    moment: Floats = x.T @ x
    return moment
