"""`edge run` with a bundle from text to text: one text, a file of lines, a pipe, a terminal; what Ctrl-C leaves."""

from __future__ import annotations

import dataclasses
import json
import os
import random
import re
import signal
import threading
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest
from fake_text2text import LANGUAGES, FakeText2TextEngine, fake_text2text

from edge.bundle import Bundle
from edge.cli.run.line_answers import Answer
from edge.cli.run.lines import side_by_side
from edge.manifest import Generation, TextFormat

Run = Callable[..., tuple[int, str, str]]
NLLB = TextFormat([], [258], [257], LANGUAGES, "prefix", True, source="de_DE")


@pytest.fixture
def fake(tmp_path: Path, serve: Callable, monkeypatch: pytest.MonkeyPatch) -> Callable[..., FakeText2TextEngine]:
    """Puts a model that changes texts by a function in the place of every bundle; lines are answered one by one."""
    monkeypatch.setattr("edge.runtime.providers.threads.default_threads", lambda: 1)

    def fake(output: Callable[[str], str] = str.upper, **options: object) -> FakeText2TextEngine:
        model, engine = fake_text2text(tmp_path / "fake.edge", output, **options)  # type: ignore[arg-type]
        serve(model, engine)
        return engine

    return fake


@pytest.fixture
def sentences(tmp_path: Path) -> Path:
    path = tmp_path / "sentences.txt"
    path.write_bytes(b"one\r\nthree words here\n\ntwo words\n  \nlast")
    return path


ANSWERS = "ONE\nTHREE WORDS HERE\n\nTWO WORDS\n\nLAST\n"


def press_in(engine: FakeText2TextEngine, text: str, times: int = 1) -> None:
    """Ctrl-C while this text is answered."""
    output, left = engine._output, [times]

    def press(given: str) -> str:
        while given == text and left[0]:
            left[0] -= 1
            signal.raise_signal(signal.SIGINT)
        return output(given)

    engine._output = press


def test_a_text_is_answered_and_figures_go_to_standard_error(run: Run, fake: Callable) -> None:
    fake()
    status, out, err = run("x.edge", "hello you")
    assert (status, out) == (0, "HELLO YOU\n")
    assert "10 prompt tokens" in err and "tokens/s" in err and err.count("\n") == 1
    assert "cut off by --max-tokens" in run("x.edge", "hello you", "--max-tokens", 3)[2]


def test_json_is_one_object(run: Run, fake: Callable) -> None:
    fake()
    answer = json.loads(run("x.edge", "hello", "--json")[1])
    assert answer["text"] == "HELLO" and answer["finish_reason"] == "stop" and answer["generated_tokens"] == 6


def test_n_best_texts_stand_behind_their_scores(run: Run, fake: Callable) -> None:
    fake()
    lines = run("x.edge", "hey", "--beams", 3, "--n-best", 3)[1].splitlines()
    scores, texts = zip(*(line.split("\t") for line in lines), strict=True)
    assert texts[0] == "HEY" and len(set(texts)) == 3 and list(scores) == sorted(scores, key=float, reverse=True)
    found = json.loads(run("x.edge", "hey", "--beams", 3, "--n-best", 3, "--json")[1])
    assert [each["text"] for each in found] == list(texts) and found[0]["token_ids"]


def test_options_reach_the_model(run: Run, fake: Callable) -> None:
    engine = fake(form=NLLB, generation=Generation(no_repeat_ngram_size=1))
    assert run("x.edge", "baab", "--target-language", "fr_FR", "--source-language", "fr_CA")[1].startswith("BA?")
    assert engine.encoded[0][0] == 202 and engine.prompts[0] == [257, 201]
    de = ("--target-language", "de")
    assert run("x.edge", "baab", *de, "--no-repeat-ngram", 0)[1] == "BAAB\n"
    assert run("x.edge", "aa", *de, "--no-repeat-ngram", 0, "--min-tokens", 4)[1] == "AA??\n"
    assert run("x.edge", "abc", *de, "--stop", "C")[1] == "AB\n"
    engine.steps.clear()
    run("x.edge", "abc", *de, "--beams", 4, "--beam-groups", 2, "--diversity", 3, "--early-stopping", "true")
    assert max(engine.steps) == 3, "two groups of two, which begin alike"
    search = (*de, "--beams", 2, "--early-stopping", "never", "--max-tokens", 12, "--no-repeat-ngram", 0)
    searched = [run("x.edge", "ab", *search, "--length-penalty", p)[1] for p in (0, 9)]
    assert searched[0] == "AB\n" and len(searched[1]) > 10, "a large penalty makes long texts the best"
    engine.steps.clear()
    assert run("x.edge", "ABCDEFGH", *de, "--speculate", "input", "--no-repeat-ngram", 0)[1] == "ABCDEFGH\n"
    assert len(engine.steps) < 6


