"""What differs on Windows and macOS, held against documented layouts and rules by fakes."""

from __future__ import annotations

import ctypes
import io
import os
import stat
import struct
import sys
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from edge.bundle import BundleWriter
from edge.children import Ran
from edge.cli import main as cli
from edge.cli.run.terminal import peak_memory
from edge.errors import InputError
from edge.manifest import Manifest
from edge.runtime.costs import machine
from edge.runtime.memory import macos
from edge.runtime.memory import process as memory

linux = pytest.mark.skipif(sys.platform != "linux", reason="/proc, and os.open's flags, say what a process has open")


def psutil_says(monkeypatch: pytest.MonkeyPatch, platform: str, process: Any, machine: Any) -> None:
    """Let this be another platform, of which psutil says this; or nothing, where it is an error."""

    def told(what: Any) -> Any:
        if isinstance(what, Exception):
            raise what
        return what

    package: Any = ModuleType("psutil")
    package.Error = type("Error", (Exception,), {})
    package.Process = lambda: SimpleNamespace(memory_info=lambda: told(process))
    package.virtual_memory = lambda: told(machine)
    monkeypatch.setitem(sys.modules, "psutil", package)
    monkeypatch.setattr(sys, "platform", platform)


# Windows


def test_windows_tells_the_memory_of_this_process_and_of_the_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    process = SimpleNamespace(private=10, peak_pagefile=9, wset=200 * 2**20, peak_wset=300 * 2**20)
    psutil_says(monkeypatch, "win32", process, SimpleNamespace(total=16 * 2**30, available=9 * 2**30))
    assert memory.held() == memory.Held(private=10, peak_private=9, rss=200 * 2**20, peak_rss=300 * 2**20)
    assert (machine.memory_bytes(), machine.available_bytes()) == (16 * 2**30, 9 * 2**30)


def test_what_windows_does_not_tell_is_unknown(monkeypatch: pytest.MonkeyPatch) -> None:
    psutil_says(monkeypatch, "win32", OSError(5, "Access is denied"), OSError(5, "Access is denied"))
    assert (memory.held(), memory.private_bytes(), peak_memory()) == (None, 0, "peak memory unknown")
    assert (machine.memory_bytes(), machine.available_bytes()) == (None, None)


class Key:
    """A key of the registry that holds some values."""

    def __init__(self, **values: str) -> None:
        self._values = values

    def __enter__(self) -> Key:
        return self

    def __exit__(self, *_: object) -> None: ...

    def value(self, name: str) -> tuple[str, int]:
        if name not in self._values:
            raise FileNotFoundError(2, "The system cannot find the file specified")
        return self._values[name], 1


@pytest.mark.parametrize(
    ("values", "name"),
    [({"ProcessorNameString": "AMD Ryzen 5 3500U  "}, "AMD Ryzen 5 3500U"), ({}, "AMD64 Family 23")],
)
def test_windows_tells_the_processors_name(monkeypatch: pytest.MonkeyPatch, values: dict[str, str], name: str) -> None:
    keys = {("HKLM", r"HARDWARE\DESCRIPTION\System\CentralProcessor\0"): Key(**values)}
    registry: Any = ModuleType("winreg")
    registry.HKEY_LOCAL_MACHINE, registry.OpenKey = "HKLM", lambda *place: keys[place]
    registry.QueryValueEx = Key.value
    monkeypatch.setitem(sys.modules, "winreg", registry)
    monkeypatch.setenv("PROCESSOR_IDENTIFIER", "AMD64 Family 23")
    monkeypatch.setattr(sys, "platform", "win32")
    assert machine.cpu_name() == name


@linux
def test_an_export_writes_out_only_files_that_may_be_written(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, manifest: Manifest
) -> None:
    import fcntl

    synced = []

    def fsync(descriptor: int) -> None:
        if stat.S_ISDIR(os.fstat(descriptor).st_mode):  # Windows keeps lists of files by itself
            return
        if fcntl.fcntl(descriptor, fcntl.F_GETFL) & os.O_ACCMODE == os.O_RDONLY:
            raise OSError(9, "Bad file descriptor")  # what Windows says
        synced.append(Path(f"/proc/self/fd/{descriptor}").readlink().name)

    monkeypatch.setattr(os, "fsync", fsync)
    with BundleWriter(tmp_path / "x.edge") as writer:
        writer.write_file("graphs/decoder.onnx", b"no graph")
        writer.commit(manifest)
    assert sorted(synced) == ["decoder.onnx", "edge.json", "weights.bin"]


def test_a_manifest_is_the_same_bytes_on_every_system(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, manifest: Manifest
) -> None:
    def write_text(self: Path, text: str, **how: str) -> None:
        self.write_bytes(text.replace("\n", "\r\n").encode(how["encoding"]))  # as Windows ends lines

    monkeypatch.setattr(Path, "write_text", write_text)
    with BundleWriter(tmp_path / "x.edge") as writer:
        whole = writer.commit(manifest).manifest
    assert (tmp_path / "x.edge" / "edge.json").read_bytes() == whole.to_json().encode()


