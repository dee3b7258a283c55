"""Records of the model and bundle that a name led to when it was last used. With a record, `edge run NAME` needs no
network, and `edge list` shows the models that are here."""

from __future__ import annotations

import contextlib
import hashlib
import json
import urllib.parse
from dataclasses import asdict, dataclass
from pathlib import Path

from edge.home import cache_dir, drop_oldest, mark_used, read_own_json, replace_text

LONGEST = 120  # characters of a name that a file is called by; of a longer one by its sha256


@dataclass(frozen=True)
class Record:
    """The path of the model of a name, and the name of its bundle in the cache if one was created."""

    name: str
    path: str
    bundle: str | None = None

    @property
    def file(self) -> Path:
        """Path of the record."""
        quoted = urllib.parse.quote(self.name, safe="", errors="surrogateescape")
        if len(quoted) > LONGEST:
            quoted = hashlib.sha256(quoted.encode()).hexdigest()
        return _folder() / f"{quoted}.json"


def recorded(name: str) -> Record | None:
    """The record of a name, where there is one."""
    record = _read(Record(name, "").file)
    return record if record is not None and record.name == name else None


def records() -> list[Record]:
    """All records, by name."""
    found = []
    with contextlib.suppress(OSError):
        found = [record for file in _folder().glob("*.json") if (record := _read(file)) is not None]
    return sorted(found, key=lambda record: record.name)


def remember(record: Record) -> None:
    """Keep a record, as far as the cache can be written."""
    if recorded(record.name) == record:
        mark_used(record.file)
        return
    with contextlib.suppress(OSError):
        replace_text(record.file, json.dumps(asdict(record)))
    drop_oldest(_folder(), made=record.file)


def forget(record: Record) -> None:
    """Remove a record."""
    record.file.unlink(missing_ok=True)


def _folder() -> Path:
    return cache_dir() / "names"


def _read(file: Path) -> Record | None:
    found = read_own_json(file)
    if not isinstance(found, dict):
        return None
    name, path, bundle = (found.get(field) for field in ("name", "path", "bundle"))
    if not isinstance(name, str) or not isinstance(path, str):
        return None
    if bundle is None:
        return Record(name, path)
    plain = isinstance(bundle, str) and Path(bundle).name == bundle and bundle.endswith(".edge")
    return Record(name, path, bundle) if plain else None
