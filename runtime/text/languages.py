"""The languages of a multilingual model from text to text, found by the codes that people write."""

from __future__ import annotations

import difflib
from collections.abc import Mapping

from edge.errors import InputError
from edge.runtime.text.controls import LANGUAGE_MARKS

SHOWN = 8  # named in the error about an unknown language


def find_language(languages: Mapping[str, int], code: str | None, default: str | None, which: str) -> int:
    """The token of a language, or InputError; a code may be cut short where that is unambiguous: ``de`` for ``de_DE``.

    languages: code -> token id. default: the code where none is given, or None. which: "source" or "target".
    """
    if not languages:
        raise InputError(f"This model has no choice of languages, so that it takes no {which} language.")
    wanted = code if code is not None else default
    some = ", ".join(_some(languages, wanted))
    known = f"it has {some}" if len(languages) <= SHOWN else f"it has {len(languages)}, such as {some}"
    if wanted is None:
        flag = "--from" if which == "source" else "--to"
        raise InputError(f"This model needs a {which} language, by {flag} or {which}_language; {known}.")
    folded = wanted.casefold().replace("-", "_")
    for start, end in LANGUAGE_MARKS:
        folded = folded.removeprefix(start).removesuffix(end)
    matches = [each for each in languages if each.casefold() == folded] or [
        each for each in languages if each.casefold().startswith(f"{folded}_")
    ]
    if len(matches) == 1:
        return languages[matches[0]]
    if matches:
        raise InputError(f"The {which} language {wanted!r} may be {' or '.join(sorted(matches))}; say which.")
    raise InputError(f"This model has no {which} language {wanted!r}; {known}.")


def _some(languages: Mapping[str, int], wanted: str | None) -> list[str]:
    """A few of the languages: the most alike, or else common ones."""
    codes = sorted(languages)
    alike = difflib.get_close_matches(wanted or "", codes, SHOWN, 0.5)
    common = [code for code in codes if code[:2] in ("en", "de", "fr", "es", "zh", "ar", "hi", "pt")]
    return list(dict.fromkeys([*alike, *common, *codes]))[:SHOWN]
