"""Which `.gguf` file of a repository on the hub is meant."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

from edge.errors import CatalogError
from edge.gguf_parts import name_of, parts_of

# What is taken of a repository of GGUF files where no file is asked for: the first of these that it has. Q4_K_M, else
# the nearest in bits, more before fewer.
PREFERRED = (
    *("Q4_K_M", "Q4_K_S", "Q4_K_L", "Q4_K_XL", "Q4_1", "IQ4_NL", "Q4_0", "IQ4_XS"),
    *("Q5_K_M", "Q5_K_S", "Q5_1", "Q5_0", "Q6_K", "Q8_0", "Q3_K_L", "Q3_K_M", "F16", "BF16"),
)
LISTED = 12  # kinds of files that a sentence names

_KINDS = r"(?:UD-)?(?:[IT]?Q\d\w*|B?F16|FP16|F32|MXFP4\w*)"  # Q4_K_M, IQ4_XS, TQ1_0 and so on
_QUANTIZATION = re.compile(rf"(?<![A-Za-z0-9]){_KINDS}(?![A-Za-z0-9_])", re.IGNORECASE)
_BESIDE = ("mmproj", "imatrix")  # in names of files that are no model of text


def chosen_file(repo: str, names: Sequence[str], tag: str | None) -> str:
    """The file that is asked for, of a repository's files; of a model in parts the first.

    tag: a quantization such as Q4_K_M, or a file's name; None: the first of `PREFERRED`.

    Raises:
        CatalogError: there is none.
    """
    files = [name for name in names if _is_model(name)]
    if not files:
        raise CatalogError(f"{repo} on the hub has neither a model's directory nor a .gguf file.")
    for each in PREFERRED if tag is None else (tag,):
        if fitting := [name for name in files if _fits(name, each)]:
            return min(fitting, key=lambda name: (len(name), name))
    if tag is None:
        return files[0]
    found = sorted({kind[0] for name in files if (kind := _QUANTIZATION.search(name))}) or files
    listed = ", ".join(found[:LISTED]) + (", ..." if len(found) > LISTED else "")
    raise CatalogError(f"{repo} on the hub has no .gguf file {tag!r}; it has {listed}.")


def _is_model(name: str) -> bool:
    """True if a file in a repository is a GGUF model or its first part, and its name does not lead to another
    folder."""
    path = Path(name)
    plain = not path.is_absolute() and ".." not in path.parts and "\\" not in name
    beside = any(word in path.name.lower() for word in _BESIDE)
    return plain and not beside and path.suffix == ".gguf" and parts_of(path)[0] == path


def _fits(name: str, tag: str) -> bool:
    """True if `tag` is the file's name, or a quantization in the name of the file or of its folder."""
    path, wanted = name.lower(), tag.lower()
    if wanted in (path, Path(path).name, path.removesuffix(".gguf"), name_of(Path(path))):
        return True
    if _QUANTIZATION.fullmatch(tag) is None:
        return False
    return re.search(rf"(?<![a-z0-9]){re.escape(wanted)}(?![a-z0-9_])", path.removesuffix(".gguf")) is not None
