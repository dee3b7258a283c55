"""The container of a CTranslate2 model, `model.bin`: named variables, read one at a time."""

from __future__ import annotations

import struct
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

from edge.errors import CheckpointError

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
    size: int


class CTranslate2File:
    """The header of one file. spec: the class of model, such as ``WhisperSpec``. Aliases stand beside the variables
    that they name.

    Raises:
        CheckpointError: not a whole file of this format.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            self._size = path.stat().st_size
            with path.open("rb") as f:
                self.spec, self.variables = self._read(f)
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
        with self.path.open("rb") as f:
            f.seek(variable.offset)
            data = f.read(variable.size)
        if len(data) != variable.size:
            raise self._cut_short()
        return np.frombuffer(data, variable.dtype).reshape(variable.shape)

    def _read(self, f: BinaryIO) -> tuple[str, dict[str, Variable]]:
        version = self._number(f, "I")
        if version not in _VERSIONS:
            raise CheckpointError(
                f"{self.path} is not a CTranslate2 model of the versions {_VERSIONS[0]} to {_VERSIONS[-1]} (its first "
                f"number is {version}); convert the model with a current ctranslate2."
            )
        spec = self._string(f)
        self._number(f, "I")  # the spec's revision
        variables: dict[str, Variable] = {}
        for _ in range(self._number(f, "I")):
            name = self._string(f)
            variables[name] = self._variable(f, name)
        for _ in range(self._number(f, "I")):
            alias, name = self._string(f), self._string(f)
            if name not in variables:
                raise self._damaged(f"the alias {alias!r} names {name!r}, which it does not hold")
            variables[alias] = variables[name]
        if f.tell() != self._size:
            raise self._damaged(f"{self._size - f.tell()} bytes follow its last variable")
        return spec, variables

    def _variable(self, f: BinaryIO, name: str) -> Variable:
        shape = tuple(self._number(f, "I") for _ in range(self._number(f, "B")))
        kind, size = self._number(f, "B"), self._number(f, "I")
        if kind not in _TYPES:
            raise CheckpointError(
                f"{self.path}: the variable {name!r} has the type number {kind}; read are "
                f"{', '.join(f'{number} ({known})' for number, (known, _) in _TYPES.items())}."
            )
        type_, dtype = _TYPES[kind]
        if size != prod(shape) * dtype.itemsize:
            raise self._damaged(f"{name!r} has {size} bytes for the shape {list(shape)} in {type_}")
        offset = f.tell()
        if offset + size > self._size:
            raise self._cut_short()
        f.seek(size, 1)
        return Variable(shape, type_, dtype, offset, size)

    def _number(self, f: BinaryIO, form: str) -> int:
        data = f.read(struct.calcsize(f"<{form}"))
        if len(data) != struct.calcsize(f"<{form}"):
            raise self._cut_short()
        number: int = struct.unpack(f"<{form}", data)[0]
        return number

    def _string(self, f: BinaryIO) -> str:
        length = self._number(f, "H")
        data = f.read(length)
        if len(data) != length:
            raise self._cut_short()
        try:
            return data.rstrip(b"\0").decode("utf-8")
        except UnicodeDecodeError:
            raise self._damaged("it has a name that is no text") from None

    def _cut_short(self) -> CheckpointError:
        return CheckpointError(f"{self.path} is cut short at {self._size} bytes; fetch it again.")

    def _damaged(self, what: str) -> CheckpointError:
        return CheckpointError(f"{self.path} is damaged: {what}; fetch it again.")
