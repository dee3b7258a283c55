"""A chat on a terminal: keys, pasted lines, history, what is typed during an answer, colours, and narrow windows."""

from __future__ import annotations

import json
import os
import random
import signal
import stat
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

if sys.platform == "win32":
    pytest.skip("pseudo-terminals are a Unix thing", allow_module_level=True)

import termios

from terminal_session import CTRL_C, CTRL_D, CTRL_Z, LEFT, UP, Session, pasted

from edge.cli.run.wrap import cells

USUAL = termios.ECHO | termios.ICANON
EDITORS = "readline", "libedit", "none"
LONG = "This answer is long enough to be stopped before it ends by itself."

Begin = Callable[..., Session]


@pytest.fixture
def begin(tmp_path: Path) -> Any:
    """Begins chats, which end with the test."""
    begun: list[Session] = []

    def begin(*answers: str, **options: Any) -> Session:
        begun.append(Session(tmp_path, *answers, **options))
        begun[-1].prompt()
        return begun[-1]

    yield begin
    for each in begun:
        each.__exit__()


def said(session: Session, tmp_path: Path) -> list[str]:
    """What the conversation consists of, as /save has it."""
    session.ask(f"/save {tmp_path / 'saved.json'}")
    return [each["content"] for each in json.loads((tmp_path / "saved.json").read_text())["messages"]]


def test_arrow_keys_edit_a_line_and_recall_the_ones_before(begin: Begin, tmp_path: Path) -> None:
    chat = begin("Hello.", "Fine.", "So.")
    chat.type(b"helo" + LEFT + b"l\r")
    chat.prompt()
    chat.ask("Grüße 日本")
    chat.type(UP + UP + b"!\r")
    chat.until("So.")
    chat.prompt()
    assert said(chat, tmp_path) == ["hello", "Hello.", "Grüße 日本", "Fine.", "hello!", "So."]
    chat.type(CTRL_D)
    assert chat.end() == 0 and chat.modes == USUAL


@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize("editor", EDITORS)
def test_pasted_lines_are_one_message(begin: Begin, tmp_path: Path, editor: str, seed: int) -> None:
    choose = random.Random(seed)
    words = ["one", "日本", "/reset", "/quit", '"""', "> ", "a b", "é", "def f():", "    x = 1"]
    text = "\n".join(choose.choice(words) for _ in range(choose.randint(2, 9))) + "\nend"
    chat = begin("Hello.", "Fine.", editor=editor)
    chat.type((text.encode() if editor == "libedit" else pasted(text)) + b" of it\r")
    chat.until("Hello.")
    chat.prompt()
    chat.ask("how?")
    assert said(chat, tmp_path) == [text + " of it", "Hello.", "how?", "Fine."]


@pytest.mark.parametrize("editor", EDITORS)
def test_quotes_make_several_lines_one_message(begin: Begin, tmp_path: Path, editor: str) -> None:
    chat = begin("Hello.", "Fine.", editor=editor)
    chat.type('"""one\r')
    chat.until(". ")
    chat.type("  two\r")
    chat.until(". ")
    chat.type('three"""\r')
    chat.until("Hello.")
    chat.prompt()
    chat.type('/system """Be\r')
    chat.until(". ")
    chat.type('brief."""\r')
    chat.prompt()
    chat.type('"""never\r')
    chat.until(". ")
    chat.type(CTRL_C)
    chat.until("leaves.")
    chat.prompt()
    chat.ask('"""two"""')
    assert said(chat, tmp_path) == ["Be\nbrief.", "two", "Hello."]


def test_what_was_typed_is_recalled_in_the_next_session_and_only_its_owner_reads_it(
    begin: Begin, tmp_path: Path, own_cache: Path
) -> None:
    chat = begin("Hello.")
    chat.type(pasted("one\ntwo") + b"\r")
    chat.until("Hello.")
    chat.prompt()
    chat.ask("/quit now")
    chat.type("/quit\r")
    assert chat.end() == 0
    kept = own_cache / "chat_history.jsonl"
    assert stat.S_IMODE(kept.stat().st_mode) == 0o600
    assert [json.loads(line) for line in kept.read_text().splitlines()] == ["one\ntwo", "/quit now", "/quit"]
    later = begin("Hello.")
    later.type(UP * 3 + b"!\r")
    later.until("Hello.")
    later.prompt()
    assert said(later, tmp_path) == ["one\ntwo!", "Hello."]


