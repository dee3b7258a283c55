"""What reaches a person's terminal: nothing that others wrote acts there, and files and pipes get every byte."""

from __future__ import annotations

import dataclasses
import io
import json
import os
import random
import re
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from paper_bundles import sealed_again
from profile_example import example_profile

from edge.bundle import Bundle
from edge.cli.main import main
from edge.cli.screen import Screen, visible
from edge.manifest import sealed

ACTING = "\x00\x07\x08\x0b\x0c\x0e\x1b\x1f\x7f\x80\x85\x90\x9b\x9d\x9f\u2028\u2029\u202a\u202e\u2066\u2069\udc9b\udcff"
UNSEEN = (
    "\xad\u034f\u061c\u115f\u1160\u17b4\u17b5\u180b\u180c\u180d\u180e\u180f\u200b\u200c\u200d\u200e\u200f\u2060\u2061\u2062\u2063"
    "\u2064\u2065\u206a\u206b\u206c\u206d\u206e\u206f"
)
# ruff: noqa: RUF001 (letters of scripts that look like others)
HONEST = [  # with characters that are not seen
    "می\u200cخواهم",
    "क्\u200dष और क्\u200cष",
    "לשלם \u200f(10$)\u200f היום \u200eC++\u200e",
    "العربية\u061c 1-2",
    "\u200fשלום",
    "ภาษา\u200bไทย",
    "\U0001f468\u200d\U0001f469\u200d\U0001f467 \u2764\ufe0f\u200d\U0001f525 \U0001f468\U0001f3fd\u200d\U0001f4bb",
    "1\ufe0f\u20e3 ©\ufe0f \u203c\ufe0f",
    "\U0001f3f4\U000e0067\U000e0062\U000e0065\U000e006e\U000e0067\U000e007f!",
    "葛\U000e0100城 \u1820\u180b",
]
HIDDEN = [
    *("a\u200eb", "\u200fabc", "x\u061cy", "a\u2060b", "\ufeffa", "so\xadft", "a\u200bb", "a\u200cb", "a\u200db"),
    *("日\u200d本", "a\U000e0041", "\U0001f600\U000e0041", "\U000e0001", "\ufe0f", "a\ufe0f", "\u2764\ufe0f\ufe0f"),
    *("a\U000e0100", "\u3164", "\u206a"),
    *("\ufff9a\ufffb", "\U0001d173", "\U0001f3f4" + "\U000e0061" * 8, "שלום\nabc\u200f", "\u200b", "a\u115f"),
]
HARMLESS = "ordinary text, Grüße, 日本語, \N{SLIGHTLY SMILING FACE}\N{ZERO WIDTH JOINER}, a\ttab\nand lines\r\n"
TITLE = "\x1b]0;renamed\x07"  # each names what it would do
HOSTILE = f"{TITLE}\x1b[2J\x9b31m\u202e\x85[bold]x[/] [/] :smile:"
WRITTEN = r"\x1b]0;renamed\x07\x1b[2J\x9b31m\u202e\x85[bold]x[/][/]:smile:"  # without spaces
OURS = re.compile(r"\x1b\[[0-9;]*[mK]|\x1b\[\d*[AG]|\x1b\[\?25[lh]|\r")  # colours, bars and erased lines


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


Shown = tuple[int, str, str]
Show = Callable[..., Shown]


@pytest.fixture
def show(monkeypatch: pytest.MonkeyPatch) -> Show:
    """Runs a command whose standard output and error are terminals, or not; gives its status and what came out."""

    def run(*args: object, out: bool = True, err: bool = True) -> Shown:
        streams = [Terminal() if terminal else io.StringIO() for terminal in (out, err)]
        monkeypatch.setattr(sys, "stdout", streams[0])
        monkeypatch.setattr(sys, "stderr", streams[1])
        status = main([str(arg) for arg in args])
        return status, streams[0].getvalue(), streams[1].getvalue()

    return run


def acts(text: str) -> list[str]:
    """Characters in the text that would act on a terminal, but for ours."""
    return [c for c in OURS.sub("", text) if c in ACTING]


