"""Writing a file of packed weights.

The file has matrices one after the other, an index as JSON with the full source of each, the length of the index, the
crc32 of everything before, and a mark. Until it is whole it has another name, and a journal beside it says how far it
has come: a line for the files that it is made of, by size, times and inode, and one for each matrix. Where packing is
interrupted, or its process killed, the next one goes on after the last matrix whose crc32 holds.
"""

from __future__ import annotations

import json
import os
import shutil
import struct
import sys
import zlib
from collections import deque
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import astuple
from pathlib import Path
from typing import Any, BinaryIO

from edge.errors import InputError
from edge.home import drop_parts, for_owner, open_own, read_own, replace_text, replacing
from edge.lock import locked
from edge.regular_file import identity_of

MARK = b"edge packed weights\n"
END = struct.Struct(f"<QI{len(MARK)}s")
ALIGNMENT = 64
SYNCED = 64 << 20  # bytes that are written before the system is told to bring them to the disk
PIECE = 8 << 20  # bytes that are read at a time of what was written before
UNFINISHED, JOURNAL, LOCK = ".unfinished", ".journal", ".lock"  # instead of the ending of the file

Row = list[Any]
"""Of a journal: the fields of a matrix's source, its start and size in bytes, whether its scales are float16, and the
crc32 of all bytes up to its end."""


class Journal:
    """How far the writing of a file has come.

    Args:
        path: of the journal.
        sources: the files that the file is made of. Where one is another one than in the journal, that begins anew.

    Raises:
        OSError: it cannot be written, or a source cannot be read.
    """

    def __init__(self, path: Path, sources: Sequence[Path]) -> None:
        head = [identity_of(source.stat()) for source in sources]
        before = ""
        with suppress(OSError, ValueError):
            before = read_own(path)
        self.rows = deque(_rows(before, head))  # that are yet to be looked at
        content = "".join(map(_line, [head, *self.rows]))
        if content != before:
            replace_text(path, content)
        self._file = open_own(path, writing=True)
        self._file.seek(len(_line(head)))

    def __enter__(self) -> Journal:
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()

    def add(self, row: Row) -> None:
        """Add the line of a matrix that the file has, or go past it where it is there."""
        self._file.write(_line(row).encode())
        self._file.flush()

    def cut(self) -> None:
        """Forget the rows that are yet to be looked at."""
        self.rows.clear()
        self._file.truncate()


def _rows(text: str, head: list[Any]) -> Iterator[Row]:
    """The lines of a journal that begins so, as far as they are some."""
    lines = iter(text.splitlines())
    with suppress(ValueError, RecursionError):
        if json.loads(next(lines, "null")) != head:
            return
        for line in lines:
            row = json.loads(line)
            if type(row) is not list or not {*map(type, row)} <= {int, str, bool, type(None)}:
                return
            if [*map(type, row[-4:])] != [int, int, bool, int]:
                return
            yield row


def _line(row: Row) -> str:
    return json.dumps(row) + "\n"


