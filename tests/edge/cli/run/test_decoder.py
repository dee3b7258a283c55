"""`edge run`: where the prompt comes from, what is printed where, what bad input gets, Ctrl-C, and the chat."""

from __future__ import annotations

import dataclasses
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from fake_engine import fake_model, says, tokens_in

from edge.bundle import Bundle
from edge.cli.run import chat as chat_command
from edge.cli.run.terminal import CtrlC, figures
from edge.runtime import load as loading
from edge.runtime.decode.answer import Piece, Timings
from edge.runtime.decode.generate_options import GenerateOptions
from edge.runtime.load_options import LoadOptions
from edge.runtime.model import Model

JSON_KEYS = {
    *("text", "token_ids", "prompt_tokens", "generated_tokens", "ttft_ms", "decode_tokens_per_s"),
    *("prefill_tokens_per_s", "peak_private_mb", "peak_rss_mb", "finish_reason", "speculation", "placement"),
    *("thoughts", "forced_tokens"),
}

Run = Callable[..., tuple[int, str, str]]


@pytest.fixture
def fake(tmp_path: Path, serve: Callable) -> Callable[..., object]:
    """Puts a model that gives certain answers in the place of every bundle."""

    def fake(*answers: str, **options: object) -> object:
        model, engine = fake_model(tmp_path / "fake.edge", says(*answers), **options)  # type: ignore[arg-type]
        serve(model, engine)
        return engine

    return fake


def test_an_answer_goes_to_standard_output_and_one_line_of_figures_to_standard_error(run: Run, fake: Callable) -> None:
    fake("Hello 🙂")
    status, out, err = run("x.edge", "hi")
    assert (status, out) == (0, "Hello 🙂\n")
    assert err.count("\n") == 1
    for part in ("prompt tokens", "TTFT", "tokens/s", "MB private", "MB RSS"):
        assert part in err


@pytest.mark.parametrize(
    ("options", "context", "said"),
    [(("--max-tokens", 2), 1000, "cut off by --max-tokens"), ((), 40, "the context is full"), ((), 1000, "")],
)
def test_the_figures_say_what_cut_an_answer_off(
    run: Run, fake: Callable, options: tuple[object, ...], context: int, said: str
) -> None:
    fake("Hello you, this is long.", context=context)
    err = run("x.edge", "hi", *options)[2]
    assert err.endswith(f"MB RSS{' · ' + said if said else ''}\n")


@pytest.mark.parametrize(("tokens", "said"), [(1, "1 prompt token · "), (2, "2 prompt tokens · ")])
def test_one_prompt_token_is_one(tokens: int, said: str) -> None:
    assert figures(Timings(tokens)).startswith(said)


def test_text_is_written_as_it_comes(run: Run, fake: Callable, monkeypatch: pytest.MonkeyPatch) -> None:
    fake("abc")
    written = []
    monkeypatch.setattr(sys.stdout, "write", lambda text: written.append(text))
    run("x.edge", "hi")
    assert written == ["a", "b", "c", "\n"]


def test_json_is_one_object_with_exactly_the_documented_keys(run: Run, tiny_bundle: Bundle) -> None:
    status, out, err = run(tiny_bundle.root, "The moon", "--json", "--max-tokens", 5)
    assert (status, err) == (0, "")
    answer = json.loads(out)
    assert set(answer) == JSON_KEYS
    assert answer["generated_tokens"] == len(answer["token_ids"]) == 5 and answer["finish_reason"] == "length"
    assert answer["ttft_ms"] > 0 and answer["decode_tokens_per_s"] > 0 and answer["prefill_tokens_per_s"] > 0
    assert answer["peak_rss_mb"] > answer["peak_private_mb"] > 5


def test_json_says_what_drafts_did(run: Run, tiny_bundle: Bundle) -> None:
    ids = []
    for speculate in ("off", "lookup"):
        options = ("--json", "--max-tokens", 60, "--exact", "--speculate", speculate)
        answer = json.loads(run(tiny_bundle.root, "la la la la la la la la la", *options)[1])
        ids.append(answer["token_ids"])
        drafts = answer["speculation"]
        assert (drafts is None) == (speculate == "off")
    assert set(drafts) == {
        *("drafter", "steps", "drafted", "accepted", "accepted_per_step", "draft_s", "verify_s"),
    }
    assert drafts["drafter"] == "lookup" and drafts["steps"] + drafts["accepted"] == len(ids[1]) - 1
    assert ids[0] == ids[1]


