"""Options: frozen dataclasses whose fields state all that is written by hand about an option.

    @dataclass(frozen=True)
    class SamplingOptions(Options):
        temperature: float = option(
            0.0, number("temperature", "a number of 0 or more", least=0),
            flag="--temperature T", heading="answer", help="0: the most likely token; above 0 tokens are drawn",
        )

A field's check gives the value as the code uses it, or says what is wrong with it. Numbers may be of any type that is
one: numpy's, a Fraction, a Decimal. True and False are none, nor are texts. The rest of a field is read by commands for
their arguments and --help (`edge.cli.arguments`), and by `tools/options.py`, which writes the keywords that type
checkers read and the tables of docs/reference/options.md.
"""

from __future__ import annotations

import contextlib
import dataclasses
import datetime
import inspect
import math
import numbers
import operator
import re
import reprlib
from collections.abc import Callable, Iterable, Mapping
from functools import cache
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

from edge.embedding_format import EMBEDDER, RERANKER
from edge.errors import InputError

if TYPE_CHECKING:
    from edge.manifest import Manifest

Check = Callable[[Any], Any]
"""Gives a value as a plain type of Python's, or raises InputError."""
LARGEST = 2**63 - 1  # maximum of a whole number: what a size of the system can say
SHOWN = 80  # characters of a value in a sentence
T = TypeVar("T")
_OPTION = "option"  # the key of a field's metadata

DECODER, TEXT, SPEECH = KINDS = ("decoder", "text", "speech")  # kinds of bundles: prompts, text to text, sound


def kind_of(manifest: Manifest) -> str:
    """DECODER, TEXT, SPEECH, EMBEDDER or RERANKER."""
    if manifest.embedding is not None:
        return EMBEDDER if manifest.embedding.pair is None else RERANKER
    if manifest.speech is not None:
        return SPEECH
    return DECODER if manifest.text is None else TEXT


@dataclasses.dataclass(frozen=True)
class Others:
    """Other fields that an option needs or excludes, and the error's sentence where it is given without them, or with
    one."""

    names: tuple[str, ...]
    sentence: str


@dataclasses.dataclass(frozen=True)
class Option:
    """The description of an option, besides its type and its default.

    Args:
        check: gives a value as the code uses it, or refuses it.
        help: what it means, in a line of --help.
        about: what it means to a program, where the line does not say it all.
        flag: the option on the command line, and its value: ``--memory SIZE``, or ``--from/--source-language CODE``.
            What has none is for programs alone.
        heading: that of `edge run --help` under which it stands; one without is there by a field of another class,
            which has the same flag.
        read: makes the value of the text on the command line, where its type does not say how.
        values: the texts that the command line takes, where there are few, and the value of each.
        names: looks up names that the line lists as ``%(names)s``.
        kinds: the kinds of bundles that obey it, of an option of several kinds.
        needs: fields without which it means nothing.
        excludes: fields that say the same, or the contrary.
    """

    check: Check
    help: str = ""
    about: str = ""
    flag: str = ""
    heading: str = ""
    read: Callable[[str], Any] | None = None
    values: Mapping[str, Any] | None = None
    names: Callable[[], Iterable[str]] | None = None
    kinds: tuple[str, ...] = KINDS
    needs: Others | None = None
    excludes: Others | None = None

    @property
    def destination(self) -> str:
        """Name of the option in the parser of the command line: the last of its names, without dashes."""
        return self.flag.partition(" ")[0].rpartition("/")[2].lstrip("-").replace("-", "_")


def option(default: Any, check: Check, **known: Any) -> Any:
    """Make a field of `Options`. known: arguments of `Option`."""
    return dataclasses.field(default=default, metadata={_OPTION: Option(check, **known)})


def has_option(field: dataclasses.Field[Any]) -> bool:
    """True if a field was made by `option`."""
    return _OPTION in field.metadata


def option_of(field: dataclasses.Field[Any]) -> Option:
    """Return the description of a field that `option` made."""
    found: Option = field.metadata[_OPTION]
    return found


def fields(options: type[Any]) -> list[dataclasses.Field[Any]]:
    """The fields of a class of options, its own before those that it inherits."""
    found = {field.name: field for field in dataclasses.fields(options)}
    own = [name for each in options.__mro__ for name in inspect.get_annotations(each) if name in found]
    return [found[name] for name in dict.fromkeys(own)]


@dataclasses.dataclass(frozen=True)
class Options:
    """Base of dataclasses whose fields are made by `option`; InputError where a value of one is of the wrong type or
    out of its range."""

    def __post_init__(self) -> None:
        for name, check in _checks(type(self)):  # type: ignore[arg-type]  # a class has a hash
            object.__setattr__(self, name, check(getattr(self, name)))


@cache
def _checks(options: type[Any]) -> list[tuple[str, Check]]:
    return [(field.name, option_of(field).check) for field in dataclasses.fields(options) if has_option(field)]


def check_together(options: type[Any], values: Mapping[str, Any]) -> None:
    """Raise InputError where a field that is set needs another one, or excludes one. values: by the fields' names; what
    is missing, has its default or is an empty list is not set."""
    known = {field.name: option_of(field) for field in dataclasses.fields(options) if has_option(field)}
    defaults = {field.name: field.default for field in dataclasses.fields(options)}
    given = {name for name, value in values.items() if value != defaults[name] and value != []}
    for name in (name for name in known if name in given):
        needs, excludes = known[name].needs, known[name].excludes
        if needs is not None and given.isdisjoint(needs.names):
            raise InputError(needs.sentence)
        if excludes is not None and not given.isdisjoint(excludes.names):
            raise InputError(excludes.sentence)


