"""4 bits by GPTQ.

`gptq_quick.py` calibrates all matrices in one run of the reference in numpy, `gptq_layers.py` in Torch, on more text
and with more done for each, as `gptq_efforts.py` says. Both do so on what the matrices read in the float model.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from edge.export.facts.tensors import Weight
from edge.export.quantize.gptq_efforts import EFFORTS, format_of, in_one_run
from edge.export.quantize.method import Options

if TYPE_CHECKING:
    from edge.export.facts.checkpoint import Checkpoint
    from edge.export.reference.in_numpy import Observer

NAME = "int4"
HELP = "4 bits, calibrated on text"
TRAITS = {
    "bits": 4, "blocks": True, "calibrated": True, "max_kl": 1.0, "symmetric": True, "budget": True, "decoder": True,
    "embedder": True,
}  # fmt: skip


def observer(checkpoint: Checkpoint, options: Options, windows: NDArray[np.int64]) -> Observer | None:
    """Return the observer that calibrates in one run of the reference; None if more than one run is needed. windows: of
    the calibration text."""
    from edge.export.quantize.gptq_quick import Calibrating

    if not in_one_run(options):
        return None
    return Calibrating(checkpoint, format_of(options), windows[: EFFORTS[options.effort].windows])


def quantize(checkpoint: Checkpoint, options: Options) -> Mapping[str, Weight]:
    """4-bit blocks for every matrix, embedding and head included: GPTQ, and as the effort says text of the model's own,
    refined integers, a format for each matrix in 4 or 8 bits, and scales tuned end to end."""
    if in_one_run(options):
        from edge.export.quantize.gptq_quick import calibrate

        return calibrate(checkpoint, options)
    from edge.export.quantize.gptq_layers import quantize_decoder

    return quantize_decoder(checkpoint, options)
