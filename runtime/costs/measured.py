"""Results of `edge profile` for a bundle on this device: the costs of steps, and the provider that `auto` stands
for."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from edge.bundle import MANIFEST, Bundle
from edge.home import curves_dir, is_folder
from edge.manifest import FLOAT32
from edge.runtime.providers import AUTO, BEST, PROVIDERS, find_support, open_provider
from edge.runtime.providers.provider import Provider
from edge.runtime.providers.threads import pool_threads

if TYPE_CHECKING:
    from edge.runtime.costs.curve import CostCurve

CONTEXT = 128  # tokens in the KV cache at which providers are compared

_say = logging.getLogger(__name__).warning


def costs(bundle: Bundle, provider: str, threads: int, kv: str = FLOAT32) -> CostCurve | None:
    """Return the costs of steps as `edge profile` measured them for this bundle on this device; None where it never
    did, or where its file cannot be used, which is logged."""
    if not is_folder(curves_dir()):  # importing what reads them takes 13 ms
        return None
    from edge.runtime.costs.curve import load

    return load(bundle, provider=provider, threads=threads, say=_say, kv=kv)


def open_for(bundle: Bundle, provider: str | Provider, threads: int | None, strict: bool | None) -> Provider:
    """Open a provider like `open_provider`; ``auto`` is `best_provider`."""
    if provider == AUTO:
        provider = best_provider(bundle, threads, strict)
    return open_provider(provider, threads, bundle.manifest, strict)


def best_provider(bundle: Bundle, threads: int | None = None, strict: bool | None = None) -> str:
    """Choose the provider that takes the fewest milliseconds for a step of one token at 128 tokens of context, of those
    that `edge profile` measured with this bundle, on this device, with as many threads. The CPU's where it measured no
    two.

    Measurements that can no longer be used are left out, and so is a provider that is strict and left nodes to others
    when it was measured. The choice is logged.
    """
    kept = [entry.name.partition("-")[0] for entry in curves_dir().glob("*")]  # by bundle: see `curve.path_for`
    if len(set(kept)) == len(kept) or not bundle.path(MANIFEST).is_file():  # or one that is being written
        return BEST
    from edge.runtime.costs.curve import CostCurve, stored

    times: dict[str, float] = {}
    for name in PROVIDERS:
        found = stored(bundle, provider=name, threads=pool_threads(threads), say=_say)
        if found is None:
            continue
        support = find_support(name)
        if support.missing is not None:
            _say("auto leaves out %s, which edge profile measured here: %s", name, support.missing)
        elif not support.is_strict(strict) or all(row.provider == found.device.provider for row in found.placement):
            times[name] = CostCurve(found.curve or found.curve_int8).ms(1, CONTEXT)
    if len(times) < 2:
        return BEST
    best, *others = sorted(times, key=times.__getitem__)
    slower = ", ".join(f"{times[name]:.3g} ms with {name}" for name in others)
    _say("auto takes %s: a token takes %.3g ms, and %s, as edge profile measured it here.", best, times[best], slower)
    return best
