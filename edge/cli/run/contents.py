"""The sha256 of a model's files. Reading them takes a second per GB, or five where a processor has no instructions for
that, so the result is stored in the cache folder. It is valid while the system reports no change of the files.

A GGUF file whose matrices are all read where they are is known by its time, its size and samples.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import stat
import sys
import time
import zlib
from dataclasses import dataclass
from pathlib import Path

from edge.adapter import local_base
from edge.bundle import SETTLED_NS, sha256_of
from edge.errors import CheckpointError, EdgeError
from edge.gguf_parts import parts_of
from edge.home import cache_dir, drop_oldest, mark_used, read_own_json, replace_text

# The ends of names in a model's folder that an export may read.
READ = (".json", ".safetensors", ".bin", ".model", ".spm", ".txt", ".jinja", ".tiktoken", ".vocab", ".codes", ".md")
MOST_FILES = 2000
ALL, SOME, NOTHING = "all", "some", "nothing"  # of a GGUF file's matrices
LARGE = 1 << 28  # bytes from which on reading is shown

Stamps = dict[str, list[int]]


@dataclass(frozen=True)
class Contents:
    """The sha256 of all files of a model, and the size and times that the system reported of each when it was read."""

    sha256: str
    stamps: Stamps
    settled: bool
    path: Path = Path()
    sampled: bool = False  # whether it is of samples
    in_place: bool = False  # whether matrices of a GGUF file stay there


def contents_of(given: Path, known: Contents | None = None, *, sampled: bool = False) -> Contents:
    """Hash a .gguf file with its other parts, or a model's folder.

    known: an earlier result, which is returned if no file can have changed since. sampled: of a .gguf file take samples
    and its time, and not all of it.

    Raises:
        CheckpointError: a file is none, cannot be read, or changes while it is read.
        BundleError: one cannot be read.
    """
    files = _files(given)
    stamps = _stamps(files)
    if known is not None and known.settled and known.stamps == stamps:
        return known
    if given.suffix == ".gguf" and (sampled or (known is not None and known.sampled)):
        return Contents(_of_samples(files), stamps, True, given, sampled=True)
    store = cache_dir() / "contents" / f"{zlib.crc32(os.fsencode(given.resolve())):08x}.json"
    with contextlib.suppress(TypeError, KeyError):
        remembered = read_own_json(store)
        if remembered["files"] == stamps and re.fullmatch("[0-9a-f]{64}", remembered["sha256"]):
            mark_used(store)
            return Contents(remembered["sha256"], stamps, True, given)
    begun = time.time_ns()
    sha256 = _read(files, sum(size for size, *_ in stamps.values()))
    if _stamps(_files(given)) != stamps:
        raise CheckpointError(f"{given} changed while it was read; run it again when it is complete.")
    settled = all(abs(begun - changed) > SETTLED_NS for _, changed, *_ in stamps.values())
    found = Contents(sha256, stamps, settled, given)
    if found.settled:
        with contextlib.suppress(OSError):
            replace_text(store, json.dumps({"files": stamps, "sha256": sha256}))
        drop_oldest(store.parent)
    return found


def matrices_in_place(given: Path) -> str:
    """Which of a GGUF file's matrices our kernels read where they are: all, some, or nothing. By its header; nothing
    where all are floats, which a run stores in 8 bits, and where it cannot be read, which whoever opens it says."""
    from edge.export.facts.gguf_header import open_gguf
    from edge.export.facts.tensors import GGUF_TYPES, has_gguf_blocks

    try:
        header = open_gguf(given)
        encoder_decoder = str(header.metadata.get("general.architecture", "")).startswith("t5")
    except EdgeError:
        return NOTHING
    types = {info.type.name for info in header.tensors.values() if len(info.shape) == 2}
    if encoder_decoder or not has_gguf_blocks(types):
        return NOTHING
    return ALL if types <= GGUF_TYPES.keys() else SOME


def _of_samples(files: list[Path]) -> str:
    import hashlib

    from edge.external_file import described

    whole = hashlib.sha256()
    for file in files:
        try:
            found = described(file)
        except OSError as e:
            raise CheckpointError(f"{file} cannot be read: {e.strerror}.") from None
        whole.update(f"{found.sha256} {found.modified_ns}\0".encode())
    return whole.hexdigest()


def _files(given: Path) -> list[Path]:
    """Return the files that an export reads; those of an adapter include its base's."""
    base = local_base(given) if given.is_dir() else None
    return [*_own_files(given), *([] if base is None else _own_files(base))]


def _own_files(given: Path) -> list[Path]:
    """Return the files of one model, by name. If a folder has weights in safetensors, its other weights are omitted."""
    from edge.onnx_model import files_of, is_onnx_model, root_of

    if is_onnx_model(given):
        folder = given if given.is_dir() else root_of(given)
        return sorted({*files_of(given), *(file for file in folder.iterdir() if file.name.endswith(READ))})
    if not given.is_dir():
        return [file for file in parts_of(given) if file.exists()]
    names = []
    with os.scandir(given) as entries:
        for entry in entries:
            if entry.name.endswith(READ) and not entry.is_dir():
                names.append(entry.name)
                if len(names) > MOST_FILES:
                    raise CheckpointError(
                        f"{given} has more than {MOST_FILES} files of a model; give it a folder of its own."
                    )
    if any(name in names for name in ("model.safetensors", "model.safetensors.index.json")):
        names = [name for name in names if not name.startswith("pytorch_model")]
    return [given / name for name in sorted(names)]


def _stamps(files: list[Path]) -> Stamps:
    """Size, when the file changed, when its content was last said to have, device and number."""
    stamps = {}
    for file in files:
        try:
            found = file.stat()
        except OSError as e:
            raise CheckpointError(f"{file} cannot be read: {e.strerror}.") from None
        if not stat.S_ISREG(found.st_mode):
            raise CheckpointError(f"{file} is a pipe, a device or a folder, where a file of a model belongs.")
        # Windows' st_ctime_ns is when a file was made. Elsewhere only the system sets it.
        changed = found.st_mtime_ns if sys.platform == "win32" else found.st_ctime_ns
        stamps[str(file.absolute())] = [found.st_size, changed, found.st_mtime_ns, found.st_dev, found.st_ino]
    return stamps


def _read(files: list[Path], size: int) -> str:
    import hashlib  # brings OpenSSL, which a run of a bundle that is there does not need

    from edge.cli.progress import bar

    whole = hashlib.sha256()
    shown = bar("reading the model", size, "bytes") if size >= LARGE else contextlib.nullcontext()
    with shown as advance:
        for file in files:  # a .gguf file is the same model under any name
            name = b"" if file.suffix == ".gguf" else os.fsencode(file.name)
            whole.update(f"{sha256_of(file, advance)} ".encode() + name + b"\0")
    return whole.hexdigest()
