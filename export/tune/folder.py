"""The folder with the results of a run, for as long as the run goes on."""

from __future__ import annotations

import contextlib
import shutil
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from edge.errors import InputError
from edge.lock import locked

LOCK = "lock"  # a file in it that says, while somebody holds it, that a run is at work


@contextmanager
def working(folder: Path, *, restart: bool) -> Iterator[None]:
    """Use the folder, made where there is none, as the only one as far as the system knows locks.

    restart: whether what an earlier run has left in it goes first.

    Raises:
        InputError: it cannot be made, or another run is at work in it.
    """
    with locked(folder / LOCK) as free:
        if not free:
            raise InputError(f"Another run is at work in {folder}; wait for it, or name another result.")
        for path in folder.iterdir():
            if path.is_symlink():  # what is written to it would go elsewhere
                raise InputError(f"The folder {folder} holds a link, {path.name}; remove it, or name another result.")
            if not restart:
                continue
            if path.is_dir():
                shutil.rmtree(path)
            elif path.name != LOCK:
                path.unlink()
        yield
    if sys.platform == "win32":  # which removes no file that is open, so that a run which is done leaves this one
        with contextlib.suppress(OSError):
            (folder / LOCK).unlink(missing_ok=True)
            folder.rmdir()