def harmed(bundle: Bundle, hostile: str = HOSTILE) -> Bundle:
    """The bundle with escape sequences in every text of its manifest that names no file or part."""
    manifest = bundle.manifest
    named = {name: getattr(manifest, name) + hostile for name in ("name", "producer", "weights")}
    source = {name: f"{value}{hostile}" for name, value in dataclasses.asdict(manifest.source).items()}
    groups = [dataclasses.asdict(each) | {"name": each.name + hostile, "method": hostile} for each in manifest.groups]
    quality = {f"{name}{hostile}": figure for name, figure in manifest.quality.items()}
    path = bundle.root / "edge.json"
    more = {**named, "source": source, "groups": groups, "quality": quality}
    path.write_text(sealed(json.loads(path.read_text()) | more))
    return bundle


@pytest.mark.parametrize("text", HONEST)
def test_what_scripts_and_emoji_need_stays_whole_or_piece_by_piece(text: str) -> None:
    assert visible(text) == text
    terminal = Terminal()
    screen = Screen(terminal)
    for c in text.lstrip("\u200f"):  # whose line was not known yet to go from right to left
        screen.write(c)
    assert terminal.getvalue() == text.lstrip("\u200f")


@pytest.mark.parametrize("text", HIDDEN)
def test_what_is_not_seen_is_shown(text: str) -> None:
    assert re.search(r"\\(x[0-9a-f]{2}|u[0-9a-f]{4}|U[0-9a-f]{8})", visible(text))
    terminal = Terminal()
    screen = Screen(terminal)
    for c in text:
        screen.write(c)
    assert "\\" in terminal.getvalue()


def test_no_message_can_be_hidden_in_a_text_of_latin_letters() -> None:
    draw = random.Random(51)
    hidden = [chr(code) for code in (*range(0xE0000, 0xE1000), *range(0xFE00, 0xFE10), 0x200B, 0x200C, 0x200D, 0x2060)]
    for _ in range(200):
        letters = "".join(draw.choices("abcdefghij XYZ.,", k=12))
        message = draw.choices(hidden, k=6)
        shown = visible("".join(a + b for a, b in zip(letters, message, strict=False)))
        assert not {*shown} & {*hidden}


def test_a_long_text_of_such_characters_takes_no_longer_than_others() -> None:
    begun = time.process_time()
    for c in "\u200f\u200d\x1b\U000e0041\ufe0f":
        visible(c * 50_000)
    assert time.process_time() - begun < 10


def test_every_character_that_acts_is_shown_and_no_other_changes() -> None:
    for code in range(0x3000):
        c = chr(code)
        shown = visible(c)
        assert shown == (rf"\x{code:02x}" if code < 256 else rf"\u{code:04x}") if c in ACTING + UNSEEN else True
        if c in UNSEEN:
            continue
        if c.isprintable() or c in "\n\t":
            assert shown == c
        elif code < 0xA0:
            assert shown.isprintable() and len(shown) == 4
    assert visible(HARMLESS) == HARMLESS
    assert not acts(visible(ACTING))
    assert visible("a\rb\r\n") == "a\\x0db\r\n"
    assert visible("\udc9b\ud800") == r"\x9b\ud800"


def test_a_sequence_in_pieces_is_shown_as_the_whole_is() -> None:
    draw = random.Random(5)
    for _ in range(200):
        text = "".join(draw.choices(ACTING + HARMLESS.replace("\r", "") + "[]0;m", k=40))
        cuts = sorted(draw.choices(range(41), k=5))
        pieces = [text[a:b] for a, b in zip([0, *cuts], [*cuts, 40], strict=True)]
        assert "".join(map(visible, pieces)) == visible(text)


