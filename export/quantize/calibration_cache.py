"""Intermediate results of a calibration, stored in files of the cache folder until it is done. None of the work is
repeated after Ctrl-C. The results need no memory that the system cannot reclaim, because the files are mapped."""

from __future__ import annotations

import contextlib
import hashlib
import json
import shutil
import zlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from edge import __version__
from edge.errors import InputError
from edge.export.facts.tensors import QTensor
from edge.gguf_parts import parts_of
from edge.home import cache_dir, drop_oldest, is_own, mark_used
from edge.lock import locked
from edge.regular_file import identity_of

if TYPE_CHECKING:
    import torch

    from edge.export.facts.checkpoint import Checkpoint

EXPORTS = 3  # interrupted ones that are kept: they take as much as their bundles, or twice
LOCK = "lock"
ROWS = 4  # of a matrix, which tell one model from another
PARTS = ("q", "scales", "zero_points")  # arrays of a weight
CHECKSUM = "checksum"  # the entry that tells of damage
FORMATS = "formats"  # the entry of a file's metadata that has bits, block size and method of each weight


class CalibrationCache:
    """Arrays and quantized weights by name, in a folder; without one, each is made and stays in memory."""

    def __init__(self, folder: Path | None = None) -> None:
        self._folder = folder
        self._sound = set[str]()  # files that were written or read whole

    def tensor(self, name: str, make: Callable[[], torch.Tensor]) -> torch.Tensor:
        """Return the tensor stored under the name; if there is none, compute it with `make` and store it."""
        if name not in self:
            made = make()
            if not self._write(name, {"values": made.numpy()}, {}):
                return made
            del made  # before its file is read
        tensors, _ = self._read(name)
        return tensors["values"]

    def weights(self, name: str, make: Callable[[], Mapping[str, QTensor]]) -> dict[str, QTensor]:
        """Return the weights stored under the name; if there are none, compute them with `make` and store them."""
        if name not in self:
            made = dict(make())
            if not self._write(name, *_taken_apart(made)):
                return made
            del made
        tensors, formats = self._read(name)
        found = {}
        for weight, (bits, block_size, method) in json.loads(formats[FORMATS]).items():
            q, scales = (tensors[f"{weight}|{part}"].numpy() for part in PARTS[:2])
            zeros = tensors.get(f"{weight}|{PARTS[2]}")
            found[weight] = QTensor(bits, block_size, q, scales, None if zeros is None else zeros.numpy(), method)
        return found

    def __contains__(self, name: str) -> bool:
        """True if a complete file exists. A damaged one is removed."""
        from safetensors import SafetensorError

        if self._folder is None or not self._path(name).exists():
            return False
        if name in self._sound:
            return True
        try:
            tensors, about = self._read(name)
            sound = about.get(CHECKSUM) == _checksum({key: tensor.numpy() for key, tensor in tensors.items()}, about)
        except (OSError, SafetensorError):
            sound = False
        if sound:
            self._sound.add(name)
        else:
            self._path(name).unlink(missing_ok=True)
        return sound

    def _write(self, name: str, arrays: Mapping[str, NDArray[Any]], formats: dict[str, str]) -> bool:
        """Write a file; False if there is no folder, or no room in it."""
        from safetensors import SafetensorError
        from safetensors.numpy import save_file

        if self._folder is None:
            return False
        part = self._path(name).with_suffix(".part")
        try:
            written = {key: np.ascontiguousarray(values) for key, values in arrays.items()}
            save_file(written, part, formats | {CHECKSUM: _checksum(written, formats)})
            part.chmod(0o600)
            part.replace(self._path(name))
            self._sound.add(name)
        except (OSError, SafetensorError):  # a full disk is no reason to stop what needs no more of it
            part.unlink(missing_ok=True)
            self._folder = None
            return False
        return True

    def _read(self, name: str) -> tuple[dict[str, torch.Tensor], dict[str, str]]:
        """Mapped, which a file's removal does not end."""
        from safetensors import safe_open

        with safe_open(self._path(name), framework="pt") as file:
            names = file.keys()
            return {name: file.get_tensor(name) for name in names}, file.metadata() or {}

    def _path(self, name: str) -> Path:
        assert self._folder is not None
        return self._folder / f"{name}.safetensors"


