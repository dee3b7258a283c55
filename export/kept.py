"""What a calibration has done so far, kept in the cache folder until the export is done, so that none of it is done
twice after Ctrl-C."""

from __future__ import annotations

import contextlib
import json
import shutil
import zlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from edge import __version__
from edge.errors import InputError
from edge.export.quantize.base import QTensor
from edge.home import cache_dir, drop_oldest, mark_used
from edge.lock import locked

if TYPE_CHECKING:
    import torch

    from edge.export.checkpoint.base import Checkpoint

EXPORTS = 3  # interrupted ones that are kept: they take as much as their bundles, or twice
LOCK = "lock"


class Kept:
    """Arrays and quantized weights by name, in a folder; without one, each is made and forgotten."""

    def __init__(self, folder: Path | None = None) -> None:
        self._folder = folder

    def tensor(self, name: str, make: Callable[[], torch.Tensor]) -> torch.Tensor:
        """What is kept under the name, or what is made now."""
        import torch

        return torch.from_numpy(self._arrays(name, lambda: {"values": make().numpy()})["values"])

    def weights(self, name: str, make: Callable[[], Mapping[str, QTensor]]) -> dict[str, QTensor]:
        """The same of weights by their names."""
        stored = self._arrays(name, lambda: _taken_apart(make()))
        found = {}
        for weight in dict.fromkeys(key.partition("|")[0] for key in stored):
            bits, block_size = map(int, stored[f"{weight}|sizes"])
            q, scales, method = (stored[f"{weight}|{part}"] for part in ("q", "scales", "method"))
            found[weight] = QTensor(bits, block_size, q, scales, stored.get(f"{weight}|zero_points"), str(method))
        return found

    def __contains__(self, name: str) -> bool:
        return self._folder is not None and self._path(name).exists()

    def _arrays(self, name: str, make: Callable[[], dict[str, Any]]) -> dict[str, Any]:
        if name in self:
            with np.load(self._path(name), allow_pickle=False) as file:
                return dict(file)
        made = make()
        if self._folder is not None:
            part = self._path(name).with_suffix(".part")
            try:
                with part.open("wb") as file:
                    np.savez(file, **made)
                part.replace(self._path(name))
            except OSError:  # a full disk is no reason to stop what needs no more of it
                part.unlink(missing_ok=True)
                self._folder = None
        return made

    def _path(self, name: str) -> Path:
        assert self._folder is not None
        return self._folder / f"{name}.npz"


def _taken_apart(weights: Mapping[str, QTensor]) -> dict[str, Any]:
    parts: dict[str, Any] = {}
    for name, weight in weights.items():
        parts[f"{name}|sizes"] = np.array([weight.bits, weight.block_size])
        parts[f"{name}|method"] = np.array(weight.method)
        for part in ("q", "scales", "zero_points"):
            if (values := getattr(weight, part)) is not None:
                parts[f"{name}|{part}"] = values
    return parts


@contextmanager
def keeping(checkpoint: Checkpoint, options: Mapping[str, object]) -> Iterator[Kept]:
    """Keep work for an export of the checkpoint with these options, until it is done. Where another process makes the
    same, or the cache folder cannot be written, nothing is kept."""
    exports = cache_dir() / "exports"
    folder = exports / _key(checkpoint, options)
    with contextlib.ExitStack() as stack:
        try:
            free = stack.enter_context(locked(folder / LOCK))
        except InputError:
            free = False
        if not free:
            yield Kept()
            return
        mark_used(folder)
        drop_oldest(exports, EXPORTS)
        yield Kept(folder)
    shutil.rmtree(folder, ignore_errors=True)


def _key(checkpoint: Checkpoint, options: Mapping[str, object]) -> str:
    """Another one for another model, other options or another version of edge. Of the values only those of vectors are
    looked at: training changes them all."""
    tensors = [(name, checkpoint.stored_type(name), checkpoint.shape(name)) for name in checkpoint.names()]
    key = zlib.crc32(json.dumps([__version__, tensors, options], default=str).encode())
    for name, _, shape in tensors:
        if len(shape) == 1:
            key = zlib.crc32(checkpoint.read(name).tobytes(), key)
    return f"{Path(checkpoint.name).name}-{key:08x}"
