"""Reading and writing bundles: a folder `NAME.edge` whose manifest lists every file with its sha256.

A bundle is written under a temporary name next to its target and renamed when whole: a target does not exist or is
complete.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import re
import shutil
import sys
import time
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import IO, Any, Protocol

import numpy as np
from numpy.typing import NDArray

from edge import manifest as manifests
from edge.errors import BundleError, ExportError
from edge.home import cache_dir, drop_oldest, mark_used, read_own_json, replace_text
from edge.manifest import File, Manifest

MANIFEST = "edge.json"
WEIGHTS = "weights.bin"
TOKENIZER = "tokenizer.json"
GOLDEN = "golden.json"
PAGE = 4096  # tensors start on a page, so that a reader can map each by itself
CHUNK = 1 << 20  # bytes read at a time while hashing
SETTLED_NS = 2_000_000_000  # a file changed less than this ago may change again without its times showing it


@dataclass(frozen=True)
class Bundle:
    """A bundle on disk whose manifest was read; `check_files` proves the rest."""

    root: Path
    manifest: Manifest

    def path(self, name: str) -> Path:
        """The absolute path of a file of the bundle, given its name in the manifest."""
        return self.root / name

    def check_files(self, progress: Callable[[int], None] | None = None) -> None:
        """Compare every file's size and sha256 with the manifest; BundleError where a file is missing, truncated or
        changed. `progress` is told how many bytes were just read."""
        self.check_sizes()
        for file in self.manifest.files:
            if sha256_of(self.path(file.path), progress) != file.sha256:
                raise BundleError(
                    f"{self.path(file.path)} is damaged: its sha256 differs from the manifest's; export or copy "
                    "the bundle again."
                )

    def check_files_once(self) -> None:
        """`check_files`, unless it passed before and no file has changed since, by sizes, times and inodes. What passed
        is remembered in the cache folder; where that cannot be written, every call reads all files."""
        self.check_sizes()
        before = self._stamp()
        key = zlib.crc32(os.fsencode(self.root.resolve()))  # two bundles with one key would only be read again
        store = cache_dir() / "checked" / f"{key:08x}.json"
        if read_own_json(store) == before:
            mark_used(store)
            return
        self.check_files()
        newest = max(max(mtime, ctime) for _, _, mtime, ctime, _ in before.values())
        if self._stamp() == before and time.time_ns() - newest > SETTLED_NS:
            with contextlib.suppress(OSError):
                replace_text(store, json.dumps(before))
            drop_oldest(store.parent, made=store)

    def _stamp(self) -> dict[str, list[Any]]:
        """What identifies each file's content without reading it: wanted sha256, size, mtime, ctime, inode."""
        stamp: dict[str, list[Any]] = {}
        for file in self.manifest.files:
            stat = self.path(file.path).stat()
            stamp[file.path] = [file.sha256, stat.st_size, stat.st_mtime_ns, stat.st_ctime_ns, stat.st_ino]
        return stamp

    def check_sizes(self) -> None:
        """Compare only presence and sizes: what can be seen without reading the files."""
        for file in self.manifest.files:
            path = self.path(file.path)
            if not path.is_file():
                raise BundleError(f"{path} is missing from the bundle; export or copy the bundle again.")
            size = path.stat().st_size
            if size != file.size:
                raise BundleError(
                    f"{path} is {size} bytes long where the manifest says {file.size}; export or copy the bundle again."
                )


