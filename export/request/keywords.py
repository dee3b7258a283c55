"""The fields of options, as keywords for type checkers. Written by `make options`; do not edit."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypedDict

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path


class ExportKeywords(TypedDict, total=False):
    """The fields of `ExportRequest`."""

    force: bool
    name: str | None
    max_context: int | None
    check: bool
    effort: str
    memory: int | str | None
    weights: str | None
    block_size: int | None
    bits: float | None
    size: int | None
    perplexity: float | None
    symmetric: bool
    calibration: str | Path | None
    encoder_weights: str | None
    decoder_weights: str | None
    prefill_weights: str | None
    target: str | None
    target_weights: str | None
    target_activations: str | None
    target_context: int | Sequence[int] | None
    soc: Sequence[str]
    segments: int | str | None
    draft_text: int | None
    candidates: bool | None
    in_place: bool
