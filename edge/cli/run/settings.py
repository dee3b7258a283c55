"""The settings of a chat's answers, as /set shows and changes them: the fields of `GenerateOptions`."""

from __future__ import annotations

import dataclasses
import difflib
from typing import Any

from edge.errors import InputError
from edge.runtime.decode.generate_options import GenerateOptions

NO_SETTING = ("interrupted",)
OF_DRAWING = ("top_k", "top_p", "min_p")  # which mean nothing at temperature 0
DEFAULT = ("default", "none")
SWITCHES = {"on": True, "true": True, "off": False, "false": False}


def listed(options: GenerateOptions) -> str:
    """All settings, one a line."""
    names = _names()
    return "\n".join(f"{name:{max(map(len, names))}}  {_shown(options, name)}" for name in names)


def changed(options: GenerateOptions, name: str, value: str) -> tuple[GenerateOptions, str]:
    """The options with a setting changed, or as they are where there is no value; and what is to be said of it.

    Raises:
        InputError: there is no such setting, or it cannot have this value.
    """
    names, name = _names(), name.lower().replace("_", "-").removeprefix("--")
    if name not in names:
        near = difflib.get_close_matches(name, names, n=1)
        meant = f"did you mean {near[0]}?" if near else f"there are {', '.join(names)}."
        raise InputError(f"There is no setting {name[:40]!r}; {meant}")
    field = names[name]
    if value:
        changes: dict[str, Any] = {field.name: field.default if value.lower() in DEFAULT else _read(field.name, value)}
        if field.name == "temperature" and changes["temperature"] == 0:
            changes |= {each.name: each.default for each in names.values() if each.name in OF_DRAWING}
        options = dataclasses.replace(options, **changes)
    return options, f"{name} is {_shown(options, name)}"


def _names() -> dict[str, dataclasses.Field[Any]]:
    fields = dataclasses.fields(GenerateOptions)
    return {field.name.replace("_", "-"): field for field in fields if field.name not in NO_SETTING}


def _read(name: str, value: str) -> Any:
    """A value as the options' own checks take it, which say what is wrong with it."""
    if name == "stop":
        return [value.removeprefix('"').removesuffix('"').replace("\\n", "\n")]
    if value.lower() in SWITCHES:
        return SWITCHES[value.lower()]
    for kind in (int, float):
        try:
            return kind(value)
        except ValueError:
            pass
    return value


def _shown(options: GenerateOptions, name: str) -> str:
    value = getattr(options, name.replace("-", "_"))
    if isinstance(value, tuple | list):
        return ", ".join(map(repr, value)) or "none"
    return "default" if value is None else f"{value:g}" if isinstance(value, float) else str(value)
