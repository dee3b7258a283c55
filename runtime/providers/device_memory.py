"""Memory of a device, as sessions and the host see it."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import onnxruntime as ort
from numpy.typing import NDArray

from edge.runtime.providers.provider import BFLOAT16, Buffer

SMALL = 4096  # bytes up to which it is looked first whether anything changed: cheaper than to copy


class DeviceMemory:
    """One allocation on a device. Once the host has asked for its array, the array's content is sent to the device
    before each run that reads it, and fetched after each run that writes it."""

    def __init__(self, value: ort.OrtValue, dtype: np.dtype[Any]) -> None:
        self.value, self.dtype = value, dtype
        self.host: NDArray[Any] | None = None
        self._sent: bytes | None = None

    def array(self) -> NDArray[Any]:
        """The host's array. When it is first asked for, it has the device's content."""
        if self.host is None:
            self.host = self.read()
        return self.host

    def read(self) -> NDArray[Any]:
        """Copy the device's present content to a new array."""
        content: NDArray[Any] = self.value.numpy().view(self.dtype)
        return content

    def send(self) -> None:
        """Copy the host's array to the device, if it has changed."""
        if self.host is None:
            return
        if self.host.nbytes <= SMALL:
            content = self.host.tobytes()
            if content == self._sent:
                return
            self._sent = content
        self.value.update_inplace(_plain(self.host))

    def fetch(self) -> None:
        """Copy the device's content to the host's array."""
        if self.host is not None:
            self.host[...] = self.read()
            self._sent = None


class DeviceBuffer(Buffer):
    """An allocation, or a part of one. pointer: where it begins on the device."""

    __slots__ = ("_dtype", "_shape", "_start", "memory")

    def __init__(self, memory: DeviceMemory, shape: tuple[int, ...], start: int = 0) -> None:
        self.memory, self._shape, self._start = memory, shape, start
        self._dtype = memory.dtype
        self.value = memory.value

    @property
    def array(self) -> NDArray[Any]:  # type: ignore[override]
        whole = self.memory.array().reshape(-1)
        return whole[self._start : self._start + math.prod(self._shape)].reshape(self._shape)

    @property
    def shape(self) -> tuple[int, ...]:
        return self._shape

    @property
    def dtype(self) -> np.dtype[Any]:
        return self._dtype

    @property
    def pointer(self) -> int:
        return int(self.memory.value.data_ptr()) + self._start * self._dtype.itemsize

    def part(self, shape: tuple[int, ...], start: int) -> DeviceBuffer:
        """A part of it, from its element `start` on."""
        return DeviceBuffer(self.memory, shape, self._start + start)


def plain_type(dtype: np.dtype[Any]) -> np.dtype[Any]:
    """The type that numpy keeps it in."""
    return np.dtype(np.uint16) if dtype == BFLOAT16 else dtype


def _plain(array: NDArray[Any]) -> NDArray[Any]:
    return np.ascontiguousarray(array).view(plain_type(array.dtype))
