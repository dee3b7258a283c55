"""A model is known by what its files hold, however they are called, dated and moved."""

from __future__ import annotations

import os
import random
import shutil
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from edge.cli.run import contents
from edge.cli.run.contents import MOST_FILES, contents_of
from edge.errors import BundleError, CheckpointError
from edge.home import cache_dir

NAMES = ["config.json", "tokenizer.json", "tokenizer.model", "merges.txt", "chat_template.jinja", "README.md"]
WEIGHTS = ["model-00001-of-00002.safetensors", "odd name.safetensors", "model.bin", "routers.safetensors"]


def model(folder: Path, seed: int = 0) -> Path:
    """A model's folder, by its names."""
    rng = random.Random(seed)
    folder.mkdir()
    for name in NAMES + WEIGHTS:
        (folder / name).write_bytes(rng.randbytes(rng.randint(1, 3000)))
    return folder


def gguf(path: Path, size: int = 5000) -> Path:
    path.write_bytes(b"GGUF" + random.Random(0).randbytes(size))
    return path


def change_in_place(path: Path, seed: int) -> None:
    """Another byte, with the size and the time that it had."""
    before, rng = path.stat(), random.Random(seed)
    with path.open("r+b") as file:
        file.seek(rng.randrange(before.st_size))
        byte = file.read(1)
        file.seek(-1, os.SEEK_CUR)
        file.write(bytes([byte[0] ^ rng.randint(1, 255)]))
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))