def test_a_files_lines_are_answered_in_their_order(run: Run, fake: Callable, sentences: Path) -> None:
    engine = fake()
    status, out, err = run("x.edge", "--lines", sentences)
    assert (status, out) == (0, ANSWERS)
    assert [len(ids) for ids in engine.encoded] == [4, 17, 10, 5], "each when its turn comes"
    assert "4 lines" in err and "lines/s" in err and "MB private" in err


def test_into_a_file_the_longest_go_first_and_nothing_else_is_left(run: Run, fake: Callable, sentences: Path) -> None:
    engine, out = fake(), sentences.with_name("out.txt")
    out.write_text("old")
    status, shown, _ = run("x.edge", "--lines", sentences, "--output", out)
    assert (status, shown, out.read_text()) == (0, "", ANSWERS)
    assert [len(ids) for ids in engine.encoded] == [17, 10, 5, 4]
    assert sorted(p.name for p in out.parent.iterdir()) == ["fake.edge", "out.txt", "sentences.txt"]


@pytest.mark.parametrize("times", [1, 2], ids=["once", "twice"])
def test_ctrl_c_keeps_finished_lines_and_the_same_command_goes_on(
    run: Run, fake: Callable, sentences: Path, times: int
) -> None:
    engine, out = fake(), sentences.with_name("out.txt")
    press_in(engine, "two words", times)
    command = ("x.edge", "--lines", sentences, "--output", out)
    status, _, err = run(*command)
    assert status == 130 and not out.exists()
    if times == 1:
        assert "Stopped with 1 of 4 lines done" in err and "out.txt.part keeps them" in err
    engine.encoded.clear()
    status, _, err = run(*command)
    assert (status, out.read_text()) == (0, ANSWERS) and "1 lines were done already" in err
    assert len(engine.encoded) == 3 and not out.with_name("out.txt.part").exists()


def test_a_failure_keeps_finished_lines(run: Run, fake: Callable, sentences: Path) -> None:
    engine, out = fake(), sentences.with_name("out.txt")
    whole = engine._output
    engine._output = lambda text: whole(text) if text != "last" else 1 / 0
    command = ("x.edge", "--lines", sentences, "--output", out)
    assert run(*command)[0] == 1
    part = out.with_name("out.txt.part")
    part.write_bytes(part.read_bytes() + b'[0, "one", "O')  # as a machine that lost its power may leave it
    engine._output = whole
    engine.encoded.clear()
    assert run(*command)[0] == 0 and out.read_text() == ANSWERS
    assert len(engine.encoded) == 2


def test_lines_are_answered_side_by_side_in_their_order() -> None:
    met = threading.Barrier(3, timeout=60)  # three threads at a time

    def make(place: int) -> Answer:
        met.wait()
        time.sleep(0.001 * (9 - place))  # those begun first are done last
        return Answer(str(place))

    made = list(side_by_side(make, range(9), 3))
    assert [(place, one.shown) for place, one in made] == [(place, str(place)) for place in range(9)]


