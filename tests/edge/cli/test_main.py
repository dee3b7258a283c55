"""The `edge` command around its commands: what it imports, prints and exits with."""

from __future__ import annotations

import argparse
import dataclasses
import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable
from graphlib import TopologicalSorter
from pathlib import Path

import pytest
from places import DOCS

from edge import __version__
from edge.bundle import Bundle
from edge.cli import ending, run
from edge.cli.arguments import Parser
from edge.cli.ending import Terminated
from edge.cli.main import COMMANDS, main
from edge.errors import BundleError, CatalogError, DeviceError, ExportError, InputError, PhoneError
from edge.extras import install
from edge.manifest import ChatFormat, ChatSlot, TensorGroup

StandIn = Callable[..., None]


def edge(*args: str, code: str = "") -> subprocess.CompletedProcess[str]:
    """The command in a process of its own; `code` runs before it."""
    script = f"import sys\nfrom edge.cli.main import main\n{code}\nsys.exit(main())"
    return subprocess.run([sys.executable, "-c", script, *args], capture_output=True, text=True, timeout=60)


@pytest.fixture
def stand_in(monkeypatch: pytest.MonkeyPatch) -> StandIn:
    """Puts a function in the place of `edge run`, which then takes no arguments but those named."""

    def put(command: Callable[[argparse.Namespace], object], *arguments: str) -> None:
        def add_arguments(parser: Parser) -> None:
            for name in arguments:
                parser.add_argument(name)

        monkeypatch.setattr(run, "add_arguments", add_arguments)
        monkeypatch.setattr(run, "command", command)

    return put


def failing(error: BaseException) -> Callable[[argparse.Namespace], None]:
    def command(args: argparse.Namespace) -> None:
        raise error

    return command


def test_help_names_every_command_in_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--help"]) == 0
    text = capsys.readouterr().out
    for name in COMMANDS:
        assert len(re.findall(rf"^  {name} +\S.*\.$", text, re.MULTILINE)) == 1
    assert main([]) == 0
    assert capsys.readouterr().out == text


def test_every_command_is_a_module_and_none_is_missing_from_the_table() -> None:
    assert {name for name, text in modules().items() if "\ndef command(" in text} == {
        command.module for command in COMMANDS.values()
    }
    for name, command in COMMANDS.items():
        assert command.module == f"edge.cli.{name}" and command.load().command.__doc__


def modules() -> dict[str, str]:
    """The source of each module of the command, by its import name."""
    folder = Path(sys.modules["edge.cli.main"].__file__ or "").parent
    paths = {path: path.relative_to(folder).with_suffix("").parts for path in folder.rglob("*.py")}
    return {".".join(["edge.cli", *parts]).removesuffix(".__init__"): path.read_text() for path, parts in paths.items()}


