"""The cost curve t(S, context): the time of a step of S tokens on this device, and the file that stores it.

Every `edge profile` leaves it in the cache folder as `device.json`, a profile with nothing but the curves and which
execution provider ran what: one for each device, provider, number of threads and bundle. Speculation reads it with
`load`, and the choice among providers with `stored`.
"""

from __future__ import annotations

import bisect
import dataclasses
import json
import zlib
from collections import defaultdict
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from edge.bundle import MANIFEST, Bundle, sha256_of
from edge.errors import InputError
from edge.home import curves_dir, drop_oldest, mark_used, read_own, replace_text
from edge.manifest import FLOAT32, INT8
from edge.runtime.costs import machine
from edge.runtime.costs.record import CurvePoint, Device, Profile, parse

FILE = "device.json"
ADVICE = "edge profile measures it again"
EMPTY = ("ttft", "decode", "usage", "ops", "notes")  # fields of a profile that `device.json` has no use for
MISSING = ("sustained", "load", "memory", "noise", "peaks")

Say = Callable[[str], None]


class CostCurve:
    """Milliseconds of a step of `size` tokens at `context` tokens: linear between the measured points (at least one),
    and after the last ones as steep as between the last two."""

    def __init__(self, points: Sequence[CurvePoint]) -> None:
        lines: dict[int, dict[int, float]] = defaultdict(dict)
        for point in points:
            lines[point.context][point.size] = point.ms
        if not lines:
            raise ValueError("a cost curve needs points")
        self.contexts = sorted(lines)
        self.sizes = sorted({point.size for point in points})
        self._lines = [(sorted(lines[c]), [ms for _, ms in sorted(lines[c].items())]) for c in self.contexts]

    def ms(self, size: int, context: int) -> float:
        """Milliseconds of a step of `size` tokens at `context` tokens."""
        if len(self.contexts) == 1:
            return self._of_size(0, size)
        return _on_lines(self.contexts, lambda at: self._of_size(at, size), context)

    def _of_size(self, index: int, size: int) -> float:
        """The cost at one measured context."""
        sizes, times = self._lines[index]
        if len(sizes) == 1:  # in proportion: more tokens cost no more than that
            return times[0] * max(1.0, size / sizes[0])
        return _on_lines(sizes, times.__getitem__, size)


def _on_lines(places: Sequence[int], cost: Callable[[int], float], wanted: int) -> float:
    """The cost at a place, from those at two or more ascending places; after the last one it does not fall."""
    at = min(max(bisect.bisect_left(places, wanted), 1), len(places) - 1)
    low, high = cost(at - 1), cost(at)
    share = (wanted - places[at - 1]) / (places[at] - places[at - 1])
    return low + (high - low) * max(0.0, share) if share <= 1 else high + max(0.0, high - low) * (share - 1)


def path_for(device: Device, sha256: str) -> Path:
    """Path of the curve of a bundle on a device; two devices that share a cache folder get two files."""
    key = json.dumps([device.cpu, device.cores, device.provider, device.threads])
    return curves_dir() / f"{sha256[:16]}-{zlib.crc32(key.encode()):08x}" / FILE


def store(profile: Profile) -> Path:
    """Store a profile's curves in the cache folder.

    Raises:
        OSError: the cache folder cannot be written.
    """
    path = path_for(profile.device, profile.bundle.sha256)
    nothing: dict[str, Any] = {name: [] for name in EMPTY} | dict.fromkeys(MISSING)
    replace_text(path, dataclasses.replace(profile, **nothing).to_json())
    drop_oldest(curves_dir(), made=path.parent)
    return path


def load(
    bundle: Bundle, *, provider: str, threads: int, say: Say = lambda sentence: None, kv: str = FLOAT32
) -> CostCurve | None:
    """Load the curve of this bundle on this device for one type of KV cache; None without one. See `load_both`."""
    return load_both(bundle, provider=provider, threads=threads, say=say).get(kv)


def load_both(bundle: Bundle, *, provider: str, threads: int, say: Say = lambda sentence: None) -> dict[str, CostCurve]:
    """Load the curves of this bundle on this device, by the type of the KV cache; empty where `stored` finds none."""
    found = stored(bundle, provider=provider, threads=threads, say=say)
    return {} if found is None else {kv: CostCurve(points) for kv, points in _curves(found).items()}


def stored(bundle: Bundle, *, provider: str, threads: int, say: Say = lambda sentence: None) -> Profile | None:
    """Read the profile that `store` wrote for this bundle on this device: its curves, at least one, and its placement.
    None where nothing was measured, or where the file cannot be used: `say` is called with the reason. provider: its
    name. threads: those of the engine."""
    device = machine.describe(provider, threads)
    sha256 = sha256_of(bundle.path(MANIFEST))
    path = path_for(device, sha256)
    try:
        found = parse(read_own(path), FILE, ADVICE)
        curves = _curves(found)
        if not curves or not all(any(point.size == 1 for point in curve) for curve in curves.values()):
            raise InputError(f"{FILE} has no step of one token; {ADVICE}")
    except FileNotFoundError:
        return None
    except (InputError, OSError, ValueError) as e:
        why = getattr(e, "strerror", None) or str(e).rstrip(".")
        say(f"The cost curve {path} cannot be used and is ignored ({why}).")
        return None
    was, now = found.device.identity | {"bundle": found.bundle.sha256}, device.identity | {"bundle": sha256}
    for name in was:
        if was[name] != now[name]:
            say(f"The cost curve {path} is of {name} {was[name]}, not {now[name]}, and is ignored; {ADVICE}.")
            return None
    mark_used(path.parent)
    return found


def _curves(profile: Profile) -> dict[str, list[CurvePoint]]:
    """The points of the measured curves, by the type of the KV cache."""
    return {kv: points for kv, points in [(FLOAT32, profile.curve), (INT8, profile.curve_int8)] if points}