def test_a_failure_side_by_side_ends_what_was_not_begun() -> None:
    begun = list[int]()

    def make(place: int) -> Answer:
        begun.append(place)
        return Answer(str(1 // (place - 2)))

    got = list[int]()
    with pytest.raises(ZeroDivisionError):
        for place, _ in side_by_side(make, range(1000), 2):
            got.append(place)
    assert got == [0, 1] and len(begun) < 20


@pytest.mark.parametrize(
    ("options", "threads"),
    [((), 3), (("--threads", 2), 2), (("--threads", 100), None), (("--memory", "1GB"), 1)],
)
def test_as_many_lines_at_a_time_as_threads(
    run: Run, fake: Callable, sentences: Path, monkeypatch: pytest.MonkeyPatch, options: tuple, threads: int | None
) -> None:
    """But not more than there are, and one after the other where memory is bound."""
    fake()
    monkeypatch.setattr("edge.runtime.providers.threads.default_threads", lambda: 3)
    seen = list[int]()

    def note(make: Callable, places: object, at_a_time: int) -> object:
        seen.append(at_a_time)
        return side_by_side(make, places, 1)  # type: ignore[arg-type]

    monkeypatch.setattr("edge.cli.run.lines.side_by_side", note)
    status, out, err = run("x.edge", "--lines", sentences, *options)
    if threads is None:
        assert status == 2 and "threads must be at most" in err
    else:
        assert (status, out, seen) == (0, ANSWERS, [threads])


def test_lines_that_changed_are_answered_again(run: Run, fake: Callable, sentences: Path) -> None:
    engine, out = fake(), sentences.with_name("out.txt")
    press_in(engine, "last")
    command = ("x.edge", "--lines", sentences, "--output", out)
    run(*command)
    sentences.write_text("one\nthree other words\n\ntwo words\n")
    engine.encoded.clear()
    assert run(*command)[0] == 0 and out.read_text() == "ONE\nTHREE OTHER WORDS\n\nTWO WORDS\n"
    assert len(engine.encoded) == 2


@pytest.mark.parametrize(
    "options",
    [
        ("--max-tokens", 5),
        ("--json",),
        ("--skip", "unified:0.2"),
        ("--context", 64),
        ("--exact",),
        ("--memory", "1GB"),
    ],
    ids=lambda options: options[0],
)
def test_what_another_command_left_is_not_mixed_in(
    run: Run, fake: Callable, sentences: Path, options: tuple[object, ...]
) -> None:
    engine, out = fake(), sentences.with_name("out.txt")
    press_in(engine, "two words")
    run("x.edge", "--lines", sentences, "--output", out)
    kept = out.with_name("out.txt.part").read_bytes()
    status, _, err = run("x.edge", "--lines", sentences, "--output", out, *options)
    assert status == 2 and "other options or another bundle" in err
    assert out.with_name("out.txt.part").read_bytes() == kept


@pytest.mark.parametrize("end", ["part", "new", "{pid}.part", "{pid}-{thread}.part"])
@pytest.mark.parametrize("there", ["empty", "not there", "written"])
def test_no_link_in_the_folder_leads_what_is_written_elsewhere(
    run: Run, fake: Callable, sentences: Path, tmp_path: Path, end: str, there: str
) -> None:
    """A folder that somebody else made may have links by any name that a command might choose."""
    fake()
    victim, out = tmp_path / "elsewhere", sentences.with_name("out.txt")
    if there != "not there":
        victim.write_text("mine" if there == "written" else "")
    before = victim.read_bytes() if victim.exists() else None
    name = f"out.txt.{end}".format(pid=os.getpid(), thread=threading.get_ident())
    for planted in (name, f".{name}"):
        out.with_name(planted).symlink_to(victim)
    status, _, err = run("x.edge", "--lines", sentences, "--output", out)
    assert (victim.read_bytes() if victim.exists() else None) == before
    if end == "part":
        assert status == 2 and "out.txt.part is a link" in err and not out.exists()
    else:
        assert status == 0 and out.read_text() == ANSWERS and not out.is_symlink()


def test_a_link_as_the_output_is_replaced(run: Run, fake: Callable, sentences: Path) -> None:
    fake()
    victim, out = sentences.with_name("elsewhere"), sentences.with_name("out.txt")
    victim.write_text("mine")
    out.symlink_to(victim)
    assert run("x.edge", "--lines", sentences, "--output", out)[0] == 0
    assert victim.read_text() == "mine" and out.read_text() == ANSWERS


@pytest.mark.parametrize(
    "left",
    [
        b"\xff\xfe\n",
        b"{bad\n",
        b"[" * 100_000 + b"\n",
        b"null\n",
        b"%s\n{bad\n",
        b"%s\n[0]\n",
        b'%s\n[0, "one"]\n',
        b'%s\n["0", "one", "ONE"]\n',
        b'%s\n[true, "one", "ONE"]\n',
        b'%s\n[0, "one", 1]\n',
        b'%s\n{"0": 1, "1": 2, "2": 3}\n',
        b"%s\n12\n",
    ],
)
def test_what_no_command_left_is_refused_in_a_sentence(run: Run, fake: Callable, sentences: Path, left: bytes) -> None:
    engine, part = fake(), sentences.with_name("out.txt.part")
    press_in(engine, "three words here")
    command = ("x.edge", "--lines", sentences, "--output", sentences.with_name("out.txt"))
    run(*command)
    part.write_bytes(left.replace(b"%s", part.read_bytes().split(b"\n")[0]))
    status, _, err = run(*command)
    assert status == 2 and "holds what another command left unfinished" in err


def test_places_before_the_first_line_are_ignored(run: Run, fake: Callable, sentences: Path) -> None:
    engine, part = fake(), sentences.with_name("out.txt.part")
    press_in(engine, "three words here")
    command = ("x.edge", "--lines", sentences, "--output", sentences.with_name("out.txt"))
    run(*command)
    part.write_bytes(part.read_bytes().split(b"\n")[0] + b'\n[-1, "last", "PLANTED"]\n')
    assert run(*command)[0] == 0 and sentences.with_name("out.txt").read_text() == ANSWERS


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="the system has no such pipes")
def test_a_pipe_where_answers_are_kept_is_refused(run: Run, fake: Callable, sentences: Path) -> None:
    fake()
    os.mkfifo(sentences.with_name("out.txt.part"))
    status, _, err = run("x.edge", "--lines", sentences, "--output", sentences.with_name("out.txt"))
    assert status == 2 and "out.txt.part is a pipe or a device" in err


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="the system has no such pipes")
def test_a_pipe_as_the_output_gets_the_answers_and_stays(run: Run, fake: Callable, sentences: Path) -> None:
    fake()
    out, got = sentences.with_name("out.txt"), list[str]()
    os.mkfifo(out)
    reader = threading.Thread(target=lambda: got.append(out.read_text()))
    reader.start()
    assert run("x.edge", "--lines", sentences, "--output", out)[0] == 0
    reader.join(60)
    assert got == [ANSWERS] and out.is_fifo()
    assert sorted(p.name for p in out.parent.iterdir()) == ["fake.edge", "out.txt", "sentences.txt"]