def test_no_modules_of_the_command_import_each_other() -> None:
    """Not inside functions either, nor by way of others."""
    found = modules()
    graph = {
        name: {
            f"{module}.{what}" if f"{module}.{what}" in found else module
            for module, what in re.findall(r"^ *from (edge\.cli[\w.]*) import (\w+)", text, re.MULTILINE)
        }
        for name, text in found.items()
    }
    assert len(list(TopologicalSorter(graph).static_order())) >= len(found)


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_explains_itself(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([name, "--help"]) == 0
    text = capsys.readouterr().out
    assert text.startswith(f"Usage: edge {name}")
    assert "--debug" in text


def test_version_is_the_package_s_own(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--version"]) == 0
    assert capsys.readouterr().out == f"edge {__version__}\n"


def test_a_command_imports_no_other_command_and_nothing_heavy() -> None:
    code = "import atexit\natexit.register(lambda: print('LOADED', *sys.modules, file=sys.stderr))\n"
    result = edge("inspect", "--help", code=code)
    loaded = set(result.stderr.partition("LOADED")[2].split())
    assert "edge.cli.inspect" in loaded
    assert not loaded & {f"edge.cli.{name}" for name in COMMANDS if name != "inspect"}
    assert not loaded & {"rich", "jinja2", "onnxruntime", "tokenizers", "torch", "transformers", "onnx"}


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (["fly"], "There is no command 'fly'"),
        (["--fast"], "There is no option '--fast'"),
        (["inspect"], "The following arguments are required: BUNDLE; see edge inspect --help"),
        (["inspect", "x.edge", "--fast"], "Unrecognized arguments: --fast; see edge inspect --help"),
        (["inspect", "x.edge", "--js"], "Unrecognized arguments: --js; see edge inspect --help"),
        (["verify", "x.edge", "--threads", "many"], "Argument --threads: .*'many'; see edge verify --help"),
        (["inspect", "nothing.edge"], "There is no bundle at nothing.edge"),
        (["inspct", "x.edge"], "There is no command 'inspct'; did you mean inspect"),
        (["ls"], "There is no command 'ls'; did you mean list"),
        (["run", "x.edge", "--max-token", "5"], "--max-token 5; see edge run --help .did you mean --max-tokens"),
        (["run", "x.edge", "--temprature=1"], "--temprature=1; see edge run --help .did you mean --temperature"),
        (["run", "x.edge", "-n", "5"], "see edge run --help .did you mean --max-tokens"),
        (["run", "x.edge", "Why", "is", "it"], "see edge run --help, or put a prompt of several words in quotes"),
        (["export", "m.gguf", "m.edge"], "m.edge; see edge export --help, or name the bundle with -o m.edge"),
    ],
)
def test_what_cannot_be_used_is_one_sentence_and_exit_2(
    args: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(args) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert re.fullmatch(f"edge: .*{message}.*\n", captured.err), captured.err


def test_an_unforeseen_error_is_one_sentence_and_exit_1(stand_in: StandIn, capsys: pytest.CaptureFixture[str]) -> None:
    stand_in(failing(ValueError("first line\nsecond line")))
    assert main(["run"]) == 1
    error = capsys.readouterr().err
    assert error.count("\n") == 1
    assert "ValueError: first line second line" in error
    assert "--debug" in error


@pytest.mark.parametrize("args", [["--debug", "run"], ["run", "--debug"]])
def test_debug_anywhere_shows_the_traceback(
    args: list[str], stand_in: StandIn, capsys: pytest.CaptureFixture[str]
) -> None:
    stand_in(failing(InputError("no")))
    assert main(args) == 2
    *_, before, sentence = capsys.readouterr().err.splitlines()
    assert (before, sentence) == ("edge.errors.InputError: no", "edge: no")


@pytest.mark.parametrize(
    ("error", "status"),
    [
        *((kind("no"), 2) for kind in (InputError, BundleError, CatalogError, ExportError, PhoneError, DeviceError)),
        (OSError(28, "No space left on device"), 2),
        (MemoryError(), 2),
        (RecursionError(), 2),
        (ModuleNotFoundError("No module named 'torch'", name="torch"), 2),
        (ValueError("odd"), 1),
        (BrokenPipeError(), 1),
        (KeyboardInterrupt(), 130),
        (Terminated(), 143),
    ],
    ids=lambda value: type(value).__name__,
)
def test_an_exit_status_means_the_same_in_every_command_and_with_debug(
    error: BaseException, status: int, stand_in: StandIn, capsys: pytest.CaptureFixture[str]
) -> None:
    stand_in(failing(error))
    assert [main(["run"]), main(["run", "--debug"])] == [status, status]


@pytest.mark.parametrize(("interruption", "status"), [(KeyboardInterrupt(), 130), (Terminated(), 143)])
def test_an_interrupted_export_has_the_status_of_what_ended_it(
    interruption: BaseException, status: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def export(*_: object, **__: object) -> None:
        raise interruption

    import edge.export

    monkeypatch.setattr(edge.export, "export", export)
    assert main(["export", "org/name", "-o", "x.edge"]) == status
    assert capsys.readouterr().err == "edge: The export was interrupted; nothing was left at x.edge.\n"


def test_debug_after_two_dashes_is_a_prompt(stand_in: StandIn, capsys: pytest.CaptureFixture[str]) -> None:
    def command(args: argparse.Namespace) -> None:
        print(args.prompt)

    stand_in(command, "prompt")
    assert main(["run", "--", "--debug"]) == 0
    assert capsys.readouterr().out == "--debug\n"


def test_a_missing_extra_says_what_to_install(stand_in: StandIn, capsys: pytest.CaptureFixture[str]) -> None:
    stand_in(failing(ModuleNotFoundError("No module named 'onnx_ir'", name="onnx_ir.passes")))
    assert main(["run"]) == 2
    assert install("gguf") in capsys.readouterr().err
    stand_in(failing(ModuleNotFoundError("No module named 'torch'", name="torch")))
    assert main(["run"]) == 2
    assert install("export") in capsys.readouterr().err
    stand_in(failing(ModuleNotFoundError("No module named 'edge.nothing'", name="edge.nothing")))
    assert main(["run"]) == 1


def test_ctrl_c_is_quiet(stand_in: StandIn, capsys: pytest.CaptureFixture[str]) -> None:
    stand_in(failing(KeyboardInterrupt()))
    assert main(["run"]) == 130
    assert capsys.readouterr() == ("", "")


def test_an_exit_status_is_passed_on(stand_in: StandIn) -> None:
    def command(args: argparse.Namespace) -> int:
        return 3

    stand_in(command)
    assert main(["run"]) == 3


@pytest.mark.skipif(sys.platform == "win32", reason="POSIX signals")
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_the_command_and_runs_its_clean_up(number: int, tmp_path: Path) -> None:
    script = f"""
import sys, time
from edge.cli import ending, run
def command(args):
    try:
        print("ready", flush=True)
        time.sleep(60)
    finally:
        open({str(tmp_path / "cleaned")!r}, "w").close()
run.command, run.add_arguments = command, lambda parser: None
from edge.cli.main import main
sys.exit(main(["run"]))
"""
    process = subprocess.Popen(
        [sys.executable, "-c", script], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    process.send_signal(number)
    _, error = process.communicate(timeout=30)
    wanted = (130, "") if number == signal.SIGINT else (143, "edge: Ended by SIGTERM.\n")
    assert (process.returncode, error) == wanted
    assert (tmp_path / "cleaned").exists()


@pytest.mark.skipif(sys.platform == "win32", reason="POSIX pipes")
@pytest.mark.parametrize("lines", [1, 100_000])
def test_a_reader_that_leaves_is_no_error(lines: int) -> None:
    reading, writing = os.pipe()
    os.close(reading)
    script = f"""
import sys
from edge.cli import ending, run
def command(args):
    for i in range({lines}):
        print("a line")
run.command, run.add_arguments = command, lambda parser: None
from edge.cli.main import main
sys.exit(main(["run"]))
"""
    result = subprocess.run(
        [sys.executable, "-c", script], stdout=writing, stderr=subprocess.PIPE, text=True, timeout=60
    )
    os.close(writing)
    assert (result.returncode, result.stderr) == (1, "")


def test_inspect_shows_the_figures(paper_bundle: Bundle, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["inspect", str(paper_bundle.root)]) == 0
    text = capsys.readouterr().out
    for figure in ("paper", "llama", "7.45 bits per weight", "512 B of KV cache", "attention", "625 B", "5.00"):
        assert figure in text
    for figure in ("graphs/decoder.onnx", "8 B", "Apache-2.0", "top1_agreement", "0.97", "int4"):
        assert figure in text


@pytest.mark.parametrize(
    ("template", "chat", "shown"),
    [
        (None, None, "none: only --raw prompts"),
        ("{{ messages }}", None, "yes, but no chat format: a phone cannot render it"),
        ("{{ messages }}", ChatFormat(None, None, None, ChatSlot(""), ChatSlot(""), ""), "yes "),
    ],
)
def test_inspect_says_who_can_render_a_chat(
    paper_bundle: Bundle,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    template: str | None,
    chat: ChatFormat | None,
    shown: str,
) -> None:
    manifest = dataclasses.replace(paper_bundle.manifest, chat_template=template, chat_format=chat)
    monkeypatch.setattr("edge.cli.inspect.open_bundle", lambda path: Bundle(paper_bundle.root, manifest))
    assert main(["inspect", str(paper_bundle.root)]) == 0
    assert f"chat template  {shown}" in capsys.readouterr().out


@pytest.mark.parametrize("method", ["gptq+tuned", "a_method_whose_name_is_long"])
def test_inspect_cuts_nothing_off_at_80_columns(
    paper_bundle: Bundle, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, method: str
) -> None:
    group = TensorGroup("feed_forward", 1_207_959_552, 689_700_000, 4.0, 64, method)  # as of 1.7B weights
    large = Bundle(paper_bundle.root, dataclasses.replace(paper_bundle.manifest, groups=[group]))
    monkeypatch.setattr("edge.cli.inspect.open_bundle", lambda path: large)
    monkeypatch.setenv("COLUMNS", "80")
    assert main(["inspect", str(paper_bundle.root)]) == 0
    out = capsys.readouterr().out
    assert max(map(len, out.splitlines())) <= 80
    assert all(whole in out for whole in ("feed_forward", "1,207,959,552", "689.7 MB", "4.57", method))


def test_inspect_breaks_no_word_of_a_method_at_80_columns(
    paper_bundle: Bundle, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    groups = [  # as of whisper-medium
        TensorGroup("encoder.cross_attention", 100_761_600, 102_500_000, 8.023, 512, "rows, no overflow"),
        TensorGroup("norm", 1000, 4000, 32.0, 0, "float32"),
    ]
    speech = Bundle(paper_bundle.root, dataclasses.replace(paper_bundle.manifest, groups=groups))
    monkeypatch.setattr("edge.cli.inspect.open_bundle", lambda path: speech)
    monkeypatch.setenv("COLUMNS", "80")
    assert main(["inspect", str(paper_bundle.root)]) == 0
    text = capsys.readouterr().out
    assert max(map(len, text.splitlines())) <= 80
    assert {"rows,", "no", "overflow", "float32", "8.14"} <= set(text.split())


def test_inspect_json_holds_the_same_figures(paper_bundle: Bundle, capsys: pytest.CaptureFixture[str]) -> None:
    import json

    assert main(["inspect", str(paper_bundle.root), "--json"]) == 0
    shown = json.loads(capsys.readouterr().out)
    assert shown["bits_per_weight"] == paper_bundle.manifest.bits_per_weight
    assert shown["kv_bytes_per_token"] == 512
    assert shown["dims"]["num_layers"] == 2
    assert shown["groups"][0]["bits_per_weight"] == 5.0
    assert shown["bytes"] == sum(file.size for file in paper_bundle.manifest.files)
    assert shown["source"]["licence"] == "Apache-2.0"


def test_the_page_of_exit_statuses_names_those_that_there_are() -> None:
    page = (DOCS / "reference" / "exit-status.md").read_text(encoding="utf-8")
    rows = {int(found) for found in re.findall(r"^\| (\d+) \|", page, re.MULTILINE)}
    assert rows == {0, ending.UNFORESEEN, ending.REFUSED, ending.INTERRUPTED, ending.TERMINATED}
    assert rows == set(map(int, re.findall(r"^    (\d+) ", ending.__doc__ or "", re.MULTILINE)))
