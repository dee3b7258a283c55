"""Answers in a given form: by a JSON schema, a regular expression, or a grammar in Lark's notation.

llguidance says which tokens may come next; the others are taken out of the logits before the next one is chosen. That
happens where a token is chosen, so that drafts stay lossless, and answers that grow side by side do not notice.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, NamedTuple
from weakref import WeakKeyDictionary

import numpy as np
from numpy.typing import NDArray

from edge.errors import InputError, on_one_line
from edge.extras import needing
from edge.runtime.decode.sampling import Sampler
from edge.runtime.options import Check, shown

if TYPE_CHECKING:
    from edge.runtime.text.tokenizer import Text

LONGEST = 1 << 16  # characters of a schema, an expression or a grammar
EXTRA = "grammar"
SCHEMA, REGEX, GRAMMAR = FORMS = "json_schema", "regex", "grammar"
# JSON as Python writes it, on one line: where white space is free, a small model may go on with it for ever.
WRITTEN: Any = {"whitespace_flexible": False, "item_separator": ", ", "key_separator": ": "}

_TOKENIZERS = WeakKeyDictionary["Text", Any]()
_MAKING = threading.Lock()


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
        if not isinstance(found, Mapping | bool):
            raise ValueError("it is no object")
        return _checked(json.dumps(found), "JSON schema")
    except (ValueError, TypeError, RecursionError) as e:
        raise InputError(f"The JSON schema is none ({on_one_line(e)}); got {shown(value)}.") from None


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


def constrained(sampler: Sampler, text: Text, form: Form | None) -> Sampler:
    """The sampler of an answer that has the given form, if any.

    Raises:
        InputError: the form cannot be obeyed.
        MissingExtraError: llguidance is not installed.
    """
    if form is None:
        return sampler
    with needing("An answer in a given form", EXTRA):
        from llguidance import LLMatcher
    if form.kind == SCHEMA:
        compiled = LLMatcher.grammar_from_json_schema(form.text, overrides=WRITTEN)
    else:
        make = LLMatcher.grammar_from_regex if form.kind == REGEX else LLMatcher.grammar_from_lark
        compiled = make(form.text)
    tokenizer = for_grammars(text)
    matcher = LLMatcher(tokenizer, compiled, log_level=0)
    # A warning is about something that would not be obeyed.
    if told := [matcher.get_error()] if matcher.is_error() else matcher.get_grammar_warnings():
        raise InputError(f"The form that the answer is to have cannot be obeyed: {_sentence(told[0])}.")
    return Constrained(sampler, matcher, tokenizer.vocab_size)


def for_grammars(text: Text) -> Any:
    """llguidance's tokenizer of the same vocabulary; making one takes a second or two."""
    from llguidance import LLTokenizer

    with _MAKING:
        if (found := _TOKENIZERS.get(text)) is None:
            found = _TOKENIZERS[text] = LLTokenizer(str(text.path), eos_token=sorted(text.eos))
        return found


def _sentence(said: str) -> str:
    return " ".join(said.partition("<state>")[0].split())[:300].rstrip(".")


class Constrained:
    """A sampler that sees the logits of the tokens which the form allows alone.

    Args:
        sampler: chooses among them.
        matcher: llguidance's, of one answer.
        size: tokens that it knows.
    """

    def __init__(self, sampler: Sampler, matcher: Any, size: int) -> None:
        self._sampler, self._matcher = sampler, matcher
        self._mask = np.zeros((1, (size + 31) // 32), np.int32)

    def __call__(self, logits: NDArray[np.float32]) -> int:
        from llguidance.numpy import fill_next_token_bitmask

        matcher = self._matcher
        fill_next_token_bitmask(matcher, self._mask)
        allowed = np.unpackbits(self._mask.view(np.uint8)[0], bitorder="little")[: logits.shape[0]].view(bool)
        if matcher.is_error() or not allowed.any():
            why = _sentence(matcher.get_error() or "nothing satisfies it")
            raise InputError(f"The answer cannot have the form that it is to have: {why}.")
        left = np.full_like(logits, -np.inf)
        left[: allowed.shape[0]][allowed] = logits[: allowed.shape[0]][allowed]
        token = self._sampler(left)
        matcher.consume_token(token)
        return token
