"""4 bits by GPTQ.

`gptq_quick.py` calibrates all matrices in one run of the reference in numpy, `gptq_layers.py` in Torch, on more text
and with more done for each, as `gptq_efforts.py` says. Both do so on what the matrices read in the float model.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from edge.errors import ExportError
from edge.export.facts.experts import OF_EXPERT, check_block
from edge.export.facts.tensors import EMBEDDING, HEAD, Format, LazyWeights, Weight, matrices
from edge.export.graph.families import may_calibrate
from edge.export.quantize.gptq_efforts import BITS, EFFORTS, format_of, in_one_run
from edge.export.quantize.method import Options
from edge.export.quantize.rtn import round_rows

if TYPE_CHECKING:
    from edge.export.facts.checkpoint import Checkpoint
    from edge.export.reference.in_numpy import Observer

NAME = "int4"
HELP = "4 bits, calibrated on text"
ROUNDED_BLOCK = 32  # of matrices that are not calibrated
TRAITS = {
    "bits": 4, "blocks": True, "calibrated": True, "max_kl": 1.0, "symmetric": True, "budget": True, "decoder": True,
    "embedder": True,
}  # fmt: skip


def _rounded(checkpoint: Checkpoint, options: Options) -> Mapping[str, Weight]:
    few = Format(BITS, options.block_size or ROUNDED_BLOCK, options.symmetric)
    eight = Format(8, few.block_size, symmetric=True)
    names = matrices(checkpoint)
    experts = {name for name in names if OF_EXPERT.fullmatch(name)}
    if options.perplexity is not None or (options.bits is not None and not experts):
        more = "leave out --perplexity" if experts else "leave out --bits, --size and --perplexity"
        raise ExportError(
            f"The layers of {checkpoint.name} cannot be calibrated, for they have experts, or are not like Llama's; "
            f"{more}."
        )
    for columns in sorted({checkpoint.shape(name)[1] for name in experts}):
        check_block(columns, few.block_size, zero_points=not few.symmetric)
    if options.bits is not None:
        from edge.export.quantize.by_expert import quantize as by_expert

        return by_expert(checkpoint, options, few, eight)
    coarse = experts or set(names) - {EMBEDDING, HEAD}
    return LazyWeights(names, lambda name: round_rows(checkpoint, name, few if name in coarse else eight))


def observer(checkpoint: Checkpoint, options: Options, windows: NDArray[np.int64]) -> Observer | None:
    """Return the observer that calibrates in one run of the reference; None if more than one run is needed. windows: of
    the calibration text."""
    from edge.export.quantize.gptq_quick import Calibrating

    if not in_one_run(options) or not may_calibrate(checkpoint.config):
        return None
    return Calibrating(checkpoint, format_of(options), windows[: EFFORTS[options.effort].windows])


def quantize(checkpoint: Checkpoint, options: Options) -> Mapping[str, Weight]:
    """4-bit blocks for every matrix, embedding and head included: GPTQ, and as the effort says text of the model's own,
    refined integers, a format for each matrix in 4 or 8 bits, and scales tuned end to end. Of a decoder that has
    experts, or is not like Llama, they are rounded as they are, and embedding and head have 8 bits; of one with
    experts whatever is in no expert has, which costs little. Under a budget each expert gets 2, 4 or 8 bits."""
    if not may_calibrate(checkpoint.config):
        return _rounded(checkpoint, options)
    if in_one_run(options):
        from edge.export.quantize.gptq_quick import calibrate

        return calibrate(checkpoint, options)
    from edge.export.quantize.gptq_layers import quantize_decoder

    return quantize_decoder(checkpoint, options)
