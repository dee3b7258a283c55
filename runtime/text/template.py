"""Chat templates: the jinja2 text of a bundle, rendered as transformers renders it (`apply_chat_template`)."""

from __future__ import annotations

import contextlib
import json
import logging
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from functools import cached_property
from typing import TYPE_CHECKING, Any, NoReturn, NotRequired, TypedDict

from edge.errors import BundleError, EdgeError, InputError, on_one_line
from edge.runtime.options import shown

if TYPE_CHECKING:
    import jinja2
    import jinja2.nodes

    from edge.manifest import Manifest
    from edge.runtime.text.sandbox import Bounded
    from edge.runtime.text.tokenizer import Text


LAYOUT = 256  # characters of a date's layout: the system makes as many times as many
_log = logging.getLogger(__name__)

LABORIOUS = 1 << 12  # steps that no honest template takes for a few words
LONGEST = 1 << 17  # characters of a template; the longest known have a fifth of that
MARK, WORDS = "Zq7vX7j", "Kw3pL3h"  # of conversations that show what a template does with messages
TURNS = "user", "assistant", "user"
TOOL = "tool"  # the role of a tool's answer, which may be empty
FIXED_DAY = "2025-01-31"  # of all that an export has the model answer
CLOCK = "strftime_now"  # what templates ask for the date
EFFORT = "reasoning_effort"  # the variable of templates that tell the model how much to think
THINKING = "thinking"  # what gpt-oss's template calls a message's thoughts
DAYS = datetime(1987, 3, 4, 5, 6, 7), datetime(2046, 11, 25, 20, 30, 45)  # in which every part of a date differs


class Message(TypedDict):
    """One turn of a conversation; roles are those that the model's template knows: system, user, assistant, and tool.

    reasoning_content: what the assistant thought before, of which the template writes what the model shall read again.
    tool_calls: what it called, each ``{"type": "function", "function": {"name": ..., "arguments": {...}}}``, perhaps
    with an ``id``. tool_call_id, name: of a tool's answer, the call's id and the tool's name, which few templates read.
    """

    role: str
    content: str
    reasoning_content: NotRequired[str]
    tool_calls: NotRequired[list[dict[str, Any]]]
    tool_call_id: NotRequired[str]
    name: NotRequired[str]


def check_messages(messages: Sequence[Message]) -> None:
    """Raise InputError where a conversation is malformed or its last message, the one to answer, is empty."""
    for i, message in enumerate(messages):
        if not isinstance(message, Mapping):
            raise InputError(
                f"Message {i} of the conversation is a {type(message).__name__}, and not a dict with a role and a "
                "content."
            )
        for key in ("role", "content"):
            if not isinstance(message.get(key), str):
                raise InputError(f"Message {i} of the conversation needs a text under {key!r}.")
    if not messages or not (messages[-1]["content"].strip() or messages[-1]["role"] == TOOL):
        raise InputError("The prompt is empty; give the model something to answer.")


def check_conversation(messages: Sequence[Message]) -> None:
    """Raise InputError where messages are not a conversation that can go on: turns of user and assistant, perhaps after
    a system message, that end with an answer."""
    wanted = "system"
    for i, message in enumerate(messages):
        if not isinstance(message, Mapping) or not all(isinstance(message.get(k), str) for k in ("role", "content")):
            raise InputError(f"Message {i} of the conversation needs a text under 'role' and under 'content'.")
        role = message["role"]
        if role not in ("system", "user", "assistant"):
            raise InputError(f"Message {i} of the conversation is by {shown(role)}, and not by user or assistant.")
        if role != wanted and (role, wanted) != ("user", "system"):
            raise InputError(f"Message {i} of the conversation is by {role}, where one by {wanted} should be.")
        wanted = "assistant" if role == "user" else "user"
    if wanted == "assistant":
        raise InputError("The conversation ends with a message that has no answer; leave that out, and ask it.")


