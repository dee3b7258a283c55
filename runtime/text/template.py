"""Chat templates: the jinja2 text of a bundle, rendered as transformers renders it (`apply_chat_template`)."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any, NoReturn, NotRequired, TypedDict

from edge.errors import BundleError, InputError, on_one_line

if TYPE_CHECKING:
    import jinja2
    import jinja2.nodes

    from edge.manifest import Manifest
    from edge.runtime.text.tokenizer import Text


LAYOUT = 256  # characters of a date's layout: the system makes as many times as many
LONGEST = 1 << 17  # characters of a template; the longest known have a fifth of that


class Message(TypedDict):
    """One turn of a conversation; roles are those that the model's template knows: system, user, assistant.

    reasoning_content: what the assistant thought before, of which the template writes what the model shall read again.
    """

    role: str
    content: str
    reasoning_content: NotRequired[str]


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
    if not messages or not messages[-1]["content"].strip():
        raise InputError("The prompt is empty; give the model something to answer.")


class ChatTemplate:
    """A compiled template; BundleError where it is invalid. special: special tokens by the names that templates use
    (`bos_token`, `eos_token`, `pad_token`). now: the clock of templates that tell the model the date."""

    def __init__(self, source: str, special: Mapping[str, str], now: Callable[[], datetime] = datetime.now) -> None:
        self._source = source
        self._special = dict(special)
        self._template, self._begin = _compile(source, now)

    def render(self, messages: Sequence[Message], variables: Mapping[str, Any] | None = None) -> str:
        """The prompt for the assistant's next turn; InputError where the template refuses the conversation. variables:
        further ones that the template knows, such as `enable_thinking`."""
        from edge.runtime.text.sandbox import Exhausted

        self._begin(sum(len(message["content"]) for message in messages), len(messages))
        try:
            given = {"messages": list(messages), "tools": None, "documents": None, "add_generation_prompt": True}
            return self._template.render(**{**(variables or {}), **given, **self._special})
        except Exhausted as e:
            raise BundleError(f"The bundle's chat template is no honest one, because {e}; use --raw.") from None
        except Exception as e:  # a template is a program of the model's: it may raise anything
            raise InputError(f"The model's chat template refuses this conversation: {on_one_line(e)}.") from None

    def tree(self) -> jinja2.nodes.Template:
        """The template as jinja2 parses it."""
        return self._template.environment.parse(self._source)


def chat_template(manifest: Manifest, text: Text) -> ChatTemplate | None:
    """The chat template of a bundle; None where it has none."""
    if manifest.chat_template is None:
        return None
    special = {name: token for name, i in manifest.tokens.named.items() if (token := text.token(i)) is not None}
    return ChatTemplate(manifest.chat_template, special)


def _compile(source: str, now: Callable[[], datetime]) -> tuple[jinja2.Template, Callable[[int, int], None]]:
    """The template, and what is called before each render with the conversation's characters and messages."""
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

    def date(layout: str) -> str:
        if len(layout) > LAYOUT:
            raise TemplateError(f"a date's layout has more than {LAYOUT} characters")
        return now().strftime(layout)

    if len(source) > LONGEST:
        raise BundleError(
            f"The bundle's chat template has {len(source):,} characters, and none may have more than {LONGEST:,}; "
            "use --raw."
        )
    environment = Bounded(trim_blocks=True, lstrip_blocks=True, extensions=[LoopControlExtension, Generation])
    environment.add_filter("tojson", _to_json)
    environment.globals.update(raise_exception=refuse, strftime_now=date)
    try:
        return environment.from_string(source), environment.begin
    except Exception as e:  # not TemplateError alone: Python's compiler refuses what is nested too deeply
        raise BundleError(f"The bundle's chat template is not valid jinja2 ({on_one_line(e)}); use --raw.") from None


def _to_json(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | str | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """jinja2's own `tojson` escapes characters for HTML, which no model was trained on. Options are transformers'."""
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)
