"""Downloading a file from an address of a web server, which may break off, be slow, send more than it said, or lead to
another one."""

from __future__ import annotations

import http.client
import ssl
import time
import urllib.error
import urllib.parse
import urllib.request
from pathlib import Path
from typing import Any

from edge.catalog import Progress, UrlSource
from edge.errors import on_one_line
from edge.home import for_owner

_TIMEOUT = 30.0  # seconds without a byte after which a server counts as silent
_TRIES = 3  # of a download that breaks off, each going on where the last one ended
_CHUNK = 1 << 20
_SLOWEST = 64 * 1024  # bytes in the time _TIMEOUT: a server that sends less counts as silent


class Unavailable(Exception):
    """A source that cannot serve now; the next one is tried. The message completes '<where>: ...'."""


def download(source: UrlSource, part: Path, advance: Progress) -> None:
    """Download as many bytes as the source has into `part`, after those that an earlier request or run left there.

    Raises:
        Unavailable: the server does not give them.
        OSError: they cannot be written.
    """
    reason = ""
    if size_of(part) > source.size:  # of another file
        part.unlink()
    for _ in range(_TRIES):
        if (have := size_of(part)) < source.size:
            reason = _download(source, part, have, advance)
    if (have := size_of(part)) < source.size:
        raise Unavailable(f"{reason} after {have} of {source.size} bytes; the next attempt goes on from there")


def _download(source: UrlSource, part: Path, have: int, advance: Progress) -> str:
    """One request for what `part` lacks after the first `have` bytes; why it may have broken off."""
    request = urllib.request.Request(source.url, headers={"Range": f"bytes={have}-"} if have else {})
    try:
        with open_address(request) as response:
            resumed = (response.headers.get("Content-Range") or "").startswith(f"bytes {have}-")
            with open(part, "ab" if resumed else "wb", opener=for_owner) as out:  # else the server sends the whole file
                behind, since = out.tell(), time.monotonic()
                while out.tell() <= source.size and (chunk := response.read1(_CHUNK)):
                    out.write(chunk)
                    advance(out.tell(), source.size, f"fetching {source.file}")
                    if (now := time.monotonic()) - since > _TIMEOUT:
                        if out.tell() - behind < _SLOWEST:
                            return f"the server sends less than {_SLOWEST // 1024} kB in {_TIMEOUT:.0f} s"
                        behind, since = out.tell(), now
    except urllib.error.HTTPError as e:
        raise Unavailable(f"the server answers {e.code} {e.reason}") from None
    except urllib.error.URLError as e:
        if not have:
            raise Unavailable(f"it cannot be reached ({getattr(e.reason, 'strerror', None) or e.reason})") from None
    except ValueError as e:  # an address, of a redirection too
        raise Unavailable(f"the server gives an answer that cannot be read ({on_one_line(e, 200)})") from None
    except (http.client.HTTPException, TimeoutError, ConnectionError, ssl.SSLError) as e:
        return f"the transfer broke off ({on_one_line(e, 200)})"
    return "the transfer broke off"


class _Redirects(urllib.request.HTTPRedirectHandler):
    """Follows a redirection to where the way is as well protected as the way to here."""

    def redirect_request(self, req: urllib.request.Request, *answer: Any) -> urllib.request.Request | None:
        *_, address = answer
        scheme = urllib.parse.urlsplit(address).scheme
        if scheme not in ("http", "https") or (req.type == "https" and scheme != "https"):
            raise ValueError(f"it leads from https to {address[:100]!r}")
        return super().redirect_request(req, *answer)


def open_address(request: urllib.request.Request) -> Any:
    """Return the answer to a request. Errors are those of `urllib.request.urlopen`, or ValueError."""
    opener = urllib.request.build_opener(_Redirects)
    return opener.open(request, timeout=_TIMEOUT)


def size_of(path: Path) -> int:
    """The bytes of a file, 0 where there is none."""
    return path.stat().st_size if path.is_file() else 0
