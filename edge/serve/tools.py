"""Tools that an answer may call: offered to the model through its chat template, and found in what it says."""

from __future__ import annotations

import json
import re
import secrets
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NoReturn

from edge.errors import InputError
from edge.runtime.decode.grammar import WRITTEN, check_bounds, for_grammars
from edge.runtime.options import shown
from edge.runtime.text.tokenizer import overlap
from edge.serve.fields import Fields

if TYPE_CHECKING:
    from edge.runtime.model import Model

MOST = 128  # tools of a request
NAMES = 64  # characters of a tool's name
OPEN, CLOSE = "<tool_call>", "</tool_call>"  # of Hermes, Qwen, SmolLM3 and others
PARAMETERS = '"parameters"'  # of Llama 3, whose calls are an answer by themselves
FENCE = "```"
Tool = dict[str, Any]


@dataclass(frozen=True)
class Call:
    """A call of a tool."""

    id: str
    name: str
    arguments: dict[str, Any]

    @property
    def said(self) -> str:
        """The arguments as JSON."""
        return json.dumps(self.arguments, ensure_ascii=False)


def read_tools(value: Any) -> list[Tool]:
    """The check of a request's tools, as OpenAI's protocol describes them."""
    if not isinstance(value, list) or len(value) > MOST:
        raise InputError(f"The tools must be a list of at most {MOST}, not {shown(value)}.")
    return [_tool(i, each) for i, each in enumerate(value)]


def _tool(number: int, value: Any) -> Tool:
    fields = Fields(value if isinstance(value, dict) else {}, f"tool {number}")
    fields.only("type", ["function"], f"Tool {number} must be a function.")
    function = fields.object("function")
    fields.end()
    if function is None:
        raise InputError(f"Tool {number} has no function.")
    name, about = function.text("name"), function.text("description")
    parameters = function.take("parameters", _parameters)
    function.unread("strict")
    function.end()
    if not name or len(name) > NAMES or not name.replace("-", "_").replace(".", "_").isidentifier():
        raise InputError(f"The name of tool {number} must be a word of letters, digits and _, not {shown(name)}.")
    described = {"name": name} | ({"description": about} if about else {})
    return {"type": "function", "function": described | {"parameters": parameters or {"type": "object"}}}


def _parameters(value: Any) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise InputError(f"A tool's parameters must be a JSON schema, not {shown(value)}.")
    return value


def read_choice(value: Any) -> str:
    """The check of a request's tool_choice: auto, none or required, or the name of one tool."""
    if isinstance(value, str) and value in ("auto", "none", "required"):
        return value
    if isinstance(value, Mapping) and value.get("type") == "function" and isinstance(value.get("function"), Mapping):
        name = value["function"].get("name")
        if isinstance(name, str):
            return f"={name}"
    raise InputError(f"The tool_choice must be auto, none, required or a function, not {shown(value)}.")


def read_calls(value: Any) -> list[dict[str, Any]]:
    """The check of the calls that an assistant's message made, as templates take them: arguments are objects."""
    if not isinstance(value, list) or not all(isinstance(each, dict) for each in value):
        raise InputError(f"The tool_calls must be a list of calls, not {shown(value)}.")
    found = []
    for each in value:
        function = each.get("function")
        name = function.get("name") if isinstance(function, dict) else None
        arguments = function.get("arguments", {}) if isinstance(function, dict) else None
        try:
            arguments = json.loads(arguments or "{}") if isinstance(arguments, str) else arguments
        except (ValueError, RecursionError):
            arguments = None
        if not isinstance(name, str) or not isinstance(arguments, dict):
            raise InputError(
                f"A call needs a function with a name and arguments that are a JSON object, not {shown(each)}."
            )
        found.append({"type": "function", "function": {"name": name, "arguments": arguments}})
    return found