class ChatTemplate:
    """A compiled template; BundleError where it is invalid. special: special tokens by the names that templates use
    (`bos_token`, `eos_token`, `pad_token`). now: the clock of templates that tell the model the date. undated: the name
    of the model; where it is given, the first prompt with today's date logs a notice."""

    def __init__(
        self,
        source: str,
        special: Mapping[str, str],
        now: Callable[[], datetime] = datetime.now,
        *,
        undated: str | None = None,
    ) -> None:
        self._source = source
        self._special = dict(special)
        self._undated = undated
        self._template, self._environment = _compile(source, now)
        self._takes_parts: dict[str, bool | None] = {}  # by role; None: it leaves out what that role says

    def render(
        self,
        messages: Sequence[Message],
        variables: Mapping[str, Any] | None = None,
        tools: Sequence[Mapping[str, Any]] | None = None,
    ) -> str:
        """Render the prompt for the assistant's next turn; InputError where the template refuses the conversation,
        BundleError where it does what no honest one does. variables: further ones that the template knows, such as
        `enable_thinking`. tools: that the assistant may call, as OpenAI's protocol describes them."""
        given = [self._given(message) for message in messages]
        if self._undated is not None and self.tells_date(messages):
            name, self._undated = self._undated, None
            _log.warning(
                "The chat template of %s puts today's date into prompts, so that answers change with the day; "
                "--date YYYY-MM-DD fixes it (in Python date= of edge.load).",
                name,
            )
        return self._run(given, variables or {}, tools)

    @cached_property
    def takes_tools(self) -> bool:
        """True if the template tells the assistant of tools that it may call."""
        tool = {"type": "function", "function": {"name": MARK, "description": WORDS, "parameters": {"type": "object"}}}
        try:
            return MARK in self.render([Message(role="user", content=WORDS)], tools=[tool])
        except (InputError, BundleError):
            return False

    @cached_property
    def takes_effort(self) -> bool:
        """True if the template tells the assistant how much to think."""
        from jinja2 import nodes

        return any(name.name == EFFORT for name in self.tree().find_all(nodes.Name))

    @cached_property
    def _takes_thinking(self) -> bool:
        from jinja2 import nodes

        return any(each.attr == THINKING for each in self.tree().find_all(nodes.Getattr))

    @property
    def source(self) -> str:
        """The template's text."""
        return self._source

    def tells_date(self, messages: Sequence[Message]) -> bool:
        """True if the rendered prompt depends on the date."""
        if CLOCK not in self._source:
            return False
        given = [self._given(message) for message in messages]

        def on(day: datetime) -> str:
            return self._run(given, {CLOCK: lambda layout: _date(day, layout)})

        return on(DAYS[0]) != on(DAYS[1])

    def _run(
        self,
        messages: Sequence[Mapping[str, Any]],
        variables: Mapping[str, Any],
        tools: Sequence[Mapping[str, Any]] | None = None,
    ) -> str:
        from edge.runtime.text.meter import Exhausted

        more = [] if tools is None else [json.dumps(tools)]
        more += [json.dumps(message["tool_calls"]) for message in messages if "tool_calls" in message]
        self._environment.begin(sum(map(_length, messages)) + sum(map(len, more)), len(messages) + len(tools or ()))
        offered = None if tools is None else list(tools)
        given = {"messages": list(messages), "tools": offered, "documents": None, "add_generation_prompt": True}
        given["xml_tools"] = offered  # as SmolLM3's templates call those that are called in Hermes's form
        try:
            return self._template.render({**variables, **given, **self._special})
        except Exhausted as e:
            raise BundleError(f"The bundle's chat template is no honest one, because {e}; use --raw.") from None
        except Exception as e:  # a template is a program of the model's: it may raise anything
            raise InputError(f"The model's chat template refuses this conversation: {on_one_line(e)}.") from None

    def check(self, messages: Sequence[Message]) -> None:
        """Raise an error where the template leaves out the words of a role: BundleError for the user's, else
        InputError."""
        for role in dict.fromkeys(message["role"] for message in messages):
            if self._parts(role) is not None:
                continue
            if role == "user":
                raise BundleError(
                    "The bundle's chat template leaves out what the user says, as a text and in parts; use --raw."
                )
            raise InputError(f"The model's chat template has no place for a message of {role}; leave it out.")

    def _parts(self, role: str) -> bool | None:
        """True if the template expects the content of this role as a list of parts, False for a text; None: it leaves
        the content out."""
        if role not in self._takes_parts:
            self._takes_parts[role] = self._form(role)
        return self._takes_parts[role]

    def _given(self, message: Message) -> Mapping[str, Any]:
        """A message with its content as the template takes it: a text, or a list of parts, here of one; and with its
        thoughts by the name that the template has for them."""
        given = _in_parts(message) if self._parts(message["role"]) else message
        if "reasoning_content" not in message or not self._takes_thinking:
            return given
        # gpt-oss's template takes either thoughts or words before a call of a tool, and calls both thoughts.
        content = "" if "tool_calls" in message else given["content"]
        return {**given, "content": content, THINKING: message["reasoning_content"]}

    def _form(self, role: str) -> bool | None:
        """Find out the form of content that the template expects of this role: True for a list of parts, False for a
        text. None: it leaves the content out in both forms. The template may leave out earlier answers."""
        from edge.runtime.text.meter import STEPS

        refused = True
        for before, after in self._around(role):
            for parts in (False, True):
                message = Message(role=role, content=MARK)
                rendered: str | None
                try:
                    rendered = self._run([*before, _in_parts(message) if parts else message, *after], {})
                except BundleError:  # it was stopped
                    return False
                except InputError:
                    rendered = None
                if rendered is not None and MARK in rendered:
                    return parts
                if self._environment.meter.steps < STEPS - LABORIOUS:  # no honest one: it is not tried again and again
                    return False
                refused = refused and rendered is None
        return False if refused or role == "assistant" else None

    def _around(self, role: str) -> list[tuple[list[Mapping[str, Any]], list[Mapping[str, Any]]]]:
        """The messages before and after one of this role, in conversations that templates take."""
        if role == "user":
            return [([], []), ([Message(role="system", content=WORDS)], [])]
        user = self._given(Message(role="user", content=WORDS))
        return [([user], [user])] if role == "assistant" else [([], [user])]

    def tree(self) -> jinja2.nodes.Template:
        """The template as jinja2 parses it."""
        return self._template.environment.parse(self._source)