def test_ctrl_c_without_a_file_ends_with_status_130(run: Run, fake: Callable, sentences: Path) -> None:
    press_in(fake(), "two words")
    status, out, err = run("x.edge", "--lines", sentences)
    assert (status, out) == (130, "ONE\nTHREE WORDS HERE\n\n") and "2 lines" in err


@pytest.mark.parametrize("beams", [1, 2])
def test_lines_that_were_cut_off_are_counted(run: Run, fake: Callable, sentences: Path, beams: int) -> None:
    fake()
    err = run("x.edge", "--lines", sentences, "--max-tokens", 5, "--beams", beams, "--n-best", beams)[2]
    assert "2 cut off by --max-tokens" in err
    assert "cut off" not in run("x.edge", "--lines", sentences)[2]


def test_lines_in_other_forms(run: Run, fake: Callable, sentences: Path) -> None:
    fake()
    lines = run("x.edge", "--lines", sentences, "--json")[1].split("\n")
    objects = [json.loads(line) for line in lines if line]
    assert [each["text"] for each in objects] == ANSWERS.split("\n")[:-1]
    assert [each["line"] for each in objects] == list(range(1, len(lines)))
    assert [each["prompt"] for each in objects] == sentences.read_text().removesuffix("\n").split("\n")
    assert len({frozenset(each) for each in objects}) == 1, "that of a blank line has the same fields"
    lines = run("x.edge", "--lines", sentences, "--json", "--beams", 2, "--n-best", 2)[1].split("\n")
    assert [len(json.loads(line)["candidates"]) for line in lines if line] == [2, 2, 0, 2, 0, 2]
    lines = run("x.edge", "--lines", sentences, "--beams", 2, "--n-best", 2)[1].split("\n")
    assert [line.split("\t")[0] for line in lines] == ["1", "1", "2", "2", "", "4", "4", "", "6", "6", ""]
    assert lines[2].split("\t")[2] == "THREE WORDS HERE"


