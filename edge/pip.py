"""Fetching a wheel with the pip of this Python, whatever state it is in."""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Callable
from pathlib import Path

from edge.children import Child, ChildEnded

_PAUSE = 0.1  # seconds between two looks at what pip has fetched
_WAIT = 300.0  # seconds without a byte more, after which pip counts as stuck


class PipFailed(Exception):
    """pip gave no wheel. The message completes '<where>: ...'."""


def download(requirement: str, folder: Path, tell: Callable[[int], None]) -> Path:
    """Fetch a wheel with pip, as the user's configuration says, and return its path. tell: is told the bytes so far
    from time to time.

    Raises:
        PipFailed: there is none.
    """
    options = "--no-deps --only-binary=:all: --no-cache-dir --ignore-requires-python --no-input --retries=2"
    arguments = ["download", *options.split(), "--disable-pip-version-check", "--progress-bar=off", "--dest"]
    arguments += [str(folder), requirement]
    # pip writes a download into its temporary folder first: there its size can be watched.
    place = dict.fromkeys(("TMPDIR", "TEMP", "TMP"), str(folder))
    with (folder / "log").open("w+", encoding="utf-8", errors="replace") as log:
        with Child(_run, arguments, said=log, variables=place) as pip:  # which Ctrl-C ends too
            most, since = -1, time.monotonic()
            while pip.runs(_PAUSE):
                if (size := _size_in(folder)) > most:
                    most, since = size, time.monotonic()
                elif time.monotonic() - since > _WAIT:
                    raise PipFailed(f"pip did nothing for {_WAIT:.0f} s")
                tell(size)
            try:
                status = pip.result()
            except ChildEnded as e:
                raise PipFailed(f"pip broke off ({e})") from None
        log.seek(0)
        said = log.read()
    if status is None:
        raise PipFailed("pip is not installed for this Python (run: python -m ensurepip)")
    if status:
        if "connection broken by" in said:  # which pip calls a warning
            raise PipFailed("pip could not reach its package index")
        last = (said.strip().splitlines() or [f"it ended with status {status}"])[-1].removeprefix("ERROR: ")
        raise PipFailed(f"pip could not download it ({last[:200].rstrip('.')})")
    if (wheel := next(folder.glob("*.whl"), None)) is None:
        raise PipFailed("pip downloaded no wheel of it")
    return wheel


def _run(arguments: list[str]) -> int | None:
    """pip's exit status; None where there is no pip."""
    import runpy
    from importlib.util import find_spec

    if find_spec("pip") is None:
        return None
    sys.argv = ["pip", *arguments]
    try:
        runpy.run_module("pip", run_name="__main__", alter_sys=True)
    except SystemExit as e:
        if isinstance(e.code, int) or e.code is None:
            return e.code or 0
        print(e.code, file=sys.stderr)
    except Exception as e:  # a broken one
        print(f"{type(e).__name__}: {e}", file=sys.stderr)
    else:
        return 0
    return 1


def _size_in(folder: Path) -> int:
    size = 0
    with contextlib.suppress(FileNotFoundError):  # pip removes files and folders meanwhile
        for path in folder.rglob("*"):
            size += path.stat().st_size
    return size
