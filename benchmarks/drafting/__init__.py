"""Engines with drafts of their own: one file each, found by name, all of the shape of `drafting.drafting_engine`."""

from __future__ import annotations

from importlib import import_module
from typing import cast

from drafting.drafting_engine import DraftingFile


def drafting_file(name: str) -> DraftingFile:
    """The file of one engine's drafts. Importing it imports nothing of the engine itself."""
    return cast(DraftingFile, import_module(f"drafting.{name}"))
