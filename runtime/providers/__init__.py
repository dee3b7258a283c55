"""Execution providers, found by their modules in this folder."""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

from edge.errors import InputError
from edge.registry import Registry

if TYPE_CHECKING:
    from edge.manifest import Manifest
    from edge.runtime.providers.provider import Provider, ProviderModule, Support

AUTO = "auto"
BEST = "cpu"  # what auto stands for where nothing else was measured: see `edge.runtime.costs.measured`
PROVIDERS = Registry(__name__, "provider")


def open_provider(
    provider: str | Provider,
    threads: int | None = None,
    manifest: Manifest | None = None,
    strict: bool | None = None,
) -> Provider:
    """Open the provider of this name, or use the one that is given, for the bundle of this manifest.

    Args:
        provider: by its name; of several devices of one, `name:N` is the one with this number, counted from 0.
        strict: whether it refuses a graph of which it cannot run every node, instead of running these on the CPU;
            default: where its device is an NPU.

    Raises:
        InputError: it is unknown or cannot run here, or a pool cannot have this number of threads.
        MissingExtraError: its package is not installed.
    """
    if not isinstance(provider, str):
        return provider
    name, number = _parts(BEST if provider == AUTO else provider)
    numbered = {} if number is None else {"device": number}
    return _module(name).make(threads, manifest, strict, **numbered)


def find_support(provider: str) -> Support:
    """Return the support of this machine for the provider of this name; InputError where it is unknown."""
    return _module(provider_name(provider)).find()


def provider_name(provider: str | Provider) -> str:
    """The name of a provider without the number of its device."""
    return provider.partition(":")[0] if isinstance(provider, str) else provider.name


def _parts(provider: str) -> tuple[str, int | None]:
    """The name of a provider, and the number of its device where one is named. InputError where it has no numbers."""
    name, colon, number = provider.partition(":")
    if not colon:
        return name, None
    if not PROVIDERS.find(name).traits.get("numbered"):
        raise InputError(f"The provider {name} chooses its device by itself; leave out :{number}.")
    if not number.isdecimal():
        raise InputError(f"The device of {name} is a number counted from 0, as in {name}:1, not {number!r}.")
    return name, int(number)


def _module(provider: str) -> ProviderModule:
    return cast("ProviderModule", PROVIDERS.find(provider).load())


def check_provider(provider: str | Provider) -> None:
    """Raise InputError where there is no provider of this name."""
    if isinstance(provider, str) and provider != AUTO:
        PROVIDERS.find(_parts(provider)[0])
