"""Folders whose files are links, as the cache of the Hugging Face hub's library has them.

There `models--ORG--NAME/snapshots/REVISION/` has links into `models--ORG--NAME/blobs/`, whose files are called by their
sha1 or sha256. That library alone writes both, and what is in `blobs/` is the same repository's: whoever can put a link
there, or a file, could have put that file into the folder as well. Any other link that leaves a folder leads to
somebody else's file.
"""

from __future__ import annotations

import os
import re
from pathlib import Path

_REPOSITORY = re.compile(r"(models|datasets|spaces)--[^/\\]+")
_BLOB = re.compile(r"[0-9a-f]{40}|[0-9a-f]{64}")


def is_within(folder: Path, name: str) -> bool:
    """True if a file of a folder leads to a file in it, or to a blob of the hub's library in the same repository."""
    real, root = os.path.realpath(folder / name), os.path.realpath(folder)
    return Path(real).is_relative_to(root) or _is_blob(Path(real), Path(root))


def _is_blob(real: Path, root: Path) -> bool:
    """True if a file is a blob of the repository that the snapshot folder `root` belongs to. Both paths are free of
    links."""
    if _BLOB.fullmatch(real.name) is None or real.parent.name != "blobs":
        return False
    repository = real.parent.parent
    inside = root.is_relative_to(repository / "snapshots") and root != repository / "snapshots"
    return inside and _REPOSITORY.fullmatch(repository.name) is not None