def with_keywords(options: T, keywords: Mapping[str, Any]) -> T:
    """The options with the fields that `keywords` name replaced.

    Raises:
        InputError: there is no such field, or a value out of its range.
    """
    if not keywords:
        return options
    names = [field.name for field in dataclasses.fields(options)]  # type: ignore[arg-type]
    for name in keywords:
        if name not in names:
            raise InputError(f"There is no option {name!r}; there are {', '.join(names)}.")
    return dataclasses.replace(options, **keywords)  # type: ignore[type-var]


def wanted(check: Check) -> str:
    """Values that a check accepts, in words; empty where the type of the field says it."""
    return str(getattr(check, "wanted", ""))


def _stating(check: Check, what: str) -> Check:
    """A check that says what it lets pass."""
    vars(check)["wanted"] = what
    return check


def unless_none(check: Check) -> Check:
    """A check that accepts None, and what `check` accepts."""
    return _stating(lambda value: None if value is None else check(value), wanted(check))


def any_value(value: Any) -> Any:
    """The check of an option that is looked at where the model is known."""
    return value


def number(
    name: str,
    what: str,
    *,
    least: float = -math.inf,
    most: float = math.inf,
    above: float = -math.inf,
) -> Check:
    """A check for a finite number from `least` to `most` and larger than `above`. name, what: for the sentence."""

    def check(value: Any) -> float:
        if _is_number(value):
            try:
                plain = float(value)
            except (ArithmeticError, ValueError, TypeError):  # too large, or a Decimal that signals
                plain = math.nan
            if math.isfinite(plain) and least <= plain <= most and plain > above:
                return plain
        raise refused(name, what, value)

    return _stating(check, what)


def integer(name: str, what: str, *, least: int, most: int = LARGEST) -> Check:
    """A check for a whole number from `least` to `most`. name, what: for the sentence."""

    def check(value: Any) -> int:
        if isinstance(value, numbers.Integral) and not isinstance(value, bool):
            plain = operator.index(value)
            if least <= plain <= most:
                return plain
            if plain > most:
                raise InputError(f"The {name} must be at most {most:,}, not {shown(value)}.")
        raise refused(name, what, value)

    return _stating(check, what)


def flag(name: str) -> Check:
    """A check for True or False."""

    def check(value: Any) -> bool:
        if isinstance(value, bool | np.bool_):
            return bool(value)
        raise refused(name, "True or False", value)

    return check


def text(name: str) -> Check:
    """A check for a text."""

    def check(value: Any) -> str:
        if isinstance(value, str):
            return str(value)
        raise refused(name, "a text", value)

    return check


def day(value: Any) -> str:
    """Check a day, ``YYYY-MM-DD`` or a date of Python's."""
    found = str(value) if isinstance(value, str | datetime.date) else ""
    if re.fullmatch(r"\d{4}-\d\d-\d\d", found, re.ASCII):
        with contextlib.suppress(ValueError):  # no such day
            return datetime.date.fromisoformat(found).isoformat()
    raise refused("date", "a day such as 2025-01-31", value)


def texts(name: str) -> Check:
    """A check for texts in a list or a tuple, none of them empty, or one text alone."""

    def check(value: Any) -> tuple[str, ...]:
        found = (value,) if isinstance(value, str) else value
        if not isinstance(found, list | tuple) or not all(isinstance(each, str) for each in found):
            raise refused(f"{name}s", "a text, or a list of texts", value)
        if "" in found:
            raise InputError(f"A {name} is empty; give at least one character, or no {name} at all.")
        return tuple(map(str, found))

    return check


def several(each: Check, name: str, what: str, none: str) -> Check:
    """A check for one value or more in a list, a tuple or an array of one dimension. none: the error's sentence where
    there is none."""

    def check(value: Any) -> tuple[Any, ...]:
        if not isinstance(value, list | tuple) and not (isinstance(value, np.ndarray) and value.ndim == 1):
            raise refused(name, what, value)
        if not len(value):
            raise InputError(none)
        return tuple(map(each, value))

    return _stating(check, what)


def one_of(name: str, what: str, values: Iterable[Any]) -> Check:
    """A check for one of a few values, of the same type."""
    known = tuple(values)

    def check(value: Any) -> Any:
        for each in known:
            if (type(value) is type(each) or (isinstance(value, np.bool_) and type(each) is bool)) and value == each:
                return each
        raise refused(name, what, value)

    return _stating(check, what)


def function(name: str) -> Check:
    """A check for something that can be called."""

    def check(value: Any) -> Any:
        if callable(value):
            return value
        raise refused(name, "a function", value)

    return check


def refused(name: str, wanted: str, value: object) -> InputError:
    """Make the error for an option that has another value than is wanted."""
    return InputError(f"The {name} must be {wanted}, not {shown(value)}.")


_REPR = reprlib.Repr()  # of what is too large to be shown as a whole only the beginning
_REPR.maxlist = _REPR.maxtuple = _REPR.maxdict = _REPR.maxset = _REPR.maxarray = SHOWN
_REPR.maxstring = _REPR.maxother = _REPR.maxlong = 4 * SHOWN
_REPR.maxlevel = SHOWN


def shown(value: object) -> str:
    """Show a value in a sentence: on one line and not long, whatever it is."""
    try:
        said = " ".join(_REPR.repr(value).split())
    except Exception:  # a number of many thousand digits has no text, and a class may have any __repr__
        return f"this {type(value).__name__}"
    return said if len(said) <= SHOWN else f"{said[:SHOWN]}..."


def _is_number(value: object) -> bool:
    if isinstance(value, bool):
        return False
    return isinstance(value, numbers.Real) or (  # a Decimal is a number and says no more
        isinstance(value, numbers.Number) and not isinstance(value, numbers.Complex)
    )
