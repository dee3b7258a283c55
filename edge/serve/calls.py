"""Calls of tools in answers: the form in which a model writes them, and what finds them as they come."""

from __future__ import annotations

import json
import re
import secrets
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NoReturn

from edge.errors import InputError
from edge.runtime.decode.form import check_bounds
from edge.runtime.decode.grammar import WRITTEN, for_grammars
from edge.runtime.options import shown
from edge.runtime.text.tokenizer import overlap
from edge.serve.tool_talk import MISTRALS
from edge.serve.tools import Call, Tool

if TYPE_CHECKING:
    from edge.runtime.model import Model
    from edge.runtime.text.template import ChatTemplate

PARAMETERS = '"parameters"'  # of Llama 3, whose calls are an answer by themselves
FENCE = "```"
ARGS, CALL_ID = "[ARGS]", "[CALL_ID]"  # between the parts of one of Mistral's newer calls
NINE = "[a-zA-Z0-9]{9}"  # of which Mistral's ids are
NAMED = re.compile(rf"\s*([\w.-]+)(?:{re.escape(CALL_ID)}({NINE}))?(?:{re.escape(ARGS)})?\s*(\{{.*\}})\s*", re.DOTALL)


@dataclass(frozen=True)
class Marks:
    """The marks around a call. Without a mark for its end, a call goes on to the next one, or to the answer's end."""

    open: str
    close: str = ""


HARMONYS = "<|call|>"  # after a call in gpt-oss's templates
HERMES = Marks("<tool_call>", "</tool_call>")  # and Qwen's, SmolLM's and others'
MISTRAL = Marks(MISTRALS)


class Format:
    """The form in which a model writes calls, by its chat template, or where that knows no tools, by the words in which
    it is told of them (`tool_talk`).

    Raises:
        InputError: it has no template, or one whose calls are not known here.
    """

    def __init__(self, model: Model) -> None:
        model.learn_end()  # which grammars are made with
        template, text, name = model.template, model.text, model.bundle.manifest.name
        if template is None:
            raise InputError(f"{name} has no chat template, by which it could be told of tools; leave them out.")
        self._text, self._in_words, self._source = text, not template.takes_tools, template.source
        thinking = model.bundle.manifest.thinking
        channels = thinking is not None and bool(thinking.answer)  # whose calls are shown as Hermes's
        self.marks = HERMES if self._in_words or channels else _marks(template)
        if self.marks is None and PARAMETERS not in template.source:
            raise InputError(f"The form in which {name} writes calls of tools is not known here; leave them out.")
        marks = [] if self.marks is None else [self.marks.open, self.marks.close, ARGS, CALL_ID]
        alone = {ids[0]: mark for mark in marks if mark and len(ids := text.encode(mark)) == 1}
        self._alone = {mark: token for token, mark in alone.items()}
        # Marks that have no text in an answer, by their tokens.
        self.tokens = {token: mark for token, mark in alone.items() if not text.decode([token])}

    def grammar(self, tools: Sequence[Tool], name: str | None) -> str:
        """A grammar, in Lark's notation, of one call of one of the tools, or of the one with this name. InputError
        where there is none."""
        functions = [tool["function"] for tool in tools if name in (None, tool["function"]["name"])]
        if not functions:
            raise InputError(f"The tool_choice is {shown(name)}, and there is no such tool.")
        check_bounds([function["parameters"] for function in functions])
        calls = [f"call_{i}: {self._call(function)}" for i, function in enumerate(functions)]
        if self.marks is None:
            begin = end = ""
        elif self.marks == MISTRAL:
            mark = self._mark(MISTRAL.open)
            begin, end = (mark, "") if ARGS in self._source else (f'{mark} "["', '"]"')
        elif self._in_words:
            begin, end = f'{self._mark(self.marks.open)} "["', f'"]" {self._mark(self.marks.close)}'
        else:
            begin, end = f'{self._mark(self.marks.open)} "\\n"', f'"\\n" {self._mark(self.marks.close)}'
        one = " | ".join(f"call_{i}" for i in range(len(calls)))
        return "\n".join([f"start: {begin} ({one}) {end}", *calls, ""])

    def _call(self, function: Mapping[str, Any]) -> str:
        """The part of a grammar that is one call. Its arguments are by themselves, as references in a schema are."""
        name, schema = function["name"], json.dumps({"x-guidance": WRITTEN, **function["parameters"]})
        if self.marks == MISTRAL and ARGS in self._source:
            id = f"{self._mark(CALL_ID)} /{NINE}/ " if CALL_ID in self._source else ""
            return f"{json.dumps(name)} {id}{self._mark(ARGS)} %json {schema}"
        arguments = "parameters" if self.marks is None else "arguments"
        return f'{json.dumps(f"""{{"name": "{name}", "{arguments}": """)} %json {schema} "}}"'

    def _mark(self, mark: str) -> str:
        """A mark in a grammar, which speaks of special tokens by their numbers."""
        token = self._alone.get(mark)
        special = token is not None and for_grammars(self._text).is_special_token(token)
        return f"<[{token}]>" if special else json.dumps(mark)

    def parser(self, tools: Sequence[Tool]) -> Calls:
        """What finds the calls in one answer."""
        return Calls([tool["function"]["name"] for tool in tools], self.marks)