@pytest.mark.parametrize("command", ["inspect", "plan", "verify", "run"])
def test_what_a_bundle_says_of_itself_does_not_act(show: Show, command: str, tiny_bundle: Bundle) -> None:
    arguments = ["hi", "--max-tokens", "2"] if command == "run" else []
    status, out, err = show(command, harmed(tiny_bundle).root, *arguments)
    assert status == 0, err
    assert not acts(out + err)
    if command in ("inspect", "plan"):
        assert WRITTEN in re.sub(r"\s", "", OURS.sub("", out))  # a table wraps


def test_neither_does_what_a_profile_says(monkeypatch: pytest.MonkeyPatch) -> None:
    from edge.cli.profile_ops import show_ops
    from edge.cli.profile_tables import show, show_comparison
    from edge.profile.compare import compare

    terminal = Terminal()
    monkeypatch.setattr(sys, "stdout", terminal)
    profile = example_profile()
    profile = dataclasses.replace(
        profile,
        bundle=dataclasses.replace(profile.bundle, name=HOSTILE, family=HOSTILE),
        device=dataclasses.replace(profile.device, name=HOSTILE, cpu=HOSTILE),
        notes=[HOSTILE],
        ops=[dataclasses.replace(op, op_type=HOSTILE) for op in profile.ops],
    )
    show(profile)
    show_ops(profile)
    show_comparison(compare(profile, profile), HOSTILE, HOSTILE)
    shown = terminal.getvalue()
    assert not acts(shown)
    written = WRITTEN.replace(r"\x07", "")  # rich drops bells in lines of several styles
    assert re.sub(r"\s", "", OURS.sub("", shown)).replace(r"\x07", "").count(written) >= 7


@pytest.mark.parametrize("command", ["inspect", "plan"])
@pytest.mark.parametrize("err", [True, False])
def test_a_pipe_gets_every_byte_whatever_standard_error_is(
    show: Show, command: str, err: bool, tiny_bundle: Bundle
) -> None:
    hostile = "\x1b[2J\x1b]0;renamed"  # of the others rich leaves out some
    harmed(tiny_bundle, hostile)
    for options in ([], ["--json"]):
        status, out, _ = show(command, tiny_bundle.root, *options, out=False, err=err)
        assert status == 0
        assert (json.dumps(hostile)[1:-1] if options else hostile) in out


@pytest.mark.parametrize("terminal", [True, False])
def test_errors_are_shown_on_a_terminal_and_raw_elsewhere(show: Show, terminal: bool, tmp_path: Path) -> None:
    for arguments in (
        ("run", tmp_path / f"{TITLE}x.edge"),
        ("inspect", tmp_path / f"\x9b2J{TITLE}"),
        (f"{TITLE}command",),
        ("models", "show", f"{TITLE}"),
        ("export", tmp_path / TITLE, "-o", tmp_path / "x.edge"),
    ):
        status, _, err = show(*arguments, err=terminal)
        assert status == 2
        if terminal:
            assert not acts(err) and r"\x1b]0;" in err
        else:
            assert "\x1b" in err or r"\x1b" in err


def test_a_template_s_error_does_not_act(show: Show, tiny_bundle: Bundle) -> None:
    path = tiny_bundle.root / "edge.json"
    template = {"chat_template": f"{{{{ raise_exception({HOSTILE!r}) }}}}"}
    path.write_text(sealed(json.loads(path.read_text()) | template))
    status, _, err = show("run", tiny_bundle.root, "hi")
    assert status == 2 and not acts(err) and r"\x1b]0;renamed" in err


@pytest.fixture
def answers_act(tiny_bundle: Bundle) -> Bundle:
    """A bundle each of whose tokens is an escape sequence, torn between two tokens."""
    path = tiny_bundle.path("tokenizer.json")
    content = json.loads(path.read_text())
    acting = {"type": "Replace", "pattern": {"Regex": "[\\s\\S]+"}, "content": "31m\x1b]0;renamed\x07\x9b2J\x1b["}
    content["decoder"] = {"type": "Sequence", "decoders": [content["decoder"], acting]}
    path.write_text(json.dumps(content))
    sealed_again(tiny_bundle)
    return tiny_bundle


