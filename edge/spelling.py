"""The name that somebody perhaps meant."""

from __future__ import annotations

from collections.abc import Iterable

CUTOFF = 0.6  # likeness from which on a name is offered
SHORT = 4  # letters below which letters may have changed places, and no more


def nearest(given: str, known: Iterable[str]) -> str | None:
    """Return the name that is most similar to a given one, or the only one that begins with it; None if none is
    similar."""
    import difflib

    known = list(known)
    longer = [name for name in known if name.startswith(given)]
    if len(longer) == 1:
        return longer[0]
    if len(given) < SHORT:  # one letter makes another name of it
        return next((name for name in known if sorted(name) == sorted(given)), None)
    near = difflib.get_close_matches(given, known, n=1, cutoff=CUTOFF)
    return near[0] if near else None
