"""Layer skipping: policies, one file each, that say which segments of a decoder run in a step. See docs/skipping.md."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

from edge.errors import InputError

if TYPE_CHECKING:
    from edge.bundle import Bundle
    from edge.runtime.skip.base import SkipPolicy

OFF = "off"
# How each policy is asked for. Its file has `make(bundle, setting)`, where the setting is what stands behind the colon.
POLICIES = {
    "unified": "unified:R",
    "skipdecode": "skipdecode:MIN-MAX",
    "first": "first[:threshold=P|:skip=N]",
    "ffn": "ffn:R",
}


def make_policy(asked: str, bundle: Bundle) -> SkipPolicy | None:
    """The policy that `asked` names, such as ``unified:0.2``; None for ``off``.

    Raises:
        InputError: there is no such policy, its setting is out of range, or the bundle lacks what it needs.
    """
    check_name(asked)
    if asked == OFF:
        return None
    name, _, setting = asked.partition(":")
    policy: SkipPolicy = importlib.import_module(f"{__name__}.{name}").make(bundle, setting)
    return policy


def check_name(asked: str) -> None:
    """InputError where no policy has this name; its setting is read together with the bundle."""
    if asked != OFF and asked.partition(":")[0] not in POLICIES:
        raise InputError(f"There is no skip policy {asked!r}; choose one of {OFF}, {', '.join(POLICIES.values())}.")
