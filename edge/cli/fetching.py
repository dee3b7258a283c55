"""Fetching a model by its name with its sentences, and a progress bar where no library shows its own."""

from __future__ import annotations

import sys
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

from edge.cli.progress import bar
from edge.names import Named


def fetch_shown(named: Named) -> Path:
    """Return a model's path; fetch it with a progress bar if it is not here. Errors are those of `Named.fetch`."""
    seen = 0
    advance: Callable[[float], None] | None = None
    with ExitStack() as shown:

        def progress(done: int, total: int, text: str) -> None:
            nonlocal seen, advance
            if advance is None:
                advance = shown.enter_context(bar(f"Fetching {named.name}", total, "bytes"))
            advance(done - seen)
            seen = done

        return named.fetch(progress, lambda sentence: print(sentence, file=sys.stderr, flush=True))
