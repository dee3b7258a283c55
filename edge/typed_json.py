"""JSON documents read as dataclasses: a field that is missing or of another type is named in one sentence."""

from __future__ import annotations

import collections
import dataclasses
import functools
import json
import math
import re
import types
import typing
from typing import Any, TypeVar

from edge.errors import BundleError, EdgeError, on_one_line

ADVICE = "export the model again"  # for what a bundle holds
WORDS = {int: "a whole number", float: "a number", str: "a string", bool: "true or false"}
LIMITS = {int: " of 64 bits", float: " that is finite", str: " of whole characters", bool: ""}
WORD = 2**63  # numbers of other libraries end before it
SHOWN = 60  # letters of a wrong value
_HALF = re.compile("[\ud800-\udfff]")  # of a character: it cannot be written anywhere

T = TypeVar("T")


@functools.cache
def _hints(kind: type) -> dict[str, Any]:
    """The types of a class's fields by name, looked up once: a manifest asks for those of a class a hundred times."""
    return typing.get_type_hints(kind)


def read_json(
    text: str, where: str, *, advice: str = ADVICE, error: type[EdgeError] = BundleError, lenient: bool = False
) -> dict[str, Any]:
    """Return the JSON object in `text`; raise `error`, with the advice, if it holds anything else.

    lenient: accept values that are not JSON and that other programs write: NaN, infinity, and a name twice in an
    object, of which readers choose different ones.
    """
    try:
        raw = json.loads(text) if lenient else json.loads(text, parse_constant=_refuse, object_pairs_hook=_unique)
    except (ValueError, RecursionError) as e:
        raise error(f"{where} is not valid JSON ({on_one_line(e)}); {advice}.") from None
    if not isinstance(raw, dict):
        raise error(f"{where} must hold a JSON object, not a {type(raw).__name__}; {advice}.")
    return raw


def _refuse(constant: str) -> None:
    raise ValueError(f"{constant} is no number of JSON")


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    made = dict(pairs)
    if len(made) != len(pairs):
        twice, _ = collections.Counter(name for name, _ in pairs).most_common(1)[0]
        raise ValueError(f"the name {twice[:SHOWN]!r} is there twice")
    return made


class _Misfit(Exception):
    """A field is missing or of another type."""


def typed(
    raw: dict[str, Any],
    kind: type[T],
    where: str,
    *,
    advice: str = ADVICE,
    error: type[EdgeError] = BundleError,
    strict: bool = False,
) -> T:
    """A dataclass from a JSON object; `error` names a field that is missing or of another type, with the advice, and
    with `strict` fields that are unknown."""
    try:
        return typing.cast(T, _value(raw, kind, "", strict))
    except _Misfit as e:
        raise error(f"{where}{e}; {advice}.") from None


def _value(raw: Any, kind: Any, path: str, strict: bool) -> Any:
    """`raw` checked against the type `kind` and turned into it; `path` is its place in the document."""
    origin, args = typing.get_origin(kind), typing.get_args(kind)
    if dataclasses.is_dataclass(kind):
        if not isinstance(raw, dict):
            raise _mismatch(path, "an object", raw)
        hints = _hints(typing.cast(type, kind))
        if strict and (unknown := raw.keys() - hints.keys()):
            raise _Misfit(f" has unknown fields: {', '.join(sorted(unknown))}")
        values = {}
        for f in dataclasses.fields(kind):
            place = f"{path}.{f.name}" if path else f.name
            if f.name in raw:
                values[f.name] = _value(raw[f.name], hints[f.name], place, strict)
            elif f.default is dataclasses.MISSING and f.default_factory is dataclasses.MISSING:
                raise _Misfit(f" lacks the field {place!r}")
        return typing.cast(Any, kind)(**values)
    if origin is types.UnionType:  # `X | None`, or several of JSON's own types
        if raw is None and types.NoneType in args:
            return None
        return _value(raw, type(raw) if type(raw) in args else args[0], path, strict)
    if origin is list:
        if not isinstance(raw, list):
            raise _mismatch(path, "a list", raw)
        if args[0] in (int, str) and all(type(item) is args[0] and _usable(item) for item in raw):
            return raw  # no place is made up for each of many thousands
        if args[0] is float and all(type(item) in (int, float) and _usable(item) for item in raw):
            return list(map(float, raw))
        return [_value(item, args[0], f"{path}[{i}]", strict) for i, item in enumerate(raw)]
    if origin is dict:
        if not isinstance(raw, dict):
            raise _mismatch(path, "an object", raw)
        if not all(map(_usable, raw)):
            raise _mismatch(path, "an object with valid names", raw)
        return {key: _value(item, args[1], f"{path}.{key}", strict) for key, item in raw.items()}
    if kind is Any:
        return raw
    if kind is float and type(raw) is int and -WORD <= raw < WORD:
        return float(raw)
    if not isinstance(raw, kind) or (kind is not bool and isinstance(raw, bool)):
        raise _mismatch(path, WORDS[kind], raw)
    if not _usable(raw):
        raise _mismatch(path, WORDS[kind] + LIMITS[kind], raw)
    return raw


def _usable(raw: Any) -> bool:
    """True if other libraries accept a scalar that was read from JSON: no lone surrogate, no infinity or NaN, no
    integer of more than 64 bits."""
    if isinstance(raw, str):
        return raw.isascii() or not _HALF.search(raw)
    if isinstance(raw, float):
        return math.isfinite(raw)
    return -WORD <= raw < WORD if isinstance(raw, int) else True


def _mismatch(path: str, wanted: str, raw: Any) -> _Misfit:
    try:
        shown = str(raw)
    except (ValueError, RecursionError):  # a number of thousands of digits
        shown = f"a {type(raw).__name__}"
    return _Misfit(f": the field {path[:200]!r} must be {wanted}, not {shown[:SHOWN]!r}")
