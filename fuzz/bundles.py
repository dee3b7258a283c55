"""Bundles that somebody changed and sealed again, as anybody can: sha256s and the checksum are right, so that what was
changed is really read."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import zlib
from pathlib import Path
from typing import Any

from edge.bundle import MANIFEST
from edge.manifest import CHECKSUM, sealed


def linked(whole: Path, place: Path) -> Path:
    """A copy of a folder whose files are links to those of `whole`: `write` replaces one of them."""
    return Path(shutil.copytree(whole, place, copy_function=os.link))


def write(path: Path, content: bytes) -> None:
    """Replace a file of a folder that is `linked`."""
    path.unlink(missing_ok=True)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)


def seal(bundle: Path) -> None:
    """Write the manifest with the sizes and sha256s that the files have now."""
    path = bundle / MANIFEST
    raw = json.loads(path.read_text(encoding="utf-8"))
    files = raw["files"]
    for file in files:
        content = (bundle / file["path"]).read_bytes()
        file["size"], file["sha256"] = len(content), hashlib.sha256(content).hexdigest()
    write(path, resealed(raw))


def resealed(raw: dict[str, Any]) -> bytes:
    """The text of a manifest, with the checksum that fits it."""
    try:
        return sealed(raw).encode()
    except UnicodeEncodeError:  # half a surrogate pair, which a JSON text can have as an escape
        text = json.dumps({name: value for name, value in raw.items() if name != CHECKSUM}, indent=1)
        before = text.removesuffix("\n}") + ",\n "
        return f'{before}"{CHECKSUM}": "{zlib.crc32(before.encode()):08x}"\n}}\n'.encode()


def answer(bundle: Path, **keywords: Any) -> list[int]:
    """Load a bundle and let it answer in a few tokens, whatever it is for."""
    import edge

    with edge.load(bundle, threads=1, **keywords) as model:
        if isinstance(model, edge.Transcriber):
            import numpy as np

            model.transcribe(np.zeros(1600, np.float32))
            return []
        return model.generate("Hello, wörld!", max_tokens=4).token_ids
