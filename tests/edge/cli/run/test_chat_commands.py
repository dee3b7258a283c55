"""The commands of a chat: what they do, and one sentence each on misuse."""

from __future__ import annotations

import json
import os
import random
import stat
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from fake_engine import tokens_in

from edge.cli.run.chat import COMMANDS, command_in
from edge.cli.run.settings import changed, listed
from edge.errors import InputError
from edge.runtime.decode.generate_options import GenerateOptions

Talk = Callable[..., tuple[str, str, Any]]


def test_help_names_every_command(talk: Talk) -> None:
    err = talk(["/help"], "Hello.")[1]
    assert all(f"/{name}" in err and each.about in err for name, each in COMMANDS.items())


def test_undo_and_regen_answer_in_the_same_conversation(talk: Talk) -> None:
    out, err, engine = talk(["hi", "how?", "/undo", "who?", "/regen", "/undo", "/undo", "/undo"], "Hello.", "Fine.")
    assert out == "Hello.\nFine.\nFine.\nFine.\n\n"
    assert "Taken back: how?" in err and "Taken back: who?" in err and "Taken back: hi" in err
    assert "At temperature 0 an answer stays the same" in err and "Nothing was said yet" in err
    assert bytes(t for t in tokens_in(engine.steps) if t < 256).count(b"user\nhi") == 1, "what was said stays cached"


def test_a_system_message_begins_a_conversation_anew(talk: Talk) -> None:
    lines = ["hi", "/system", "/system Be brief.", "/system", "hi", "/reset", "hi", '/system ""', "/system"]
    out, err, engine = talk(lines, "Hello.")
    assert out == "Hello.\n" * 3 + "\n"
    run = bytes(t for t in tokens_in(engine.steps) if t < 256)
    assert run.count(b"system\nBe brief.") == 2
    assert "There is no system message; /system TEXT sets one." in err and "System: Be brief." in err
    assert err.rstrip().endswith("/system TEXT sets one.")


@pytest.mark.parametrize(
    ("given", "kept"),
    [
        ('Answer with "yes" or "no"', 'Answer with "yes" or "no"'),
        ('"Be brief."', "Be brief."),
        ("'Be brief.'", "Be brief."),
        ('"Yes" is "no"', '"Yes" is "no"'),
        ("It's 'short'", "It's 'short'"),
        ('"', '"'),
    ],
)
def test_a_system_message_loses_no_quotes_of_its_own(talk: Talk, given: str, kept: str) -> None:
    assert f"System: {kept}\n" in talk([f"/system {given}", "/system"], "Hello.")[1]


def test_a_setting_holds_from_the_next_answer_on(talk: Talk) -> None:
    lines = [
        "/set max-tokens 3",
        "hi",
        "/set MAX_TOKENS 2",
        "how?",
        "/set stop lo",
        "/set max_tokens default",
        "/regen",
    ]
    out, err, _ = talk(lines, "Hello.", "Fine.")
    assert out == "Hel\nFi\nFine.\n\n"
    assert "max-tokens is 3" in err and "stop is 'lo'" in err and "max-tokens is default" in err


def test_a_conversation_is_saved_and_loaded(talk: Talk, tmp_path: Path) -> None:
    path = tmp_path / "a talk.json"
    lines = ["/system Be brief.", "hi", f"/save {path}", "how?", f"/save {path}", f"/load {path}", "how?", "/undo"]
    out, err, _ = talk(lines, "Hello.", "Fine.", "So.")
    assert out == "Hello.\nFine.\nFine.\nSo.\n\n", "the last answer is shown again, and the conversation goes on"
    assert "Loaded 2 turns" in err and "> how?" in err and "Taken back: how?" in err
    saved = json.loads(path.read_text())
    assert [each["content"] for each in saved["messages"]] == ["Be brief.", "hi", "Hello.", "how?", "Fine."]
    assert sys.platform == "win32" or stat.S_IMODE(path.stat().st_mode) == 0o600
    assert not list(tmp_path.glob("*.part")) and not list(tmp_path.glob(".*.part"))


