"""An option is written once, as a field: the command line, keywords and the page of options follow from it."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
from places import ROOT

from edge.cli.arguments import Parser, add_fields, taken
from edge.errors import InputError
from edge.runtime.decode.generate_options import GenerateOptions
from edge.runtime.options import Others, check_together, fields, has_option, integer, option, option_of, unless_none
from tools.options import SECTIONS, keywords, rows, written


@dataclass(frozen=True)
class More(GenerateOptions):
    """Options of an answer, and one more."""

    least_words: int | None = option(
        None,
        unless_none(integer("words", "1 or more", least=1)),
        flag="--words/--least-words N",
        heading="answer",
        help="minimum words of an answer",
        needs=Others(("max_tokens",), "--words needs --max-tokens."),
    )


def test_a_field_is_all_that_a_new_option_takes() -> None:
    parser = Parser("edge run", "")
    add_fields(parser.options("answer"), "answer", More)
    given = taken(parser.parse_args(["--words", "3", "--stop", "One.", "--stop", "Two."]), More)
    assert given == {"least_words": 3, "stop": ["One.", "Two."]}
    assert "--words N, --least-words N" in parser.format_help() and "minimum words of an answer" in parser.format_help()
    with pytest.raises(InputError, match="--words needs --max-tokens"):
        check_together(More, given)
    with pytest.raises(InputError, match="words must be 1 or more, not 0"):
        More(least_words=0)
    assert "    least_words: int | None\n" in keywords((More,))
    row = "| `least_words` | `--words N` | `int \\| None`: 1 or more | minimum words of an answer | `None` |\n"
    assert rows(More).startswith(row)


@pytest.mark.parametrize(("path", "text"), written().items())
def test_files_that_follow_from_options_are_as_their_fields_are(path: str, text: str) -> None:
    assert (ROOT / path).read_text(encoding="utf-8") == text, "write it anew: make options"


@pytest.mark.parametrize("options", [options for options, _ in SECTIONS.values()])
def test_every_option_says_what_it_means_in_a_line(options: type) -> None:
    for field in filter(has_option, fields(options)):
        known = option_of(field)
        assert known.help, f"{field.name} says nothing"
        for text in (known.help, known.about):
            assert "\n" not in text and not text.endswith("."), f"{field.name} is a row of a table"
