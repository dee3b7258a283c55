"""An answer in channels is split into thoughts and words by its special tokens, and its marks are never shown."""

from __future__ import annotations

import dataclasses
import random

import numpy as np
import pytest
from harmony import ANSWER, MARKS, OPEN, START, harmony_bundle

from edge.errors import BundleError
from edge.runtime.decode.answer import Ends
from edge.runtime.decode.answer_text import AnswerText
from edge.runtime.decode.channels import Channels
from edge.runtime.decode.thoughts import Closing, parted
from edge.runtime.text.thinking import Block
from edge.runtime.text.tokenizer import Text

FREE = Block(MARKS, begun=False, closed=False)
PREAMBLE = "<|channel|>commentary<|message|>"
CALL = '<|channel|>commentary to=functions.add <|constrain|>json<|message|>{"a": 1}<|call|>'
CALLED = '<tool_call>{"name": "add", "arguments": {"a": 1}}</tool_call>'
# What a model says; its thoughts, and its answer.
SAID: dict[str, tuple[str, str | None, str]] = {
    "thoughts": (f"{OPEN}hm, é🙂<|end|>{START}{ANSWER}Yes 🙂.<|return|>", "hm, é🙂", "Yes 🙂."),
    "none": (f"{ANSWER}Yes.<|return|>", None, "Yes."),
    "spaces stay": (f"{OPEN} hm\n<|end|>{START}{ANSWER}\n Yes. <|return|>", " hm\n", "\n Yes. "),
    "the end of every message": (f"{OPEN}hm<|end|>{START}{ANSWER}Yes.<|end|>", "hm", "Yes."),
    "thoughts twice": (f"{OPEN}hm<|end|>{START}{OPEN}so<|end|>{START}{ANSWER}Yes.<|return|>", "hm\n\nso", "Yes."),
    "a preamble": (
        f"{OPEN}hm<|end|>{START}{PREAMBLE}Wait.<|end|>{START}{OPEN}so<|end|>{START}{ANSWER}Yes.<|return|>",
        "hm\n\nso",
        "Wait.\n\nYes.",
    ),
    "a call": (f"{OPEN}hm<|end|>{START}{CALL}", "hm", CALLED),
    "a call at once": (CALL, None, CALLED),
    "a call after a preamble": (f"{PREAMBLE}Wait.<|end|>{START}{CALL}", None, f"Wait.\n{CALLED}"),
    "the recipient in front": (
        f'{OPEN}hm<|end|>{START} to=functions.add<|channel|>commentary json<|message|>{{"a": 1}}<|call|>',
        "hm",
        CALLED,
    ),
    "the recipient at once": (' to=functions.add<|channel|>commentary json<|message|>{"a": 1}<|call|>', None, CALLED),
    "no space before the mark": (CALL.replace(" <|constrain|>", "<|constrain|>"), None, CALLED),
    "a form": ("<|channel|>final <|constrain|>json<|message|>{}<|return|>", None, "{}"),
    "no header": ("  Yes.<|return|>", None, "  Yes."),
    "nothing": ("<|return|>", None, ""),
    "thoughts alone": (f"{OPEN}hm<|return|>", "hm", ""),
}


@pytest.fixture(scope="module")
def text(tmp_path_factory: pytest.TempPathFactory) -> Text:
    return Text(harmony_bundle(tmp_path_factory.mktemp("harmony")))


def split(text: Text, said: str, block: Block = FREE) -> tuple[str | None, str, str | None]:
    """Thoughts, the answer, and the reason of its end."""
    answer = AnswerText(text, Ends((), 1000, 1000), block)
    thoughts, words = list[str](), ""
    for token in text.encode(said):
        found = answer.push(token)
        thoughts += [] if found.thoughts is None else [found.thoughts]
        words += found.text
        if found.finish is not None:
            return "".join(thoughts) if thoughts else None, words, found.finish
    found = answer.flush()
    return "".join(thoughts) if thoughts else None, words + found.text, None


@pytest.mark.parametrize("name", SAID)
def test_thoughts_and_words_are_told_apart(text: Text, name: str) -> None:
    said, thoughts, answer = SAID[name]
    assert split(text, said) == (thoughts, answer, "stop")