def test_a_list_of_messages_of_another_program_is_loaded(talk: Talk, tmp_path: Path) -> None:
    path = tmp_path / "other.json"
    messages = [{"role": "user", "content": "hi", "id": 7}, {"role": "assistant", "content": "Hello."}]
    for content in (messages, {"messages": messages, "model": "other"}):
        path.write_text(json.dumps(content))
        assert "Hello.\nFine." in talk([f"/load {path}", "how?"], "Hello.", "Fine.")[0]


ASKED = {"role": "user", "content": "a"}


def files(choose: random.Random) -> list[bytes]:
    """What is no conversation: damaged, cut short, of other types, hostile."""
    whole = json.dumps({"edge_chat": 1, "messages": [ASKED, {"role": "assistant", "content": "b"}]}).encode()
    odd = [None, 3, "x", [], {}, [ASKED], {"messages": 3}, {"messages": {}}, {"edge_chat": 2, "messages": [ASKED]}]
    odd += [[{"role": role, "content": "x"}, ASKED] for role in ("tool", "system", 3, None, "assistant")]
    odd += [[ASKED, {"role": "assistant", "content": content}] for content in (None, 3, [], {"text": "x"}, "x" * 9000)]
    found = [json.dumps(each).encode() for each in odd] + [b"", b"\0", b"\xff\xfe", b"[" * 100_000, b"NaN", b"1e999"]
    found.append(b'[{"role":"user","content":"a"},{"role":"assistant","content":"\\ud800"}]')
    found.append(b"1" * 5000)
    return found + [whole[: choose.randrange(len(whole))] for _ in range(8)]


def test_a_damaged_or_hostile_file_is_one_sentence_and_the_conversation_goes_on(talk: Talk, tmp_path: Path) -> None:
    for i, content in enumerate(files(random.Random(1))):
        path = tmp_path / "bad.json"
        path.write_bytes(content)
        out, err, _ = talk(["hi", f"/load {path}", "how?", f"/save {path}"], "Hello.", "Fine.")
        assert out == "Hello.\nFine.\n\n", (i, content[:80])
        *_, loaded, saved = err.strip().split("\n")
        assert loaded.endswith(".") and len(loaded) < 600 and "foresee" not in loaded
        long = b"x" * 9000 in content  # a conversation all the same, if one that does not fit
        assert ("no conversation; choose another name" in saved) != long and (long or path.read_bytes() == content)