class Format:
    """The form in which a model writes calls, by its chat template.

    Raises:
        InputError: it knows no tools.
    """

    def __init__(self, model: Model) -> None:
        model.learn_end()  # which grammars are made with
        template, text, name = model.template, model.text, model.bundle.manifest.name
        if template is None or not template.takes_tools:
            raise InputError(f"The chat template of {name} knows no tools; leave them out.")
        self.marked = OPEN in template.source
        if not self.marked and PARAMETERS not in template.source:
            raise InputError(f"The form in which {name} writes calls of tools is not known here; leave them out.")
        self._text = text
        alone = {ids[0]: mark for mark in (OPEN, CLOSE) if len(ids := text.encode(mark)) == 1}
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
        arguments = "arguments" if self.marked else "parameters"
        calls = [
            {
                "type": "object",
                "properties": {"name": {"const": function["name"]}, arguments: function["parameters"]},
                "required": ["name", arguments],
                "additionalProperties": False,
            }
            for function in functions
        ]
        call = f"call: %json {json.dumps({'x-guidance': WRITTEN, 'anyOf': calls})}\n"
        if not self.marked:
            return f"start: call\n{call}"
        special = for_grammars(self._text).is_special_token  # of which grammars speak without quotes
        marks = [mark if mark in self._alone and special(self._alone[mark]) else f'"{mark}"' for mark in (OPEN, CLOSE)]
        return f'start: {marks[0]} "\\n" call "\\n" {marks[1]}\n{call}'

    def parser(self, tools: Sequence[Tool]) -> Calls:
        """What finds the calls in one answer."""
        return Calls([tool["function"]["name"] for tool in tools], marked=self.marked)


class Calls:
    """Finds the calls in the text of an answer as it comes. What is no call, after all, is text.

    A call stands between marks. A whole answer that is one JSON object, perhaps fenced as code, with the name of a tool
    is a call, too: so Llama 3 writes them, and small models that forget the marks.

    names: of the tools. marked: whether the model was taught marks.
    """

    def __init__(self, names: Collection[str], *, marked: bool) -> None:
        self._names, self._marked = names, marked
        self._held = ""
        self._inside = False
        self._begun = False  # whether it is known that the answer is no JSON object as a whole
        self.found: list[Call] = []

    def push(self, text: str) -> str:
        """Add text of the answer. Returns what of it, and of what was held back, is no part of a call."""
        self._held += text
        if not self._begun and not self._inside:
            begun = self._held.lstrip()
            if not begun or (_may_be_json(begun) and OPEN not in begun):
                return ""
            self._begun = True
        return self._between() if self._marked else self._taken(len(self._held))

    def _between(self) -> str:
        """The text outside of marks, of what is held."""
        said = ""
        while True:
            if self._inside:
                ends = [found.start() for found in re.finditer(re.escape(CLOSE), self._held)]
                end = next((end for end in ends if self._noted(self._held[:end])), None)  # a text may hold the mark
                if end is None:
                    return said
                self._taken(end + len(CLOSE))
                self._inside = False
            start = self._held.find(OPEN)
            if start < 0:
                keep = overlap(self._held, OPEN)
                return said + self._outside(self._taken(len(self._held) - keep))
            said += self._outside(self._taken(start))
            self._taken(len(OPEN))
            self._inside = True

    def end(self) -> str:
        """The text that was held back, after the end of the answer."""
        if self._begun:
            said = self._between() if self._marked else ""
            held = self._taken(len(self._held))
            if not self._inside:
                return said + self._outside(held)
            return said if self._noted(held) else f"{said}{OPEN}{held}"
        held = self._taken(len(self._held))
        inner = held.strip().removeprefix(f"{FENCE}json").removeprefix(FENCE).removesuffix(FENCE)
        return "" if self._noted(inner, self._names) else held

    def _outside(self, text: str) -> str:
        """Text outside of calls: white space between and after them is none."""
        return "" if self.found and not text.strip() else text

    def _noted(self, said: str, names: Collection[str] | None = None) -> bool:
        """Note a call, of one of `names` if they are given; False where the text is none."""
        try:
            found = json.loads(said, parse_constant=_refuse)
            arguments = found.get("arguments", found.get("parameters", {}))
            arguments = json.loads(arguments, parse_constant=_refuse) if isinstance(arguments, str) else arguments
            name = found["name"]
            json.dumps(found, ensure_ascii=False).encode()  # half a character cannot be sent
        except (ValueError, KeyError, AttributeError, TypeError, RecursionError):
            return False
        if not isinstance(name, str) or not isinstance(arguments, dict) or (names is not None and name not in names):
            return False
        self.found.append(Call(f"call_{secrets.token_hex(12)}", name, arguments))
        return True

    def _taken(self, count: int) -> str:
        taken, self._held = self._held[:count], self._held[count:]
        return taken


def _may_be_json(begun: str) -> bool:
    """True if an answer that begins so may be one JSON object, or one fenced block of code, as a whole."""
    if not begun.startswith(FENCE):
        return begun.startswith("{") or FENCE.startswith(begun)
    _, closed, after = begun[len(FENCE) :].partition(FENCE)
    return not closed or not after.strip()


def _refuse(constant: str) -> NoReturn:
    raise ValueError(f"{constant} is no number of JSON")
