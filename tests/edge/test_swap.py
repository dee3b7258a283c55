"""A bundle in the place of another: killed, refused or out of room at any step, one of the two is whole there."""

from __future__ import annotations

import errno
import os
import shutil
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from edge import swap
from edge.bundle import Bundle, BundleWriter, open_bundle
from edge.errors import BundleError, EdgeError, ExportError
from edge.manifest import Manifest

STEPS = [(os, "rename"), (os, "replace"), (os, "fsync"), (os, "mkdir"), (os, "rmdir"), (os, "unlink"), (os, "open")]
needs_fork = pytest.mark.skipif(not hasattr(os, "fork"), reason="kills a forked child")


def write(target: Path, manifest: Manifest, golden: str, *, force: bool = False) -> Bundle:
    with BundleWriter(target, force=force) as writer:
        writer.add_tensor("a", np.arange(300, dtype=np.float32))
        for name in ("graphs/decoder.onnx", "tokenizer.json"):
            writer.write_file(name, "x")
        writer.write_file("golden.json", golden)
        return writer.commit(manifest)


@contextmanager
def stopped_at(number: int, stop: Callable[[], Any], *, after: bool) -> Iterator[list[int]]:
    """Within it, the call of that number to the system, counted over all that change files, ends in `stop`: before it
    was made, or right after it."""
    count, real = [0], {(module, name): getattr(module, name) for module, name in STEPS}
    real[swap, "exchange"] = swap.exchange

    def counted(call: Callable[..., Any]) -> Callable[..., Any]:
        def called(*args: Any, **keywords: Any) -> Any:
            count[0] += 1
            here = count[0] == number
            if here and not after:
                stop()
            try:
                return call(*args, **keywords)
            finally:
                if here and after:
                    stop()

        return called

    for (module, name), call in real.items():
        setattr(module, name, counted(call))
    try:
        yield count
    finally:
        for (module, name), call in real.items():
            setattr(module, name, call)


@pytest.fixture(params=["exchange", "two renames"])
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """How the folders take each other's places."""
    if request.param == "two renames":
        monkeypatch.setattr(swap, "exchange", lambda first, second: False)
    elif sys.platform not in ("linux", "darwin"):
        pytest.skip("the system cannot exchange names")
    return str(request.param)


def whole(target: Path) -> str:
    """Which of the two is at the target, and that it is whole."""
    bundle = open_bundle(target)
    bundle.check_files()
    return bundle.path("golden.json").read_text()


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def killed(target: Path, manifest: Manifest, number: int, *, after: bool) -> bool:
    """Whether an export in another process was killed at that step; False where it has fewer."""
    child = os.fork()
    if not child:
        with suppress(BaseException), stopped_at(number, lambda: os.kill(os.getpid(), signal.SIGKILL), after=after):
            write(target, manifest, '{"new": 1}', force=True)
        os._exit(0)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == -signal.SIGKILL


@needs_fork
@pytest.mark.parametrize("after", [False, True])
@pytest.mark.usefixtures("way")
def test_a_kill_at_any_step_leaves_one_of_the_two_whole_and_the_next_export_leaves_nothing_else(
    tmp_path: Path, manifest: Manifest, after: bool
) -> None:
    target, number, found = tmp_path / "x.edge", 0, set[str]()
    write(target, manifest, '{"old": 1}')
    pristine = shutil.copytree(target, tmp_path / "kept")
    while killed(target, manifest, number := number + 1, after=after):
        if number % 2:  # a reader comes first
            found.add(whole(target))
            assert names(target.parent)[-1] == "x.edge"
        else:
            with suppress(ExportError):  # the next writer puts it back, and says that it is there
                write(target, manifest, '{"newer": 1}')
            found.add(whole(target))
        write(target, manifest, '{"newer": 1}', force=True)
        assert names(tmp_path) == ["kept", "x.edge"]
        shutil.rmtree(target)
        shutil.copytree(pristine, target)
    assert number > 15 and found == {'{"old": 1}', '{"new": 1}'}