@linux
def test_a_bundle_is_not_in_use_when_it_gets_its_name(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, tiny_checkpoint: Path
) -> None:
    """Windows renames no folder of which a file is open or mapped."""
    import edge

    found: list[list[str]] = []

    def take_place(made: Path, place: Path) -> None:
        mapped = Path("/proc/self/maps").read_text(encoding="utf-8").splitlines()
        opened = [str(path.readlink()) for path in Path("/proc/self/fd").iterdir() if path.is_symlink()]
        found.append([each for each in [*mapped, *opened] if made.name in each])
        rename(made, place)

    rename = edge.bundle.put_in_place
    monkeypatch.setattr(edge.bundle, "put_in_place", take_place)
    edge.export(tiny_checkpoint, tmp_path / "x.edge", weights="int8", draft_text=20)
    assert found == [[]]


@pytest.mark.parametrize("free", [True, False])
def test_windows_locks_the_folder_of_a_run(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, free: bool) -> None:
    from edge.export.tune.folder import working

    locked: list[tuple[int, int]] = []

    def locking(descriptor: int, mode: int, size: int) -> None:
        if not free:
            raise PermissionError(13, "Permission denied")
        locked.append((mode, size))

    system: Any = ModuleType("msvcrt")
    system.LK_NBLCK, system.locking = 2, locking
    monkeypatch.setitem(sys.modules, "msvcrt", system)
    monkeypatch.setattr(sys, "platform", "win32")
    folder = tmp_path / "x.tuning"
    refused = pytest.raises(InputError, match="Another run is at work")
    with nullcontext() if free else refused, working(folder, restart=False):
        assert (folder / "lock").exists()
    assert locked == ([(2, 1)] if free else [])
    assert folder.exists() is not free


@pytest.mark.parametrize(
    ("platform", "printed"), [("win32", "█ 日本 é".encode()), ("linux", "? ?? é".encode("cp1252"))]
)
def test_no_character_ends_a_command_whose_output_is_redirected(
    monkeypatch: pytest.MonkeyPatch, platform: str, printed: bytes
) -> None:
    """A code page of Windows has no bars, nor most of the world's letters."""
    output = io.TextIOWrapper(io.BytesIO(), encoding="cp1252")
    monkeypatch.delenv("PYTHONIOENCODING", raising=False)
    monkeypatch.setattr(cli, "_dispatch", lambda args: print("█ 日本 é") or 0)
    with monkeypatch.context() as elsewhere:
        elsewhere.setattr(sys, "stdout", output)
        elsewhere.setattr(sys, "platform", platform)
        assert cli.main([]) == 0
    output.seek(0)
    assert output.buffer.read().rstrip() == printed


# macOS


def on_macos(monkeypatch: pytest.MonkeyPatch, task_info: Callable[..., int]) -> None:
    """Let this be macOS, whose library has this function."""
    monkeypatch.setattr(sys, "platform", "darwin")
    monkeypatch.setattr(ctypes, "CDLL", {None: SimpleNamespace(task_info=task_info)}.__getitem__)
    monkeypatch.setattr(macos, "_this_task", lambda system: 0x103)


def test_macos_tells_the_memory_of_this_process(monkeypatch: pytest.MonkeyPatch) -> None:
    def task_info(task: int, flavor: int, info: Any, count: Any) -> int:
        """task_info with TASK_VM_INFO, revision 3: a size, two integers, the resident set and its peak, 14 sizes, the
        footprint, two addresses, its peak, and 20 ledgers."""
        layout = struct.Struct("<Q2iQQ14QQ2Qq20q")
        assert (task, flavor, count._obj.value, layout.size) == (0x103, 22, 84, 84 * 4)
        rest = [0] * 14, [1, 2], [0] * 20
        resident = 120 * 2**20, 150 * 2**20
        found = layout.pack(9 * 2**30, 7, 16384, *resident, *rest[0], 80 * 2**20, *rest[1], 90 * 2**20, *rest[2])
        ctypes.memmove(ctypes.addressof(info._obj), found, len(found))
        return 0

    on_macos(monkeypatch, task_info)
    assert memory.held() == memory.Held(80 * 2**20, 90 * 2**20, 120 * 2**20, 150 * 2**20)
    assert peak_memory() == "peak 94 MB private, 157 MB RSS"


def test_macos_tells_what_memory_is_available(monkeypatch: pytest.MonkeyPatch) -> None:
    psutil_says(monkeypatch, "darwin", None, SimpleNamespace(total=16 * 2**30, available=9 * 2**30))
    assert machine.available_bytes() == 9 * 2**30


@pytest.mark.parametrize(("said", "name"), [("Apple M1\n", "Apple M1"), ("", "arm64")])
def test_macos_tells_the_processors_name(monkeypatch: pytest.MonkeyPatch, said: str, name: str) -> None:
    def run(command: list[str], seconds: float) -> Ran:
        assert command[1:] == ["-n", "machdep.cpu.brand_string"]
        return Ran(0, said, "")

    monkeypatch.setattr(sys, "platform", "darwin")
    monkeypatch.setattr(machine, "run", run)
    monkeypatch.setattr("platform.machine", lambda: "arm64")
    assert machine.cpu_name() == name


def test_what_macos_does_not_tell_is_unknown(monkeypatch: pytest.MonkeyPatch) -> None:
    psutil_says(monkeypatch, "darwin", None, OSError(5, "Input/output error"))
    assert machine.available_bytes() == machine.memory_bytes()
    on_macos(monkeypatch, lambda *_: 5)  # KERN_FAILURE
    assert memory.held() is None