def test_an_answer_of_several_lines_stays_on_its_own(run: Run, fake: Callable, sentences: Path) -> None:
    fake(lambda text: "a\nb")
    assert run("x.edge", "--lines", sentences)[1].split("\n")[:3] == ["a\\nb", "a\\nb", ""]
    assert run("x.edge", "hi")[1] == "a\nb\n"


@pytest.mark.parametrize("seed", range(8))
def test_every_answer_of_a_line_can_be_read_back(run: Run, fake: Callable, sentences: Path, seed: int) -> None:
    """Whatever ends a line for somebody, and backslashes, which mark it."""
    choose = random.Random(seed)
    text = "".join(choose.choices("ab\\n\n\r\v\f\x1c\x85\u2028\u2029 ü", k=12)).strip() or "a"
    fake(lambda _: text)
    first, *_ = run("x.edge", "--lines", sentences)[1].split("\n")
    assert len(first.splitlines()) == 1
    escaped = re.sub(r"\\(\\|n|r|x..|u....)", lambda found: found[0].encode().decode("unicode_escape"), first)
    assert escaped == run("x.edge", "hi")[1].removesuffix("\n")


def test_a_line_that_is_too_long_is_named_before_anything_is_done(run: Run, fake: Callable, sentences: Path) -> None:
    engine, out = fake(), sentences.with_name("out.txt")
    sentences.write_text("one\n\n" + "x" * 50)
    status, _, err = run("x.edge", "--lines", sentences, "--output", out)
    assert status == 2 and f"Line 3 of {sentences}: The text has 51 tokens" in err and err.count("\n") == 1
    assert engine.encoded == [] and not out.with_name("out.txt.part").exists()


def test_lines_of_standard_input_are_answered_one_by_one(run: Run, fake: Callable, pipe: Callable) -> None:
    fake()
    pipe(b"one\n\ntwo\r\n")
    assert run("x.edge")[:2] == (0, "ONE\n\nTWO\n")
    pipe(b"one\ntwo\n")
    assert run("x.edge", "-")[1] == "ONE\nTWO\n", "a dash makes them one text"
    pipe(b"one\ntwo\n")
    assert run("x.edge", "-f", "-")[1] == "ONE\nTWO\n"


@pytest.mark.parametrize(
    ("data", "sentence"),
    [
        (b"ok\n\xff\n", "Line 2 of standard input is not UTF-8"),
        (b"ok\n" + b"x" * 50, "Line 2 of standard input: The text"),
    ],
)
def test_a_bad_line_of_standard_input_is_named_after_those_before_it(
    run: Run, fake: Callable, pipe: Callable, data: bytes, sentence: str
) -> None:
    fake()
    pipe(data)
    status, out, err = run("x.edge")
    assert (status, out) == (2, "OK\n") and sentence in err