def test_options_may_stand_anywhere(run: Run, fake: Callable) -> None:
    fake("Hello")
    assert run("--max-tokens", 2, "x.edge", "hi")[1] == "He\n"
    assert run("x.edge", "--max-tokens", 2, "hi")[1] == "He\n"
    assert run("x.edge", "hi", "--max-tokens=2")[1] == "He\n"


def test_a_prompt_that_begins_with_a_dash_follows_two_dashes(run: Run, fake: Callable) -> None:
    engine = fake("Hello")
    assert run("x.edge", "--", "--raw")[0] == 0
    assert b"user\n--raw" in bytes(t for t in tokens_in(engine.steps) if t < 256)


@pytest.mark.parametrize("args", [(), ("-",), ("-f", "-")], ids=["nothing", "dash", "file dash"])
def test_the_prompt_is_read_from_standard_input(
    run: Run, fake: Callable, pipe: Callable, args: tuple[str, ...]
) -> None:
    engine = fake("Hello")
    pipe("Grüße\n".encode())
    assert run("x.edge", *args)[:2] == (0, "Hello\n")
    assert "user\nGrüße\n".encode() in bytes(t for t in tokens_in(engine.steps) if t < 256)


def test_the_prompt_is_read_from_a_file_without_its_last_line_end(run: Run, fake: Callable, tmp_path: Path) -> None:
    (tmp_path / "prompt.txt").write_bytes("\ufeffone\ntwo\r\n".encode())
    engine = fake("Hello")
    run("x.edge", "-f", tmp_path / "prompt.txt", "--raw", "--max-tokens", 1)
    assert tokens_in(engine.steps)[1:] == list(b"one\ntwo")


def test_options_reach_the_answer(run: Run, fake: Callable) -> None:
    engine = fake("one STOP two", "one STOP two")
    assert run("x.edge", "hi", "--stop", "never", "--stop", "STOP", "--system", "Be brief.")[1] == "one \n"
    assert b"system\nBe brief." in bytes(t for t in tokens_in(engine.steps) if t < 256)


SHAPING = {
    **{"--max-tokens": 7, "--temperature": 0.5, "--top-k": 40, "--top-p": 0.9, "--min-p": 0.05},
    **{"--repetition-penalty": 1.2, "--seed": 11},
}
SHAPED = GenerateOptions(
    max_tokens=7, temperature=0.5, top_k=40, top_p=0.9, min_p=0.05, repetition_penalty=1.2, seed=11, stop=["A", "B"]
)


def options_of(given: dict[str, object]) -> list[object]:
    return [each for option in given.items() for each in option] + ["--stop", "A", "--stop", "B"]


def without_ctrl_c(options: GenerateOptions) -> GenerateOptions:
    assert isinstance(options.interrupted, CtrlC)
    return dataclasses.replace(options, interrupted=SHAPED.interrupted)


