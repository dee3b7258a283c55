"""Detection of a model that thinks before it answers, and of the marks around its thoughts. Its chat template and its
vocabulary show both; its name does not count.

Marks are tags with a word for thoughts in them, and the template or the vocabulary has both the opening and the closing
one. Or thoughts are messages of a channel, which the template writes (`channels`). A switch for thoughts is found by
rendering the template with a variable true and false, or with a word in the system message.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from typing import TYPE_CHECKING

from edge.errors import EdgeError
from edge.manifest import Thinking
from edge.runtime.text.template import MARK, TURNS, WORDS, ChatTemplate, Message
from edge.runtime.text.thinking import render

if TYPE_CHECKING:
    from edge.export.facts.checkpoint import TokenizerFiles

_THOUGHT = re.compile("think|thought|reason", re.IGNORECASE)
_TAG = re.compile(r"[<\[][^\s<>\[\]{}()'\"\\]{1,40}[>\]]")
# How the closing mark follows from the opening one.
_HALVES = (("START", "END"), ("start", "end"), ("BEGIN", "END"), ("begin", "end"))
_NOT_ASKED = re.compile("budget|effort|past|keep|preserve|history|content|truncate", re.IGNORECASE)
_SWITCHED_OFF = re.compile(r"/?no[_ -]?think(ing)?|.*thinking off", re.IGNORECASE)
# An answer in a channel: its header in the template, what a prompt ends with, and what ends it.
_HEADER = re.compile(r"(<\|\w+\|>)(\w+)(<\|\w+\|>)$")
_START = re.compile(r"(<\|\w+\|>)\w*$")
_ANALYSIS = "analysis"
_ENDS = "<|return|>", "<|call|>"
_TRY: list[Message] = [Message(role="user", content="Zq0vX0j")]
_NOON = datetime(2001, 2, 3, 12)


def thinking(source: str | None, special: Mapping[str, str], vocabulary: Sequence[str]) -> Thinking | None:
    """The marks of the thoughts of a model with this chat template; None where it has none. special: texts of special
    tokens by their names in templates. vocabulary: tokens that are matched whole."""
    if source is None:
        return None
    try:
        template = ChatTemplate(source, special, lambda: _NOON)
        template.render(_TRY)
    except EdgeError:
        return None
    if (found := channels(template, vocabulary)) is not None:
        return found
    pair = next(_pairs(source, vocabulary), None)
    if pair is None:
        return None
    variable = next(_variables(template), None)
    words = [] if variable is not None else _words(template)
    marks = Thinking(*pair, variable=variable, words=words)
    off, plain = render(template, marks, _TRY, think=False), template.render(_TRY)
    after = off[len(off.rstrip()) :] if off.rstrip().endswith(marks.close) else marks.after
    default = plain != off and any(mark in source for mark in pair)
    return Thinking(*pair, after=after, variable=variable, words=words, default=default)


def channels(template: ChatTemplate, vocabulary: Sequence[str]) -> Thinking | None:
    """The marks of thoughts that are messages of the channel `analysis`, as OpenAI's harmony format has them; None
    where the template writes none. The header of an answer in the template shows them."""
    try:
        talk = [Message(role=role, content=said) for role, said in zip(TURNS, (WORDS, MARK, WORDS), strict=True)]
        (before, said, after), prompt = template.render(talk).partition(MARK), template.render(_TRY)
    except EdgeError:
        return None
    header, start, close = _HEADER.search(before), _START.search(prompt), _TAG.match(after)
    if not said or header is None or start is None or close is None:
        return None
    answer, opening = header[0], f"{header[1]}{_ANALYSIS}{header[3]}"
    if not before.endswith(start[0] + answer) or opening not in template.source:
        return None
    if not {header[1], header[3], start[1], close[0]} <= set(vocabulary):
        return None
    return Thinking(opening, close[0], after=start[0] + answer, answer=answer)


def channel_ends(source: str | None, marks: Thinking | None, vocabulary: Sequence[str]) -> list[str]:
    """The tokens that end answers in channels, of which a GGUF file names one: after an answer, and after a call of a
    tool."""
    if marks is None or not marks.answer:
        return []
    return [token for token in _ENDS if token in vocabulary and token in (source or "")]


def matched_whole(files: TokenizerFiles) -> list[str]:
    """The tokens that a tokenizer matches before anything else."""
    added = files.parsed.get_added_tokens_decoder()
    return [token.content for _, token in sorted(added.items())]


def ids_of(files: TokenizerFiles, tokens: Sequence[str]) -> list[int]:
    """The ids of tokens of the vocabulary."""
    return [i for token in tokens if (i := files.parsed.token_to_id(token)) is not None]


def described(marks: Thinking | None) -> str | None:
    """Return a sentence about a model that thinks for the export's output; None for others."""
    if marks is None or not (marks.default or marks.variable or marks.words):
        return None
    if marks.default:
        return f"The model may think before it answers ({marks.open} ... {marks.close}); --no-think leaves that out."
    return f"The model thinks before it answers ({marks.open} ... {marks.close}) with --think."


def _pairs(source: str, vocabulary: Sequence[str]) -> Iterator[tuple[str, str]]:
    """Opening and closing marks, those that the template names first."""
    whole = {token for token in vocabulary if _TAG.fullmatch(token)}
    named = list(dict.fromkeys(_TAG.findall(source)))
    known = {*named, *whole}
    tags = [tag for tag in (*named, *sorted(whole)) if _THOUGHT.search(tag)]
    for tag in tags:
        opening = tag.replace("/", "", 1) if "/" in tag[:3] else tag
        for closing in _closings(opening):
            if opening in known and closing in known:
                yield opening, closing


def _closings(opening: str) -> Iterator[str]:
    yield f"{opening[0]}/{opening[1:]}"
    if opening.startswith("<|"):
        yield f"<|/{opening[2:]}"
    for first, last in _HALVES:
        if first in opening:
            yield opening.replace(first, last, 1)


def _variables(template: ChatTemplate) -> Iterator[str]:
    """Return the template's variables that switch thoughts."""
    from jinja2 import nodes

    names = {node.name for node in template.tree().find_all(nodes.Name) if node.ctx == "load"}
    for name in sorted(names):
        if not _THOUGHT.search(name) or _NOT_ASKED.search(name):
            continue
        on, off, plain = (_rendered(template, given) for given in ({name: True}, {name: False}, None))
        shown = any(each in f"{on}{off}" and each not in f"{plain}" for each in ("True", "False"))
        if on is not None and off is not None and on != off and not shown:
            yield name


def _words(template: ChatTemplate) -> list[str]:
    """Words in a system message that switch thoughts on and off, which the template takes out of it."""
    from jinja2 import nodes

    strings = {node.value for node in template.tree().find_all(nodes.Const) if isinstance(node.value, str)}
    for off in sorted(text for text in strings if _SWITCHED_OFF.fullmatch(text)):
        on = re.sub(r"no[_ -]?", "", off, count=1) if not off.endswith("off") else f"{off[:-3]}on"
        if on not in strings:
            continue
        turned = [_rendered(template, None, [Message(role="system", content=f"x {word}"), *_TRY]) for word in (on, off)]
        thinking, not_thinking = turned
        if thinking and not_thinking and not_thinking.replace(off, on) != thinking:
            return [on, off]
    return []


def _rendered(
    template: ChatTemplate, given: Mapping[str, bool] | None, messages: Sequence[Message] = _TRY
) -> str | None:
    try:
        return template.render(messages, given)
    except EdgeError:
        return None
