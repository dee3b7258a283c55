"""The tensors in the files of a model directory, safetensors or Torch's own, mapped into memory."""

from __future__ import annotations

import re
import warnings
import zipfile
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors import SafetensorError
from safetensors.torch import load_file

from edge.errors import CheckpointError, on_one_line
from edge.export.checkpoint.tokenizer_files import read_json
from edge.export.facts.checkpoint import finite, mapped
from edge.export.facts.tensors import Format, QTensor
from edge.runtime.mapped_file import MappedFile

_TYPES = {
    torch.float32: "F32",
    torch.float16: "F16",
    torch.bfloat16: "BF16",
    torch.float64: "F64",
    torch.float8_e4m3fn: "F8_E4M3",
    torch.float8_e5m2: "F8_E5M2",
    torch.float8_e8m0fnu: "F8_E8M0",
}


class Tensor(Protocol):
    """A tensor of the model: one in a file, or what several tensors there together mean."""

    @property
    def shape(self) -> tuple[int, ...]: ...

    @property
    def type(self) -> str:
        """The stored type, as of `Checkpoint.stored_type`."""
        ...

    @property
    def form(self) -> Format | None:
        """The format of `blocks`."""
        ...

    def read(self, rows: slice | None = None) -> NDArray[np.float32]:
        """Return the tensor or some of its rows; CheckpointError if it has NaN or infinity."""
        ...

    def blocks(self) -> QTensor | None:
        """Return the tensor's integers if their format is one that graphs have, else None."""
        ...


@dataclass(frozen=True)
class Stored:
    """A tensor, mapped into memory, and where it is: the file, and the name in it."""

    file: Path
    name: str
    tensor: torch.Tensor
    mapped: MappedFile
    form = None

    @property
    def shape(self) -> tuple[int, ...]:
        return tuple(self.tensor.shape)

    @property
    def type(self) -> str:
        return _TYPES.get(self.tensor.dtype, str(self.tensor.dtype).removeprefix("torch."))

    def raw(self, rows: slice | None = None) -> torch.Tensor:
        """The tensor as it is stored."""
        self.mapped.check()
        return self.tensor if rows is None else self.tensor[rows]

    def floats(self, rows: slice | None = None) -> NDArray[np.float32]:
        """Return the tensor's values, also NaN and infinity.

        Raises:
            CheckpointError: they are no floating-point numbers.
        """
        tensor = self.raw(rows)
        if tensor.dtype not in _TYPES:
            raise CheckpointError(
                f"{self.file}: the tensor {self.name!r} is stored as {tensor.dtype}; floating-point weights are read."
            )
        values: NDArray[np.float32] = tensor.to(torch.float32).contiguous().numpy()
        return values

    def read(self, rows: slice | None = None) -> NDArray[np.float32]:
        return finite(self.floats(rows), self.name, self.file)

    def blocks(self) -> QTensor | None:
        return None


def stored_tensors(root: Path) -> list[Stored]:
    """All tensors in the weight files of a directory.

    Raises:
        CheckpointError: there are no such files, or one is damaged.
    """
    return [tensor for file in _weight_files(root) for tensor in tensors_in(file)]


def tensors_in(file: Path) -> list[Stored]:
    """All tensors in one file."""
    on = _mapped(file)
    return [Stored(file, name, tensor, on) for name, tensor in _load(file).items()]


def _mapped(path: Path) -> MappedFile:
    try:
        return mapped(path)
    except OSError as e:
        raise CheckpointError(f"{path} cannot be read: {e.strerror}.") from None


def _load(path: Path) -> dict[str, torch.Tensor]:
    """The tensors in a file, mapped into memory. A pytorch_model.bin may hold tensors only, no other Python objects."""
    if path.suffix == ".safetensors":
        try:
            return load_file(path)
        except (SafetensorError, OSError) as e:
            raise CheckpointError(f"{path} is damaged or cut short ({on_one_line(e)}); fetch it again.") from None
    mapped = zipfile.is_zipfile(path)  # files of torch before 1.6 are no archives and cannot be mapped
    if mapped:
        _check_archive(path)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of the pickle's protocol, in a file that is none
            found = torch.load(path, map_location="cpu", weights_only=True, mmap=mapped)
    except Exception as e:  # unpickling raises many types; Torch's own words advise to run the file's code
        if other := re.search(r"GLOBAL ([\w.]+)", str(e)):
            raise CheckpointError(
                f"{path} holds more than tensors ({other[1]}), and to load that could run code of the file's own; "
                "get the checkpoint as safetensors."
            ) from None
        raise CheckpointError(f"{path} is damaged, cut short or no file of tensors; fetch it again.") from None
    if not isinstance(found, dict):
        raise CheckpointError(
            f"{path} holds a {type(found).__name__} where tensors by name belong; it is no checkpoint."
        )
    tensors = {name: each.detach() for name, each in found.items() if isinstance(name, str) and torch.is_tensor(each)}
    for name, tensor in tensors.items():
        _check_stored(tensor, name, path)
    return tensors


def _check_archive(path: Path) -> None:
    """Raise CheckpointError if an archive's parts are larger than the archive. Torch does not compress, and reads some
    parts at once."""
    try:
        with zipfile.ZipFile(path) as archive:
            size = sum(member.file_size for member in archive.infolist())
    except (zipfile.BadZipFile, OSError, ValueError, NotImplementedError, RuntimeError):
        return  # Torch says what is wrong
    if size > path.stat().st_size:
        raise CheckpointError(
            f"{path} is damaged: its parts have {size:,} bytes, and it has {path.stat().st_size:,}; fetch it again."
        )


def _check_stored(tensor: torch.Tensor, name: str, path: Path) -> None:
    """Raise CheckpointError if a tensor is not stored number by number. Such a tensor may be of any size in a file of a
    few bytes."""
    dense = tensor.layout == torch.strided and tensor.device.type == "cpu" and not tensor.is_quantized
    size = tensor.numel() * tensor.element_size()
    if not dense or size > min(tensor.untyped_storage().nbytes(), path.stat().st_size):
        raise CheckpointError(
            f"{path}: the tensor {name!r} of shape {list(tensor.shape)} does not stand there number by number; get the "
            "checkpoint as safetensors."
        )


def _weight_files(root: Path) -> list[Path]:
    """The files with the weights: the first form that is there, safetensors before torch."""
    for single in ("model.safetensors", "pytorch_model.bin"):
        if (root / single).is_file():
            return [root / single]
        index = root / f"{single}.index.json"
        if index.is_file():
            return _shards(index)
    raise CheckpointError(
        f"{root} holds no weights: neither model.safetensors nor pytorch_model.bin, whole or in shards."
    )


def _shards(index: Path) -> list[Path]:
    weight_map = read_json(index).get("weight_map")
    if not isinstance(weight_map, dict) or not weight_map or not all(isinstance(n, str) for n in weight_map.values()):
        raise CheckpointError(f"{index} has no weight_map; fetch the checkpoint again.")
    paths = [index.parent / name for name in sorted(set(weight_map.values()))]
    for path in paths:
        if path.parent != index.parent:
            raise CheckpointError(f"{index} names the shard {path.name!r} outside its own folder.")
        if not _is_file(path):
            raise CheckpointError(f"{path} is missing, and {index.name} names it; fetch the checkpoint again.")
    return paths


def _is_file(path: Path) -> bool:
    """True if it is a file; False also for a name that no file can have."""
    try:
        return path.is_file()
    except OSError:  # longer than names are
        return False
