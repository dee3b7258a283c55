"""Where `edge` keeps what it can make or fetch again: downloaded models and stamps of checked bundles."""

from __future__ import annotations

import os
import sys
from pathlib import Path


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
