"""Errors of graphs while they run, as sentences: a step that fails, and logits that are not finite."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray
from onnxruntime.capi import onnxruntime_pybind11_state as ort

from edge.bundle import Bundle
from edge.errors import BundleError, EdgeError, InputError, on_one_line

FAILURES: tuple[type[Exception], ...] = (
    *(MemoryError, RuntimeError),  # RuntimeError: memory of another shape or type than the graph has
    *(each for each in vars(ort).values() if isinstance(each, type) and issubclass(each, Exception)),
)
"""What running a graph raises: onnxruntime's errors have no common base."""


def failed(bundle: Bundle, error: Exception) -> EdgeError:
    """The error for a graph of a bundle that failed while it ran."""
    name = bundle.manifest.name
    if isinstance(error, MemoryError) or "Failed to allocate memory" in str(error):
        return InputError(
            f"There is no memory for a step of {name} ({on_one_line(error)}); close other programs, or load it with a "
            "smaller context or prefill chunk."
        )
    return BundleError(
        f"A graph of {name} failed while it ran ({on_one_line(error)}); check the bundle with edge verify, or export "
        "it again."
    )


def no_token(value: float | None = None) -> BundleError:
    """The error where no next token can be chosen. value: of the largest logit, where it is known."""
    what = "" if value is None else f" (the largest is {value})"
    return BundleError(
        f"The model's logits are not finite numbers{what}, so that no token can be chosen; check the bundle with edge "
        "verify, or export it again."
    )


def check_finite(best: NDArray[np.float32]) -> None:
    """BundleError where the best logit of a row is not finite."""
    finite = np.isfinite(best)
    if not finite.all():
        raise no_token(float(best[~finite][0]))