def _checksum(arrays: Mapping[str, NDArray[Any]], about: Mapping[str, str]) -> str:
    """Return a checksum of arrays and their metadata."""
    found = zlib.crc32(about.get(FORMATS, "").encode())
    for name in sorted(arrays):
        values = np.ascontiguousarray(arrays[name])
        found = zlib.crc32(f"{name} {values.dtype} {values.shape}".encode(), found)
        found = zlib.crc32(values.reshape(-1).view(np.uint8).data, found)
    return f"{found:08x}"


def _taken_apart(weights: Mapping[str, QTensor]) -> tuple[dict[str, NDArray[Any]], dict[str, str]]:
    """Split weights into arrays by name and metadata."""
    formats = {name: (weight.bits, weight.block_size, weight.method) for name, weight in weights.items()}
    arrays = {
        f"{name}|{part}": values
        for name, weight in weights.items()
        for part in PARTS
        if (values := getattr(weight, part)) is not None
    }
    return arrays, {FORMATS: json.dumps(formats)}


@contextmanager
def open_cache(checkpoint: Checkpoint, options: Mapping[str, object]) -> Iterator[CalibrationCache]:
    """Keep work of calibrating the checkpoint with these options, until that is done. Where another process makes the
    same, or the cache folder cannot be written, nothing is kept afterwards."""
    exports = cache_dir() / "exports"
    folder = exports / _key(checkpoint, options)
    with contextlib.ExitStack() as stack:
        try:
            free = stack.enter_context(locked(folder / LOCK)) and is_own(folder)
        except InputError:
            free = False
        if not free:
            shared = exports if exports.is_dir() else None
            with contextlib.suppress(OSError):
                folder = Path(stack.enter_context(TemporaryDirectory(dir=shared, ignore_cleanup_errors=True)))
                free = True
            yield CalibrationCache(folder if free else None)
            return
        mark_used(folder)
        drop_oldest(exports, EXPORTS, made=folder)
        yield CalibrationCache(folder)
    shutil.rmtree(folder, ignore_errors=True)


def _key(checkpoint: Checkpoint, options: Mapping[str, object]) -> str:
    """Return a key that differs for another model, other options or other code of edge. Of the values only vectors and
    some rows of matrices are read, which training changes. The identity of the files shows that the other values are
    the same; a stranger's files do not have it."""
    tensors = [(name, checkpoint.stored_type(name), checkpoint.shape(name)) for name in checkpoint.names()]
    paths = [getattr(each, "path", None) for each in (checkpoint, getattr(checkpoint, "base", None))]  # an adapter's
    said = [__version__, checkpoint.config, tensors, options, code_key(), *map(_files_of, paths)]
    digest = hashlib.sha256(json.dumps(said, default=str).encode())
    for name, _, shape in tensors:
        some = None if len(shape) < 2 else slice(shape[0] // 2, shape[0] // 2 + ROWS)
        digest.update(checkpoint.read(name, some).tobytes())
    return f"{Path(checkpoint.name).name}-{digest.hexdigest()[:32]}"


def _files_of(path: Path | None) -> list[tuple[str | int, ...]]:
    """Return data that identify the content of a checkpoint's files without reading them."""
    if path is None:
        return []
    files = sorted(path.iterdir()) if path.is_dir() else parts_of(path)
    stats = [(file.name, file.stat()) for file in files if file.is_file()]
    return [(name, *identity_of(each)) for name, each in stats]


def code_key() -> int:
    """A number that changes with the exporter's code."""
    key = 0
    for file in sorted(Path(__file__).parents[1].rglob("*.py")):
        key = zlib.crc32(file.read_bytes(), key)
    return key
