"""What form an answer may be asked to have: a JSON schema, a regular expression, or a grammar in Lark's notation."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, NamedTuple

from edge.errors import InputError, on_one_line
from edge.runtime.options import Check, shown

LONGEST = 1 << 18  # characters of a schema, an expression or a grammar
NOTHING = "nothing satisfies it"
SCHEMA, REGEX, GRAMMAR = FORMS = "json_schema", "regex", "grammar"


class Form(NamedTuple):
    """The form of an answer: one of `FORMS`, and its text."""

    kind: str
    text: str


def json_schema(value: Any) -> str:
    """The check of a JSON schema: a mapping, a JSON text, or a class of pydantic's. Gives its text."""
    if isinstance(value, type) and callable(getattr(value, "model_json_schema", None)):
        value = value.model_json_schema()  # type: ignore[attr-defined]
    try:
        found = json.loads(value) if isinstance(value, str) else value
        if isinstance(found, bool):
            found = {} if found else {"enum": []}
        if not isinstance(found, Mapping):
            raise ValueError("it is no object")
        check_bounds(found)
        return _checked(json.dumps(found), "JSON schema")
    except (ValueError, TypeError, RecursionError) as e:
        raise InputError(f"The JSON schema is none ({on_one_line(e)}); got {shown(value)}.") from None


def check_bounds(schema: Any) -> None:
    """Raise InputError where a number is to be above a whole one and within 1 of it, away from 0: llguidance lets that
    one through."""
    if isinstance(schema, Mapping):
        for name, others, sign in (
            ("exclusiveMinimum", ("maximum", "exclusiveMaximum"), 1),
            ("exclusiveMaximum", ("minimum", "exclusiveMinimum"), -1),
        ):
            bound = _number(schema.get(name))
            if bound is None or bound != round(bound) or bound * sign < 0:
                continue
            for other in others:
                end = _number(schema.get(other))
                if schema.get("type") != "integer" and end is not None and 0 < (end - bound) * sign < 1:
                    raise refused(
                        f"with {name} {bound:g} and {other} {end:g}, {bound:g} itself could come; write a "
                        f"{name.removeprefix('exclusive').lower()} that is a little {'more' if sign > 0 else 'less'}"
                    )
    if isinstance(schema, Mapping | list | tuple):
        for each in schema.values() if isinstance(schema, Mapping) else schema:
            check_bounds(each)


def _number(value: Any) -> float | None:
    return float(value) if type(value) in (int, float) and abs(value) <= 1e15 else None  # which NaN is not


def expression(name: str) -> Check:
    """A check of a regular expression or a grammar."""

    def check(value: Any) -> str:
        if not isinstance(value, str) or not value:
            raise InputError(f"The {name} must be a text, not {shown(value)}.")
        return _checked(value, name)

    return check


def _checked(text: str, name: str) -> str:
    if len(text) > LONGEST:
        raise InputError(f"The {name} has {len(text):,} characters, and none may have more than {LONGEST:,}.")
    return text


def refused(why: str) -> InputError:
    return InputError(f"The form that the answer is to have cannot be obeyed: {sentence(why)}.")


def sentence(said: str) -> str:
    if said.startswith("NoExtension"):
        return NOTHING
    return " ".join(said.partition("<state>")[0].split())[:300].rstrip(".")
