"""What both forms of a decoder cost on this device: measured once, and kept in the cache folder."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime as ort
from numpy.typing import NDArray

from edge.bundle import MANIFEST, Bundle, replace_text, sha256_of
from edge.errors import InputError
from edge.manifest import read_json, typed
from edge.runtime.profile import machine
from edge.runtime.profile.curve import CostCurve, path_for
from edge.runtime.profile.record import CurvePoint, check_numbers

FILE = "forms.json"
FORMAT_VERSION = 1
ADVICE = "it is measured anew"
TIMES = 3  # that each step is run; the fastest counts, because the first one also takes the memory


@dataclass(frozen=True)
class FormCosts:
    """The content of `forms.json`: milliseconds of both forms' steps of `sizes` tokens, and of opening the wide one."""

    format_version: int
    runtime: str
    sizes: list[int]
    narrow_ms: list[float]
    wide_ms: list[float]
    opening_ms: float

    @cached_property
    def curves(self) -> tuple[CostCurve, CostCurve]:
        """Of the narrow and of the wide form."""
        narrow, wide = (
            CostCurve([CurvePoint(size, 0, ms, ms, ms) for size, ms in zip(self.sizes, times, strict=True)])
            for times in (self.narrow_ms, self.wide_ms)
        )
        return narrow, wide

    def saved(self, size: int) -> float:
        """Milliseconds that a step of `size` tokens is faster in the wide form; negative where it is slower."""
        narrow, wide = self.curves
        return narrow.ms(size, 0) - wide.ms(size, 0)

    @cached_property
    def crossing(self) -> int | None:
        """The fewest tokens from which on the wide form is faster; None where it is not even for the largest step."""
        slower = [size for size in range(1, self.sizes[-1] + 1) if self.saved(size) <= 0]
        if not slower:
            return 1
        return None if slower[-1] == self.sizes[-1] else slower[-1] + 1


def load(bundle: Bundle, threads: int) -> FormCosts | None:
    """The costs that were kept; None where there are none, or none that can be used."""
    path = _path(bundle, threads)
    try:
        raw = read_json(path.read_text(encoding="utf-8"), FILE, advice=ADVICE, error=InputError)
        kept = typed(raw, FormCosts, FILE, advice=ADVICE, error=InputError)
        check_numbers(raw, FILE, ADVICE)
    except (InputError, OSError, ValueError):
        return None
    whole = 0 < len(kept.sizes) == len(kept.narrow_ms) == len(kept.wide_ms)
    return kept if whole and (kept.format_version, kept.runtime) == (FORMAT_VERSION, _runtime()) else None


def keep(costs: FormCosts, bundle: Bundle, threads: int) -> None:
    """Write the costs to the cache folder, where that can be written."""
    replace_text(_path(bundle, threads), json.dumps(asdict(costs)))


def form_costs(sizes: list[int], narrow_ms: list[float], wide_ms: list[float], opening_ms: float) -> FormCosts:
    """Costs that were just measured."""
    return FormCosts(FORMAT_VERSION, _runtime(), sizes, narrow_ms, wide_ms, opening_ms)


def fastest(
    narrow: Callable[[NDArray[np.int64]], Any], wide: Callable[[NDArray[np.int64]], Any], size: int
) -> tuple[float, float]:
    """Milliseconds of the fastest steps of `size` tokens in both forms, run in turns: what else the machine does meets
    both alike."""
    tokens, best = np.zeros(size, np.int64), [math.inf, math.inf]
    for _ in range(TIMES):
        for form, step in enumerate((narrow, wide)):
            start = time.perf_counter()
            step(tokens)
            best[form] = min(best[form], (time.perf_counter() - start) * 1e3)
    return best[0], best[1]


def _path(bundle: Bundle, threads: int) -> Path:
    return path_for(machine.describe("cpu", threads), sha256_of(bundle.path(MANIFEST))).with_name(FILE)


def _runtime() -> str:
    return f"onnxruntime {ort.__version__}"
