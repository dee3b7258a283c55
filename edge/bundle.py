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
import time
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path, PurePosixPath
from typing import IO, Any, ClassVar, Protocol

import numpy as np
from numpy.typing import NDArray

from edge import manifest as manifests
from edge.errors import BundleError, ExportError
from edge.external_file import ExternalFile
from edge.home import cache_dir, drop_oldest, mark_used, read_own_json, replace_text
from edge.hub_links import is_within
from edge.manifest import File, Manifest
from edge.manifest_checks import faults
from edge.regular_file import CHUNK, identity_of, open_regular, read_regular, status_of
from edge.swap import PART, beside, put_back, put_in_place, real_place, sweep
from edge.typed_json import read_json

MANIFEST = "edge.json"
WEIGHTS = "weights.bin"
TOKENIZER = "tokenizer.json"
GOLDEN = "golden.json"
PAGE = 4096  # tensors start on a page, so that a reader can map each by itself
MOST_JSON = {MANIFEST: 4 << 20, GOLDEN: 16 << 20}  # maximum bytes, far above any export's
MOST_TOKENIZER = 256 << 20
LOCATION = "external."  # before the number of a file of `Manifest.external`, as the location of a tensor
SETTLED_NS = 2_000_000_000  # a file changed less than this ago may change again without its times showing it


@dataclass(frozen=True)
class Bundle:
    """A bundle on disk whose manifest was read; `check_files` proves the rest."""

    root: Path
    manifest: Manifest
    routed: ClassVar[bool] = False  # whether our kernels leave out layers of its decoder: see `edge.runtime.skip.units`

    @property
    def guarded(self) -> bool:
        """True if the units of its graph `skip` are those that the project's kernels run."""
        return False

    @cached_property
    def sizes(self) -> dict[str, int]:
        """The bytes of each file that the manifest lists, by its name."""
        return {file.path: file.size for file in self.manifest.files}

    def has(self, name: str) -> bool:
        """True if the bundle has this file. A file that the manifest does not list is not part of the bundle, because
        nothing checks it. A bundle that is still being written lists nothing yet, and has the files that exist."""
        return name in self.sizes if self.sizes else (self.root / name).is_file()

    def size(self, name: str) -> int:
        """The bytes of a file that the bundle has."""
        return self.sizes[name] if self.sizes else (self.root / name).stat().st_size

    def path(self, name: str) -> Path:
        """Return the path of a file of the bundle, given its name in the manifest; the file need not exist. To read a
        file that `open_bundle` does not require, use `file`."""
        return self.root / name

    @property
    def external(self) -> dict[str, ExternalFile]:
        """The files outside of the bundle that its tensors lie in, by the location that graphs have of each."""
        return {f"{LOCATION}{i}": file for i, file in enumerate(self.manifest.external)}

    def file(self, name: str) -> Path:
        """The path of a file to be read; BundleError where the manifest does not list it."""
        if not self.has(name):
            raise BundleError(
                f"{self.root / MANIFEST} does not list {name[:100]!r} among its files, so it is not read; export the "
                "model again."
            )
        return self.path(name)

    def read(self, name: str, maximum: int) -> bytes:
        """The bytes of a file; BundleError where it cannot be read, or has more than `maximum` bytes."""
        path = self.path(name)
        try:
            return read_regular(path, maximum)
        except OSError as e:
            raise _unreadable(path, e) from None

    def read_json(self, name: str, maximum: int = MOST_JSON[MANIFEST]) -> tuple[dict[str, Any], str]:
        """The JSON object in a file, and its path for errors; as `read`."""
        path = str(self.path(name))
        try:
            return read_json(self.read(name, maximum).decode(), path), path
        except UnicodeDecodeError as e:
            raise BundleError(f"{path} is not UTF-8 at byte {e.start}; export or copy the bundle again.") from None

    @property
    def unlisted(self) -> list[str]:
        """The files in the bundle's folder that the manifest does not list, and that nobody reads or checks."""
        known = {MANIFEST, *self.sizes}
        found = (path.relative_to(self.root).as_posix() for path in self.root.rglob("*") if not path.is_dir())
        return sorted(name for name in found if name not in known)

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
        self.check_external()

    def check_external(self) -> None:
        """Raise BundleError if a file outside of the bundle, whose weights it reads, has changed or is not there."""
        if self.manifest.external:
            from edge.external_file import check

            for file in self.manifest.external:
                check(file)

    def check_files_once(self) -> None:
        """`check_files`, unless it passed before and no file has changed since, by sizes, times and inodes. What passed
        is remembered in the cache folder; where that cannot be written, every call reads all files."""
        self.check_sizes()
        before = self._stamp()
        key = zlib.crc32(os.fsencode(self.root.resolve()))  # two bundles with one key would only be read again
        store = cache_dir() / "checked" / f"{key:08x}.json"
        if read_own_json(store) == before:
            mark_used(store)
            self.check_external()
            return
        self.check_files()
        newest = max(max(mtime, ctime) for _, _, mtime, ctime, _ in before.values())
        if self._stamp() == before and time.time_ns() - newest > SETTLED_NS:
            with contextlib.suppress(OSError):
                replace_text(store, json.dumps(before))
            drop_oldest(store.parent, made=store)

    def _stamp(self) -> dict[str, list[Any]]:
        """Return data that identify each file's content without reading it: expected sha256, size, mtime, ctime,
        inode."""
        files = self.manifest.files
        return {file.path: [file.sha256, *identity_of(self.path(file.path).stat())] for file in files}

    def check_sizes(self) -> None:
        """Compare only presence and sizes of the files, without reading them."""
        for file in self.manifest.files:
            path = self.path(file.path)
            try:
                size = status_of(path).st_size
            except (FileNotFoundError, NotADirectoryError):
                raise BundleError(f"{path} is missing from the bundle; export or copy the bundle again.") from None
            except OSError as e:
                raise _unreadable(path, e) from None
            if size != file.size:
                raise BundleError(
                    f"{path} is {size} bytes long where the manifest says {file.size}; export or copy the bundle again."
                )


