"""Thoughts are told from an answer however its text comes in pieces, and end where they are to."""

from __future__ import annotations

import random
from pathlib import Path

import numpy as np
import pytest
from fake_engine import byte_bundle

from edge.manifest import Thinking
from edge.runtime.decode.thoughts import Closing, Thoughts
from edge.runtime.text.thinking import Block
from edge.runtime.text.tokenizer import Text

MARKS = [Thinking("<think>", "</think>"), Thinking("[THINK]", "[/THINK]"), Thinking("<|START|>", "<|END|>", after="")]
WORDS = ["so", " ", "\n", "\n\n", "<", "</", "<th", "think>", "é", "🙂", "</thin", "[", "a < b", "]", "x"]


@pytest.fixture(scope="module")
def text(tmp_path_factory: pytest.TempPathFactory) -> Text:
    return Text(byte_bundle(tmp_path_factory.mktemp("bytes")))


def wanted(whole: str, marks: Thinking, begun: bool) -> tuple[str | None, str]:
    """Thoughts and answer of a whole text."""
    if not begun:
        if not whole.lstrip().startswith(marks.open):
            return None, whole
        whole = whole.lstrip().removeprefix(marks.open)
    thoughts, _, said = whole.partition(marks.close)
    return thoughts.strip(), said.lstrip()


@pytest.mark.parametrize("marks", MARKS, ids=lambda marks: marks.open)
@pytest.mark.parametrize("begun", [False, True])
def test_parts_are_the_same_however_the_text_is_cut(text: Text, marks: Thinking, begun: bool) -> None:
    draw = random.Random(11)
    for _ in range(400):
        said = ["".join(draw.choices(WORDS, k=draw.randrange(7))) for _ in range(3)]
        whole = draw.choice(
            [
                f"{draw.choice(['', ' ', chr(10)])}{'' if begun else marks.open}{said[0]}{marks.close}{said[1]}",
                f"{'' if begun else marks.open}{said[0]}",
                said[0] + said[1],
                f"{said[0]}{marks.close}{said[1]}{marks.open}{said[2]}",
            ]
        )
        thoughts, parts = Thoughts(Block(marks, begun, False), text), list[tuple[str | None, str]]()
        left = whole
        while left:
            size = draw.randrange(1, 6)
            parts.append(thoughts.push(None, left[:size]))
            left = left[size:]
        parts.append(thoughts.flush())
        found = [thought for thought, _ in parts if thought is not None]
        thought, answer = wanted(whole, marks, begun)
        assert "".join(said for _, said in parts) == answer, whole
        assert "".join(found) == (thought or ""), whole
        assert bool(found) == (thought is not None and whole != ""), whole


def test_a_special_token_without_text_is_a_mark(tmp_path: Path, text: Text) -> None:
    marks = Thinking("<start>", "<end>")  # special tokens of the vocabulary of bytes
    opened, closed = text.encode("<start><end>")
    thoughts = Thoughts(Block(marks, False, False), text)
    detokenizer = text.detokenizer()
    parts = [thoughts.push(t, detokenizer.push(t)) for t in [opened, *text.encode("so"), closed, *text.encode("it is")]]
    assert [part for part, _ in parts] == ["", "s", "o", "", None, None, None, None, None]
    assert "".join(said for _, said in parts) == "it is"


@pytest.mark.parametrize("marks", MARKS, ids=lambda marks: marks.open)
@pytest.mark.parametrize("begun", [False, True])
@pytest.mark.parametrize("limit", [0, 1, 5, 40])
def test_thoughts_end_after_as_many_tokens_as_are_wanted(text: Text, marks: Thinking, begun: bool, limit: int) -> None:
    block = Block(marks, begun, False)
    script = iter(text.encode(("" if begun else marks.open) + "t" * 20 + marks.close + "a" * 200))
    closing = Closing(lambda logits: next(script), block, text, limit)
    said = text.decode([closing(np.zeros(300, np.float32)) for _ in range(120)])
    opened, thoughts, rest = ("", said, "") if begun else said.partition(marks.open)
    thoughts, closed, answer = (rest or thoughts).partition(marks.close)
    assert closed and not opened.strip()
    assert thoughts.strip() == "t" * min(limit, 20)
    if limit < 20:
        assert answer.startswith(f"{marks.after}t"), "what the model would have thought on is its answer now"


def test_answers_without_thoughts_are_left_alone(text: Text) -> None:
    words = text.encode("  Hello <think> there")
    script = iter(words)
    closing = Closing(lambda logits: next(script), Block(MARKS[0], False, False), text, 2)
    assert [closing(np.zeros(300, np.float32)) for _ in words] == words
