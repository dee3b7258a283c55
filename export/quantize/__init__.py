"""Float weights become the integers of a bundle. One file per method; this is the registry and the way in."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from edge.errors import ExportError
from edge.export.quantize.base import Method, Options, Progress, Weight
from edge.registry import Registry

if TYPE_CHECKING:
    from edge.export.checkpoint.base import Checkpoint
    from edge.export.quantize.smooth import Moments

METHODS = Registry(__name__, "kind of weights")  # what --weights may name; see `base.Method`


def quantize(
    checkpoint: Checkpoint,
    weights: str,
    *,
    block_size: int | None = None,
    calibration: str | None = None,
    progress: Progress | None = None,
    effort: str = "normal",
    symmetric: bool = False,
    bits: float | None = None,
    perplexity: float | None = None,
    left_out: frozenset[str] = frozenset(),
    moments: Moments | None = None,
) -> Mapping[str, Weight]:
    """All matrices of a checkpoint in the format `weights`; norms and biases are not among them.

    `calibration` is a text to measure activations on, for methods that do; `moments`, what smoothing would measure.
    symmetric: without zero points. left_out: see `Options`. Matrices that a graph packs together (query, key and value;
    gate and up) share their bits and block size.

    Raises:
        InputError: an unknown format.
        ExportError: an option that cannot be used.
    """
    check_block_size(block_size, weights)
    entry = METHODS.find(weights)
    if symmetric and not entry.traits.get("symmetric"):
        can = ", ".join(method.name for method in METHODS.values() if method.traits.get("symmetric"))
        raise ExportError(f"--symmetric does not apply to {weights} weights; omit it, or choose {can}.")
    if (bits, perplexity) != (None, None) and not entry.traits.get("budget"):
        can = ", ".join(method.name for method in METHODS.values() if method.traits.get("budget"))
        raise ExportError(f"--bits, --size and --perplexity do not apply to {weights} weights; choose {can}.")
    method: Method = entry.load().quantize
    options = Options(block_size, calibration, progress, effort, symmetric, bits, perplexity, left_out, moments)
    return method(checkpoint, options)


def check_block_size(block_size: int | None, weights: str) -> None:
    """ExportError where `weights` cannot have blocks of this size. None: the method's own size."""
    if block_size is None:
        return
    if not METHODS.find(weights).traits.get("blocks", True):
        raise ExportError(
            f"--block-size {block_size} does not apply to {weights} weights, which have no blocks; omit it, or choose "
            "int8 or int4."
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
