"""Files outside of a bundle whose weights it reads where they are: GGUF files that `edge run` was given.

A file is known by its size and a sha256 of its beginning, which has all that a graph was made by, and of samples of the
rest. It may be moved in time (`touch`, a copy): where its time is another one its content is looked at again.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from io import FileIO
from pathlib import Path

from edge.errors import BundleError
from edge.regular_file import open_regular

BEGINNING = 8 << 20  # bytes that are hashed as a whole: the header with its vocabulary, and the first weights
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


def described(path: Path) -> ExternalFile:
    """Describe a file as it is now. OSError where it cannot be read."""
    with open_regular(path) as file:
        found = os.fstat(file.fileno())
        return ExternalFile(str(path.absolute()), found.st_size, found.st_mtime_ns, _sha256(file, found.st_size))


def check(file: ExternalFile) -> None:
    """Raise BundleError if a file is not there, or has another content than when the bundle was made of it."""
    path = Path(file.path)
    try:
        with open_regular(path) as opened:
            found = os.fstat(opened.fileno())
            same = found.st_size == file.size
            if same and found.st_mtime_ns != file.modified_ns:
                same = _sha256(opened, found.st_size) == file.sha256
    except OSError as e:
        raise BundleError(f"{path}, whose weights a bundle reads, cannot be read ({e.strerror}); {AGAIN}.") from None
    if not same:
        raise BundleError(f"{path}, whose weights a bundle reads, has changed since it was made; {AGAIN}.")


def _sha256(file: FileIO, size: int) -> str:
    import hashlib  # brings OpenSSL, as in `edge.bundle`

    digest = hashlib.sha256(str(size).encode())
    file.seek(0)
    digest.update(file.read(BEGINNING))
    for i in range(1, SAMPLES + 1):
        place = i * (size - SAMPLE) // SAMPLES
        if place >= BEGINNING:
            file.seek(place)
            digest.update(file.read(SAMPLE))
    return digest.hexdigest()
