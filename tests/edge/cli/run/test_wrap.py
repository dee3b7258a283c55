"""Answers on a terminal break at words while they stream, and nothing of them is lost."""

from __future__ import annotations

import random
import re

import pytest

from edge.cli.run.wrap import Wrapped, cells, fold

WORDS = [
    "a",
    "the",
    "word",
    "Donaudampfschiff",
    "naïve",
    "e\u0301te\u0301",
    "日本語",
    "한국어",
    "😀",
    "—",
    "x,",
    "(y)",
    "ไทย",
]


def streamed(text: str, width: int, seed: int) -> str:
    """What comes of a text in pieces of any lengths."""
    choose, out = random.Random(seed), list[str]()
    wrapped = Wrapped(out.append, lambda: width)
    while text:
        size = choose.randint(1, 7)
        wrapped.write(text[:size])
        text = text[size:]
    wrapped.end()
    return "".join(out)


@pytest.mark.parametrize("width", [1, 7, 20, 40, 80, 200])
@pytest.mark.parametrize("seed", range(8))
def test_prose_breaks_at_words_however_it_is_streamed(width: int, seed: int) -> None:
    choose = random.Random(seed)
    lines = [" ".join(choose.choices(WORDS, k=choose.randint(0, 60))) for _ in range(4)]
    text = "\n".join(lines)
    shown = streamed(text, width, seed)
    assert shown == fold(text, width)
    assert re.sub(r"\s", "", shown) == re.sub(r"\s", "", text), "nothing is lost, and nothing is in another place"
    assert set(re.split(r"[\s日本語]+", shown)) == set(re.split(r"[\s日本語]+", text)), "no word is cut"
    longest = max(map(cells, WORDS))
    if width >= longest:
        assert all(cells(line) <= width for line in shown.split("\n"))


@pytest.mark.parametrize(
    ("text", "width", "shown"),
    [
        ("one two three", 7, "one two\nthree"),
        ("one two", 7, "one two"),
        ("one  two three", 8, "one  two\nthree"),
        ("- one two three", 9, "- one two\nthree"),
        ("  - one two", 8, "  - one\ntwo"),
        ("日本語のテキスト", 8, "日本語の\nテキスト"),
        ("日本語の、テキスト", 8, "日本語\nの、テキ\nスト"),
        ("日本「語」", 6, "日本\n「語」"),
        ("한국어 텍스트입니다", 10, "한국어\n텍스트입니다"),
        ("e\u0301" * 5 + " " + "o\u0308" * 5, 11, "e\u0301" * 5 + " " + "o\u0308" * 5),
        ("see https://example.org/a/very/long/path now", 12, "see\nhttps://example.org/a/very/long/path\nnow"),
        (
            "```\na long line of code here\n```\nand then prose",
            10,
            "```\na long line of code here\n```\nand then\nprose",
        ),
        ("~~~\n``` a b c d e f\n~~~\na b c d e f", 8, "~~~\n``` a b c d e f\n~~~\na b c d\ne f"),
        ("```x``` is code and prose", 12, "```x``` is\ncode and\nprose"),
        ("| a | b | c | d |\n|---|---|", 8, "| a | b | c | d |\n|---|---|"),
        ("    return one + two", 12, "    return one + two"),
        ("    - one two three", 12, "    - one\ntwo three"),
        ("a\r\nb", 12, "a\r\nb"),
    ],
)
def test_where_lines_break(text: str, width: int, shown: str) -> None:
    for seed in range(4):
        assert streamed(text, width, seed) == shown


def test_a_window_that_changes_its_width_counts_from_the_next_word() -> None:
    out, width = list[str](), [20]
    wrapped = Wrapped(out.append, lambda: width[0])
    wrapped.write("one two three four ")
    width[0] = 8
    wrapped.write("five six seven")
    wrapped.end()
    assert "".join(out) == "one two three four\nfive six\nseven"