@pytest.mark.parametrize("how", [{"args": ["--no-history"]}, {"EDGE_HISTORY": "off"}])
def test_a_history_that_is_switched_off_keeps_nothing(begin: Begin, own_cache: Path, how: dict[str, Any]) -> None:
    chat = begin("Hello.", "Fine.", **how)
    chat.ask("secret")
    chat.type(UP + b"s\r")  # recalled in this session all the same
    chat.until("secrets")
    chat.until("Fine.")
    chat.prompt()
    chat.type(CTRL_D)
    assert chat.end() == 0
    assert not any(b"secret" in path.read_bytes() for path in own_cache.rglob("*") if path.is_file())


@pytest.mark.parametrize("harm", ["a folder", "not JSON", "binary", "a link", "a pipe", "nowhere"])
def test_a_history_that_cannot_be_used_hinders_no_chat(begin: Begin, own_cache: Path, harm: str) -> None:
    path = own_cache / "chat_history.jsonl"
    other = own_cache / "other"
    other.write_text("precious")
    match harm:
        case "a folder":
            path.mkdir()
        case "not JSON":
            path.write_text('{"a": \n"good"\n["x"]\n[[[')
        case "binary":
            path.write_bytes(b"\xff\xfe\0")
        case "a link":
            path.symlink_to(other)
        case "a pipe":
            os.mkfifo(path)
    environment = {"EDGE_HOME": "/dev/null/nowhere"} if harm == "nowhere" else {}
    chat = begin("Hello.", **environment)
    assert "Hello." in chat.ask("hi")
    chat.type(CTRL_D)
    assert chat.end() == 0
    assert other.read_text() == "precious"
    assert harm != "not JSON" or path.read_text().endswith('"hi"\n')


@pytest.mark.parametrize("editor", EDITORS)
def test_what_is_typed_during_an_answer_waits_for_the_next_prompt(begin: Begin, tmp_path: Path, editor: str) -> None:
    chat = begin(LONG, "Fine.", editor=editor, delay=0.01)
    chat.type("hi\r")
    chat.until("This ")
    chat.type("how ")
    answer = chat.until("itself.")
    assert "how" not in answer
    chat.prompt()
    chat.type("are you?\r")
    chat.until("Fine.")
    chat.prompt()
    assert said(chat, tmp_path) == ["hi", LONG, "how are you?", "Fine."]


def test_lines_pasted_during_an_answer_are_one_message(begin: Begin, tmp_path: Path) -> None:
    chat = begin(LONG, "Fine.", delay=0.01)
    chat.type("hi\r")
    assert "\x1b[?2004h" in chat.until("This "), "the terminal marks what is pasted"
    chat.type(pasted("one\ntwo"))
    assert "one" not in chat.until("itself.")
    chat.prompt()
    chat.type("\r")
    chat.until("Fine.")
    chat.prompt()
    assert said(chat, tmp_path) == ["hi", LONG, "one\ntwo", "Fine."]


@pytest.mark.parametrize("editor", EDITORS)
def test_ctrl_c_stops_an_answer_and_keeps_what_was_typed(begin: Begin, tmp_path: Path, editor: str) -> None:
    answer = LONG * 5
    chat = begin(answer, "Fine.", editor=editor, delay=0.1)
    chat.type("hi\r")
    chat.until("This ")
    chat.type("how?")
    chat.type(CTRL_C)
    chat.until("Stopped.")
    chat.prompt()
    chat.type("\r")
    chat.until("Fine.")
    chat.prompt()
    first, shown, *others = said(chat, tmp_path)
    assert first == "hi" and answer.startswith(shown) and 4 < len(shown) < len(answer) and others == ["how?", "Fine."]


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT, "a crash"])
def test_whatever_ends_an_answer_the_terminal_is_as_it_was(begin: Begin, number: signal.Signals | str) -> None:
    chat = begin(LONG * 5, delay=0.1, fails=40 if number == "a crash" else 0)
    chat.type("hi\r")
    chat.until("This ")
    assert chat.modes == termios.NOFLSH
    if isinstance(number, signal.Signals):
        chat.settle()
        chat.process.send_signal(number)
    status = chat.end()
    assert chat.modes == USUAL
    ended = {signal.SIGHUP: -signal.SIGHUP, signal.SIGQUIT: -signal.SIGQUIT, "a crash": 1}
    assert status == ended.get(number, status) and status != 0


