"""Files outside of a bundle whose weights it reads where they are: GGUF files that `edge run` was given.

A file is known by its size and a sha256 of its beginning, which has all that graphs and tokenizers are made of, and of
samples of the rest. What was packed of its weights is known by the system's times and number of the file, too.
"""

from __future__ import annotations

import errno
import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from io import FileIO
from pathlib import Path, PurePosixPath, PureWindowsPath

from edge.errors import BundleError
from edge.regular_file import identity_of, open_regular, status_of

BEGINNING = 8 << 20  # bytes that are hashed as a whole: the header with its vocabulary, and the first weights
LONGEST_PATH = 1000  # bytes
MOST_BYTES = 1 << 50
SAMPLES, SAMPLE = 256, 1 << 12  # pieces of the rest, at equal distances, and their bytes
AGAIN = "name the .gguf file to edge run, which makes it again"


@dataclass(frozen=True)
class ExternalFile:
    """A file outside of the bundle whose weights its graphs read where they are.

    path: absolute. modified_ns: of its last change. sha256: of its size, its beginning and samples of the rest.
    """

    path: str
    size: int
    modified_ns: int
    sha256: str


def is_nameable(path: Path) -> bool:
    """True if a manifest can name a file: in UTF-8, in so many bytes, without control characters."""
    name = str(path.absolute())
    try:
        return name.isprintable() and len(name.encode()) <= LONGEST_PATH
    except UnicodeEncodeError:
        return False


def described(path: Path) -> ExternalFile:
    """Describe a file as it is now. OSError where it cannot be read, or no manifest can name it."""
    name = str(path.absolute())
    if not is_nameable(path):
        raise OSError(errno.EINVAL, f"its path is too long, or has characters that cannot be printed: {name!r}")
    with open_regular(path) as file:
        found = os.fstat(file.fileno())
        return ExternalFile(name, found.st_size, found.st_mtime_ns, _sha256(file, found.st_size))


def check(file: ExternalFile) -> None:
    """Raise BundleError if a file is not there, or is another one, by its size, beginning and samples. These are read
    again where its time is another one."""
    try:
        with open_regular(Path(file.path)) as opened:
            found = os.fstat(opened.fileno())
            same = found.st_size == file.size
            if same and found.st_mtime_ns != file.modified_ns:
                same = _sha256(opened, found.st_size) == file.sha256
    except OSError as e:
        raise _unreadable(file, e) from None
    if not same:
        raise changed(file)


def _unreadable(file: ExternalFile, error: OSError) -> BundleError:
    return BundleError(f"{file.path!r}, whose weights a bundle reads, cannot be read ({error.strerror}); {AGAIN}.")


def changed(file: ExternalFile) -> BundleError:
    """The error where a file is another one."""
    return BundleError(f"{file.path!r}, whose weights a bundle reads, has changed since it was made; {AGAIN}.")


def stamp(file: ExternalFile) -> str:
    """Identity of a file's content as it is now, as far as the system knows it without reading; BundleError where it
    is not there."""
    try:
        found = status_of(Path(file.path))
    except OSError as e:
        raise _unreadable(file, e) from None
    return " ".join([file.sha256, *map(str, identity_of(found))])


def faults(file: ExternalFile) -> Iterator[str]:
    """Yield what no export writes of a file, in phrases. A manifest may come from a stranger: it cannot name devices,
    nor other machines."""
    absolute = PurePosixPath(file.path).is_absolute() or PureWindowsPath(file.path).is_absolute()
    remote = file.path.startswith(("//", "\\\\"))
    odd = not file.path.isprintable() or len(file.path.encode("utf-8", "replace")) > LONGEST_PATH
    if not absolute or remote or odd or not file.path.endswith(".gguf"):
        yield f"path is {file.path[:60]!r}"
    if not 0 < file.size <= MOST_BYTES:
        yield f"size is {file.size}"
    if not re.fullmatch("[0-9a-f]{64}", file.sha256):
        yield f"sha256 is {file.sha256[:80]!r}"


def _sha256(file: FileIO, size: int) -> str:
    import hashlib  # brings OpenSSL, as in `edge.bundle`

    digest = hashlib.sha256(str(size).encode())

    def take(start: int, count: int) -> None:
        file.seek(start)
        while count and (part := file.read(count)):
            digest.update(part)
            count -= len(part)

    take(0, BEGINNING)
    rest = size - BEGINNING
    for i in range(SAMPLES if rest > 0 else 0):
        take(BEGINNING + i * max(0, rest - SAMPLE) // (SAMPLES - 1), SAMPLE)
    return digest.hexdigest()
