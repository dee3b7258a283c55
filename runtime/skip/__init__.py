"""Layer skipping: policies, one file each: which segments of a decoder run in a step. See docs/guide/skipping.md."""

from __future__ import annotations

from typing import TYPE_CHECKING

from edge.errors import InputError
from edge.registry import Registry

if TYPE_CHECKING:
    from edge.bundle import Bundle
    from edge.runtime.skip.skip_policy import SkipPolicy

OFF = "off"
POLICIES = Registry(__name__, "skip policy")
"""By name. A policy's file has `make(bundle, setting)`, where the setting is what stands after the colon. TRAITS: how
it is `asked` for, and whether it leaves out `halves` of layers."""


def make_policy(asked: str, bundle: Bundle) -> SkipPolicy | None:
    """The policy that `asked` names, such as ``unified:0.2``; None for ``off``.

    Raises:
        InputError: there is no such policy, its setting is out of range, or the bundle lacks what it needs.
    """
    check_name(asked)
    if asked == OFF:
        return None
    name, _, setting = asked.partition(":")
    policy: SkipPolicy = POLICIES[name].load().make(bundle, setting)
    return policy


def of_halves(asked: str) -> bool:
    """True if the policy that is asked for leaves out halves of layers."""
    name = asked.partition(":")[0]
    return name in POLICIES and bool(POLICIES[name].traits.get("halves"))


def check_name(asked: str) -> None:
    """Raise InputError where no policy has this name. Its setting is read together with the bundle."""
    if asked != OFF and asked.partition(":")[0] not in POLICIES:
        raise InputError(f"There is no skip policy {asked!r}; choose one of {OFF}, {POLICIES}.")
