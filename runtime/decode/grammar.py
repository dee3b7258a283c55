"""Answers in a given form: by a JSON schema, a regular expression, or a grammar in Lark's notation.

llguidance says which tokens may come next; the others are taken out of the logits before the next one is chosen. That
happens where a token is chosen, so that drafts stay lossless, and answers that grow side by side do not notice.
"""

from __future__ import annotations

import math
import re
import threading
from collections.abc import Callable, Sequence
from decimal import Decimal
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary, WeakValueDictionary

import numpy as np
from numpy.typing import NDArray

from edge.errors import InputError
from edge.extras import needing
from edge.runtime.decode.form import NOTHING, REGEX, SCHEMA, Form, refused, sentence
from edge.runtime.decode.rules import make_processors
from edge.runtime.decode.rules.rule import Processor, RuleSettings
from edge.runtime.decode.sampling import Categorical, Sampler, make_sampler, processed

if TYPE_CHECKING:
    from edge.runtime.decode.generate_options import GenerateOptions
    from edge.runtime.text.tokenizer import Text

ROW = 20_000  # ways to go on that llguidance follows at a time: an object of 2,000 optional fields has 8,007
AHEAD = 64  # forced tokens at the beginning that are looked through for an end
# Numbers in whose steps llguidance counts a multiple: it makes a state for each, 100,000 in 0.4 s, and has no limit.
MULTIPLES = 100_000
PLACES = 20  # decimal places of a number of which there may be multiples
COMBINING = "allOf", "anyOf", "oneOf", "$ref"  # with which a value may have to be a multiple of several numbers
EXTRA = "grammar"
# JSON as Python writes it, on one line: where white space is free, a small model may go on with it for ever.
WRITTEN: Any = {"whitespace_flexible": False, "item_separator": ", ", "key_separator": ": "}

FORBIDDEN = np.float32(-np.inf)
# What is added to the logits of eight tokens, by their byte of a mask. Reading this table is two to nine times as fast
# as choosing by booleans, whose branches nobody foresees where a mask has both.
BIASES = np.where(np.unpackbits(np.arange(256, dtype=np.uint8)[:, None], axis=1, bitorder="little"), 0, FORBIDDEN)
BIASES = BIASES.astype(np.float32)  # [256, 8]

_TOKENIZERS = WeakKeyDictionary["Text", Any]()
_COMPILED = WeakKeyDictionary["Text", "WeakValueDictionary[Form, _Compiled]"]()
_MAKING = threading.Lock()


def formed(options: GenerateOptions, prompt: Sequence[int], text: Text) -> Sampler:
    """The sampler of an answer to `prompt` that has the form of the options. Where one of several answers is drawn, it
    is `Weighed`. Errors are those of `constrained`."""
    assert options.form is not None
    if options.particles == 1:
        return constrained(make_sampler(options, prompt), text, options.form)
    settings = RuleSettings(options, begin=len(prompt), source=prompt)
    draw = Categorical(settings)
    allowing = constrained(draw, text, options.form)
    return Weighed(make_processors(settings), allowing, draw, prompt)


def constrained(sampler: Sampler, text: Text, form: Form) -> Constrained:
    """The sampler of an answer that has the given form, which is compiled once for all answers at a time.

    Raises:
        InputError: the form cannot be obeyed.
        MissingExtraError: llguidance is not installed.
    """
    with needing("An answer in a given form", EXTRA):
        import llguidance  # noqa: F401
    known = _COMPILED.setdefault(text, WeakValueDictionary())
    if (compiled := known.get(form)) is None:
        compiled = _Compiled(text, form)
        Constrained(sampler, compiled).check()
        known[form] = compiled
    return Constrained(sampler, compiled)


class _Compiled:
    """A form as llguidance follows it. Errors are those of `constrained`.

    make: makes a matcher of one answer. size: tokens that it knows. ends: tokens that end the answer.
    """

    def __init__(self, text: Text, form: Form) -> None:
        from llguidance import LLMatcher, LLParserLimits

        _check_multiples(form.text)
        try:
            if form.kind == SCHEMA:
                grammar = LLMatcher.grammar_from_json_schema(form.text, overrides=WRITTEN)
            else:
                read = LLMatcher.grammar_from_regex if form.kind == REGEX else LLMatcher.grammar_from_lark
                grammar = read(form.text)
        except ValueError as e:  # it is nested too deep
            raise refused(str(e)) from None
        tokenizer = for_grammars(text)
        limits = LLParserLimits(max_items_in_row=ROW, verbose_errors=False)
        matcher = LLMatcher(tokenizer, grammar, log_level=0, limits=limits)
        # A warning is about something that would not be obeyed.
        if told := [matcher.get_error()] if matcher.is_error() else matcher.get_grammar_warnings():
            raise refused(told[0])
        self.make: Callable[[], Any] = matcher.deep_copy
        self.size: int = tokenizer.vocab_size
        self.ends = text.eos


def _check_multiples(text: str) -> None:
    """Raise InputError where a schema wants multiples of a number, or where it combines schemas of several ones, that
    take too many steps to count."""
    said = re.findall(r'"multipleOf"\s*:\s*([-+.\dEe]+)', re.sub(r"\\u00([2-7][\da-fA-F])", _character, text))
    try:
        multiples = [abs(number) for each in said if (number := Decimal(each).normalize())]
    except ArithmeticError:
        raise refused(f"there are no multiples of {said[0]}") from None
    steps = [1]
    if any(abs(each.adjusted()) > PLACES for each in multiples):
        steps = [MULTIPLES + 1]
    elif multiples:
        places = [max(0, -int(each.as_tuple().exponent)) for each in multiples]
        if any(f'"{word}"' in text for word in COMBINING):
            steps = [math.lcm(*(int(each.scaleb(max(places))) for each in multiples))]
        else:
            steps = [int(each.scaleb(n)) for each, n in zip(multiples, places, strict=True)]
    if max(steps) > MULTIPLES:
        raise refused(f"multiples of {', '.join(dict.fromkeys(said[:5]))} take too many steps to count")


