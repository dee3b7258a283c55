"""A `.gguf` file at an address that the catalog does not know: nothing says how long it is or what it holds, until the
server does. It appears in the cache when it is whole; an interrupted fetch is resumed."""

from __future__ import annotations

import hashlib
import re
import shutil
import urllib.error
import urllib.parse
import urllib.request
import zlib
from pathlib import Path

from edge.catalog import Progress, UrlSource
from edge.download import Unavailable, download, open_address, size_of
from edge.errors import CatalogError, on_one_line
from edge.home import cache_dir, is_own, make_folder

MAGIC = b"GGUF"
MOST = 1 << 42  # bytes: 4 TiB, above any model
LONGEST = 100  # characters of a file's name


def place_of(address: str) -> Path:
    """Return the local path of the file at an address once it is fetched."""
    given = urllib.parse.unquote(urllib.parse.urlsplit(address).path.rpartition("/")[2])
    name = re.sub(r"[^\w.-]", "_", given.removesuffix(".gguf"), flags=re.ASCII)[:LONGEST].lstrip(".-")
    folder = hashlib.sha256(address.encode(errors="surrogateescape")).hexdigest()[:16]
    return cache_dir() / "models" / "web" / folder / f"{name or 'model'}.gguf"


def local(address: str) -> Path | None:
    """Return the path of the fetched file of an address; None if it was not fetched."""
    path = place_of(address)
    return path if path.is_file() and is_own(path) else None


def fetch_file(address: str, progress: Progress | None = None) -> Path:
    """Fetch the file at an address, and return where it lies.

    Raises:
        CatalogError: it cannot be fetched whole, is no GGUF file, or there is no room for it.
    """
    target = place_of(address)
    try:
        make_folder(target.parent)
        return _fetch(address, target, progress or _silent)
    except Unavailable as e:
        raise CatalogError(f"{address[:200]} cannot be fetched: {e}.") from None
    except OSError as e:
        raise CatalogError(f"{address[:200]} could not be stored in {target.parent}: {e.strerror or e}.") from None


def _fetch(address: str, target: Path, advance: Progress) -> Path:
    size, version = _ask(address)
    source = UrlSource(target.name, "", address, size)
    part = target.with_name(f".{target.name}.{zlib.crc32(version.encode()):08x}.part")
    for other in target.parent.glob(".*.part"):
        if other != part:  # of what was at the address before
            other.unlink()
    if size - size_of(part) > (free := shutil.disk_usage(target.parent).free):
        raise CatalogError(
            f"{address[:200]} has {size / 1e6:,.0f} MB, and {target.parent} has room for {free / 1e6:,.0f} MB; free "
            "some, or set EDGE_HOME to a folder elsewhere."
        )
    download(source, part, advance)
    with part.open("rb") as file:
        begins = file.read(len(MAGIC))
    if begins != MAGIC or size_of(part) != size:
        part.unlink()
        raise Unavailable(_no_gguf(begins) if begins != MAGIC else "the server sends more than it says")
    part.replace(target)
    return target


def _ask(address: str) -> tuple[int, str]:
    """The bytes of the file, and what changes where the file does, as far as the server says."""
    request = urllib.request.Request(address, headers={"Range": f"bytes=0-{len(MAGIC) - 1}"})
    try:
        with open_address(request) as response:
            begins, headers = response.read(len(MAGIC)), response.headers
    except urllib.error.HTTPError as e:
        raise Unavailable(f"the server answers {e.code} {e.reason}") from None
    except Exception as e:
        reason = getattr(e, "reason", e)
        said = getattr(reason, "strerror", None) or on_one_line(reason, 200)
        raise Unavailable(f"it cannot be reached ({said})") from None
    if begins != MAGIC:
        raise Unavailable(_no_gguf(begins))
    whole = re.fullmatch(r"bytes 0-\d+/(\d{1,15})", headers.get("Content-Range") or "")
    stated = whole[1] if whole else headers.get("Content-Length") or ""
    if not re.fullmatch(r"\d{1,15}", stated) or not len(MAGIC) < int(stated) <= MOST:
        raise Unavailable("the server does not say how long it is")
    version = headers.get("ETag") or headers.get("Last-Modified") or ""
    return int(stated), f"{stated} {version}"


def _no_gguf(begins: bytes) -> str:
    return f"it is no GGUF file: it begins with {begins!r} and not with {MAGIC!r}"


def _silent(*_: object) -> None: ...
