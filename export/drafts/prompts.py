"""The prompts that come with this package: what a model answers where nobody brings text of their own."""

from __future__ import annotations

import json
from contextlib import AbstractContextManager
from importlib.resources import as_file, files
from pathlib import Path

from edge.text_file import lines_of, read_text

PREVIOUS = "{previous}"  # in a prompt: the answer to the prompt before it
FILE = "recipes/prompts.jsonl"  # of edge.models


def built_in() -> AbstractContextManager[Path]:
    """Return the file of built-in prompts: JSONL lines with a `prompt`, or with a `text` that is to be continued."""
    return as_file(files("edge.models") / FILE)


def by_themselves() -> list[str]:
    """Return the prompts that do not refer to the answer before."""
    with built_in() as path:
        rows = [json.loads(line) for line in lines_of(read_text(path)) if line]
    return [row["prompt"] for row in rows if "prompt" in row and PREVIOUS not in row["prompt"]]
