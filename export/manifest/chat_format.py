"""A chat template said without jinja2, for hosts that cannot run it: found by rendering, and proved by rendering.

Which texts stand between messages shows where messages are words that occur nowhere else. Everything else is compared
with what the template renders: whitespace, blank and odd messages, conversations of many lengths. What a template looks
for in messages (`</think>`) is among its own strings, so each of them is tried in every place; a format refuses
messages that have one with which the template renders otherwise. (A template that puts together what it looks for, or
counts letters, would not be found out; none is known.)
"""

from __future__ import annotations

import dataclasses
import itertools
import random
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any

from edge.errors import EdgeError, InputError
from edge.manifest import ChatFormat, ChatSlot, Thinking
from edge.runtime.text.template import DAYS, ChatTemplate, Message
from edge.runtime.text.thinking import render as render_thinking

if TYPE_CHECKING:
    from edge.export.facts.checkpoint import TokenizerFiles

SLOTS = {  # by the roles of the message before and of the message itself
    (None, "system"): "system",
    (None, "user"): "first_user",
    ("system", "user"): "user_after_system",
    ("user", "assistant"): "assistant",
    ("assistant", "user"): "user",
}
QUESTIONS = [*range(1, 7)] * 30 + [64]  # in the conversations of the proof
FOUND_ON, PROVED_ON = DAYS  # texts are found on one day and proved on another

EDGES = [" x ", "\n\n\tx\r\n", "\N{NO-BREAK SPACE}x\N{EM SPACE}", "\x85x\x1c", "\n x"]
BLANKS = ["", " ", "\n\n", "\t\N{NO-BREAK SPACE} \n"]
ORDINARY = [
    "Hello!",
    "hello hello",
    "Two\nlines\n\n\nand  two  spaces\tand a tab\r\nand a\rreturn",
    'it\'s "quoted" & <b>bold</b> #1 {x} [y] (z) `c` *d* _e_ ~f $g %h ^i @j |k \\n /l; m: n, o? 1+1=2',
    "{{ messages }} {% raw %} {# note #} ${x} %s {0} {}",
    "Grüße, 日本語 and \N{SLIGHTLY SMILING FACE}",
    "e\N{COMBINING ACUTE ACCENT} \N{ZERO WIDTH JOINER}\N{RIGHT-TO-LEFT MARK} \N{KELVIN SIGN} ß İ",
    "\x00 \x1b \x7f",
    "0",
    "None",
    "[]",
    '{"name": "f", "arguments": {}}',
    "```python\nprint('x')\n```",
    "http://example.com/a?b=c",
    "user",
    "assistant:",
    "word " * 5000,
]


def special_tokens(files: TokenizerFiles) -> dict[str, str]:
    """The texts of special tokens by the names that chat templates have for them."""
    named = files.tokens.named.items()
    return {name: token for name, i in named if i is not None and (token := files.parsed.id_to_token(i))}


class _Unthinking(ChatTemplate):
    """The template as it renders where the model is not to think."""

    def __init__(
        self, source: str, special: Mapping[str, str], now: Callable[[], datetime], marks: Thinking | None
    ) -> None:
        super().__init__(source, special, now)
        self._plain, self._marks = ChatTemplate(source, special, now), marks

    def render(
        self,
        messages: Sequence[Message],
        variables: Mapping[str, Any] | None = None,
        tools: Sequence[Mapping[str, Any]] | None = None,
    ) -> str:
        return render_thinking(self._plain, self._marks, messages, think=False)


def chat_format(source: str, special: Mapping[str, str], marks: Thinking | None = None) -> ChatFormat | None:
    """The format of a chat template; None where what it renders cannot be said so. marks: of thoughts, which hosts that
    read the format do not tell from an answer: it is that of answers without."""
    try:
        found = _Unthinking(source, special, lambda: FOUND_ON, marks)
        proving = _Unthinking(source, special, lambda: PROVED_ON, marks)
    except EdgeError:
        return None
    sought = [*_strings(proving), *special.values()]
    plain, led = (_format(found, proving, sought, led=led) for led in (False, True))
    if plain is None or led is None:
        return plain or led
    merged = dataclasses.replace(
        plain,
        system=led.system,
        user_after_system=led.user_after_system,
        refused=sorted({*plain.refused, *led.refused}),
    )
    # A template may put the system message into the last of the user's; then its conversations have none.
    same = (plain.assistant, plain.user, plain.generation) == (led.assistant, led.user, led.generation)
    return merged if same else plain


