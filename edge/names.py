"""Names of models that are not local paths: an entry of the catalog, a model on the Hugging Face hub, or a `.gguf` file
at an address. The names that people know from Ollama and llama.cpp are accepted."""

from __future__ import annotations

import fnmatch
import glob
import re
import urllib.parse
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from edge import catalog, fetch
from edge.adapter import CONFIG
from edge.catalog import Entry, Progress, Say
from edge.errors import CatalogError, InputError
from edge.gguf_parts import name_of, parts_of
from edge.hub_file import chosen_file
from edge.spelling import nearest

HUBS = ("hf.co", "huggingface.co", "www.huggingface.co")
PREFIXES = (*(f"{hub}/" for hub in HUBS), "hf://")  # before org/NAME
LONGEST_ADDRESS = 1000  # characters of a page's path
LONGEST_ID = 200  # characters of a name on the hub, whose own limits are lower

_HUB = re.compile(r"(?P<repo>[\w.-]+/[\w.-]+)(:(?P<tag>[\w./-]+))?(@(?P<revision>[\w./-]+))?", re.ASCII)
_FILE = re.compile(r"/(?P<repo>[\w.-]+/[\w.-]+)/(?:resolve|blob|raw)/(?P<revision>[^/]+)/(?P<tag>.+\.gguf)", re.ASCII)
_FOLDER = re.compile(r"/(?P<repo>[\w.-]+/[\w.-]+)(?:/tree/(?P<revision>[^/]+))?/?", re.ASCII)
_SHOWN = "show_file_info"  # in the query of a hub's page: the file that it shows


@dataclass(frozen=True)
class InCatalog:
    """A model of the catalog."""

    entry: Entry
    kind: ClassVar[str] = "catalog"

    @property
    def name(self) -> str:
        return self.entry.name

    @property
    def licence(self) -> str | None:
        return self.entry.licence

    def local(self) -> Path | None:
        """Return the path of the fetched model; None if it was not fetched."""
        return catalog.local(self.entry)

    def fetch(self, progress: Progress | None = None, say: Say | None = None, *, floats: bool = False) -> Path:
        """Return the model's path, and fetch it first if it is not here. floats: see `fetch.pull`."""
        return fetch.pull(self.entry, progress, floats=floats, say=say)

    def titled(self, path: Path) -> str:
        """Return the name of the model at `path`."""
        return self.name


@dataclass(frozen=True)
class OnHub:
    """A model on the Hugging Face hub: a directory, or one of its GGUF files.

    tag: a quantization such as Q4_K_M, or a file's name.
    """

    repo: str
    revision: str | None = None
    tag: str | None = None
    kind: ClassVar[str] = "hub"
    licence: ClassVar[str | None] = None

    @property
    def name(self) -> str:
        return self.repo + (f":{self.tag}" if self.tag else "") + (f"@{self.revision}" if self.revision else "")

    def local(self) -> Path | None:
        """Return None, because only the hub's library knows the content of its cache."""
        return None

    def fetch(self, progress: Progress | None = None, say: Say | None = None, *, floats: bool = False) -> Path:
        """The model's directory or `.gguf` file in the cache of the hub's library; CatalogError as `fetch.snapshot`."""
        chosen = list[str]()

        def wanted(names: Sequence[str]) -> list[str]:
            if self._is_directory(names):
                return fetch.hub_files(names)
            if names:
                chosen.append(chosen_file(self.repo, names, self.tag))
                if say is not None:
                    say(f"{self.name} is the file {chosen[0]} of {self.repo} on the hub.")
            return [glob.escape(part.as_posix()) for name in chosen for part in parts_of(Path(name))]

        try:
            folder = fetch.snapshot(self.repo + (f"@{self.revision}" if self.revision else ""), wanted)
        except CatalogError as e:
            raise (e if self.tag else CatalogError(f"There is no directory {self.name}, and {e}")) from None
        here = [path.relative_to(folder).as_posix() for path in sorted(folder.rglob("*")) if path.is_file()]
        if not chosen and (self._is_directory(here) or not any(name.endswith(".gguf") for name in here)):
            return folder
        return folder / (chosen[0] if chosen else chosen_file(self.repo, here, self.tag))

    def titled(self, path: Path) -> str:
        """Return the name of the model at `path`."""
        return self.name if path.is_dir() else f"{self.repo.partition('/')[0]}/{name_of(path)}"

    def _is_directory(self, names: Sequence[str]) -> bool:
        """True if the model is the complete repository. That is also assumed if the names of its files are unknown."""
        if self.tag is not None:
            return False
        return not names or (("config.json" in names or CONFIG in names) and any(map(_holds_weights, names)))