def open_bundle(path: str | Path) -> Bundle:
    """Read a bundle's manifest and check it: version, fields, and that no path leaves the bundle; BundleError where
    `path` is no bundle, or the manifest cannot be accepted."""
    root = Path(path)
    file = root / MANIFEST
    try:
        text = file.read_text(encoding="utf-8")
    except (FileNotFoundError, NotADirectoryError):
        if os.path.lexists(root):
            raise BundleError(f"{root} is not a bundle: it has no {MANIFEST}.") from None
        raise BundleError(f"There is no bundle at {root}; edge export makes one.") from None
    except OSError as e:
        raise BundleError(f"{file} cannot be read: {e.strerror}.") from None
    except ValueError:  # bytes that are not UTF-8, or a null character in the path
        raise BundleError(f"{file} is not a text file that can be read; export or copy the bundle again.") from None
    manifest = manifests.parse(text, str(file))
    names = [f.path for f in manifest.files]
    needed = [WEIGHTS, TOKENIZER, GOLDEN, *(graph.path for graph in manifest.graphs)]
    needed += [] if manifest.routers is None else [manifest.routers]
    for name in [*names, *needed]:
        check_inside(root, name)
    for name in needed:
        if name not in names:
            raise BundleError(f"{file} does not list {name!r} among its files; export the model again.")
    return Bundle(root=root, manifest=manifest)


def check_inside(root: Path, name: str) -> None:
    """BundleError where a name that a file of the bundle states leads out of it."""
    pure = PurePosixPath(name)
    inside = name and not pure.is_absolute() and ".." not in pure.parts and not re.search(r"[\\:\0]", name)
    if not inside or not (root / name).resolve().is_relative_to(root.resolve()):
        raise BundleError(f"{root / MANIFEST} names the file {name!r}, which leads out of the bundle; do not use it.")


def sha256_of(path: Path, progress: Callable[[int], None] | None = None) -> str:
    """The sha256 of a file, in hexadecimal; BundleError where it cannot be read. `progress` is told how many bytes were
    just read."""
    import hashlib  # brings OpenSSL, 3 MB of memory that a run of a bundle checked before does not need

    digest, buffer = hashlib.sha256(), bytearray(CHUNK)
    view = memoryview(buffer)
    try:
        with path.open("rb", buffering=0) as f:
            while size := f.readinto(buffer):
                digest.update(view[:size])
                if progress is not None:
                    progress(size)
    except OSError as e:
        raise BundleError(f"{path} cannot be read: {e.strerror}.") from None
    return digest.hexdigest()


@dataclass(frozen=True)
class TensorSpan:
    """Where a tensor's bytes lie in `weights.bin`."""

    offset: int
    length: int


class Tensors(Protocol):
    """Where tensors are written."""

    def add_tensor(self, name: str, array: NDArray[Any]) -> TensorSpan:
        """Append a tensor; a name is written once and then returned again."""