def open_bundle(path: str | Path) -> Bundle:
    """Read a bundle's manifest and check it: version, fields, and that no path leaves the bundle; BundleError where
    `path` is no bundle, or the manifest cannot be accepted."""
    root = Path(path)
    file = root / MANIFEST
    left = put_back(root)
    try:
        text = read_regular(file, MOST_JSON[MANIFEST]).decode()
    except (FileNotFoundError, NotADirectoryError):
        if os.path.lexists(root):
            raise BundleError(f"{root} is not a bundle: it has no {MANIFEST}.") from None
        if left is not None:
            raise BundleError(f"There is no bundle at {root}; {left} is what an export had there, rename it.") from None
        raise BundleError(f"There is no bundle at {root}; edge export makes one.") from None
    except OSError as e:
        raise _unreadable(file, e) from None
    except UnicodeDecodeError:
        raise BundleError(f"{file} is not a text file that can be read; export or copy the bundle again.") from None
    manifest = manifests.parse(text, str(file))
    if not manifest.files:
        raise BundleError(f"{file} lists no files; export the model again.")
    bundle = Bundle(root, manifest)
    needed = [WEIGHTS, TOKENIZER, GOLDEN, *(graph.path for graph in manifest.graphs)]
    needed += [] if manifest.routers is None else [manifest.routers]
    for name in [*bundle.sizes, *needed]:
        check_inside(root, name)
    for name in needed:
        if not bundle.has(name):
            raise BundleError(f"{file} does not list {name[:100]!r} among its files; export the model again.")
    if bundle.sizes[TOKENIZER] > MOST_TOKENIZER:
        raise BundleError(f"{bundle.path(TOKENIZER)} has {bundle.sizes[TOKENIZER]} bytes, which no tokenizer has.")
    bundle.check_sizes()  # before anybody opens a pipe or a device in the place of a file
    return bundle


def _unreadable(path: Path, error: OSError) -> BundleError:
    return BundleError(f"{path} cannot be read: {error.strerror}; export or copy the bundle again.")


