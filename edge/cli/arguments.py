"""Arguments of commands: the parser that all commands use, and the options that several of them share."""

from __future__ import annotations

import argparse
import dataclasses
import shutil
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from edge.errors import InputError
from edge.spelling import nearest

if TYPE_CHECKING:
    from edge.runtime.options import Options

DEBUG_HINT = "Any command takes --debug, which shows the traceback of an error."
WIDTH = 110  # maximum columns of a help page

Add = Callable[..., argparse.Action]  # as `Parser.options` gives it
# What reads what stands after a flag, by the type of the field.
_READERS: dict[str, Callable[[str], Any]] = {"int": int, "float": float, "Path": Path}


class Parser(argparse.ArgumentParser):
    """The parser of a command, whose errors are sentences. Options may stand before, between and after arguments.

    about: paragraphs that its help begins with.
    """

    def __init__(self, prog: str, about: str) -> None:
        super().__init__(prog, description=about, epilog=DEBUG_HINT, allow_abbrev=False, formatter_class=_Help)
        self.elsewhere = dict[str, str]()  # what other programs call options of ours
        self.surplus = ""  # advice on an argument too many, which it names as {0}

    def error(self, message: str) -> NoReturn:
        before, unknown, given = message.partition("unrecognized arguments: ")
        advice = self._advice(given.split(" ")) if unknown and not before else ""
        raise InputError(f"{message[0].upper()}{message[1:]}; see {self.prog} --help{advice}.")

    def _advice(self, given: list[str]) -> str:
        """Return a hint for unknown arguments: the option or argument that was probably meant."""
        option = next((each.partition("=")[0] for each in given if each.startswith("-") and each != "-"), None)
        if option is None:
            return f", or {self.surplus.format(given[0])}" if self.surplus else ""
        near = self.elsewhere.get(option) or nearest(option, [o for o in self._option_string_actions if len(o) > 2])
        return f" (did you mean {near}?)" if near else ""

    @property
    def actions(self) -> list[argparse.Action]:
        """All arguments that it has by now."""
        return self._actions

    def options(self, heading: str | None = None) -> Add:
        """A function that adds options under a heading: `add("-o/--out FILE", "where to write", Path)`, or a flag,
        `add("--force", "replace it")`."""
        group = self if heading is None else self.add_argument_group(heading)

        def add(option: str, about: str, kind: Any = None, **others: Any) -> argparse.Action:
            names, _, value = option.partition(" ")
            takes = {"metavar": value, "type": kind} if value else {"action": "store_true"}
            return group.add_argument(*names.split("/"), help=about, **takes | others)

        return add


class _Help(argparse.HelpFormatter):
    def __init__(self, prog: str) -> None:
        width = min(WIDTH, shutil.get_terminal_size().columns - 2)
        super().__init__(prog, max_help_position=30, width=width)

    def start_section(self, heading: str | None) -> None:
        super().start_section("Arguments" if heading == "positional arguments" else heading and heading.capitalize())

    def add_usage(self, usage: str | None, actions: Any, groups: Any, prefix: str | None = None) -> None:
        """The arguments by name and [OPTIONS], where argparse would name every option."""
        shown = [(str(a.metavar or a.dest), a.nargs) for a in actions if not a.option_strings]
        names = [name if nargs is None else f"[{name}]" for name, nargs in shown]
        super().add_usage(usage or " ".join(["%(prog)s", "[OPTIONS]", *names]), actions, groups, "Usage: ")

    def _fill_text(self, text: str, width: int, indent: str) -> str:
        fill = super()._fill_text
        return "\n\n".join(fill(paragraph, width, indent) for paragraph in text.split("\n\n"))


def add_bundle(parser: Parser) -> None:
    """The bundle that a command is about."""
    parser.add_argument("bundle", metavar="BUNDLE", type=Path, help="the bundle, a folder NAME.edge")


def add_field(add: Add, options: type[Options], name: str, about: str = "", **others: Any) -> None:
    """Add an option that is a field of `options`.

    about: what it means to this command, where that is something else. others: how argparse reads it, where that is.
    """
    from edge.runtime.options import option_of

    field = next(each for each in dataclasses.fields(options) if each.name == name)
    known, types = option_of(field), set(str(field.type).split(" | ")) - {"None"}
    kind = known.read or _READERS.get(min(types)) if len(types) == 1 else known.read
    how: dict[str, Any] = {"dest": known.destination, "default": None}
    if " " not in known.flag:
        how["action"] = argparse.BooleanOptionalAction if str(field.type) == "bool | None" else "store_true"
    elif known.values is not None:
        how["choices"] = tuple(known.values)
    elif types == {"Sequence[str]"} and known.read is None:
        how["action"] = "append"
    action = add(known.flag, about or known.help, kind, **how | others)
    if known.names is not None:
        vars(action)["names"] = _Names(known.names)


def add_fields(add: Add, heading: str, *classes: type[Options]) -> None:
    """Add the options of several classes that stand under a heading; those of one flag are one option."""
    from edge.runtime.options import fields, has_option, option_of

    added = set[str]()
    for options in classes:
        for field in filter(has_option, fields(options)):
            known = option_of(field)
            if known.flag and known.heading == heading and known.flag not in added:
                added.add(known.flag)
                add_field(add, options, field.name)


def taken(given: argparse.Namespace, options: type[Options]) -> dict[str, Any]:
    """The fields of `options` that were given on the command line: for the others the library's defaults hold."""
    from edge.runtime.options import has_option, option_of

    found = {}
    for field in filter(has_option, dataclasses.fields(options)):
        known = option_of(field)
        value = getattr(given, known.destination, None) if known.flag else None
        if value is not None:
            value = value if known.values is None else known.values[value]
            # A flag turns off what is done by default.
            found[field.name] = not value if field.default is True else value
    return found


class _Names:
    """Names in a line of --help, which are looked up when it is shown: reading a registry's folder takes 3 ms."""

    def __init__(self, names: Callable[[], Iterable[str]]) -> None:
        self._names = names

    def __str__(self) -> str:
        return str(self._names())


def add_json(add: Add, what: str = "one JSON object") -> None:
    """Output for scripts."""
    add("--json", f"print {what}")