class TensorFile:
    """Tensors in one file, each from the next page on; of a name only the first is written."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._file: IO[bytes] | None = None  # once there is a tensor
        self._spans: dict[str, TensorSpan] = {}

    def add_tensor(self, name: str, array: NDArray[Any]) -> TensorSpan:
        """Append a tensor; a name is written once and then returned again. OSError where it cannot be written."""
        if name in self._spans:
            return self._spans[name]
        if self._file is None:
            self._file = self.path.open("ab")
        start = -(-self._file.tell() // PAGE) * PAGE
        self._file.write(b"\0" * (start - self._file.tell()))
        data = np.ascontiguousarray(array)
        self._file.write(data.reshape(-1).view(np.uint8).data if data.size else b"")
        self._spans[name] = TensorSpan(start, data.nbytes)
        return self._spans[name]

    def flush(self) -> None:
        """Make what was written readable."""
        if self._file is not None:
            self._file.flush()

    def close(self) -> None:
        if self._file is not None:
            self._file.close()


class BundleWriter:
    """A context manager that writes a bundle under a temporary name; `commit` makes it appear whole at the target, and
    leaving the block without removes what was written. One that has written nothing yet can be handed to another
    process (by pickle), which writes in its place. ExportError where the target exists and `force` is false, or it
    cannot be written."""

    def __init__(self, target: str | Path, *, force: bool = False) -> None:
        self.target = Path(target)
        self.force = force
        if self.target.exists() and not force:
            raise ExportError(f"{self.target} exists already; choose another name, or replace it with --force.")
        if self.target.exists() and not (self.target / MANIFEST).is_file():
            raise ExportError(f"{self.target} is not a bundle, so --force does not replace it; choose another name.")
        self._root = self.target.parent / f".{self.target.name}.{os.getpid()}.part"
        with _disk_errors(self.target):
            self.target.parent.mkdir(parents=True, exist_ok=True)
            _sweep(self.target)
            self._root.mkdir()
            (self._root / WEIGHTS).touch()
        self._weights = TensorFile(self._root / WEIGHTS)

    @property
    def staging(self) -> Path:
        """The folder being written: complete enough, before `commit`, to run the graphs for checks."""
        return self._root

    def add_tensor(self, name: str, array: NDArray[Any]) -> TensorSpan:
        """Append a tensor to `weights.bin`; see `TensorFile`."""
        with self.writing():
            return self._weights.add_tensor(name, array)

    @contextlib.contextmanager
    def writing(self) -> Iterator[None]:
        """Within it, what the system refuses to write is an ExportError about the target."""
        with _disk_errors(self.target):
            yield

    def write_file(self, name: str, content: bytes | str) -> None:
        """Write one file of the bundle, replacing an earlier one of the same name."""
        path = self._root / name
        with _disk_errors(self.target):
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content.encode() if isinstance(content, str) else content)

    def flush(self) -> None:
        """Make the weights written so far readable in `staging`."""
        with self.writing():
            self._weights.flush()

    def commit(self, manifest: Manifest) -> Bundle:
        """Hash every file, write the manifest and rename the bundle to its target."""
        with _disk_errors(self.target):
            self._weights.close()
            files = [
                File(p.relative_to(self._root).as_posix(), p.stat().st_size, sha256_of(p))
                for p in sorted(self._root.rglob("*"))
                if p.is_file() and p.name != MANIFEST
            ]
            whole = dataclasses.replace(manifest, files=files)
            (self._root / MANIFEST).write_bytes(whole.to_json().encode())  # the same bytes on every system
            for path in [*(self._root / file.path for file in files), self._root / MANIFEST]:
                with path.open("r+b") as written:  # Windows writes out only files that may be written
                    os.fsync(written.fileno())
            self._take_place()
        return Bundle(self.target, whole)

    def _take_place(self) -> None:
        """Rename to the target. What was there is removed afterwards, and put back where this fails."""
        old = self.target.parent / f".{self.target.name}.{os.getpid()}.old"
        try:
            if self.target.exists():
                self.target.rename(old)
            self._root.rename(self.target)
        finally:
            if old.exists() and not self.target.exists():
                old.rename(self.target)
        shutil.rmtree(old, ignore_errors=True)

    def __enter__(self) -> BundleWriter:
        return self

    def __exit__(self, *_: object) -> None:
        with contextlib.suppress(OSError):  # a full disk fails again when buffered bytes are flushed
            self._weights.close()
        shutil.rmtree(self._root, ignore_errors=True)


def _sweep(target: Path) -> None:
    """Remove what exports to this target left that were killed."""
    for part in target.parent.iterdir():
        owner = part.name.removeprefix(f".{target.name}.").removesuffix(".part")
        if part.name == f".{target.name}.{owner}.part" and owner.isdecimal() and not _alive(int(owner)):
            shutil.rmtree(part, ignore_errors=True)


def _alive(pid: int) -> bool:
    if pid == os.getpid():
        return False  # an earlier process of the same number, for this one starts only now
    if sys.platform == "win32":  # os.kill would end it
        return True
    try:
        os.kill(pid, 0)
    except OSError as e:
        return not isinstance(e, ProcessLookupError)
    return True


@contextlib.contextmanager
def _disk_errors(target: Path) -> Iterator[None]:
    """Turns the operating system's errors while writing into one sentence about the target."""
    try:
        yield
    except OSError as e:
        raise ExportError(f"{target} could not be written: {e.strerror or e}; nothing was left there.") from None