@pytest.mark.usefixtures("way")
@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EIO])
def test_a_full_or_broken_disk_at_any_step_leaves_what_was_there(tmp_path: Path, manifest: Manifest, code: int) -> None:
    target, number, refused = tmp_path / "x.edge", 0, 0
    write(target, manifest, '{"old": 1}')

    def fail() -> None:
        raise OSError(code, os.strerror(code))

    while True:
        number += 1
        try:
            with stopped_at(number, fail, after=False) as count:
                write(target, manifest, '{"new": 1}', force=True)
        except EdgeError as e:
            refused += 1
            assert os.strerror(code) in str(e)
            assert whole(target) == '{"old": 1}'
        else:
            assert whole(target) == '{"new": 1}'  # removing what is left may fail: the next export does it
            write(target, manifest, '{"old": 1}', force=True)
        assert names(tmp_path) == ["x.edge"]
        if count[0] < number:
            break
    assert refused > 8


def test_the_disk_keeps_files_then_folders_then_the_name(
    tmp_path: Path, manifest: Manifest, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept: list[str] = []
    monkeypatch.setattr(swap, "sync_folder", lambda folder: kept.append(folder.name))
    fsync = os.fsync
    monkeypatch.setattr(os, "fsync", lambda number: (kept.append("a file"), fsync(number))[1])
    write(tmp_path / "x.edge", manifest, "{}")
    graphs, root = kept.index("graphs"), next(i for i, name in enumerate(kept) if name.endswith(".part"))
    assert kept.count("a file") == 5 and graphs < root < len(kept) - 1 and kept[-1] == tmp_path.name


def test_a_bundle_is_written_where_a_link_leads(tmp_path: Path, manifest: Manifest) -> None:
    (tmp_path / "disk").mkdir()
    link = tmp_path / "x.edge"
    link.symlink_to(tmp_path / "disk" / "real.edge")  # nothing is there yet
    for golden in ('{"old": 1}', '{"new": 1}'):
        write(link, manifest, golden, force=True)
        assert link.is_symlink() and whole(link) == golden
        assert names(tmp_path / "disk") == ["real.edge"] and names(tmp_path) == ["disk", "x.edge"]


def test_a_bundle_is_replaced_from_within_itself(
    tmp_path: Path, manifest: Manifest, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(tmp_path / "x.edge", manifest, '{"old": 1}')
    monkeypatch.chdir(tmp_path / "x.edge")
    for name in (".", "../x.edge/", "graphs/.."):
        write(Path(name), manifest, f'{{"new": "{name}"}}', force=True)
        assert whole(tmp_path / "x.edge") == f'{{"new": "{name}"}}' and names(tmp_path) == ["x.edge"]
        monkeypatch.chdir(tmp_path / "x.edge")  # the other folder of this name


@pytest.mark.parametrize(
    "name", ["a" * 300, "b" * 245, "/".join(["c" * 200] * 30), "null\0", "half\ud800", "file/x.edge", "loop", "loop/x"]
)
def test_a_name_that_no_folder_can_have_is_one_sentence(tmp_path: Path, manifest: Manifest, name: str) -> None:
    (tmp_path / "file").write_text("")
    (tmp_path / "loop").symlink_to("loop")
    for force in (False, True):
        with pytest.raises(ExportError) as caught:
            write(tmp_path / name, manifest, "{}", force=force)
        assert "\n" not in str(caught.value)
    with pytest.raises(BundleError) as refused:
        open_bundle(str(tmp_path / name))
    assert "\n" not in str(refused.value)


def test_a_reader_waits_for_a_writer_between_its_renames(
    tmp_path: Path, manifest: Manifest, monkeypatch: pytest.MonkeyPatch
) -> None:
    target = tmp_path / "x.edge"
    write(target, manifest, '{"old": 1}')
    old = target.rename(swap.beside(target, swap.OLD))  # of a process that lives
    monkeypatch.setattr(swap.time, "sleep", lambda seconds: old.rename(target))
    assert whole(target) == '{"old": 1}'
    monkeypatch.setattr(swap, "WAIT_S", 0.0)
    target.rename(old)
    monkeypatch.setattr(swap.time, "sleep", lambda seconds: None)
    with pytest.raises(BundleError, match=r"\.x\.edge\.\d+\.old is what an export had there"):
        open_bundle(target)