@dataclass(frozen=True)
class AtAddress:
    """A `.gguf` file at an address."""

    name: str
    kind: ClassVar[str] = "web"
    licence: ClassVar[str | None] = None

    def local(self) -> Path | None:
        """Return the path of the fetched model; None if it was not fetched."""
        from edge import web_file

        return web_file.local(self.name)

    def fetch(self, progress: Progress | None = None, say: Say | None = None, *, floats: bool = False) -> Path:
        """Return the model's path, and fetch it first if it is not here."""
        from edge import web_file

        return self.local() or web_file.fetch_file(self.name, progress)

    def titled(self, path: Path) -> str:
        """Return the name of the model at `path`."""
        return name_of(path)


Named = InCatalog | OnHub | AtAddress


def find(text: str) -> Named | None:
    """Find the model of a name that is not a path: an entry of the catalog, a model on the hub, or an address; else
    None.

    Raises:
        InputError: an address that cannot be fetched from safely, or that is not of a model.
    """
    if (entry := catalog.find(text)) is not None:
        return InCatalog(entry)
    if text.startswith(("https://", "http://")):
        return _at_address(text)
    for prefix in PREFIXES:
        if text.lower().startswith(prefix):
            rest = text[len(prefix) :]
            return _on_hub(rest) or _of_page(urllib.parse.urlsplit(f"https://hf.co/{rest}"))
    return _on_hub(text)


def similar(text: str) -> str | None:
    """The name in the catalog that a name was perhaps meant to be, in Ollama's spelling too, as qwen3:0.6b."""
    name = text.lower().rpartition("/")[2]
    return nearest(name, catalog.spelled()) or nearest(name.replace(":", "-"), catalog.spelled())


def _on_hub(text: str) -> OnHub | None:
    match = _HUB.fullmatch(text)
    if match is None or len(text) > LONGEST_ID or text.startswith(".") or text.endswith((".edge", ".gguf/")):
        return None
    if match["tag"] is None and match["repo"].endswith(".gguf"):  # the path of a file that is not there
        return None
    return OnHub(match["repo"], match["revision"], match["tag"])


def _at_address(text: str) -> Named:
    try:
        address = urllib.parse.urlsplit(text)
        host = address.hostname or ""
    except ValueError as e:
        raise InputError(f"{text[:200]} is no address ({e}); write https://HOST/PATH.gguf.") from None
    if host in HUBS:
        named = _of_page(address) or _on_hub(urllib.parse.unquote(address.path).strip("/"))
        if named is not None:
            return named
    if address.scheme != "https" and host not in ("127.0.0.1", "::1", "localhost"):
        raise InputError(f"Whoever is on the way can change what comes from {text[:200]}; write https://.")
    if not address.path.endswith(".gguf"):
        raise InputError(
            f"{text[:200]} is no address of a .gguf file; name such a file, or a model on the Hugging Face hub as "
            "org/NAME."
        )
    return AtAddress(text)


def _of_page(address: urllib.parse.SplitResult) -> OnHub | None:
    """The model of a page of the hub: of a repository, of a revision of it, or of a file."""
    shown = urllib.parse.parse_qs(address.query).get(_SHOWN, [None])[0]
    if (match := _FILE.fullmatch(address.path)) is not None:
        shown = urllib.parse.unquote(match["tag"])
    elif (match := _FOLDER.fullmatch(address.path)) is None:
        return None
    revision = urllib.parse.unquote(match["revision"] or "main")  # refs%2Fpr%2F1
    if not _HUB.fullmatch(f"{match['repo']}@{revision}") or len(address.path) > LONGEST_ADDRESS:
        return None
    return OnHub(match["repo"], None if revision == "main" else revision, shown)


def _holds_weights(name: str) -> bool:
    """True if a file in a repository has weights of a model directory. Other .bin files may be notes of a training."""
    return name.endswith(".safetensors") or any(fnmatch.fnmatchcase(name, each) for each in fetch.HUB_BIN_FILES)