def _character(found: re.Match[str]) -> str:
    return chr(int(found[1], 16))


def for_grammars(text: Text) -> Any:
    """llguidance's tokenizer of the same vocabulary; making one takes a second or two."""
    from llguidance import LLTokenizer

    with _MAKING:
        if (found := _TOKENIZERS.get(text)) is None:
            found = _TOKENIZERS[text] = LLTokenizer(str(text.path), eos_token=sorted(text.eos))
        return found


class Constrained:
    """A sampler that sees the logits of the tokens which the form allows alone.

    `left` are the logits that it saw last, [V]; those of other tokens are -inf.

    Args:
        sampler: chooses among them.
        compiled: the form.
    """

    def __init__(self, sampler: Sampler, compiled: _Compiled) -> None:
        self._sampler, self._ends = sampler, compiled.ends
        self._compiled = compiled  # which other answers look up as long as this one is there
        self._matcher = compiled.make()
        self._mask = np.zeros((compiled.size + 31) // 32, np.uint32)  # a bit for each token
        self._known = False  # whether the mask is that of the next token
        self.left = self._rows = np.empty(0, np.float32)  # logits of allowed tokens, and their memory

    def __call__(self, logits: NDArray[np.float32]) -> int:
        mask = self._next()
        if self._matcher.is_error() or not mask.any():
            why = sentence(self._matcher.get_error() or NOTHING)
            raise InputError(f"The answer cannot have the form that it is to have: {why}.")
        if self.left.shape[0] != logits.shape[0]:
            self._rows = np.full(max(8 * mask.nbytes, logits.shape[0]), FORBIDDEN, np.float32)
            self.left = self._rows[: logits.shape[0]]
        left = self.left
        np.take(BIASES, mask.view(np.uint8), axis=0, out=self._rows[: 8 * mask.nbytes].reshape(-1, 8), mode="clip")
        np.add(left, logits, out=left)
        return self._choose(left)

    def check(self) -> None:
        """Raise InputError where nothing satisfies the form, as far as its first forced tokens tell, or an empty answer
        alone."""
        matcher, followed = self._matcher, 0
        while followed < AHEAD:
            tokens = np.flatnonzero(np.unpackbits(self._next().view(np.uint8), bitorder="little"))
            if matcher.is_error() or not tokens.shape[0]:
                raise refused(matcher.get_error() or NOTHING)
            if not followed and self._ends.issuperset(tokens.tolist()[: len(self._ends) + 1]):
                raise refused("it allows an empty answer alone")
            if tokens.shape[0] > 1 or int(tokens[0]) in self._ends:
                break
            matcher.consume_token(int(tokens[0]))
            self._known = False
            followed += 1
        if followed:
            matcher.rollback(followed)
            self._known = False

    def force(self, most: int) -> list[int]:
        """Go on with up to `most` tokens, as long as the form allows a single one. Returns them. An end is none of
        them. The sampler counts them, and draws its random numbers, as it does with logits."""
        found = list[int]()
        while len(found) < most and (token := self._only()) is not None:
            self.left.fill(FORBIDDEN)
            self.left[token] = 0
            found.append(self._choose(self.left))
        return found

    def allowed(self, tokens: Sequence[int]) -> int:
        """The number of `tokens` that the form allows, one after the other."""
        return int(self._matcher.validate_tokens([*tokens])) if tokens else 0

    def _next(self) -> NDArray[np.uint32]:
        """The mask of the next token."""
        if not self._known:
            self._matcher.unsafe_compute_mask_ptr(self._mask.ctypes.data, self._mask.nbytes)
            self._known = True
        return self._mask

    def _only(self) -> int | None:
        """The only token that may come next; None where there are several, or none, or where it ends the answer."""
        words = np.flatnonzero(self._next())
        if words.shape[0] != 1 or self._matcher.is_error():
            return None
        word = int(self._mask[words[0]])
        token = int(words[0]) * 32 + word.bit_length() - 1
        return None if word & (word - 1) or token in self._ends or token >= self.left.shape[0] else token

    def _choose(self, left: NDArray[np.float32]) -> int:
        token = self._sampler(left)
        self._matcher.consume_token(token)
        self._known = False
        return token


class Weighed:
    """Draws the tokens of one of several answers in a form, and sums up how likely the model found it.

    `weight` is the logarithm of p / q of the tokens so far: p is their probability by the model at the options'
    temperature, q the one with which they were drawn, which is that among the tokens that the form and the options
    left. It does not depend on which of these was drawn.

    Args:
        processors: change all scores first, whether the form allows them or not.
        allowing: leaves out what the form forbids, and draws by `draw`.
        prompt: the token ids before the answer.
    """

    def __init__(
        self, processors: Sequence[Processor], allowing: Constrained, draw: Categorical, prompt: Sequence[int]
    ) -> None:
        self.weight = 0.0
        self._allowing, self._draw = allowing, draw
        self._sampler = processed(processors, self._drawn, prompt)

    def __call__(self, logits: NDArray[np.float32]) -> int:
        return self._sampler(logits)

    def _drawn(self, scores: NDArray[np.float32]) -> int:
        token = self._allowing(scores)
        self.weight += self._draw.log_mass(self._allowing.left) - self._draw.log_mass(scores, whole=True)
        return token
