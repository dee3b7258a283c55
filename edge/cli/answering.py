"""Bundles that answer: what most commands are about."""

from __future__ import annotations

from pathlib import Path

from edge.bundle import Bundle, open_bundle
from edge.errors import InputError


def open_answering(path: str | Path) -> Bundle:
    """Open a bundle whose model answers. Errors are those of `open_bundle`, and of `check_answers`."""
    bundle = open_bundle(path)
    check_answers(bundle)
    return bundle


def check_answers(bundle: Bundle) -> None:
    """Raise InputError where a bundle's model makes vectors of texts, or ranks them, and answers nothing."""
    if bundle.manifest.embedding is not None:
        from edge.runtime.choose import answers_nothing

        raise InputError(answers_nothing(bundle.manifest))