def chat_template(manifest: Manifest, text: Text, day: str | None = None) -> ChatTemplate | None:
    """The chat template of a bundle; None where it has none. day: the date, YYYY-MM-DD, for templates that tell the
    model one; default: today, which is logged once. InputError where a date is given and the template tells none."""
    source = manifest.chat_template
    if day is not None and CLOCK not in (source or ""):
        raise InputError(f"The chat template of {manifest.name} tells the model no date; leave out --date.")
    if source is None:
        return None
    special = {name: token for name, i in manifest.tokens.named.items() if (token := text.token(i)) is not None}
    if day is None:
        return ChatTemplate(source, special, undated=manifest.name)
    return ChatTemplate(source, special, lambda: datetime.fromisoformat(day))


def fixed_day(manifest: Manifest) -> str | None:
    """The date of prompts that must be the same every day; None for a template without a date."""
    return FIXED_DAY if CLOCK in (manifest.chat_template or "") else None


def after_answer(template: ChatTemplate) -> str:
    """Return the text that a template writes after an answer that is not the last message; empty where that is
    unknown."""
    talk = [Message(role=role, content=said) for role, said in zip(TURNS, (WORDS, MARK, WORDS), strict=True)]
    try:
        _, found, after = template.render(talk).partition(MARK)
    except (InputError, BundleError):
        return ""
    return after if found else ""


