"""The names of the files that llama.cpp splits a model into: `NAME-00001-of-00003.gguf` and so on, in one folder."""

from __future__ import annotations

import re
from pathlib import Path

_PART = re.compile(r"(.+)-\d{5}-of-(\d{5})\.gguf")

GGUF = "gguf"  # weights of a bundle that are blocks of a GGUF file, which our kernels alone compute


def parts_of(path: Path) -> list[Path]:
    """Return the paths of all parts of the model that a file is a part of by its name, existing or not. A file of any
    other name is returned alone."""
    if (match := _PART.fullmatch(path.name)) is None:
        return [path]
    name, count = match.groups()
    parts = [path.with_name(f"{name}-{i + 1:05d}-of-{count}.gguf") for i in range(int(count))]
    return parts if path in parts else [path]


def name_of(path: Path) -> str:
    """The name of the model in a file, without a part's number."""
    return match[1] if (match := _PART.fullmatch(path.name)) else path.stem
