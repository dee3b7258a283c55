"""The container of a CTranslate2 model, `model.bin`: named variables, mapped into memory."""

from __future__ import annotations

import contextlib
import mmap
import struct
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edge.errors import CheckpointError
from edge.export.facts.checkpoint import mapped

# CTranslate2's DataType: the name here and how the bytes are read.
_TYPES: dict[int, tuple[str, np.dtype[Any]]] = {
    0: ("F32", np.dtype("<f4")),
    1: ("I8", np.dtype("i1")),
    2: ("I16", np.dtype("<i2")),
    3: ("I32", np.dtype("<i4")),
    4: ("F16", np.dtype("<f2")),
    5: ("BF16", np.dtype("<u2")),
}
_VERSIONS = range(4, 7)  # of the container, whose variables carry their type and their size in bytes


@dataclass(frozen=True)
class Variable:
    """One tensor in the file. type: F32, F16, BF16, I8, I16 or I32."""

    shape: tuple[int, ...]
    type: str
    dtype: np.dtype[Any]
    offset: int


class CTranslate2File:
    """The header of one file. spec: the class of model, such as ``WhisperSpec``. Aliases stand beside the variables
    that they name.

    Raises:
        CheckpointError: not a whole file of this format.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._data, self._at = memoryview(b""), 0  # the file, and how far its header was read
        try:
            self._file = mapped(path)
            with path.open("rb") as file, contextlib.suppress(ValueError):  # an empty file cannot be mapped
                self._data = memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))
            self.spec, self.variables = self._read()
        except OSError as e:
            raise CheckpointError(f"{path} cannot be read: {e.strerror}.") from None

    def values(self, name: str) -> NDArray[np.float32]:
        """A variable as float32, dequantized where it is stored in integers."""
        variable = self.variables[name]
        stored = self._stored(variable)
        if variable.type == "BF16":
            return (stored.astype(np.uint32) << 16).view(np.float32)
        if variable.type not in ("I8", "I16"):
            return stored.astype(np.float32)
        scale = self.variables.get(f"{name}_scale")
        if scale is None or scale.shape not in ((), (1,), variable.shape[:1]):
            raise CheckpointError(f"{self.path} has no fitting scales for the integers of {name!r}; convert it again.")
        # CTranslate2 multiplies by the scale to quantize. Of 8 bits there is one for each row, of 16 bits one in all.
        scales = self.values(f"{name}_scale").reshape(-1, *[1] * (stored.ndim - 1))
        with np.errstate(all="ignore"):  # `finite` tells what scales of zero make
            return stored.astype(np.float32) / scales

    def number(self, name: str) -> int | None:
        """The value of an integer variable without dimensions, or None where there is none."""
        variable = self.variables.get(name)
        if variable is None or variable.shape or variable.type not in ("I8", "I16", "I32"):
            return None
        return int(self._stored(variable).item())

    def _stored(self, variable: Variable) -> NDArray[Any]:
        self._file.check()
        return np.frombuffer(self._data, variable.dtype, prod(variable.shape), variable.offset).reshape(variable.shape)

    def _read(self) -> tuple[str, dict[str, Variable]]:
        version = self._number("I")
        if version not in _VERSIONS:
            raise CheckpointError(
                f"{self.path} is not a CTranslate2 model of the versions {_VERSIONS[0]} to {_VERSIONS[-1]} (its first "
                f"number is {version}); convert the model with a current ctranslate2."
            )
        spec = self._string()
        self._number("I")  # the spec's revision
        variables: dict[str, Variable] = {}
        for _ in range(self._number("I")):
            name = self._string()
            variables[name] = self._variable(name)
        for _ in range(self._number("I")):
            alias, name = self._string(), self._string()
            if name not in variables:
                raise self._damaged(f"the alias {alias!r} names {name!r}, which it does not hold")
            variables[alias] = variables[name]
        if self._at != len(self._data):
            raise self._damaged(f"{len(self._data) - self._at} bytes follow its last variable")
        return spec, variables

    def _variable(self, name: str) -> Variable:
        shape = tuple(self._number("I") for _ in range(self._number("B")))
        kind, size = self._number("B"), self._number("I")
        if kind not in _TYPES:
            raise CheckpointError(
                f"{self.path}: the variable {name!r} has the type number {kind}; read are "
                f"{', '.join(f'{number} ({known})' for number, (known, _) in _TYPES.items())}."
            )
        type_, dtype = _TYPES[kind]
        if size != prod(shape) * dtype.itemsize:
            raise self._damaged(f"{name!r} has {size} bytes for the shape {list(shape)} in {type_}")
        return Variable(shape, type_, dtype, self._take(size))

    def _number(self, form: str) -> int:
        start = self._take(struct.calcsize(f"<{form}"))
        return int(struct.unpack_from(f"<{form}", self._data, start)[0])

    def _string(self) -> str:
        length = self._number("H")
        start = self._take(length)
        try:
            return bytes(self._data[start : self._at]).rstrip(b"\0").decode("utf-8")
        except UnicodeDecodeError:
            raise self._damaged("it has a name that is no text") from None

    def _take(self, size: int) -> int:
        """Advance by `size` bytes; return the offset where they begin."""
        if self._at + size > len(self._data):
            raise CheckpointError(f"{self.path} is cut short at {len(self._data)} bytes; fetch it again.")
        self._at += size
        return self._at - size

    def _damaged(self, what: str) -> CheckpointError:
        return CheckpointError(f"{self.path} is damaged: {what}; fetch it again.")