def render(chat: ChatFormat, messages: Sequence[Message]) -> str:
    """Render the prompt for the assistant's next turn, as a host without jinja2 does. InputError if the format cannot
    render it."""
    text, before = "", None
    for message in messages:
        name = SLOTS.get((before, message["role"]))
        slot: ChatSlot | None = getattr(chat, name) if name else None
        if slot is None:
            raise InputError(f"The chat format has no place for a message of {message['role']} after {before}.")
        content, before = message["content"], message["role"]
        if not slot.blank and not content.strip():
            raise InputError(f"The chat format has no place for a blank message of {before}.")
        if refused := next((text for text in chat.refused if text in content), None):
            raise InputError(f"The chat format has no place for a message with {refused!r} in it.")
        content = content.lstrip() if slot.trim_start else content
        text += slot.before + (content.rstrip() if slot.trim_end else content)
    if before != "user":
        raise InputError("The last message must be the user's.")
    return text + chat.generation


def _format(found: ChatTemplate, proving: ChatTemplate, sought: Sequence[str], *, led: bool) -> ChatFormat | None:
    """The format of conversations that a system message leads, or of those without one."""
    messages = _conversation(led, 3, {})
    texts = _between(found, messages)
    if texts is None:
        return None
    slots: dict[str, ChatSlot] = {}
    for name, before in zip(_slots(messages), texts, strict=False):
        if slots.setdefault(name, ChatSlot(before)).before != before:
            return None
    chat = ChatFormat(
        first_user=slots.get("first_user"),
        system=slots.get("system"),
        user_after_system=slots.get("user_after_system"),
        assistant=slots["assistant"],
        user=slots["user"],
        generation=texts[-1],
    )
    for name, slot in slots.items():
        if (settled := _settled(chat, proving, name, slot, led)) is None:
            return None
        chat = _with(chat, name, settled)
    drawn = _drawn(led, [*ORDINARY, *EDGES, *BLANKS])
    if _all_agree(chat, proving, ORDINARY, led) and all(_agree(chat, proving, talk) for talk in drawn):
        return _with_refusals(chat, proving, sought, led)
    return None


def _between(template: ChatTemplate, messages: Sequence[Message]) -> list[str] | None:
    """The texts around the messages; None where these do not appear once each, in their order."""
    contents = [message["content"] for message in messages]
    try:
        rendered = template.render(messages)
    except EdgeError:
        return None
    parts = re.split(f"({'|'.join(contents)})", rendered)
    return parts[::2] if parts[1::2] == contents else None


def _settled(chat: ChatFormat, template: ChatTemplate, name: str, slot: ChatSlot, led: bool) -> ChatSlot | None:
    """The slot with what becomes of whitespace in it; None where that cannot be said."""

    def agrees(slot: ChatSlot, contents: Iterable[str]) -> bool:
        return _all_agree(_with(chat, name, slot), template, contents, led, name)

    for start, end in itertools.product((False, True), repeat=2):
        trimmed = dataclasses.replace(slot, trim_start=start, trim_end=end)
        if agrees(trimmed, EDGES):
            blank = dataclasses.replace(trimmed, blank=True)
            return blank if agrees(blank, BLANKS) else trimmed
    return None


def _with(chat: ChatFormat, name: str, slot: ChatSlot) -> ChatFormat:
    changed: dict[str, Any] = {name: slot}
    return dataclasses.replace(chat, **changed)


