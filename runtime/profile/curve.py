"""The cost curve t(S, context): what a step of S tokens costs on this device, and where that is kept.

Every `edge profile` leaves it as `device.json` in the cache folder, one for each device, provider, number of threads
and bundle. What speculates asks `load` for it, and `CostCurve.ms` for a step's price.
"""

from __future__ import annotations

import bisect
import dataclasses
import json
import os
import zlib
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from edge.bundle import MANIFEST, Bundle, sha256_of
from edge.errors import InputError
from edge.home import curves_dir, drop_oldest, mark_used
from edge.manifest import FLOAT32, INT8
from edge.runtime.profile import machine
from edge.runtime.profile.record import CurvePoint, Device, Profile, check_numbers
from edge.typed_json import read_json, typed

FORMAT = "edge-device"
FORMAT_VERSION = 1
FILE = "device.json"
ADVICE = "edge profile writes it anew"


class CostCurve:
    """Milliseconds of a step of `size` tokens behind `context` tokens: between the measured points on straight lines,
    beyond the last ones on as steeply as between the last two.

    Args:
        points: measured steps; at least one.
    """

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
        """What a step costs, in milliseconds."""
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
    """The cost at a place, from those at two or more ascending places; beyond the last one it does not fall."""
    at = min(max(bisect.bisect_left(places, wanted), 1), len(places) - 1)
    low, high = cost(at - 1), cost(at)
    share = (wanted - places[at - 1]) / (places[at] - places[at - 1])
    return low + (high - low) * max(0.0, share) if share <= 1 else high + max(0.0, high - low) * (share - 1)


@dataclass(frozen=True)
class DeviceFile:
    """The content of `device.json`."""

    format: str
    format_version: int
    producer: str
    created: str
    device: Device
    bundle: str  # its name, for people
    sha256: str  # of its edge.json
    curve: list[CurvePoint] = field(default_factory=list)
    curve_int8: list[CurvePoint] = field(default_factory=list)
    source_tokens: int | None = None


def path_for(device: Device, sha256: str) -> Path:
    """Where the curve of a bundle on a device is kept; two devices that share a cache folder get two files."""
    key = json.dumps([device.cpu, device.cores, device.provider, device.threads])
    return curves_dir() / f"{sha256[:16]}-{zlib.crc32(key.encode()):08x}" / FILE


def store(profile: Profile) -> Path:
    """Keep a profile's curve.

    Raises:
        OSError: the cache folder cannot be written.
    """
    path = path_for(profile.device, profile.bundle.sha256)
    kept = DeviceFile(
        format=FORMAT,
        format_version=FORMAT_VERSION,
        producer=profile.producer,
        created=profile.created,
        device=profile.device,
        bundle=profile.bundle.name,
        sha256=profile.bundle.sha256,
        curve=profile.curve,
        curve_int8=profile.curve_int8,
        source_tokens=profile.source_tokens,
    )
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name(f"{path.name}.{os.getpid()}.part")
    try:
        part.write_text(json.dumps(dataclasses.asdict(kept), indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
        part.replace(path)
    finally:
        part.unlink(missing_ok=True)
    drop_oldest(curves_dir())
    return path


def load(
    bundle: Bundle,
    *,
    provider: str,
    threads: int,
    say: Callable[[str], None] = lambda sentence: None,
    kv: str = FLOAT32,
) -> CostCurve | None:
    """The curve of this bundle on this device over a KV cache in float32 or int8; None where none was measured, or the
    one there is cannot be used: `say` is told why. Other arguments as of `load_both`."""
    return load_both(bundle, provider=provider, threads=threads, say=say).get(kv)


def load_both(
    bundle: Bundle, *, provider: str, threads: int, say: Callable[[str], None] = lambda sentence: None
) -> dict[str, CostCurve]:
    """The curves of this bundle on this device, by what the KV cache is kept in.

    Args:
        provider: its name.
        threads: those of the engine.
        say: is told why those there are cannot be used.
    """
    device = machine.describe(provider, threads)
    sha256 = sha256_of(bundle.path(MANIFEST))
    path = path_for(device, sha256)
    try:
        found = _read(path)
    except FileNotFoundError:
        return {}
    except (InputError, OSError, ValueError) as e:
        why = getattr(e, "strerror", None) or str(e).rstrip(".")
        say(f"The cost curve {path} cannot be used and is ignored ({why}).")
        return {}
    for was, now, what in [
        (found.sha256, sha256, "of another bundle"),
        (found.device.cpu, device.cpu, f"of another processor, {found.device.cpu}"),
        (found.device.cores, device.cores, f"of {found.device.cores} cores"),
        (found.device.provider, device.provider, f"of {found.device.provider}"),
        (found.device.threads, device.threads, f"of {found.device.threads} threads"),
        (found.device.runtime, device.runtime, f"of {found.device.runtime}, where this is {device.runtime}"),
    ]:
        if was != now:
            say(f"The cost curve {path} is {what}, and is ignored; {ADVICE}.")
            return {}
    mark_used(path.parent)
    return {kv: CostCurve(points) for kv, points in [(FLOAT32, found.curve), (INT8, found.curve_int8)] if points}


def _read(path: Path) -> DeviceFile:
    raw = read_json(path.read_text(encoding="utf-8"), FILE, advice=ADVICE, error=InputError)
    if raw.get("format") != FORMAT or raw.get("format_version") != FORMAT_VERSION:
        raise InputError(f"it has format {raw.get('format')!r} {raw.get('format_version')}, not {FORMAT_VERSION}")
    found = typed(raw, DeviceFile, FILE, advice=ADVICE, error=InputError)
    check_numbers(raw, FILE, ADVICE)
    measured = [found.curve, found.curve_int8] if found.curve_int8 else [found.curve]
    if not all(any(point.size == 1 for point in curve) for curve in measured):
        raise InputError(f"{FILE} has no step of one token; {ADVICE}")
    return found
