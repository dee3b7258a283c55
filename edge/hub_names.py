"""Checks of the names in a hub's answers that become parts of paths in its library's cache. The library checks only
some of them."""

from __future__ import annotations

import contextlib
import json
import re
from typing import Any

HEADERS = ("ETag", "X-Linked-ETag", "X-Repo-Commit")
FIELDS = ("sha", "oid", "sha256", "blobId", "blob_id", "commit")
_LEADS_OUT = re.compile(r"[/\\:\0-\x1f]|\.\.|.{201}")


class NameLeadsOut(Exception):
    """A hub's answer names a place outside the cache."""


def guard(session: Any) -> None:
    """Look through the answers that a session of the hub's library gets; NameLeadsOut ends a request where one names
    another place."""
    hooks = session.event_hooks
    if _look_through not in hooks["response"]:
        session.event_hooks = {**hooks, "response": [*hooks["response"], _look_through]}


def _look_through(response: Any) -> None:
    for header in HEADERS:
        _check(header, response.headers.get(header, "").removeprefix("W/").strip('"'))
    if "/api/" in response.url.path:
        with contextlib.suppress(ValueError, RecursionError):  # which the library will find, too
            json.loads(response.read(), object_hook=_check_fields)


def _check_fields(found: dict[str, Any]) -> dict[str, Any]:
    for field in FIELDS:
        _check(field, found.get(field))
    return found


def _check(what: str, value: Any) -> None:
    if isinstance(value, str) and _LEADS_OUT.search(value):
        raise NameLeadsOut(f"its {what} {value[:60]!r} would be a file outside the cache")