@pytest.fixture
def settled(monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    """Files count as settled at once. The files that are read."""
    read, sha256_of = list[Path](), contents.sha256_of

    def watched(path: Path, progress: Any = None) -> str:
        read.append(path)
        return sha256_of(path, progress)

    monkeypatch.setattr(contents, "SETTLED_NS", -1)
    monkeypatch.setattr(contents, "sha256_of", watched)
    return read


@pytest.mark.skipif(sys.platform == "win32", reason="Windows does not tell when a file was changed")
@pytest.mark.parametrize("seed", range(5))
def test_a_change_in_place_with_the_same_size_and_time_is_seen(seed: int, tmp_path: Path, settled: list[Path]) -> None:
    name = random.Random(seed).choice(NAMES + WEIGHTS)
    for given, changed in [
        (gguf(tmp_path / "m.gguf"), tmp_path / "m.gguf"),
        (model(tmp_path / "folder"), tmp_path / "folder" / name),
    ]:
        before = contents_of(given)
        assert contents_of(given) == before
        change_in_place(changed, seed)
        assert contents_of(given).sha256 != before.sha256


def test_what_did_not_change_is_read_once(tmp_path: Path, settled: list[Path]) -> None:
    for given, files in [(gguf(tmp_path / "m.gguf"), 1), (model(tmp_path / "folder"), len(NAMES + WEIGHTS))]:
        settled.clear()
        found = [contents_of(given) for _ in range(3)]
        assert found == found[:1] * 3 and len(settled) == files


def test_a_file_that_was_just_written_is_read_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another change at once might show in no time of it."""
    path, read = gguf(tmp_path / "m.gguf"), list[Path]()
    sha256_of = contents.sha256_of
    monkeypatch.setattr(contents, "sha256_of", lambda path, *_: read.append(path) or sha256_of(path))
    for _ in range(2):
        assert not contents_of(path).settled
    assert len(read) == 2 and not (cache_dir() / "contents").exists()


def test_a_moved_or_touched_model_is_the_same(tmp_path: Path) -> None:
    for given in (gguf(tmp_path / "m.gguf"), model(tmp_path / "folder")):
        before = contents_of(given).sha256
        os.utime(given, ns=(1, 1))
        assert contents_of(given).sha256 == before
        (tmp_path / "elsewhere").mkdir(exist_ok=True)
        assert contents_of(given.rename(tmp_path / "elsewhere" / given.name)).sha256 == before


def test_files_that_no_export_reads_are_not_read(tmp_path: Path, settled: list[Path]) -> None:
    folder = model(tmp_path / "folder")
    before = contents_of(folder)
    for name in ("model.onnx", "other.gguf", "tf_model.h5", "modeling.py", "events.log", "LICENSE"):
        (folder / name).write_bytes(b"x")
    (folder / "checkpoint.json").mkdir()
    (folder / "deep").mkdir()
    (folder / "deep" / "model.safetensors").write_bytes(b"x")
    assert contents_of(folder).sha256 == before.sha256
    (folder / "model.safetensors").write_bytes(b"x")
    (folder / "pytorch_model.bin").write_bytes(b"y")
    changed = contents_of(folder).sha256
    assert changed != before.sha256
    (folder / "pytorch_model.bin").write_bytes(b"z")
    assert contents_of(folder).sha256 == changed


def harm(seed: int) -> Callable[[bytes], bytes]:
    rng = random.Random(seed)

    def harmed(content: bytes) -> bytes:
        return rng.choice(
            [b"", b"{}", b"[]", b"null", b"\xff\xfe", content[: rng.randrange(len(content))], b"[" * 100_000]
        )

    return harmed


@pytest.mark.parametrize("seed", range(10))
def test_a_damaged_memory_is_made_anew(seed: int, tmp_path: Path, settled: list[Path]) -> None:
    path = gguf(tmp_path / "m.gguf")
    before = contents_of(path)
    (store,) = (cache_dir() / "contents").iterdir()
    store.write_bytes(harm(seed)(store.read_bytes()))
    assert contents_of(path) == before == contents_of(path)
    assert len(settled) == 2


@pytest.mark.skipif(sys.platform == "win32", reason="Windows has other kinds of files")
@pytest.mark.parametrize("where", ["gguf", "folder"])
@pytest.mark.parametrize("kind", ["pipe", "device", "endless", "folder"])
def test_what_is_no_file_is_refused_at_once(kind: str, where: str, tmp_path: Path) -> None:
    path = tmp_path / "m.gguf" if where == "gguf" else model(tmp_path / "folder") / "generation_config.json"
    if kind == "pipe":
        os.mkfifo(path)
    elif kind == "folder":
        if where == "folder":
            pytest.skip("a folder in a folder is not looked at")
        path = tmp_path / "m-00001-of-00002.gguf"
        gguf(path)
        (tmp_path / "m-00002-of-00002.gguf").mkdir()
    else:
        path.symlink_to("/dev/null" if kind == "device" else "/dev/zero")
    start = time.monotonic()
    with pytest.raises(CheckpointError, match="is a pipe, a device or a folder, where a file of a model belongs"):
        contents_of(path if where == "gguf" else path.parent)
    assert time.monotonic() - start < 5


def test_a_folder_with_too_many_files_is_refused(tmp_path: Path) -> None:
    folder = model(tmp_path / "folder")
    for i in range(MOST_FILES):
        (folder / f"{i}.json").touch()
    with pytest.raises(CheckpointError, match=f"has more than {MOST_FILES} files of a model"):
        contents_of(folder)
    for i in range(MOST_FILES):
        (folder / f"{i}.json").rename(folder / f"{i}.log")
    contents_of(folder)


@pytest.mark.skipif(sys.platform == "win32" or os.geteuid() == 0, reason="everything can be read")
def test_a_file_that_cannot_be_read_is_said(tmp_path: Path) -> None:
    gguf(tmp_path / "m.gguf").chmod(0)
    with pytest.raises(BundleError, match="m.gguf cannot be read: Permission denied"):
        contents_of(tmp_path / "m.gguf")


def test_a_file_that_grows_while_it_is_read_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path, sha256_of = gguf(tmp_path / "m.gguf"), contents.sha256_of

    def growing(path: Path, *rest: Any) -> str:
        found = sha256_of(path, *rest)
        with path.open("ab") as file:
            file.write(b"more")
        return found

    monkeypatch.setattr(contents, "sha256_of", growing)
    with pytest.raises(CheckpointError, match="m.gguf changed while it was read; run it again when it is complete"):
        contents_of(path)


def test_a_copy_is_the_same_model(tmp_path: Path) -> None:
    folder = model(tmp_path / "folder")
    copy = Path(shutil.copytree(folder, tmp_path / "other" / "folder"))
    assert contents_of(copy).sha256 == contents_of(folder).sha256