@pytest.mark.skipif(sys.platform == "win32", reason="pipes and links as POSIX has them")
def test_what_is_no_file_is_neither_read_nor_written(talk: Talk, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    names = [tmp_path, tmp_path / "pipe", "/dev/zero", tmp_path / "no" / "x.json", "~nobody-here/x", "a\0b", "n" * 300]
    for name in names:
        out, err, _ = talk(["hi", f"/load {name}", f"/save {name}"], "Hello.")
        assert out == "Hello.\n\n"
        loaded, saved = err.strip().split("\n")[-2:]
        assert loaded.endswith(".") and saved.endswith(".") and "Saved" not in saved
    assert not list(tmp_path.glob(".*.part"))


def test_a_file_behind_a_link_is_written_and_the_link_stays(talk: Talk, tmp_path: Path) -> None:
    (tmp_path / "link.json").symlink_to(tmp_path / "real.json")
    talk(["hi", f"/save {tmp_path / 'link.json'}"], "Hello.")
    assert (tmp_path / "link.json").is_symlink() and "Hello." in (tmp_path / "real.json").read_text()


@pytest.mark.parametrize(
    ("line", "sentence"),
    [
        ("/hlep", "There is no command /hlep; did you mean /help?"),
        ("/xyzzy", "There is no command /xyzzy; /help lists them."),
        ("/sytem Be brief.", "There is no command /sytem; did you mean /system?"),
        ("/undo 3", "/undo takes nothing after it, and not '3'."),
        ("/quit now", "/quit takes nothing after it, and not 'now'."),
        ("/save", "/save needs a file; write /save talk.json, for example."),
        ("/load", "/load needs a file; write /load talk.json, for example."),
        ("/save x.json", "Nothing was said yet in this conversation, so there is nothing to save."),
        ("/load nothing.json", "nothing.json cannot be read: No such file or directory."),
        ("/undo", "Nothing was said yet in this conversation."),
        ("/regen", "Nothing was said yet in this conversation."),
        ("/set temprature 1", "There is no setting 'temprature'; did you mean temperature?"),
        ("/set xyzzy 1", "There is no setting 'xyzzy'; there are temperature, "),
        ("/set temperature hot", "The temperature must be a number of 0 or more, not 'hot'."),
        ("/set temperature -1", "The temperature must be a number of 0 or more, not -1."),
        ("/set temperature nan", "The temperature must be a number of 0 or more, not nan."),
        ("/set top-p 0.9", "at temperature 0 none is drawn; set a temperature above 0"),
        ("/set seed 1.5", "The seed must be a whole number of 0 or more, or 'random', not 1.5."),
        ("/set max-tokens 0", "must be 1 or more, not 0."),
        ("/system " + "x" * 5000, "context holds"),
    ],
)
def test_misuse_gets_one_sentence_and_reaches_no_model(talk: Talk, line: str, sentence: str) -> None:
    out, err, engine = talk([line, "hi"], "Hello.")
    assert sentence in err.split("\n")[2] and len(err.strip().split("\n")) == 3
    assert out == "Hello.\n\n"
    assert tokens_in(engine.steps).count(ord("?")) == 0


@pytest.mark.parametrize(
    ("said", "command"),
    [
        ("/set temperature 0.7", ("set", "temperature 0.7")),
        ("/HELP", ("help", "")),
        ("/?", ("?", "")),
        ("/save my talk.json ", ("save", "my talk.json")),
        ("/system Be\nbrief.", ("system", "Be\nbrief.")),
        ("/etc/passwd is what?", None),
        (" /set", None),
        ("/", None),
        ("/set x\n/undo", None),
        ("//", None),
        ("set", None),
        ("1/2", None),
    ],
)
def test_what_is_a_command(said: str, command: tuple[str, str] | None) -> None:
    assert command_in(said) == command


def test_every_setting_is_shown_and_can_be_set_to_what_is_shown() -> None:
    options = GenerateOptions(temperature=0.7, top_k=40, top_p=0.9, min_p=0.1, seed=3, repetition_penalty=1.1)
    for line in listed(options).split("\n"):
        name, value = line.split(maxsplit=1)
        again, said = changed(options, name, value)
        assert said == f"{name} is {value}" and (name == "stop" or again == options)
    assert changed(options, "temperature", "0")[0].top_p is None, "what means nothing then is left out"
    assert changed(options, "stop", "a\\nb")[0].stop == ("a\nb",)
    with pytest.raises(InputError, match="no setting 'interrupted'"):
        changed(options, "interrupted", "1")


def test_another_answer_is_drawn_anew_and_the_same_every_time(talk: Talk, monkeypatch: pytest.MonkeyPatch) -> None:
    from edge.runtime.chat import Chat

    seeds: list[int | None] = []
    again = Chat.stream_again

    def recording(self: Chat, options: GenerateOptions) -> Any:
        seeds.append(options.seed)
        return again(self, options)

    monkeypatch.setattr(Chat, "stream_again", recording)
    draws = ["/set temperature 0.01", "/set seed 5", "hi", "/regen", "/regen", "how?", "/regen"]
    talk(draws, "Hello.", "Fine.")
    assert seeds == [6, 7, 6]