def check_inside(root: Path, name: str) -> None:
    """Raise BundleError if a file name in the bundle leads out of it."""
    pure = PurePosixPath(name)
    inside = name and not pure.is_absolute() and ".." not in pure.parts and not re.search(r"[\\:\0]", name)
    if not inside or not is_within(root, name):
        shown = name[:100]
        raise BundleError(f"{root / MANIFEST} names the file {shown!r}, which leads out of the bundle; do not use it.")


def sha256_of(path: Path, progress: Callable[[int], None] | None = None) -> str:
    """The sha256 of a file, in hexadecimal; BundleError where it cannot be read. `progress` is told how many bytes were
    just read."""
    import hashlib  # brings OpenSSL, 3 MB of memory that a run of a bundle checked before does not need

    digest, buffer = hashlib.sha256(), bytearray(CHUNK)
    view = memoryview(buffer)
    try:
        with open_regular(path) as f:
            while size := f.readinto(buffer):
                digest.update(view[:size])
                if progress is not None:
                    progress(size)
    except OSError as e:
        raise BundleError(f"{path} cannot be read: {e.strerror}.") from None
    return digest.hexdigest()


@dataclass(frozen=True)
class TensorSpan:
    """The offset and length of a tensor in `weights.bin`, in bytes."""

    offset: int
    length: int


class Tensors(Protocol):
    """Writer that tensors are appended to."""

    def add_tensor(self, name: str, array: NDArray[Any]) -> TensorSpan:
        """Append a tensor; a name is written once and then returned again."""


class TensorFile:
    """Tensors in one file, each from the next page on; of a name only the first is written."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._file: IO[bytes] | None = None  # once there is a tensor
        self._spans: dict[str, TensorSpan] = {}

    def add_tensor(self, name: str, array: NDArray[Any]) -> TensorSpan:
        """Append a tensor and return its span. For a name that was written before, only the span is returned. OSError
        if it cannot be written."""
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
        """Flush the tensors written so far, so that they can be read."""
        if self._file is not None:
            self._file.flush()

    def close(self) -> None:
        if self._file is not None:
            self._file.close()


class BundleWriter:
    """Context manager that writes a bundle under a temporary name. `commit` renames it to the target; leaving the block
    without `commit` removes the files. A writer that has written nothing yet can be passed to another process (by
    pickle), which then writes the bundle. ExportError if the target exists and `force` is false, or if it cannot be
    written."""

    def __init__(self, target: str | Path, *, force: bool = False) -> None:
        self.target = Path(target)
        self.force = force
        try:
            self._place = real_place(target)
        except (ValueError, RuntimeError):  # a null character, half a surrogate, or links in a circle
            raise ExportError(f"{str(target)!r} can be no file's name; choose another.") from None
        self._root = beside(self._place, PART)
        with _disk_errors(self.target):
            if self._place.parent.is_dir():
                sweep(self._place)
            if os.path.lexists(self._place):
                if not force:
                    raise ExportError(f"{self.target} exists already; choose another name, or replace it with --force.")
                if not (self._place / MANIFEST).is_file():
                    raise ExportError(
                        f"{self.target} is not a bundle, so --force does not replace it; choose another name."
                    )
            self._place.parent.mkdir(parents=True, exist_ok=True)
            self._root.mkdir()
            try:
                (self._root / WEIGHTS).touch()
            except OSError:
                shutil.rmtree(self._root, ignore_errors=True)
                raise
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
        """Turn the system's refusals to write, within the block, into an ExportError about the target."""
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
            for fault in faults(whole):
                raise ExportError(f"{self.target} was not written: {fault}, which no host would take; report it.")
            (self._root / MANIFEST).write_bytes(whole.to_json().encode())  # the same bytes on every system
            put_in_place(self._root, self._place)
        return Bundle(self.target, whole)

    def __enter__(self) -> BundleWriter:
        return self

    def __exit__(self, *_: object) -> None:
        with contextlib.suppress(OSError):  # a full disk fails again when buffered bytes are flushed
            self._weights.close()
        shutil.rmtree(self._root, ignore_errors=True)


@contextlib.contextmanager
def _disk_errors(target: Path) -> Iterator[None]:
    """Turns the operating system's errors while writing into one sentence about the target."""
    try:
        yield
    except OSError as e:
        raise ExportError(f"{target} could not be written: {e.strerror or e}; nothing was left there.") from None