@pytest.mark.parametrize("options", [[], ["--json"], ["--raw"]])
def test_a_model_s_answer_does_not_act_and_a_pipe_gets_it_raw(
    show: Show, answers_act: Bundle, options: list[str]
) -> None:
    command = ["run", answers_act.root, "hi", "--max-tokens", "3", *options]
    status, out, err = show(*command)
    assert status == 0 and not acts(out + err)
    assert "]0;renamed" in out
    if "--json" not in options:
        _, piped, _ = show(*command, out=False)
        assert "\x1b]0;renamed\x07\x9b2J\x1b[" in piped
        assert out == visible(piped)


@pytest.mark.skipif(sys.platform == "win32", reason="pseudo-terminals are a Unix thing")
def test_in_a_chat_only_our_own_codes_reach_the_terminal(answers_act: Bundle) -> None:
    import pty

    harmed(Bundle(answers_act.root, answers_act.manifest), TITLE)
    ours, theirs = pty.openpty()
    command = [sys.executable, "-m", "edge.cli.main", "run", str(answers_act.root), "--max-tokens", "3"]
    environment = {**os.environ, "TERM": "xterm"}
    with subprocess.Popen(command, stdin=theirs, stdout=theirs, stderr=theirs, env=environment) as process:
        os.close(theirs)
        os.write(ours, b"The moon\n/stats\n/quit\n")
        shown = b""
        try:
            while data := os.read(ours, 1 << 16):
                shown += data
        except OSError:  # the other end was closed
            pass
        assert process.wait(60) == 0, shown
    os.close(ours)
    text = shown.decode()
    assert "\x1b]" not in text and "\x07" not in text and "\x9b" not in text, text
    assert r"\x1b]0;renamed\x07\x9b2J\x1b[" in text
    assert "\x1b[2m" in text, "notes are dimmed"


def test_a_report_of_a_profile_cannot_be_ended_by_a_name() -> None:
    from edge.profile.html import page

    profile = example_profile()
    hostile = "</script><script>alert(1)</script><img src=x onerror=alert(1)>\"'&"
    bundle = dataclasses.replace(profile.bundle, name=hostile, family=hostile)
    made = page(dataclasses.replace(profile, bundle=bundle, notes=[hostile]))
    assert "<script>alert" not in made and "<img" not in made


def test_onnxruntime_writes_no_names_of_nodes_around_the_screen(capfd: pytest.CaptureFixture[str]) -> None:
    """Its log goes to the file descriptor of standard error."""
    import numpy as np
    import onnxruntime as ort
    from onnx import TensorProto, helper

    from edge.runtime.providers import open_provider
    from edge.runtime.providers.cpu import session_options

    kinds = {"x": TensorProto.FLOAT, "shape": TensorProto.INT64, "y": TensorProto.FLOAT}
    x, shape, y = (helper.make_tensor_value_info(name, kind, None) for name, kind in kinds.items())
    graph = helper.make_graph([helper.make_node("Reshape", ["x", "shape"], ["y"], name=TITLE)], "g", [x, shape], [y])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    open_provider("cpu")  # its threads
    session = ort.InferenceSession(model.SerializeToString(), session_options(None))
    with pytest.raises(Exception, match="renamed"):
        session.run(None, {"x": np.ones(5, np.float32), "shape": np.array([3])})
    assert TITLE not in capfd.readouterr().err


def test_only_one_place_makes_consoles_and_none_goes_around_the_screen() -> None:
    """A stream of Python's own, a console of rich's or a write to a file descriptor would."""
    folder = Path(sys.modules["edge.cli.main"].__file__ or "").parent
    around = re.compile(r"\bConsole\(|sys\.__std|os\.write\(|\.buffer\.write|rich\.print|from rich import print")
    found = {path.name for path in folder.rglob("*.py") if around.search(path.read_text())}
    assert found == set()
    drawing = {path.name for path in folder.rglob("*.py") if re.search(r"\\x1b\[|\bbelow\(", path.read_text())}
    assert drawing == {"screen.py", "tables.py", "terminal.py", "thoughts.py", "speech.py"}
