"""A model on the Hugging Face hub, by its id: `org/name` or `org/name@revision`."""

from __future__ import annotations

import re
from pathlib import Path

from edge import fetch

ID = re.compile(r"(?P<repo>[\w.-]+/[\w.-]+)(@(?P<revision>[\w./-]+))?")


def fetch_hub(source: str) -> Path:
    """Fetch the model's directory into the hub library's cache.

    Raises:
        CatalogError: the hub cannot be reached or does not give the model.
    """
    match = ID.fullmatch(source)
    assert match, source
    return fetch.snapshot(match["repo"], match["revision"])
