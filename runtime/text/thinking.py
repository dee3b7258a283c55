"""Prompts of models that think before they answer: the chat template rendered with its switch, or with one of ours.

Where a template has no switch, an empty block of thoughts behind the prompt leaves nothing to think about: so Qwen3's
own template does it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from edge.errors import InputError
from edge.manifest import Thinking
from edge.runtime.text.template import EFFORT, ChatTemplate, Message


def render(
    template: ChatTemplate,
    marks: Thinking | None,
    messages: Sequence[Message],
    think: bool | None = None,
    tools: Sequence[Mapping[str, Any]] | None = None,
    effort: str | None = None,
) -> str:
    """Render the prompt for the assistant's next turn. think: whether it thinks first; None: as the template has it.
    tools: that it may call. effort: how much it thinks, for templates that know that.

    Raises:
        InputError: the template refuses the conversation, or the model is to think and has no marks for that, or has
            a template that knows no effort.
    """
    if effort is not None and not template.takes_effort:
        raise InputError(
            "The model's chat template does not know how much to think; leave the effort out, or limit the tokens of "
            "thoughts."
        )
    if marks is None and think:
        raise InputError(
            "The model is to think first, and its chat template and vocabulary have no marks for thoughts; leave that "
            "option out."
        )
    given: dict[str, Any] = {} if effort is None else {EFFORT: effort}
    if marks is None or think is None:
        return template.render(messages, given, tools)
    if marks.variable is not None:
        return template.render(messages, given | {marks.variable: think}, tools)
    if marks.words:
        return template.render(_with_word(messages, marks.words[0 if think else 1]), given, tools)
    prompt = template.render(messages, given, tools)
    return _forced(prompt, marks, think) if think or marks.default else prompt


def _with_word(messages: Sequence[Message], word: str) -> list[Message]:
    """The conversation with a word at the end of its system message."""
    first = messages[0]
    if first["role"] != "system":
        return [Message(role="system", content=word), *messages]
    return [{**first, "content": f"{first['content']} {word}"}, *messages[1:]]


def _forced(prompt: str, marks: Thinking, think: bool) -> str:
    """The prompt with a block of thoughts that is begun, or begun and closed."""
    if marks.answer:  # thoughts are a message by themselves, which may be missing
        return prompt.removesuffix(marks.open).removesuffix(marks.answer) + (marks.open if think else marks.answer)
    block = Block.at_end(prompt, marks)
    if block.begun:
        return prompt if think else f"{prompt.rstrip()}\n\n{marks.close}{marks.after}"
    if think:
        before = prompt.rpartition(marks.open)[0] if block.closed else prompt
        return f"{before}{marks.open}\n"
    return prompt if block.closed else f"{prompt}{marks.open}\n\n{marks.close}{marks.after}"


class Block(NamedTuple):
    """The block of thoughts where an answer begins. begun: the prompt opens it. closed: the prompt closes it, too."""

    marks: Thinking
    begun: bool
    closed: bool

    @classmethod
    def at_end(cls, prompt: str, marks: Thinking) -> Block:
        """The block at the end of a prompt."""
        end = prompt.rstrip()
        return cls(marks, end.endswith(marks.open), end.endswith(marks.answer or marks.close))
