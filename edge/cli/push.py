"""`edge push`: a bundle onto a phone, measured there."""

from __future__ import annotations

import argparse
import re
from pathlib import Path
from typing import TYPE_CHECKING

from edge.cli.answering import open_answering
from edge.cli.arguments import Parser, add_bundle
from edge.errors import InputError

if TYPE_CHECKING:
    from edge.bundle import Bundle
    from edge.cli.push_adb import Phone

NAME = "push"
HELP = "Copy a bundle to a phone with adb, and measure it there."
ONLY = "the app measures chat models only"


def add_arguments(parser: Parser) -> None:
    add_bundle(parser)
    add = parser.options()
    add("--adb PATH", "the adb to call (default: the one on the PATH)", Path)
    add("--serial NUMBER", "which phone, where several are connected")
    add("-o/--output FILE", "where to write the profile (default: NAME.profile.json in this folder)", Path)


def command(args: argparse.Namespace) -> None:
    """Copy a bundle into the app of android_demo/app on a connected phone, let the app measure it, and bring the
    profile back as a file that edge profile shows and compares.

    Files that are on the phone already are not copied again. docs/guide/android.md says how to install the app.
    """
    from edge.cli.push_adb import find_adb, find_phone
    from edge.cli.push_app import check_app
    from edge.cli.reports import check_target

    bundle = open_answering(args.bundle)
    measured = bundle.manifest.kind == "decoder"
    if args.output is not None and not measured:
        raise InputError(f"--output names the profile's file, and {ONLY}; omit it for {bundle.manifest.name}.")
    stem = re.sub(r"\.edge$", "", bundle.root.resolve().name)
    target = args.output or Path(f"{stem}.profile.json")
    if measured:
        check_target(target)
    bundle.check_files_once()
    phone = find_phone(find_adb(args.adb), args.serial)
    check_app(phone)
    _copy(phone, bundle)
    if measured:
        _measure(phone, bundle, target)
    else:
        print(f"Profile  none: {ONLY}")


def _copy(phone: Phone, bundle: Bundle) -> None:
    from edge.cli.progress import bar
    from edge.cli.push_app import copy, name_of, survey

    name, count = name_of(bundle), len(bundle.manifest.files) + 1
    missing = survey(phone, bundle, name)
    if missing is None:
        print(f"Files    {name} is on the phone {phone.serial} already")
        return
    size = sum(bundle.path(path).stat().st_size for path in missing.sent)
    with bar(f"Copying to {phone.serial}", size, unit="bytes") as advance:
        copy(phone, bundle, name, missing, advance)
    print(f"Files    {len(missing.sent)} of {count} copied to the phone {phone.serial}, {size / 1e6:.1f} MB")


def _measure(phone: Phone, bundle: Bundle, target: Path) -> None:
    from edge.cli.export import stages
    from edge.cli.push_app import measure, name_of
    from edge.cli.reports import write_report
    from edge.runtime.costs.record import parse

    with stages() as (progress, say):
        say("Measuring, for a minute or more: leave the phone alone, unlocked and with its screen on.")
        text = measure(phone, name_of(bundle), lambda figure: progress(0, 0, f"Measured: {figure}"))
    parse(text, f"The profile of the phone {phone.serial}")
    write_report(target, text)
    print(f"Profile  {target}")
