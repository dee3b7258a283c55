"""`edge run` of a model: the bundle is made once, kept, and used from then on."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import children_work as work
import pytest
from gguf_files import tiny_model, write_gguf

from edge.bundle import Bundle, BundleWriter, open_bundle
from edge.cli.main import main
from edge.cli.run import made, source
from edge.cli.run.contents import contents_of
from edge.cli.run.made import target_of
from edge.errors import ExportError
from edge.export.request.export_request import ExportRequest
from edge.lock import locked

ASKED = ["the moon", "--raw", "--max-tokens", "2", "--context", "64"]
LONG_S = 600  # much longer than a busy machine takes to start a process


@pytest.fixture
def model(tiny_checkpoint: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("EDGE_HOME", str(tmp_path / "home"))
    return Path(shutil.copytree(tiny_checkpoint, tmp_path / "tiny"))


def here(given: Path, work: Callable[..., Any], *arguments: Any) -> Any:
    """In place of another process."""
    return work(*arguments)


def kept(tmp_path: Path) -> list[Path]:
    return sorted((tmp_path / "home/bundles").glob("*.edge"))


def test_a_models_bundle_is_made_once_and_not_in_the_runs_memory(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """With a limit that PyTorch alone would break."""
    script = "import sys; from edge.cli.main import main; sys.exit(main(sys.argv[1:]))"
    command = [sys.executable, "-c", script, "run", str(model), *ASKED, "--memory", "150MB"]
    first = subprocess.run(command, capture_output=True, text=True, check=False)
    assert first.returncode == 0, first.stderr
    assert f"Making a bundle of {model}, once; edge export makes a smaller" in first.stderr
    (made,) = kept(tmp_path)
    assert open_bundle(made).manifest.weights == "int8" and str(made) in first.stderr
    command = [sys.executable, "-c", script, "export", str(model), "-o", str(tmp_path / "x.edge"), "--effort", "quick"]
    assert subprocess.run(command, capture_output=True, check=False).returncode == 0
    whole = open_bundle(tmp_path / "x.edge")
    assert {path.name for path in made.iterdir()} == {path.name for path in whole.root.iterdir()}
    assert whole.manifest.files == open_bundle(made).manifest.files
    monkeypatch.setattr(source, "_make", lambda *_: pytest.fail("it was made again"))
    assert main(["run", str(model), *ASKED]) == 0
    again = capsys.readouterr()
    assert again.out == first.stdout and "Making" not in again.err


def test_an_adapters_folder_is_a_model(tmp_path: Path, exports: list[Path], model: Path) -> None:
    (tmp_path / "adapter").mkdir()
    (tmp_path / "adapter" / "adapter_config.json").write_text('{"peft_type": "LORA"}')
    assert main(["run", str(tmp_path / "adapter"), *ASKED]) == 0
    assert len(exports) == 1


def test_a_changed_model_is_another_one_and_a_touched_one_is_not(model: Path) -> None:
    before = target_of(model, contents_of(model))
    weights = next(model.glob("*.safetensors"))
    os.utime(weights, ns=(1, 1))
    assert target_of(model, contents_of(model)) == before
    weights.write_bytes(weights.read_bytes()[:-1] + b"!")
    assert target_of(model, contents_of(model)) != before


def test_a_bundle_of_another_version_is_made_again(
    model: Path, exports: list[Path], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    source.open_source(model)
    source.open_source(model)
    assert len(exports) == 1
    monkeypatch.setattr(made, "__version__", "99")
    capsys.readouterr()
    source.open_source(model)
    said = capsys.readouterr().err
    assert "once, because the one that is there is another version's or damaged, or its file was moved;" in said
    assert exports == [exports[0]] * 2


def test_an_export_that_fails_leaves_nothing(model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    next(model.glob("*.safetensors")).write_bytes(b"no weights")
    assert main(["run", str(model), *ASKED]) == 2
    assert "Traceback" not in capsys.readouterr().err and kept(tmp_path) == []


def refused(given: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], status: int = 2) -> str:
    """The sentence that a model is refused with; that it leaves nothing is asserted here."""
    assert main(["run", str(given), *ASKED]) == status
    out, err = capsys.readouterr()
    *before, sentence = err.splitlines()
    assert out == "" and not [line for line in before if line.startswith(("edge: ", "Traceback"))], err
    assert list((tmp_path / "home/bundles").iterdir()) == []
    return sentence


BAD: dict[str, tuple[Callable[[bytes], bytes], str]] = {
    "unknown architecture": (
        lambda whole: whole.replace(b"\x05\0\0\0\0\0\0\0llama", b"\x05\0\0\0\0\0\0\0mamba", 1),
        "m.gguf holds the architecture 'mamba'; known in GGUF files are: bitnet, ",
    ),
    "unknown tokenizer": (lambda whole: whole.replace(b"gpt2", b"rwkv", 1), "m.gguf has a tokenizer of kind 'rwkv'; "),
    "cut short": (lambda whole: whole[:-1000], "m.gguf is cut short: the tensor"),
    "cut in the header": (lambda whole: whole[:1000], "m.gguf is damaged or cut short: its header breaks off at byte"),
    "version 1": (lambda whole: whole[:4] + b"\1\0\0\0" + whole[8:], "m.gguf is GGUF version 1; versions 2 and 3 in"),
    "big-endian": (lambda whole: whole[:4] + b"\0\0\0\3" + whole[8:], "m.gguf is big-endian (GGUF version 3); "),
}


@pytest.mark.parametrize("fault", BAD)
def test_a_gguf_file_that_cannot_be_read_is_refused_in_a_sentence(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], fault: str
) -> None:
    monkeypatch.setattr(source, "_apart", here)
    path, (harm, sentence) = write_gguf(tmp_path / "m.gguf", tiny_model("llama")), BAD[fault]
    path.write_bytes(harm(path.read_bytes()))
    assert sentence in refused(path, tmp_path, capsys)
    assert main(["export", str(path), "-o", str(tmp_path / "m.edge")]) == 2
    assert sentence in capsys.readouterr().err and not (tmp_path / "m.edge").exists()


def test_any_part_of_a_model_is_that_model(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(source, "_apart", here)
    tiny, answers = tiny_model("llama"), []
    write_gguf(tmp_path / "whole.gguf", tiny)
    write_gguf(tmp_path / "m.gguf", tiny, split_max_tensors=20)
    for name in ("whole", "m-00001-of-00002", "m-00002-of-00002"):
        assert main(["run", str(tmp_path / f"{name}.gguf"), *ASKED]) == 0
        answers.append(capsys.readouterr().out)
    assert answers == answers[:1] * 3
    assert [open_bundle(path).manifest.name for path in kept(tmp_path)] == ["m", "whole"]
    first, second = (tmp_path / f"m-0000{i}-of-00002.gguf" for i in (1, 2))
    before = contents_of(first)
    second.write_bytes(second.read_bytes()[:-1] + b"!")
    assert contents_of(first).sha256 != before.sha256
    second.unlink()
    sentence = "m-00001-of-00002.gguf is one of 2 parts of a model, of which m-00002-of-00002.gguf cannot"
    assert main(["run", str(tmp_path / "m-00001-of-00002.gguf"), *ASKED]) == 2
    assert sentence in capsys.readouterr().err


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
@pytest.mark.parametrize("name", ["weights.bin", "decoder.onnx", "edge.json"])
def test_a_disk_that_fills_up_leaves_nothing(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], name: str
) -> None:
    opened = Path.open

    def full(path: Path, *args: Any, **kwargs: Any) -> Any:
        inside = ".part" in str(path) and path.name == name
        return opened(Path("/dev/full") if inside else path, *args, **kwargs)

    monkeypatch.setattr(Path, "open", full)
    monkeypatch.setattr(source, "_apart", here)
    sentence = refused(model, tmp_path, capsys)
    assert sentence.endswith(".edge could not be written: No space left on device; nothing was left there.")


def fill(request: ExportRequest, writer: BundleWriter) -> None:
    shutil.copyfile(request.source, "/dev/full")


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
def test_an_error_of_the_system_comes_back_from_the_process_that_exports(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for stage in ("_stage", "_stage_and_finish"):
        monkeypatch.setattr(source, stage, fill)
    path = write_gguf(tmp_path / "m.gguf", tiny_model("llama"))
    assert main(["run", str(path), *ASKED]) == 2
    assert capsys.readouterr().err.splitlines()[-1].endswith(" could not be written: No space left on device.")


def test_what_is_neither_is_refused_as_a_bundle(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name in ("none.edge", "nothing", "a/b/c"):
        assert main(["run", str(tmp_path / name), "hello"]) == 2
        assert "Making" not in capsys.readouterr().err


@pytest.mark.parametrize(
    ("name", "mere"), [("nosuchname", True), ("no.such.1b", True), ("none.edge", False), ("a/b/c", False)]
)
def test_a_mere_name_is_missed_in_the_catalog_too(
    name: str, mere: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["run", name, "hi"]) == 2
    sentence = capsys.readouterr().err
    assert f"There is no bundle at {name}" in sentence
    assert ("no model of that name in the catalog (see edge models)" in sentence) is mere


@pytest.mark.skipif(sys.platform == "win32", reason="folders have other rights there")
@pytest.mark.parametrize("named", [True, False])
def test_a_model_runs_where_no_cache_can_be_written(
    model: Path, tmp_path: Path, named: bool, exports: list[Path], monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    """A folder that may not be written, or no home at all; what is made is gone with the process."""
    if named:
        monkeypatch.setattr("edge.home.os.access", lambda path, mode: False)
    else:
        monkeypatch.delenv("EDGE_HOME")
        monkeypatch.setenv("HOME", "/dev/null")
        monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    before = os.environ.get("EDGE_HOME")
    registered = list[Callable[..., object]]()
    monkeypatch.setattr("atexit.register", lambda *call, **more: registered.append(lambda: call[0](*call[1:], **more)))
    status = main(["run", str(model), *ASKED])
    folder = os.environ.pop("EDGE_HOME")
    if before is not None:
        os.environ["EDGE_HOME"] = before
    err = capsys.readouterr().err
    assert status == 0, err
    assert err.count("cannot be written") == 1 and "what is made now is for this run alone; see EDGE_HOME" in err
    assert exports[0].is_relative_to(folder)
    registered[0]()
    assert not Path(folder).exists()


def test_two_runs_at_a_time_make_one(model: Path, exports: list[Path], monkeypatch: pytest.MonkeyPatch) -> None:
    waits, make = threading.Event(), source._make

    def once_the_other_waits(*given: Any) -> Bundle:
        assert waits.wait(30)
        return make(*given)

    monkeypatch.setattr(source, "_make", once_the_other_waits)
    monkeypatch.setattr(source, "_say", lambda sentence: waits.set() if "waiting" in sentence else None)
    found = list[Bundle]()
    runs = [threading.Thread(target=lambda: found.append(source.open_source(model))) for _ in range(2)]
    for each in runs:
        each.start()
    for each in runs:
        each.join()
    assert len(exports) == 1 and [bundle.root for bundle in found] == exports * 2


def test_a_cache_that_cannot_be_written_is_said(
    model: Path, tmp_path: Path, exports: list[Path], capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "home").write_text("a file")
    assert main(["run", str(model), *ASKED]) == 2
    assert f"The folder {tmp_path / 'home/bundles'} cannot be written: " in capsys.readouterr().err
    assert exports == []


def die(*_: object) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def test_an_export_that_the_system_ends_is_said(
    model: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(source, "_stage", die)
    assert main(["run", str(model), *ASKED]) == 2
    assert f"of {model} ended too early (the system ended it with SIGKILL), as it does" in capsys.readouterr().err


def interrupt(request: ExportRequest, writer: BundleWriter) -> None:
    (writer.staging / "weights.bin").write_bytes(b"some")
    os.kill(os.getppid(), signal.SIGINT)
    time.sleep(LONG_S)


def test_ctrl_c_ends_the_export_at_once_and_leaves_nothing(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    start = time.monotonic()
    monkeypatch.setattr(source, "_stage", interrupt)
    assert f"of {model} was interrupted; nothing was left." in refused(model, tmp_path, capsys, 130)
    assert time.monotonic() - start < LONG_S / 2


def change(given: Path, writer: BundleWriter) -> None:
    path = given if given.is_file() else next(given.glob("*.safetensors"))
    path.write_bytes(path.read_bytes()[:-1] + b"!")


@pytest.mark.parametrize("when", ["_stage", "_finish"])
def test_a_model_that_changes_while_it_is_exported_leaves_nothing(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], when: str
) -> None:
    stages = dict.fromkeys(["_stage", "_finish"], lambda request, writer: None)
    for name, stage in stages.items():
        changing = (lambda *given: change(model, given[-1])) if name == when else stage
        monkeypatch.setattr(source, name, changing)
    monkeypatch.setattr(source, "_apart", here)
    assert "changed while a bundle was made of it, and nothing was left" in refused(model, tmp_path, capsys)


def test_a_new_bundle_of_a_changed_model_takes_the_old_ones_place(
    model: Path,
    tmp_path: Path,
    exports: list[Path],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(made, "_use", lambda bundle: (bundle / "edge.json").is_file())  # this process uses none
    for number in range(3):
        (model / "config.json").write_text((model / "config.json").read_text() + "\n")
        assert source.open_source(model).root == exports[number]
    assert kept(tmp_path) == exports[-1:]
    assert f"removed: {exports[1].name}." in capsys.readouterr().err


def test_nothing_in_the_current_folder_is_run_by_an_export(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As `cd downloaded-model; edge run model.gguf` does, and the children of it."""
    folder = tmp_path / "downloaded"
    folder.mkdir()
    write_gguf(folder / "model.gguf", tiny_model("llama"))
    ran = tmp_path / "ran"
    for name in (*sys.stdlib_module_names, "numpy", "onnx_ir", "gguf", "edge", "sitecustomize"):
        (folder / f"{name}.py").write_text(f"open({str(ran)!r}, 'a').write(__name__)\nraise SystemExit(7)\n")
    monkeypatch.setenv("EDGE_HOME", str(tmp_path / "home"))
    command = [sys.executable, "-P", "-m", "edge.cli.main", "run", "model.gguf", *ASKED]  # as the command `edge` starts
    done = subprocess.run(command, capture_output=True, text=True, cwd=folder)
    assert not ran.exists() and done.returncode == 0, done.stderr


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere the export ends when it gives Python's lock back")
def test_a_killed_run_leaves_no_process_and_the_next_run_no_files(
    model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    script = f"import sys; sys.path.insert(0, {str(Path(work.__file__).parent)!r}); import children_work as work\n"
    script += "from edge.cli.main import main; from edge.cli.run import source\n"
    script += "source._stage = work.stage_without_end; sys.exit(main())"
    command = [sys.executable, "-c", script, "run", str(model), *ASKED]
    run = subprocess.Popen(command, stderr=subprocess.DEVNULL)
    parts: list[Path] = []
    while not (parts := [each for each in (tmp_path / "home").rglob("weights.bin") if each.stat().st_size]):
        assert run.poll() is None
        time.sleep(0.02)
    children = Path(f"/proc/{run.pid}/task/{run.pid}/children").read_text().split()
    run.kill()
    run.wait()
    assert children and parts
    for child in children:
        for _ in range(600):
            status = Path(f"/proc/{child}/stat")
            if not status.exists() or status.read_text().rpartition(")")[2].split()[0] == "Z":
                break
            time.sleep(0.05)
        else:
            pytest.fail("the export went on")
    assert main(["run", str(model), *ASKED]) == 0, capsys.readouterr().err
    assert [each.name for each in (tmp_path / "home/bundles").iterdir()] == [kept(tmp_path)[0].name]


def test_a_lock_is_given_back_after_a_failure(tmp_path: Path) -> None:
    with pytest.raises(ExportError), locked(tmp_path / "a.lock", lambda: pytest.fail("nobody holds it")):
        raise ExportError("broken")
    with locked(tmp_path / "a.lock", lambda: pytest.fail("it was not given back")):
        pass
