"""`edge providers`: what can run a bundle's graphs on this machine."""

from __future__ import annotations

import argparse
import dataclasses
from collections import Counter
from typing import TYPE_CHECKING

from edge.cli.arguments import Parser, add_json
from edge.cli.tables import console, print_json, table

if TYPE_CHECKING:
    from edge.runtime.providers.provider import Device, Support

NAME = "providers"
HELP = "Show what can run a bundle here: processor, GPUs, NPUs."
# What a device does, where it does not simply run graphs.
USES = {"runs": "", "simulates": "a simulator on this processor", "compiles": "compiles only"}


def add_arguments(parser: Parser) -> None:
    add_json(parser.options(), "a JSON list")


def command(args: argparse.Namespace) -> None:
    """Show what each provider finds on this machine, as --provider takes it, and what one that cannot be used needs.

    A simulator computes what the device would, and says nothing of its speed. A device for compiling only is not here.
    """
    from edge.runtime.providers import PROVIDERS, find_support

    found = {name: find_support(name) for name in PROVIDERS}
    if args.json:
        print_json([_summary(name, PROVIDERS[name].help, support) for name, support in found.items()])
        return
    shown = table("", "Provider", "Usable", "Devices", "From", text=4)
    for name, support in found.items():
        usable = "yes" if support.missing is None else "no"
        shown.add_row(name, usable, "\n".join(described(support.devices)) or "-", support.package or "-")
    console().print(shown)
    for name, support in found.items():
        if support.missing is not None:
            print(f"{name}: {support.missing}")


def described(devices: list[Device]) -> list[str]:
    """Devices in words, equal ones counted."""
    words = Counter(", ".join(filter(None, (f"{each.kind}: {each.name}", USES[each.use]))) for each in devices)
    return [text if count == 1 else f"{count} x {text}" for text, count in words.items()]


def _summary(name: str, about: str, support: Support) -> dict[str, object]:
    return {
        "name": name,
        "about": about,
        "usable": support.missing is None,
        "package": support.package,
        "devices": [dataclasses.asdict(device) for device in support.devices],
        "missing": support.missing,
    }