class PackedWriter:
    """Writes such a file; `put` appends bytes, and `matrix` says what they are. What was put is on its way to the disk
    while more is made.

    Args:
        file: what it writes.
        journal: says what the file has already, and gets a line for each matrix.
    """

    def __init__(self, file: BinaryIO, journal: Journal | None = None) -> None:
        self._file, self._index, self._checksum = file, list[tuple[Any, ...]](), 0
        self._journal = journal
        self._synced, self._syncing = 0, None if sys.platform == "win32" else ThreadPoolExecutor(1)
        self._last: Future[None] | None = None

    def __enter__(self) -> PackedWriter:
        return self

    def __exit__(self, *_: object) -> None:
        if self._syncing is not None:
            self._syncing.shutdown()

    def put(self, content: Any) -> None:
        self._checksum = zlib.crc32(content, self._checksum)
        self._file.write(content)
        written = self._file.tell()
        if self._syncing is not None and written - self._synced >= SYNCED and (self._last is None or self._last.done()):
            if self._last is not None:
                self._last.result()
            self._synced, self._last = written, self._syncing.submit(os.fsync, self._file.fileno())

    def kept(self, of: Any) -> int:
        """The size in bytes of the next matrix where the file has it already; else 0, and it is to be written. of: its
        source."""
        if self._journal is None or not self._journal.rows:
            return 0
        at = self._file.tell()
        if size := self._holds(of, self._journal.rows[0], at):
            self._journal.rows.popleft()
        else:
            self._journal.cut()
            self._file.seek(at)
        return size

    def _holds(self, of: Any, row: Row, at: int) -> int:
        """The size of the matrix that a row is about; 0 where it is another one, or its bytes in the file are
        others."""
        size: int
        *source, start, size, half, checksum = row
        if source != list(astuple(of)) or start != at + -at % ALIGNMENT or size <= 0:
            return 0
        found, left = self._checksum, start + size - at
        while left:
            piece = self._file.read(min(left, PIECE))
            if not piece:
                return 0
            found, left = zlib.crc32(piece, found), left - len(piece)
        if found != checksum:
            return 0
        self._checksum = found
        self._note(of, start, size, half)
        return size

    @contextmanager
    def matrix(self, of: Any, *, half: bool = False) -> Iterator[None]:
        """What is put within this context is the matrix with this source, a frozen dataclass."""
        self.put(bytes(-self._file.tell() % ALIGNMENT))
        start = self._file.tell()
        yield
        self._note(of, start, self._file.tell() - start, half)

    def _note(self, of: Any, start: int, size: int, half: bool) -> None:
        row = (*astuple(of), start, size, half)
        self._index.append(row)
        if self._journal is not None:
            self._file.flush()  # the journal says what is in the file
            self._journal.add([*row, self._checksum])

    def end(self, of: str, *, again: bool) -> int:
        """Write the index. of: the identity of all sources. again: let the system read the file again. Returns the
        crc32 of all before the end."""
        named = json.dumps({"weights": of, "matrices": self._index}).encode()
        self.put(named)
        self._file.write(END.pack(len(named), self._checksum, MARK))
        self._file.truncate()  # what was written before may have come further
        self._file.flush()
        os.fsync(self._file.fileno())
        if again:
            with suppress(AttributeError, OSError):
                os.posix_fadvise(self._file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
        return self._checksum


@contextmanager
def written(path: Path, sources: Sequence[Path]) -> Iterator[PackedWriter]:
    """What writes a file of the cache, which replaces `path` once it is whole. It goes on with what was written before
    it was interrupted; where it is interrupted itself, or killed, what is whole is kept. After an error nothing is
    left. Where another process writes this file at a time, this one begins anew.

    sources: the files that it is made of. Where one has changed since, nothing that was made of it is kept.

    Raises:
        OSError: it cannot be written.
    """
    with replacing(path) as part, ExitStack() as stack:
        if not _held(stack, path):
            with part.open("wb") as anew, PackedWriter(anew) as writer:
                yield writer
            return
        _drop_others(path)
        unfinished, journal = path.with_suffix(UNFINISHED), path.with_suffix(JOURNAL)
        try:
            with Journal(journal, sources) as lines, _opened(unfinished) as file, PackedWriter(file, lines) as writer:
                yield writer
            unfinished.replace(part)
        except BaseException as e:
            if isinstance(e, Exception) or not has_begun(path):  # an interruption leaves what is whole
                _remove(path)
            raise
        _remove(path)


def has_begun(path: Path) -> bool:
    """True if a part of a file was written whose writing was interrupted."""
    with suppress(OSError, ValueError):
        return read_own(path.with_suffix(JOURNAL)).count("\n") > 1
    return False


def forget_begun(path: Path) -> None:
    """Remove what was written of a file before it was interrupted, unless a process writes it now."""
    with ExitStack() as stack:
        if _held(stack, path):
            _remove(path)


def begun(folder: Path) -> dict[str, int]:
    """The files of a folder whose writing was interrupted, and how many bytes there are of each."""
    with suppress(OSError):
        return {path.stem: path.stat().st_size for path in folder.glob(f"*{UNFINISHED}") if has_begun(path)}
    return {}


def _held(stack: ExitStack, path: Path) -> bool:
    """Whether nobody else writes a file, nor will, until the stack is closed."""
    try:
        return stack.enter_context(locked(path.with_suffix(LOCK), sure=True))
    except InputError:  # there is no place for a lock
        return False


def _opened(path: Path) -> BinaryIO:
    """The file at a path as it is, to be read and written; a new one where there is none of this user's."""
    with suppress(OSError):
        return open_own(path, writing=True)
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    path.unlink(missing_ok=True)
    return open(path, "x+b", opener=for_owner)


def _drop_others(path: Path) -> None:
    """Remove what was left unfinished of other files, before its room is needed."""
    drop_parts(path.parent)
    with suppress(OSError):
        for left in path.parent.iterdir():
            if left.suffix in (UNFINISHED, JOURNAL, LOCK) and left.stem != path.stem:
                forget_begun(left)


def _remove(path: Path) -> None:
    for ending in (JOURNAL, UNFINISHED):
        with suppress(OSError):
            path.with_suffix(ending).unlink(missing_ok=True)
