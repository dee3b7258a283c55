"""Quantization of float weights to a bundle's integers. One file per method; this file is the registry and the entry
point."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from edge.errors import ExportError
from edge.export.facts.tensors import Weight
from edge.export.quantize.method import Method, Options
from edge.registry import Registry

if TYPE_CHECKING:
    from edge.export.facts.checkpoint import Checkpoint
    from edge.export.reference.in_numpy import Observer

METHODS = Registry(__name__, "kind of weights")  # what --weights may name; see `method.Method`


def methods_with(trait: str) -> list[str]:
    """The names of the methods that have a trait."""
    return [method.name for method in METHODS.values() if method.traits.get(trait)]


def quantize(checkpoint: Checkpoint, weights: str, options: Options | None = None) -> Mapping[str, Weight]:
    """All matrices of a checkpoint in the format `weights`; norms and biases are not among them.

    Matrices that a graph packs together (query, key and value; gate and up) share their bits and block size.

    Raises:
        InputError: an unknown format.
        ExportError: an option that cannot be used.
    """
    options = options or Options()
    check_block_size(options.block_size, weights)
    entry = METHODS.find(weights)
    if options.symmetric and not entry.traits.get("symmetric"):
        can = ", ".join(methods_with("symmetric"))
        raise ExportError(f"--symmetric does not apply to {weights} weights; omit it, or choose {can}.")
    if (options.bits, options.perplexity) != (None, None) and not entry.traits.get("budget"):
        can = ", ".join(methods_with("budget"))
        raise ExportError(f"--bits, --size and --perplexity do not apply to {weights} weights; choose {can}.")
    method: Method = entry.load().quantize
    return method(checkpoint, options)


def observer(checkpoint: Checkpoint, weights: str, options: Options, windows: NDArray[np.int64]) -> Observer:
    """Return the observer that the reference calls, and that `quantize` then reads as `options.measured`. It is the
    method's, if the method has one, else that of smoothing. windows: of the calibration text [W, S]."""
    from edge.export.quantize.smooth import Moments

    make = getattr(METHODS.find(weights).load(), "observer", None)
    found: Observer | None = make(checkpoint, options, windows) if make else None
    return Moments(windows) if found is None else found


def check_block_size(block_size: int | None, weights: str) -> None:
    """Raise ExportError if `weights` cannot have blocks of this size. None: the method's default size."""
    if block_size is None:
        return
    if not METHODS.find(weights).traits.get("blocks"):
        raise ExportError(
            f"--block-size {block_size} does not apply to {weights} weights, which have no blocks; omit it, or choose "
            f"one of {', '.join(methods_with('blocks'))}."
        )
    if block_size < 16 or block_size & (block_size - 1):
        raise ExportError(f"--block-size {block_size} must be a power of two, 16 or more: 32, 64 or 128, say.")


def read_calibration(path: str | Path) -> str:
    """The text of a calibration file.

    Raises:
        ExportError: it is missing, no UTF-8 text, or empty.
    """
    try:
        text = Path(path).read_text(encoding="utf-8")
    except UnicodeDecodeError:
        raise ExportError(f"The calibration file {path} is not UTF-8 text; give a plain text file.") from None
    except OSError as e:
        raise ExportError(f"The calibration file {path} cannot be read: {e.strerror}.") from None
    if not text.strip():
        raise ExportError(f"The calibration file {path} is empty; give a few thousand words of text.")
    return text
