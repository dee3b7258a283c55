"""Execution providers, found by their modules in this folder."""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

from edge.registry import Registry

if TYPE_CHECKING:
    from edge.manifest import Manifest
    from edge.runtime.providers.base import Provider, ProviderModule

AUTO = "auto"
BEST = "cpu"  # what auto stands for
PROVIDERS = Registry(__name__, "provider")


def open_provider(provider: str | Provider, threads: int | None = None, manifest: Manifest | None = None) -> Provider:
    """The provider of this name, or the one that is given, for the bundle of this manifest; InputError where it is
    unknown, or a pool cannot have this number of threads."""
    if not isinstance(provider, str):
        return provider
    module = cast("ProviderModule", PROVIDERS[name_of(provider)].load())
    return module.make(threads, manifest)


def name_of(provider: str) -> str:
    """The name of the provider that is asked for; InputError where there is no such provider."""
    return PROVIDERS.find(BEST if provider == AUTO else provider).name


def check_provider(provider: str | Provider) -> None:
    """Raise InputError where there is no provider of this name."""
    if isinstance(provider, str) and provider != AUTO:
        PROVIDERS.find(provider)