def known(template: str | None) -> bool:
    """True if models with this template can be told of tools, as far as its text says."""
    if template is None:
        return False
    marks = HERMES.open, MISTRAL.open, PARAMETERS, HARMONYS
    return "tools" not in template or any(mark in template for mark in marks)


def _marks(template: ChatTemplate) -> Marks | None:
    return next((marks for marks in (MISTRAL, HERMES) if marks.open in template.source), None)


class Calls:
    """Finds the calls in the text of an answer as it comes. What is no call, after all, is text.

    A call, or a list of calls, stands between marks. A whole answer that is one JSON object, or a list of them, perhaps
    fenced as code, with the names of tools is a call, too: so Llama 3 writes them, and small models that forget the
    marks.

    names: of the tools. marks: that the model was taught; None: none.
    """

    def __init__(self, names: Collection[str], marks: Marks | None) -> None:
        self._names, self._marks = names, marks
        self._held = ""
        self._inside = False
        self._begun = False  # whether it is known that the answer is no JSON as a whole
        self.found: list[Call] = []

    def push(self, text: str) -> str:
        """Add text of the answer. Returns what of it, and of what was held back, is no part of a call."""
        self._held += text
        if not self._begun and not self._inside:
            begun = self._held.lstrip()
            if not begun or (_may_be_json(begun) and (self._marks is None or self._marks.open not in begun)):
                return ""
            self._begun = True
        return self._taken(len(self._held)) if self._marks is None else self._between(self._marks)

    def _between(self, marks: Marks) -> str:
        """The text outside of marks, of what is held."""
        said = ""
        while True:
            if self._inside:
                ends = [found.start() for found in re.finditer(re.escape(marks.close or marks.open), self._held)]
                end = next((end for end in ends if self._noted(self._held[:end])), None)  # a text may hold the mark
                if end is None:
                    return said
                self._taken(end + len(marks.close))
                self._inside = False
            start = self._held.find(marks.open)
            if start < 0:
                keep = overlap(self._held, marks.open)
                return said + self._outside(self._taken(len(self._held) - keep))
            said += self._outside(self._taken(start))
            self._taken(len(marks.open))
            self._inside = True

    def end(self) -> str:
        """The text that was held back, after the end of the answer."""
        if self._begun:
            said = "" if self._marks is None else self._between(self._marks)
            held = self._taken(len(self._held))
            if not self._inside or self._marks is None:
                return said + self._outside(held)
            return said if self._noted(held) else f"{said}{self._marks.open}{held}"
        held = self._taken(len(self._held))
        inner = held.strip().removeprefix(f"{FENCE}json").removeprefix(FENCE).removesuffix(FENCE)
        return "" if self._noted(inner, self._names) else held

    def _outside(self, text: str) -> str:
        """Text outside of calls: white space between and after them is none."""
        return "" if self.found and not text.strip() else text

    def _noted(self, said: str, names: Collection[str] | None = None) -> bool:
        """Note calls, of `names` alone if they are given; False where the text is none."""
        named = NAMED.fullmatch(said) if self._marks == MISTRAL else None
        try:
            if named is not None:
                read = {"name": named[1], "arguments": json.loads(named[3], parse_constant=_refuse)}
                found = [_call(read, named[2] or self._id)]
            else:
                read = json.loads(said, parse_constant=_refuse)
                found = [_call(each, self._id) for each in (read if isinstance(read, list) else [read])]
        except (ValueError, KeyError, AttributeError, TypeError, RecursionError):
            return False
        if names is not None and (not found or any(each.name not in names for each in found)):
            return False
        self.found += found
        return True

    @property
    def _id(self) -> str:
        return secrets.token_hex(5)[:9] if self._marks == MISTRAL else f"call_{secrets.token_hex(12)}"

    def _taken(self, count: int) -> str:
        taken, self._held = self._held[:count], self._held[count:]
        return taken


def _call(value: Any, id: str) -> Call:
    """A call of what a model wrote. Raises errors of several kinds where it is none."""
    arguments = value.get("arguments", value.get("parameters", {}))
    arguments = json.loads(arguments, parse_constant=_refuse) if isinstance(arguments, str) else arguments
    name = value["name"]
    json.dumps(value, ensure_ascii=False).encode()  # half a character cannot be sent
    if not isinstance(name, str) or not name or not isinstance(arguments, Mapping):
        raise ValueError("it is no call")
    return Call(id, name, dict(arguments))


def _may_be_json(begun: str) -> bool:
    """True if an answer that begins so may be JSON of calls, or one fenced block of code, as a whole."""
    if not begun.startswith(FENCE):
        return re.match(r"\{|\[\s*(\{|$)", begun) is not None or FENCE.startswith(begun)
    _, closed, after = begun[len(FENCE) :].partition(FENCE)
    return not closed or not after.strip()


def _refuse(constant: str) -> NoReturn:
    raise ValueError(f"{constant} is no number of JSON")