def learn_end(manifest: Manifest, text: Text, template: Callable[[], ChatTemplate | None]) -> None:
    """Make the token that follows an answer in the chat template an end token, whatever the manifest says."""
    form = manifest.chat_format
    with contextlib.suppress(EdgeError):  # what is wrong with a template, a prompt that needs it says
        made = template() if form is None else None
        text.end_with(form.user.before if form is not None else after_answer(made) if made is not None else "")


def written(
    template: ChatTemplate,
    messages: Sequence[Message],
    text: Text,
    render: Callable[[Sequence[Message]], str] | None = None,
) -> str:
    """Render the prompt for the assistant's next turn, in which control tokens that people typed are hidden
    (`Text.controls`). render: makes it of messages with the template; default: the template alone.

    Raises:
        EdgeError: as `ChatTemplate.render` and `check`; or the template changes a control token in a message.
    """
    render = template.render if render is None else render
    rendered, controls = render(messages), text.controls
    if rendered:  # else the tokenizer says so
        template.check(messages)

    def hidden(message: Message) -> str:
        return controls.hide(message["content"], answer=message["role"] == "assistant")

    typed = [m["content"] for m in messages if controls.typed(m["content"], answer=m["role"] == "assistant")]
    if not typed:
        return rendered
    for left in ((), ("assistant",)):  # a template may look for tokens in answers: the ends of thoughts
        with contextlib.suppress(InputError):
            shown = render([m if m["role"] in left else {**m, "content": hidden(m)} for m in messages])
            if controls.show(shown) == controls.show(rendered):  # what tools say is hidden in both
                return shown
    raise InputError(
        f"The model's chat template takes a part of {typed[0][:40]!r} for a sign of its own; write it in another way."
    )


def _in_parts(message: Message) -> Mapping[str, Any]:
    return {**message, "content": [{"type": "text", "text": message["content"]}]}


def _length(message: Mapping[str, Any]) -> int:
    """Characters of a message's content."""
    content = message["content"]
    return len(content) if isinstance(content, str) else sum(len(part["text"]) for part in content)


def _compile(source: str, now: Callable[[], datetime]) -> tuple[jinja2.Template, Bounded]:
    """The template, and the sandbox in which it renders."""
    # Importing jinja2 takes 40 ms.
    from jinja2 import TemplateError, nodes
    from jinja2.ext import Extension, LoopControlExtension
    from jinja2.parser import Parser

    from edge.runtime.text.sandbox import Bounded

    class Generation(Extension):
        """`{% generation %}` marks the assistant's words for training; here it has no effect."""

        tags = {"generation"}  # noqa: RUF012

        def parse(self, parser: Parser) -> list[nodes.Node]:
            next(parser.stream)
            return parser.parse_statements(("name:endgeneration",), drop_needle=True)

    def refuse(message: str) -> NoReturn:
        raise TemplateError(message)

    if len(source) > LONGEST:
        raise BundleError(
            f"The bundle's chat template has {len(source):,} characters, and none may have more than {LONGEST:,}; "
            "use --raw."
        )
    environment = Bounded(trim_blocks=True, lstrip_blocks=True, extensions=[LoopControlExtension, Generation])
    environment.add_filter("tojson", _to_json)
    environment.globals.update(raise_exception=refuse, **{CLOCK: lambda layout: _date(now(), layout)})
    try:
        return environment.from_string(source), environment
    except Exception as e:  # not TemplateError alone: Python's compiler refuses what is nested too deeply
        raise BundleError(f"The bundle's chat template is not valid jinja2 ({on_one_line(e)}); use --raw.") from None


def _date(day: datetime, layout: str) -> str:
    if len(layout) > LAYOUT:
        raise ValueError(f"a date's layout has more than {LAYOUT} characters")
    return day.strftime(layout)


def _to_json(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | str | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """jinja2's own `tojson` escapes characters for HTML, which no model was trained on. Options are transformers'."""
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)