def _with_refusals(chat: ChatFormat, template: ChatTemplate, sought: Sequence[str], led: bool) -> ChatFormat | None:
    """The format that refuses messages in which the template finds what it looks for, and does something about it; None
    where that is not enough."""
    for first in [*sought, *filter(str.strip, _texts(chat))]:
        contents = [first, f"{first}x", f"x{first}", f"x{first}y", f"x\n{first}\n\ny"]
        if not _all_agree(chat, template, contents, led):
            chat = dataclasses.replace(chat, refused=[*chat.refused, first])
    for first, second in itertools.permutations(sought, 2):
        if not all(_agree(chat, template, talk) for talk in _at_ends(led, f"{first}x{second}")):
            chat = dataclasses.replace(chat, refused=[*chat.refused, first])
    rest = [text for text in sought if not any(refused in text for refused in chat.refused)]
    together = ["x".join(rest), "x".join(reversed(rest))]
    if any(not text.strip() for text in chat.refused) or not _all_agree(chat, template, together, led):
        return None
    drawn = _drawn(led, [*together, *rest, *ORDINARY])
    return chat if all(_agree(chat, template, talk) for talk in drawn) else None


def _strings(template: ChatTemplate) -> list[str]:
    """The strings that a template may look for: what it compares with, and gives to calls, filters, loops and names."""
    from jinja2 import nodes

    tree = template.tree()
    looking: list[nodes.Node] = [*tree.find_all((nodes.Compare, nodes.Call, nodes.Filter, nodes.Test, nodes.Assign))]
    looking += [loop.iter for loop in tree.find_all(nodes.For)]
    looking += [default for macro in tree.find_all(nodes.Macro) for default in macro.defaults]
    constants = [node for node in looking if isinstance(node, nodes.Const)]
    constants += [inner for node in looking for inner in node.find_all(nodes.Const)]
    return sorted({node.value for node in constants if isinstance(node.value, str) and node.value})


def _all_agree(
    chat: ChatFormat, template: ChatTemplate, contents: Iterable[str], led: bool, name: str | None = None
) -> bool:
    """True if host and template render the same, with each of the contents in the places of the slot `name`, or of any
    slot."""
    return all(_agree(chat, template, talk) for text in contents for talk in _placed(led, text, name))


def _agree(chat: ChatFormat, template: ChatTemplate, messages: Sequence[Message]) -> bool:
    try:
        expected = render(chat, messages)
    except InputError:
        return True  # a host that refuses renders nothing wrong
    try:
        return template.render(messages) == expected
    except EdgeError:
        return False


def _conversation(led: bool, questions: int, contents: Mapping[int, str]) -> list[Message]:
    """A conversation whose messages are words that occur nowhere else, but for `contents`, by place."""
    roles = [*(["system"] if led else []), *(["user", "assistant"] * questions)[:-1]]
    return [Message(role=role, content=contents.get(i, f"Zq{i}vX{i}j")) for i, role in enumerate(roles)]


def _slots(messages: Sequence[Message]) -> list[str]:
    roles = [message["role"] for message in messages]
    return [SLOTS[pair] for pair in zip([None, *roles], roles, strict=False)]


def _placed(led: bool, content: str, name: str | None = None) -> Iterator[list[Message]]:
    """Conversations with `content` in each place, and in all places, that belong to the slot, or to any."""
    for questions in (1, 3):
        slots = _slots(_conversation(led, questions, {}))
        places = [place for place, slot in enumerate(slots) if name in (None, slot)]
        for chosen in [*([place] for place in places if len(places) > 1), places]:
            yield _conversation(led, questions, dict.fromkeys(chosen, content))


def _at_ends(led: bool, content: str) -> Iterator[list[Message]]:
    """Fewer of them, for the many pairs of strings: in the last place, in all others, in all."""
    places = range(len(_conversation(led, 3, {})))
    for chosen in (places[-1:], places[:-1], places):
        yield _conversation(led, 3, dict.fromkeys(chosen, content))


def _drawn(led: bool, contents: Sequence[str]) -> Iterator[list[Message]]:
    """Conversations of every length with any of the contents, the same ones every time."""
    draw = random.Random(7)
    for questions in QUESTIONS:
        yield _conversation(led, questions, dict(enumerate(draw.choices(contents, k=2 * questions))))


def _texts(chat: ChatFormat) -> list[str]:
    slots: list[ChatSlot | None] = [getattr(chat, name) for name in SLOTS.values()]
    return [*(slot.before for slot in slots if slot is not None), chat.generation]