def test_on_a_terminal_each_line_is_answered_by_itself(
    run: Run, fake: Callable, pipe: Callable, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = fake()
    typed = iter(["hello", "", "x" * 50, "two", "/quit", "never"])
    monkeypatch.setattr("builtins.input", lambda prompt: next(typed))
    pipe(b"", terminal=True)
    status, out, err = run("x.edge")
    assert (status, out) == (0, "HELLO\nTWO\n") and "51 tokens" in err
    assert len(engine.encoded) == 2


def test_ctrl_c_on_a_terminal_stops_one_answer(
    run: Run, fake: Callable, pipe: Callable, monkeypatch: pytest.MonkeyPatch
) -> None:
    press_in(fake(), "hello")
    typed = iter(["hello", "two"])
    monkeypatch.setattr("builtins.input", lambda prompt: next(typed, None) or (_ for _ in ()).throw(EOFError))
    pipe(b"", terminal=True)
    status, out, _ = run("x.edge")
    assert (status, out) == (0, "\nTWO\n\n")


@pytest.mark.parametrize(
    ("args", "sentence"),
    [
        (("x", "--beams", "0"), "number of beams must be 1 or more"),
        (("x", "--beams", "two"), "invalid int value: 'two'"),
        (("x", "--n-best", "3"), "1 beam cannot give 3 texts; ask for 3 beams or more"),
        (("x", "--beams", "4", "--beam-groups", "3", "--diversity", "1"), "cannot be split into 3 groups"),
        (("x", "--beams", "4", "--beam-groups", "2"), "need a diversity above 0"),
        (("x", "--early-stopping", "soon"), "invalid choice: 'soon'"),
        (("x", "--beams", "2", "--temperature", "1"), "are drawn for one text at a time"),
        (("x", "--beams", "2", "--speculate", "input"), "The drafter input drafts one text at a time"),
        (("x", "--target-language", "de"), "no choice of languages"),
        (("x", "--system", "s"), "--system means nothing to it"),
        (("x", "--raw"), "--raw means nothing to it"),
        (("x", "--prefill-chunk", "4"), "--prefill-chunk means nothing to it"),
        (("x", "--speculate", "recycle"), "recycle does not serve fake, which turns one text into another"),
        (("x", "--speculate", "magic"), "There is no drafter 'magic'"),
        (("x", "--audio", "talk.wav"), "hears no sound; --audio needs a speech bundle"),
        (("x", "--output", "out"), "one a line; redirect the output"),
        (("-f", "SENTENCES", "--output", "out"), "write --lines"),
        (("x", "--lines", "SENTENCES"), "is a whole prompt; leave out 'x', or --lines"),
        (("-f", "SENTENCES", "--lines", "SENTENCES"), "is a whole prompt; leave out -f"),
        (("--lines", "no/such/file"), "no/such/file cannot be read: No such file"),
        (("",), "The prompt is empty"),
        (("y" * 50,), "51 tokens and this model's encoder takes up to 40"),
        (("--lines", "SENTENCES", "--output", "no/such/folder/out"), "no/such/folder/out cannot be written"),
        (("--lines", "SENTENCES", "--output", "."), "is a folder"),
    ],
    ids=lambda value: " ".join(value)[:40] if isinstance(value, tuple) else "",
)
def test_bad_input_gets_one_sentence_and_status_2(
    run: Run, fake: Callable, sentences: Path, args: tuple[str, ...], sentence: str
) -> None:
    engine = fake()
    status, out, err = run("x.edge", *(str(sentences) if arg == "SENTENCES" else arg for arg in args))
    assert (status, out) == (2, "")
    assert sentence in err and err.startswith("edge: ") and err.count("\n") == 1
    assert engine.encoded == []


@pytest.mark.parametrize(
    "option",
    [("--beams", 2), ("--to", "de"), ("--n-best", 1)],
)
def test_a_decoder_refuses_what_only_text_to_text_has(
    run: Run, tiny_bundle: Bundle, option: tuple[object, ...]
) -> None:
    status, _, err = run(tiny_bundle.root, "hi", *option)
    assert status == 2 and f"is no bundle from text to text, and {option[0]} means nothing to it" in err


def test_a_decoder_writes_no_file_of_one_answer(run: Run, tiny_bundle: Bundle, tmp_path: Path) -> None:
    status, _, err = run(tiny_bundle.root, "hi", "--output", tmp_path / "out.txt")
    assert status == 2 and "--output takes the answers to the prompts in a file's lines" in err
    assert not (tmp_path / "out.txt").exists()


def test_a_speech_bundle_goes_to_the_speech_command(
    run: Run, fake: Callable, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, _ = fake_text2text(tmp_path / "s.edge")
    speech = dataclasses.replace(model.bundle.manifest, speech=SimpleNamespace(), text=None)
    bundle = dataclasses.replace(model.bundle, manifest=speech)
    monkeypatch.setattr("edge.cli.run.source.open_source", lambda path: bundle)
    monkeypatch.setattr(
        "edge.cli.run.speech.run_speech", lambda args, bundle: 7 if args.audio == "a.wav" and args.beams == 5 else 1
    )
    assert run("x.edge", "--audio", "a.wav", "--beams", 5)[0] == 7
    assert "--from means nothing" in run("x.edge", "--audio", "a.wav", "--source-language", "de")[2]
