"""Where `edge` keeps what it can make or fetch again: downloaded models, stamps of checked bundles, measured costs."""

from __future__ import annotations

import contextlib
import os
import shutil
import sys
from pathlib import Path

KEPT = 200  # bundles whose stamps and costs are kept: a few kB each, made again where they are missing


def cache_dir() -> Path:
    """The cache folder: `EDGE_HOME` where it is set, else `edge` in the platform's cache folder. Not created here."""
    named = os.environ.get("EDGE_HOME")
    if named:
        return Path(named).expanduser()
    if sys.platform == "darwin":
        return Path.home() / "Library" / "Caches" / "edge"
    if sys.platform == "win32":
        local = os.environ.get("LOCALAPPDATA")
        return (Path(local) if local else Path.home() / "AppData" / "Local") / "edge" / "cache"
    xdg = os.environ.get("XDG_CACHE_HOME")
    base = Path(xdg) if xdg and Path(xdg).is_absolute() else Path.home() / ".cache"
    return base / "edge"


def curves_dir() -> Path:
    """Where the cost curves that `edge profile` measures are kept; it is there once one was."""
    return cache_dir() / "curves"


def mark_used(entry: Path) -> None:
    """An entry of a folder of the cache was used: `drop_oldest` keeps it longest."""
    with contextlib.suppress(OSError):
        os.utime(entry)


def drop_oldest(folder: Path, kept: int = KEPT) -> None:
    """Keep `kept` entries of a folder of the cache, files or folders: those that were used last.

    Another process may do the same at a time: what one has removed is no fault to the other.
    """
    used = []
    with contextlib.suppress(OSError):
        for entry in folder.iterdir():
            with contextlib.suppress(OSError):
                used.append((entry.stat().st_mtime_ns, entry))
    for _, entry in sorted(used, reverse=True)[kept:]:
        if entry.is_dir():
            shutil.rmtree(entry, ignore_errors=True)
        else:
            with contextlib.suppress(OSError):
                entry.unlink()