def test_the_end_of_thoughts_does_not_end_the_answer(text: Text) -> None:
    assert {text.encode("<|end|>")[0]} < text.eos
    thoughts, answer, finish = split(text, f"{OPEN}hm<|end|>{START}{PREAMBLE}Wait.<|end|>")
    assert (thoughts, answer, finish) == ("hm", "Wait.", None)


def test_marks_that_are_plain_text_are_text(text: Text) -> None:
    """As when an answer explains the format."""
    answer = AnswerText(text, Ends((), 1000, 1000), Block(MARKS, begun=False, closed=True))
    said = "".join(answer.push(byte).text for byte in f"{OPEN}<|end|>".encode())
    assert said == f"{OPEN}<|end|>"


@pytest.mark.parametrize(("mark", "begun"), [(OPEN, True), (ANSWER, False)])
def test_a_channel_that_the_prompt_opens_goes_on(text: Text, mark: str, begun: bool) -> None:
    block = Block.at_end(f"x{START}{mark}", MARKS)
    assert (block.begun, block.closed) == (begun, not begun)
    rest = f"hm<|end|>{START}{ANSWER}Yes.<|return|>" if begun else "Yes.<|return|>"
    assert split(text, rest, block) == ("hm" if begun else None, "Yes.", "stop")


def test_no_order_of_tokens_shows_a_mark(text: Text) -> None:
    draw = random.Random(7)
    parts = [OPEN, ANSWER, PREAMBLE, START, CALL, "<|end|>", "<|message|>", "<|channel|>", "hm", " to=x", "final", "é"]
    for _ in range(500):
        thoughts, words, _ = split(text, "".join(draw.choices(parts, k=draw.randrange(1, 9))))
        assert "<|" not in (thoughts or "") + words


def test_stop_strings_are_not_looked_for_in_thoughts(text: Text) -> None:
    answer = AnswerText(text, Ends(["\n"], 1000, 1000), FREE)
    found = [answer.push(token) for token in text.encode(f"{OPEN}a\nb<|end|>{START}{ANSWER}c\n")]
    assert "".join(each.text for each in found) == "c"
    assert [each.finish for each in found if each.finish] == ["stop"]


@pytest.mark.parametrize("begun", [False, True])
@pytest.mark.parametrize("limit", [0, 1, 5, 40])
def test_thoughts_end_after_as_many_tokens_as_are_wanted(text: Text, begun: bool, limit: int) -> None:
    block = Block(MARKS, begun, closed=False)
    opened = "" if begun else OPEN
    script = iter(text.encode(f"{opened}{'t' * 20}<|end|>{START}{ANSWER}{'a' * 200}"))
    closing = Closing(lambda logits: next(script), block, text, limit)
    tokens = [closing(np.zeros(300, np.float32)) for _ in range(120)]
    said = parted(block, text)
    detokenizer = text.detokenizer()
    found = [said.push(token, detokenizer.push(token)) for token in tokens]
    assert "".join(thought or "" for thought, _ in found) == "t" * min(limit, 20)
    answer = "".join(words for _, words in found)
    assert answer and answer[0] == ("a" if limit > 20 else "t"), "what it would have thought on is its answer now"


def test_tokens_of_marks_count_as_those_of_thoughts(text: Text) -> None:
    channels = Channels(FREE, text)
    detokenizer, tokens = text.detokenizer(), text.encode(f"{OPEN}hm<|end|>{START}{ANSWER}Yes.")
    for token in tokens:
        channels.push(token, detokenizer.push(token))
    assert (channels.tokens, channels.thought) == (len(tokens) - len("Yes."), len("hm"))


def test_marks_that_the_vocabulary_lacks_are_refused(text: Text) -> None:
    for wrong in ({"close": "<|stop|>"}, {"open": "<analysis>"}, {"answer": "<final>", "after": "<final>"}):
        with pytest.raises(BundleError, match="not tokens of the bundle's vocabulary"):
            Channels(Block(dataclasses.replace(MARKS, **wrong), begun=False, closed=False), text)