def test_every_option_of_the_answer_reaches_the_model(
    run: Run, fake: Callable, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake("Hello")
    stream, given = Model.stream, list[tuple[Any, ...]]()

    def recording(model: Model, prompt: str, options: GenerateOptions, **more: object) -> Iterator[Piece]:
        given.append((model.prefill_chunk, prompt, without_ctrl_c(options), more))
        return stream(model, "hi")

    monkeypatch.setattr(Model, "stream", recording)
    assert run("x.edge", "hi", *options_of(SHAPING), "--system", "Be brief.", "--prefill-chunk", 3)[0] == 0
    assert run("x.edge", "hi", *options_of(SHAPING), "--raw")[0] == 0
    assert given == [
        (3, "hi", SHAPED, {"system": "Be brief.", "raw": False}),
        (128, "hi", SHAPED, {"system": None, "raw": True}),
    ]


def test_every_option_of_the_answers_reaches_a_chat(run: Run, fake: Callable, monkeypatch: pytest.MonkeyPatch) -> None:
    fake("Hello")
    given = list[tuple[Any, ...]]()

    def recording(
        model: Model, options: GenerateOptions, system: str | None, interrupted: CtrlC, **more: object
    ) -> None:
        given.append((model.prefill_chunk, without_ctrl_c(options), system, more["verbose"]))

    monkeypatch.setattr(chat_command, "chat", recording)
    monkeypatch.setattr("sys.stdin.isatty", lambda: True)
    assert run("x.edge", *options_of(SHAPING), "--system", "Be brief.", "--prefill-chunk", 3, "--verbose")[0] == 0
    assert given == [(3, SHAPED, "Be brief.", True)]


def test_every_option_of_the_machine_reaches_what_loads_the_bundle(
    run: Run, fake: Callable, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake("Hello")
    start, given = loading.start, list[LoadOptions]()

    def recording(bundle: Bundle, options: LoadOptions) -> object:
        given.append(options)
        return start(bundle, options)

    monkeypatch.setattr(loading, "start", recording)
    machine = {"--context": 99, "--threads": 2, "--memory": "300MB", "--prefill-chunk": 3, "--kv": "int8"}
    more = "--speculate", "lookup", "--skip", "unified:0.1", "--exact", "--provider", "cpu"
    assert run("x.edge", "hi", *(each for option in machine.items() for each in option), *more)[0] == 0
    expected = LoadOptions(
        **{"context": 99, "threads": 2, "prefill_chunk": 3, "memory": "300MB", "kv": "int8"},
        **{"speculate": "lookup", "exact": True, "skip": "unified:0.1", "provider": "cpu"},
    )
    assert given == [expected]


def test_context_threads_and_chunk_reach_the_engine(run: Run, tiny_bundle: Bundle) -> None:
    small = ("--context", 40, "--threads", 1, "--prefill-chunk", 3, "--json")
    status, out, _ = run(tiny_bundle.root, "The moon changes", *small)
    answer = json.loads(out)
    assert (status, answer["finish_reason"]) == (0, "context")
    assert answer["prompt_tokens"] + answer["generated_tokens"] == 41


def test_a_bundle_without_a_template_says_so_once_and_answers(run: Run, fake: Callable) -> None:
    engine = fake("", template=None)
    engine.next_token = lambda history: 258  # type: ignore[attr-defined]
    status, _, err = run("x.edge", "hi")
    assert status == 0 and err.count("no chat template") == 1
    assert "no chat template" not in run("x.edge", "hi", "--raw")[2]


@pytest.mark.parametrize(
    ("args", "sentence"),
    [
        (("",), "The prompt is empty"),
        ((" \n",), "The prompt is empty"),
        (("x", "--temperature", "-1"), "temperature must be a number of 0 or more, not -1.0"),
        (("x", "--temperature", "nan"), "temperature must be a number of 0 or more, not nan"),
        (("x", "--temperature", "hot"), "invalid float value: 'hot'"),
        (("x", "--top-p", "0"), "top-p must be above 0 and at most 1, not 0.0"),
        (("x", "--top-p", "1.5"), "top-p must be above 0 and at most 1, not 1.5"),
        (("x", "--top-k", "-2"), "top-k must be"),
        (("x", "--min-p", "2"), "min-p must be between 0 and 1"),
        (("x", "--repetition-penalty", "0"), "repetition penalty must be"),
        (("x", "--seed", "-1"), "seed must be"),
        (("x", "--speculate", "magic"), "There is no drafter 'magic'; there are auto, off, blend, cascade"),
        (("x", "--speculate", "lookup=3"), "The drafter lookup takes no argument; write lookup alone."),
        (("x", "--max-tokens", "0"), "must be 1 or more, not 0"),
        (("x", "--max-tokens", "-5"), "must be 1 or more, not -5"),
        (("x", "--stop", ""), "stop string is empty"),
        (("x", "--context", "0"), "context must be between 1 and 512"),
        (("x", "--context", "513"), "context must be between 1 and 512"),
        (("x", "--threads", "0"), "threads must be at least 1"),
        (("x", "--threads", "5000"), "The number of threads must be at most"),
        (("x", "--prefill-chunk", "0"), "must be 1 token or more, not 0"),
        (("-f", "no/such/file"), "no/such/file cannot be read: No such file or directory"),
        (("x", "-f", "no/such/file"), "no/such/file cannot be read: No such file or directory"),
        (("x", "--output", "out"), "redirect the output"),
        (("x", "--batch", "2"), "name it with --lines FILE"),
        (("x", "y"), "Unrecognized arguments: y"),
        (("x", "--tokens", "5"), "Unrecognized arguments: --tokens"),
        (("x", "--raw", "--system", "s"), "a raw prompt takes none"),
        (("word " * 600,), "the context holds 512"),
        (("a\udcff",), "not valid Unicode"),
    ],
    ids=lambda value: " ".join(value)[:40] if isinstance(value, tuple) else "",
)
def test_bad_input_gets_one_sentence_and_status_2(
    run: Run, tiny_bundle: Bundle, args: tuple[str, ...], sentence: str
) -> None:
    status, out, err = run(tiny_bundle.root, *args)
    assert status == 2 and out == ""
    assert sentence in err and err.startswith("edge: ") and err.endswith(".\n") and err.count("\n") == 1


@pytest.mark.parametrize("output", ["q.txt", "link", "../here/q.txt", "part"])
def test_answers_never_overwrite_the_prompts(
    run: Run, tiny_bundle: Bundle, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, output: str
) -> None:
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    lines = "part.part" if output == "part" else "q.txt"
    Path(lines).write_text("one\ntwo\n")
    Path("link").symlink_to("q.txt")
    status, out, err = run(tiny_bundle.root, "--lines", lines, "--output", output, "--max-tokens", 2)
    assert (status, out) == (2, "") and f"The answers would overwrite the prompts in {lines}" in err
    assert Path(lines).read_text() == "one\ntwo\n"


@pytest.mark.skipif(sys.platform == "win32", reason="pipes as POSIX has them")
def test_nothing_that_is_piped_is_dropped_because_of_lines(
    run: Run, tiny_bundle: Bundle, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "q.txt").write_text("one\n")
    (tmp_path / "piped.txt").write_text("a report")
    with (tmp_path / "piped.txt").open(encoding="utf-8") as file:
        monkeypatch.setattr("sys.stdin", file)
        status, _, err = run(tiny_bundle.root, "--lines", tmp_path / "q.txt")
    assert status == 2 and "what is piped in would be dropped" in err


def test_a_missing_bundle_and_no_arguments_get_a_sentence(run: Run, tmp_path: Path) -> None:
    assert "There is no bundle at" in run(tmp_path / "none.edge", "hi")[2]
    assert "Name a model, such as: edge run " in run()[2]


@pytest.mark.parametrize("data", [b"", b"\n", b" \n\n"])
def test_empty_standard_input_and_an_empty_file_get_one_sentence(
    run: Run, tiny_bundle: Bundle, tmp_path: Path, pipe: Callable, data: bytes
) -> None:
    pipe(data)
    assert run(tiny_bundle.root) == (
        2, "", "edge: Standard input is empty; give the model something to answer.\n"
    )  # fmt: skip
    (tmp_path / "empty.txt").write_bytes(data)
    status, _, err = run(tiny_bundle.root, "-f", tmp_path / "empty.txt")
    assert status == 2 and "empty.txt is empty" in err


def test_a_prompt_that_is_not_utf_8_gets_one_sentence(
    run: Run, tiny_bundle: Bundle, tmp_path: Path, pipe: Callable
) -> None:
    (tmp_path / "latin.txt").write_bytes("Grüße".encode("latin-1"))
    status, _, err = run(tiny_bundle.root, "-f", tmp_path / "latin.txt")
    assert status == 2 and "latin.txt is not UTF-8 text (see byte 2)" in err
    pipe(b"\xff")
    assert "Standard input is not UTF-8" in run(tiny_bundle.root)[2]


def test_a_folder_as_prompt_file_gets_one_sentence(run: Run, tiny_bundle: Bundle, tmp_path: Path) -> None:
    status, _, err = run(tiny_bundle.root, "-f", tmp_path)
    assert status == 2 and "cannot be read: Is a directory" in err


def test_ctrl_c_ends_the_answer_with_what_was_said_and_status_130(
    run: Run, fake: Callable, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake("a long answer")
    press_after(3, monkeypatch)
    status, out, err = run("x.edge", "hi")
    assert (status, out) == (130, "a l\n")
    assert "3 tokens" in err and "Traceback" not in err


def test_ctrl_c_with_json_prints_the_object_as_far_as_it_came(
    run: Run, fake: Callable, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = fake("a long answer")
    next_token = engine.next_token

    def press(history: list[int]) -> int:
        if bytes(t for t in history if t < 256).endswith(b"a l"):
            signal.raise_signal(signal.SIGINT)
        return next_token(history)

    engine.next_token = press
    status, out, _ = run("x.edge", "hi", "--json")
    assert status == 130
    assert json.loads(out)["finish_reason"] == "interrupted" and json.loads(out)["text"] == "a l"


def press_after(pieces: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ctrl-C while the given piece of an answer is being written; once."""
    write = sys.stdout.write
    left = pieces

    def press(text: str) -> int:
        nonlocal left
        left -= 1
        if left == 0:
            signal.raise_signal(signal.SIGINT)
        return write(text)

    monkeypatch.setattr(sys.stdout, "write", press)


def test_ctrl_c_twice_ends_the_program() -> None:
    with pytest.raises(KeyboardInterrupt), CtrlC() as interrupted:
        signal.raise_signal(signal.SIGINT)
        assert interrupted()
        signal.raise_signal(signal.SIGINT)


def test_ctrl_c_is_given_back() -> None:
    before = signal.getsignal(signal.SIGINT)
    with CtrlC():
        assert signal.getsignal(signal.SIGINT) is not before
    assert signal.getsignal(signal.SIGINT) is before


def test_a_chat_keeps_its_cache_from_turn_to_turn(talk: Callable) -> None:
    out, err, engine = talk(["hi", "how?", "/stats", "/quit", "never read"], "Hello.", "Fine.")
    assert out == "Hello.\nFine.\n"
    assert "2 turns" in err and "from the cache" in err and "TTFT" in err
    longest = max(len(step) for step in engine.steps[1:])
    assert longest < len("<end>\n<start>user\nhow?<end>\n<start>assistant\n")


def test_reset_forgets_the_conversation(talk: Callable) -> None:
    out, err, engine = talk(["hi", "/reset", "/stats", "hi"], "Hello.")
    assert out == "Hello.\nHello.\n\n" and "starts over" in err and "0 turns" in err
    assert engine.steps[0] == engine.steps[len(engine.steps) // 2], "the second conversation is read from its start"


def test_the_end_of_the_input_leaves_the_chat(talk: Callable) -> None:
    assert talk([], "Hello.")[0] == "\n"


def test_empty_lines_and_unknown_commands_reach_no_model(talk: Callable) -> None:
    out, err, engine = talk(["", "  ", "/hlep", "/help", "/stats", "/quit"], "Hello.")
    assert out == "" and engine.steps == []
    assert "There is no command /hlep; did you mean /help?" in err and "/reset" in err


def test_ctrl_c_at_the_prompt_clears_the_line_and_the_chat_goes_on(talk: Callable) -> None:
    out, err, _ = talk([KeyboardInterrupt, "hi", "/quit"], "Hello.")
    assert out == "\nHello.\n" and "/quit or Ctrl-D leaves" in err


def test_ctrl_c_stops_an_answer_and_the_chat_goes_on(talk: Callable, monkeypatch: pytest.MonkeyPatch) -> None:
    press_after(3, monkeypatch)
    out, err, _ = talk(["hi", "how?", "/quit"], "Hello you.", "Fine.")
    assert out == "Hel\nFine.\n" and "Stopped." in err


def test_a_full_context_is_told_and_the_chat_goes_on(talk: Callable) -> None:
    out, err, _ = talk(["hi", "more", "/reset", "hi", "/quit"], "Hello you, my friend.", context=40)
    assert "context of 40 tokens is full; /reset starts over" in err
    assert "the context holds 40" in err
    assert out.count("Hello") == 2


def test_an_answer_cut_off_by_max_tokens_is_told(talk: Callable) -> None:
    assert "Cut off after 20 tokens" in talk(["hi", "/quit"], "This is more than twenty tokens.")[1]


@pytest.mark.skipif(sys.platform == "win32", reason="pseudo-terminals are a Unix thing")
def test_on_a_terminal_without_a_prompt_a_chat_begins(tiny_bundle: Bundle) -> None:
    import pty

    ours, theirs = pty.openpty()
    command = [sys.executable, "-m", "edge.cli.main", "run", str(tiny_bundle.root), "--max-tokens", "4"]
    with subprocess.Popen(command, stdin=theirs, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        os.close(theirs)
        os.write(ours, b"The moon\n/stats\n/quit\n")
        out, err = process.communicate(timeout=60)
    os.close(ours)
    assert process.returncode == 0, err
    assert "1 turn," in err and "Traceback" not in err and len(out) > 2


@pytest.mark.parametrize("option", ["--raw", "--json"])
def test_a_chat_takes_no_option_of_a_single_answer(
    run: Run, tiny_bundle: Bundle, pipe: Callable, monkeypatch: pytest.MonkeyPatch, option: str
) -> None:
    pipe(b"")
    monkeypatch.setattr("sys.stdin.isatty", lambda: True)
    status, _, err = run(tiny_bundle.root, option)
    assert status == 2 and f"A chat takes no {option}" in err


def test_a_reader_that_goes_away_ends_the_command_quietly(tiny_bundle: Bundle) -> None:
    command = f"{sys.executable} -m edge.cli.main run {tiny_bundle.root} 'The moon' --max-tokens 200 | head -c 1"
    result = subprocess.run(["bash", "-c", command], capture_output=True, text=True, timeout=60)
    assert "Traceback" not in result.stderr and "Exception" not in result.stderr


def test_running_a_bundle_imports_nothing_that_it_does_not_need(tiny_bundle: Bundle) -> None:
    script = (
        "import sys; from edge.cli.main import main; main(sys.argv[1:]); print();"
        "print(sorted({'rich', 'readline', 'torch', 'transformers', 'onnx'} & set(sys.modules)))"
    )
    command = [sys.executable, "-c", script, "run", str(tiny_bundle.root), "hi", "--max-tokens", "2"]
    result = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert result.stdout.splitlines()[-1] == "[]", result.stderr


DATED = (
    "<start>system\n{{ strftime_now('%d %b %Y') }}<end>\n"
    "{% for m in messages %}<start>{{ m.role }}\n{{ m.content }}<end>\n{% endfor %}"
    "{% if add_generation_prompt %}<start>assistant\n{% endif %}"
)


def test_a_date_is_what_the_template_tells_the_model(run: Run, fake: Callable) -> None:
    engine = fake("Hello.", template=DATED)
    assert run("x.edge", "hi", "--date", "2025-03-04")[:2] == (0, "Hello.\n")
    assert b"04 Mar 2025" in bytes(token for token in tokens_in(engine.steps) if token < 256)


@pytest.mark.parametrize(
    ("given", "why"),
    [
        (["--date", "4.3.2025"], "--date: a day is written as 2025-01-31, not '4.3.2025'"),
        (["--date", "2025-02-30"], "--date: a day is written as 2025-01-31, not '2025-02-30'"),
        (["--date", "2025-03-04"], "tells the model no date"),
        (["--date", "2025-03-04", "--raw"], "--date is for the chat template"),
    ],
)
def test_a_date_that_cannot_be_told_is_refused(run: Run, fake: Callable, given: list[str], why: str) -> None:
    fake("Hello.")
    status, out, err = run("x.edge", "hi", *given)
    assert (status, out, err.count("\n")) == (2, "", 1) and why in err


def test_a_template_that_leaves_out_the_users_words_is_refused(run: Run, fake: Callable) -> None:
    fake("Hello.", template="<start>user\n{{ messages[-1].words }}<end>\n<start>assistant\n")
    status, out, err = run("x.edge", "hi")
    assert (status, out, err.count("\n")) == (2, "", 1) and "leaves out what the user says" in err
