"""JSON schemas, as short as they can be written."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from edge.serve.fields import LARGEST

Schema = dict[str, Any]
LABEL: Schema = {"description": "Changes nothing that is answered."}
FLAG: Schema = {"type": "boolean"}
NULL: Schema = {"type": "null"}


def text(least: int = 0, most: int | None = None) -> Schema:
    """A text of so many characters."""
    return {"type": "string", **({"minLength": least} if least else {}), **({"maxLength": most} if most else {})}


def integer(least: int = 0, most: int = LARGEST) -> Schema:
    """A whole number."""
    return {"type": "integer", "minimum": least, "maximum": most}


def number(*, least: float | None = None, above: float | None = None, most: float | None = None) -> Schema:
    """A number."""
    given = {"minimum": least, "exclusiveMinimum": above, "maximum": most}
    return {"type": "number", **{name: value for name, value in given.items() if value is not None}}


def one_of(*values: Any) -> Schema:
    """One of these values."""
    return {"enum": list(values)}


def array(items: Schema, least: int = 0, most: int | None = None) -> Schema:
    """A list of so many."""
    found: Schema = {"type": "array", "items": items, "minItems": least}
    return found if most is None else found | {"maxItems": most}


def either(*schemas: Schema) -> Schema:
    """What satisfies one of these."""
    return {"anyOf": list(schemas)}


def record(required: Sequence[str] = (), /, **properties: Schema) -> Schema:
    """An object of a request. What is not required may be null, which is as if it were not there."""
    given = {name: name in required or not each.keys() - {"description"} for name, each in properties.items()}
    known = {name: each if given[name] else either(each, NULL) for name, each in properties.items()}
    return {"type": "object", "properties": known, "required": [*required], "additionalProperties": NULL}


def answer(**properties: Schema) -> Schema:
    """An object of an answer, which has all of its fields."""
    return {"type": "object", "properties": properties, "required": [*properties], "additionalProperties": False}
