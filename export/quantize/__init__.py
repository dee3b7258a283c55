"""Float weights become the integers of a bundle. One file per method; this is the registry and the way in."""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING

from edge.errors import ExportError, InputError
from edge.export.quantize.base import Method, Options, Progress, Weight

if TYPE_CHECKING:
    from edge.export.checkpoint.base import Checkpoint

# What --weights may name, and where the method is; a module is imported when it is chosen (some need Torch).
METHODS = {
    "fp32": "floats:fp32",
    "fp16": "floats:fp16",
    "int8": "rtn:int8",
    "int4": "gptq:int4",
    "keep": "keep:keep",
}


def method(name: str) -> Method:
    """The method that `METHODS` names."""
    module, function = METHODS[name].split(":")
    found: Method = getattr(import_module(f"{__name__}.{module}"), function)
    return found


def quantize(
    checkpoint: Checkpoint,
    weights: str,
    *,
    block_size: int | None = None,
    calibration: str | None = None,
    progress: Progress | None = None,
) -> Mapping[str, Weight]:
    """All matrices of a checkpoint in the format `weights`; norms and biases are not among them.

    `calibration` is a text to measure activations on, for methods that do. Matrices that a graph packs together
    (query, key and value; gate and up) share their bits and block size.

    Raises:
        InputError: an unknown format.
        ExportError: an option that cannot be used.
    """
    check_weights(weights)
    check_block_size(block_size, weights)
    return method(weights)(checkpoint, Options(block_size, calibration, progress))


def check_weights(weights: str) -> None:
    """InputError where there is no such format."""
    if weights not in METHODS:
        raise InputError(f"There are no weights {weights!r}; choose one of {', '.join(METHODS)}.")


def check_block_size(block_size: int | None, weights: str) -> None:
    """ExportError where `weights` cannot have blocks of this size. None: the method's own size."""
    if block_size is None:
        return
    if weights in ("fp32", "fp16"):
        raise ExportError(
            f"--block-size {block_size} cannot be had with {weights} weights, which have no blocks; leave it out, or "
            "choose int8 or int4."
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
