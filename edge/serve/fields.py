"""The fields of a request's JSON object: each is obeyed, or refused by its name."""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Callable, Collection, Mapping
from typing import Any, NoReturn, TypeVar

from edge.errors import EdgeError, InputError
from edge.runtime.options import any_value, flag, integer, shown, text, texts
from edge.serve.refusal import BAD, Refusal

T = TypeVar("T")
MOST_FIELDS = 200
LARGEST = 2**53  # which every program has as a whole number
MOST_TEXTS, LONGEST_TEXT = 16, 1000
LONGEST_NAME = 100  # characters of a field's name in an answer


def read_object(body: bytes) -> dict[str, Any]:
    """The JSON object of a body; Refusal where it is none."""

    def refuse(constant: str) -> NoReturn:
        raise ValueError(f"{constant} is no number")

    def finite(number: str) -> float:
        found = float(number)
        return found if math.isfinite(found) else refuse(shown(number))

    def once(fields: list[tuple[str, Any]]) -> dict[str, Any]:
        found = dict(fields)
        if len(found) < len(fields):
            ((twice, _),) = Counter(name for name, _ in fields).most_common(1)
            raise ValueError(f"an object has {shown(twice)} twice")
        return found

    try:
        found = json.loads(body.decode(), parse_constant=refuse, parse_float=finite, object_pairs_hook=once)
    except UnicodeDecodeError:
        raise Refusal(BAD, "The request's body is no UTF-8.") from None
    except RecursionError:
        raise Refusal(BAD, "The request's body is nested too deeply.") from None
    except ValueError as e:
        raise Refusal(BAD, f"The request's body is no JSON: {str(e)[:200]}.") from None
    try:
        json.dumps(found, ensure_ascii=False).encode()
    except (UnicodeEncodeError, RecursionError):
        raise Refusal(BAD, "The request's body has half a character, or is nested too deeply.") from None
    if not isinstance(found, dict):
        raise Refusal(BAD, f"The request's body must be a JSON object, not {shown(found)}.")
    return found


class Fields:
    """The fields of an object, which are taken one by one. What is left in the end is refused.

    about: what the object is, for sentences.
    """

    def __init__(self, found: Mapping[str, Any], about: str = "") -> None:
        if len(found) > MOST_FIELDS:
            raise Refusal(BAD, f"An object has {len(found)} fields, and none may have more than {MOST_FIELDS}.")
        self._left, self._about = dict(found), f" of {about}" if about else ""

    def take(self, name: str, check: Callable[[Any], T], unset: Any = None) -> T | Any:
        """A field's value, checked; `unset` where it is missing or null."""
        value = self._left.pop(name, None)
        if value is None:
            return unset
        if isinstance(value, float) and value.is_integer():  # JSON's 2.0 is a whole number
            value = int(value)
        try:
            return check(value)
        except Refusal:
            raise
        except EdgeError as e:
            raise Refusal(BAD, str(e), field=name) from None

    def integer(self, name: str, least: int = 0, most: int = LARGEST) -> int | None:
        """A whole number."""
        what = f"a whole number from {least} to {most}"
        found: int | None = self.take(name, integer(name, what, least=least, most=most))
        return found

    def text(self, name: str) -> str | None:
        """A text."""
        found: str | None = self.take(name, text(name))
        return found

    def texts(self, name: str) -> tuple[str, ...]:
        """A text or a list of them: few, and short ones, for each of an answer's tokens is compared with them."""
        found: tuple[str, ...] = self.take(name, texts(name), ())
        if len(found) > MOST_TEXTS or any(len(each) > LONGEST_TEXT for each in found):
            sentence = f"A request has at most {MOST_TEXTS} texts of {LONGEST_TEXT} characters under {name}."
            raise Refusal(BAD, sentence, field=name)
        return found

    def flag(self, name: str) -> bool:
        """True or false; false where it is missing."""
        found: bool = self.take(name, flag(name), False)
        return found

    def object(self, name: str) -> Fields | None:
        """The fields of an object within."""

        def check(value: Any) -> Fields:
            if not isinstance(value, dict):
                raise InputError(f"The {name} must be an object, not {shown(value)}.")
            return Fields(value, name)

        found: Fields | None = self.take(name, check)
        return found

    def only(self, name: str, values: Collection[Any], why: str) -> None:
        """Take a field that may have one of these values alone; others are refused. why: they are."""

        def check(value: Any) -> None:
            if not any(value == each and isinstance(value, bool) == isinstance(each, bool) for each in values):
                raise InputError(why)

        self.take(name, check)

    def given(self, names: Mapping[str, str]) -> dict[str, Any]:
        """Options that are set, by our names of fields; whoever makes them checks them."""
        found = {ours: self.take(theirs, any_value) for ours, theirs in names.items()}
        return {name: value for name, value in found.items() if value is not None}

    def unread(self, *names: str) -> None:
        """Drop fields that change nothing that an answer says: labels of the caller's own."""
        for name in names:
            self._left.pop(name, None)

    def end(self) -> None:
        """Refuse what nobody has taken."""
        left = {name: value for name, value in self._left.items() if value is not None}
        if left:
            names = ", ".join(shown(name) for name in list(left)[:5])
            raise Refusal(
                BAD,
                f"This server does not know {names}{self._about}; leave that out "
                "(docs/guide/serve.md lists what it knows).",
                field=next(iter(left))[:LONGEST_NAME],
            )