@pytest.mark.parametrize("editor", EDITORS)
def test_a_chat_that_waits_for_words_ends_when_it_is_told_to(begin: Begin, editor: str) -> None:
    chat = begin("Hello.", editor=editor)
    chat.type("half a li")
    chat.until("half a li")
    chat.settle()
    chat.process.send_signal(signal.SIGTERM)
    assert chat.end() > 2 and chat.modes == USUAL


def test_a_program_that_is_stopped_gives_the_terminal_back_and_takes_it_again(begin: Begin) -> None:
    shell = "set -m; $CHAT; echo is stopped; while read line; do fg; echo is over; done"
    chat = begin(LONG, delay=0.1, shell=shell)
    chat.type("hi\r")
    chat.until("This ")
    chat.type(CTRL_Z)
    chat.until("is stopped")
    assert chat.modes == USUAL
    chat.type("\r")
    chat.until("enough ")
    assert chat.modes == termios.NOFLSH
    chat.until("itself.")
    chat.prompt()
    chat.type("/quit\r")
    chat.until("is over")
    assert chat.modes == USUAL


PROSE = " ".join(["Words", "of", "many", "lengths", "and", "日本語", "naïvely", "put"] * 6)


@pytest.mark.parametrize("columns", [40, 80, 200])
def test_nothing_is_wider_than_the_window_and_no_word_is_cut(begin: Begin, columns: int) -> None:
    chat = begin(PROSE, columns=columns, args=["--verbose", "--circles", "allow"])
    for line in ("hi", "/help", "/set", "/stats", "/nothing", "/set nothing", "/undo more", "/load nothing"):
        chat.ask(line)
    chat.type(CTRL_D)
    assert chat.end() == 0
    assert all(cells(line) <= columns for line in chat.shown.splitlines())
    assert " ".join(PROSE.split()[:5]) in " ".join(chat.shown.split())
    words = {"temperature", "repetition-penalty", "conversation", "recalls", "naïvely", "tokens/s", "message"}
    assert words <= {word.strip("/.,;") for word in chat.shown.split()} | {"tokens/s"}


@pytest.mark.parametrize(
    ("environment", "coloured"),
    [({}, True), ({"NO_COLOR": "1"}, False), ({"TERM": "dumb"}, False), ({"TERM": ""}, False)],
)
def test_prompt_and_answer_have_colours_where_they_are_wanted(
    begin: Begin, environment: dict[str, str], coloured: bool
) -> None:
    chat = begin("Hello.", "Fine.", **environment)
    chat.type("hi\r")
    answer = chat.until("Hello.")
    rest = chat.prompt()
    assert ("\x1b[36mHello." in answer) == ("\x1b[1;32m" in rest) == coloured
    assert "m" not in "".join(part[:5] for part in (answer + rest).split("\x1b[")[1:]) or coloured


def test_a_context_that_is_nearly_full_is_said_before_it_is_full(begin: Begin) -> None:
    chat = begin("x" * 20, "Fine.", "So.", "On.", context=160)
    assert "nearly full" not in chat.ask("hi")
    said = chat.ask("y" * 80)
    assert "nearly full" in said and said.index("nearly full") < said.index("Fine.")
    assert said.count("nearly full") == 1, "it is said once"
    assert "context holds 160" in chat.ask("more")
    chat.ask("/undo")
    assert "nearly full" not in chat.ask("more")


def test_figures_follow_an_answer_where_they_are_asked_for(begin: Begin) -> None:
    assert "tokens/s" not in (chat := begin("Hello.")).ask("hi") and "tokens/s" in chat.ask("/stats")
    assert "tokens/s" in begin("Hello.", args=["--verbose"]).ask("hi")


def test_a_file_s_answers_do_not_act_on_the_terminal(begin: Begin, tmp_path: Path) -> None:
    hostile = "\x1b]0;renamed\x07\x9b2J"
    messages = [{"role": "user", "content": hostile}, {"role": "assistant", "content": hostile}]
    (tmp_path / "hostile.json").write_text(json.dumps(messages))
    chat = begin("Hello.")
    shown = chat.ask(f"/load {tmp_path / 'hostile.json'}")
    shown += chat.until("> ")  # of the question that was loaded
    assert "\x1b]" not in shown and "\x07" not in shown and "\x9b" not in shown
    assert r"\x1b]0;renamed\x07\x9b2J" in shown
