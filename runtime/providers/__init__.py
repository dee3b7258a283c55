"""Execution providers, found by their modules in this folder."""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

from edge.registry import Registry

if TYPE_CHECKING:
    from edge.manifest import Manifest
    from edge.runtime.providers.base import Provider, ProviderModule, Support

AUTO = "auto"
BEST = "cpu"  # what auto stands for where nothing else was measured: see `edge.runtime.engine.measured`
PROVIDERS = Registry(__name__, "provider")


def open_provider(
    provider: str | Provider,
    threads: int | None = None,
    manifest: Manifest | None = None,
    strict: bool | None = None,
) -> Provider:
    """The provider of this name, or the one that is given, for the bundle of this manifest.

    Args:
        strict: whether it refuses a graph of which it cannot run every node, instead of running these on the CPU;
            default: where its device is an NPU.

    Raises:
        InputError: it is unknown or cannot run here, or a pool cannot have this number of threads.
        MissingExtraError: its package is not installed.
    """
    if not isinstance(provider, str):
        return provider
    return _module(BEST if provider == AUTO else provider).make(threads, manifest, strict)


def find_support(provider: str) -> Support:
    """What this machine has of the provider of this name; InputError where it is unknown."""
    return _module(provider).find()


def _module(provider: str) -> ProviderModule:
    return cast("ProviderModule", PROVIDERS.find(provider).load())


def check_provider(provider: str | Provider) -> None:
    """Raise InputError where there is no provider of this name."""
    if isinstance(provider, str) and provider != AUTO:
        PROVIDERS.find(provider)
