"""edge run of a GGUF file whose weights stay in it."""

from __future__ import annotations

import errno
import io
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from gguf import GGMLQuantizationType as Type
from gguf_files import tiny_model, write_gguf

from edge.bundle import open_bundle
from edge.cli.export import stages
from edge.cli.main import main
from edge.cli.run import source
from edge.cli.run.contents import matrices_in_place
from edge.runtime.kernels.library import find_kernels
from edge.runtime.kernels.packed_gguf import PACKING
from edge.runtime.kernels.packed_writer import JOURNAL, UNFINISHED, PackedWriter

if find_kernels() is None:
    pytest.skip("edge-lm-kernels do not run here", allow_module_level=True)

ASKED = ["hello", "--raw", "--max-tokens", "2"]
MATRICES = ("token_embd", "output", "attn_q", "attn_k", "attn_v", "attn_output", "ffn_gate", "ffn_up", "ffn_down")
ALL = {f"{name}.w": Type.Q8_0 for name in MATRICES}


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("EDGE_HOME", str(tmp_path / "home"))
    return write_gguf(tmp_path / "m.gguf", tiny_model("llama"), types=ALL)


def test_it_is_made_once_and_reads_the_file(
    file: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert main(["run", str(file), *ASKED]) == 0
    first = capsys.readouterr()
    assert "Its weights stay in the file, and are packed in" in first.err
    bundle = source.open_source(file)
    assert [each.path for each in bundle.manifest.external] == [str(file)]
    assert bundle.size("weights.bin") < file.stat().st_size / 4
    monkeypatch.setattr(source, "_make", lambda *_: pytest.fail("it was made again"))
    assert main(["run", str(file), *ASKED]) == 0
    assert capsys.readouterr().out == first.out


def test_a_file_that_was_moved_is_made_again_and_says_why(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["run", str(file), *ASKED]) == 0
    first, bundle = capsys.readouterr().out, source.open_source(file)
    moved = file.rename(file.with_name("n.gguf"))
    assert main(["run", bundle.root.stem, *ASKED]) == 2
    assert "m.gguf', whose weights a bundle reads, cannot be read" in capsys.readouterr().err
    assert main(["run", str(moved), *ASKED]) == 0
    out, err = capsys.readouterr()
    assert out == first and "or its file was moved" in err
    assert [each.path for each in source.open_source(moved).manifest.external] == [str(moved)]


def test_another_model_in_the_same_place_is_another_one(file: Path) -> None:
    assert main(["run", str(file), *ASKED]) == 0
    before = source.open_source(file)
    model = tiny_model("llama")
    for parameter in model.parameters():
        parameter.data *= -1
    write_gguf(file, model, types=ALL)
    assert main(["run", str(file), *ASKED]) == 0
    assert source.open_source(file).root != before.root


def test_weights_that_were_changed_in_place_are_packed_again(file: Path) -> None:
    """Even where neither size nor time show it, as where a file was fetched again: the system knows."""
    assert main(["run", str(file), *ASKED]) == 0
    bundle, before = source.open_source(file), file.stat()
    packed = {path.name for path in (bundle.root.parents[1] / "packed").iterdir()}
    os.utime(file, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert main(["run", str(file), *ASKED]) == 0
    assert source.open_source(file).root == bundle.root
    assert {path.name for path in (bundle.root.parents[1] / "packed").iterdir()} > packed


def test_which_matrices_stay_is_read_off_the_header(file: Path, tmp_path: Path) -> None:
    assert matrices_in_place(file) == "all"
    some = write_gguf(tmp_path / "some.gguf", tiny_model("llama"), types=ALL | {"ffn_up.w": Type.F32})
    assert matrices_in_place(some) == "some"
    every = write_gguf(tmp_path / "every.gguf", tiny_model("llama"), types=ALL | {"ffn_up.w": Type.F16})
    assert matrices_in_place(every) == "all"
    floats = write_gguf(tmp_path / "floats.gguf", tiny_model("llama"))
    assert matrices_in_place(floats) == "nothing"
    (tmp_path / "none.gguf").write_bytes(b"GGUF")
    assert matrices_in_place(tmp_path / "none.gguf") == "nothing"


@pytest.mark.parametrize("kind", [Type.F32, Type.F16, Type.BF16])
def test_a_file_of_floats_alone_is_stored_in_8_bits(
    file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], kind: Type
) -> None:
    floats = write_gguf(tmp_path / "floats.gguf", tiny_model("llama"), types={".weight": kind})
    assert matrices_in_place(floats) == "nothing"
    assert main(["run", str(floats), *ASKED]) == 0
    bundle = source.open_source(floats)
    assert bundle.manifest.weights == "int8" and not bundle.manifest.external
    assert "stay in the file" not in capsys.readouterr().err


def apart(*arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
    """The command in a process of its own, which uses no bundle any more when it has ended."""
    run = "import sys; from edge.cli.main import main; sys.exit(main(sys.argv[1:]))"
    command = [sys.executable, "-c", run, *arguments]
    return subprocess.run(command, env={**os.environ, **variables}, capture_output=True, text=True)


def test_rm_removes_what_was_packed(file: Path, tmp_path: Path) -> None:
    assert apart("run", str(file), *ASKED).returncode == 0
    (bundle,) = (tmp_path / "home/bundles").glob("*.edge")
    packed = tmp_path / "home/packed"
    assert list(packed.iterdir())
    done = apart("rm", bundle.stem)
    assert done.returncode == 0, done.stderr
    assert not list(packed.iterdir()) and not bundle.exists() and file.exists()


def test_without_the_kernels_it_is_stored_again_and_says_what_they_would_bring(file: Path, tmp_path: Path) -> None:
    assert apart("run", str(file), *ASKED).returncode == 0
    (own,) = (tmp_path / "home/bundles").glob("*.edge")
    done = apart("run", str(file), *ASKED, EDGE_KERNELS="off")
    assert done.returncode == 0 and "pip install edge-lm-kernels" in done.stderr, done.stderr
    others = [path for path in own.parent.glob("*.edge") if path != own]
    assert own.exists() and [open_bundle(path).manifest.weights for path in others] == ["keep"]


@pytest.mark.skipif(sys.platform in ("win32", "darwin"), reason="names are Unicode there")
def test_a_folder_whose_name_no_manifest_can_have_gets_a_bundle_of_its_own_weights(file: Path, tmp_path: Path) -> None:
    folder = tmp_path / os.fsdecode(b"caf\xe9")
    folder.mkdir()
    moved = file.rename(folder / "m.gguf")
    assert main(["run", str(moved), *ASKED]) == 0
    assert not source.open_source(moved).manifest.external


@pytest.fixture
def packed(file: Path, tmp_path: Path) -> Path:
    """The file's packed weights, which are gone from the cache, as where others took their room."""
    assert apart("run", str(file), *ASKED).returncode == 0
    (path,) = (tmp_path / "home/packed").glob("*.bin")
    path.unlink()
    return path


def test_packing_that_is_interrupted_goes_on(
    file: Path, packed: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    kept, put = list[int](), PackedWriter.put

    def interrupted(self: PackedWriter, content: Any) -> None:
        if self._file.tell() > file.stat().st_size // 2:
            raise KeyboardInterrupt
        put(self, content)

    with monkeypatch.context() as patch:
        patch.setattr(PackedWriter, "put", interrupted)
        assert main(["run", str(file), *ASKED]) == 130
    assert "The packing of the weights of m was interrupted; the next run goes on" in capsys.readouterr().err
    assert not packed.exists()
    holds = PackedWriter.kept
    monkeypatch.setattr(PackedWriter, "kept", lambda self, of: kept.append(size := holds(self, of)) or size)
    assert main(["run", str(file), *ASKED]) == 0
    assert kept[0] and not kept[-1] and [*packed.parent.iterdir()] == [packed]


def test_what_a_killed_run_left_of_packing_goes_before_more_is_written(file: Path, packed: Path) -> None:
    gone = subprocess.Popen([sys.executable, "-c", ""])
    gone.wait()
    left = packed.with_name(f"{packed.name}.{gone.pid}-1.part")
    left.write_bytes(b"half")
    assert main(["run", str(file), *ASKED]) == 0
    assert packed.is_file() and not left.exists()


def test_an_interrupted_first_run_leaves_what_is_packed_to_the_next(
    file: Path, packed: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    shutil.rmtree(tmp_path / "home/bundles")

    def interrupted(*_: object) -> None:
        packed.with_suffix(UNFINISHED).write_bytes(b"half")  # as a process that is killed leaves it
        packed.with_suffix(JOURNAL).write_text("[]\n[1]\n")
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr("edge.children.call", interrupted)
        assert main(["run", str(file), *ASKED]) == 130
    assert "was interrupted; the next run goes on with the packing of its weights" in capsys.readouterr().err
    assert list((tmp_path / "home/bundles").glob("*.edge")) == []
    assert main(["run", str(file), *ASKED]) == 0
    assert [*packed.parent.iterdir()] == [packed]


def test_an_interrupted_first_run_that_packed_nothing_leaves_nothing(
    file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("edge.children.call", interrupted)
    assert main(["run", str(file), *ASKED]) == 130
    assert "was interrupted; nothing was left" in capsys.readouterr().err
    assert list((tmp_path / "home/bundles").glob("*.edge")) == []


def test_a_full_disk_is_said_with_what_to_do(
    file: Path, packed: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr("edge.runtime.kernels.packed_writer.PackedWriter.put", full)
    assert main(["run", str(file), *ASKED]) == 2
    (said,) = [line for line in capsys.readouterr().err.splitlines() if "No space" in line]
    assert said.endswith(f"in {packed.parent}; free some, or set EDGE_HOME to a folder elsewhere).")
    assert list(packed.parent.iterdir()) == []


def test_packing_shows_bytes_and_the_time_that_is_left(monkeypatch: pytest.MonkeyPatch) -> None:
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    shown = Terminal()
    monkeypatch.setattr(sys, "stderr", shown)
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setenv("TERM", "xterm")
    with stages() as (progress, _):
        late = time.monotonic() + 30
        done = 0
        while "left" not in shown.getvalue() or "/1.1 GB" not in shown.getvalue():
            assert time.monotonic() < late, shown.getvalue()
            done += 1_000_000
            progress(done, 1_131_827_950, PACKING)
            time.sleep(0.02)
