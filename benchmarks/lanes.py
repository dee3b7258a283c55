"""The kernels of `kernels/src`, compiled and called from Python: for their tests and their benchmark."""

from __future__ import annotations

import ctypes
import os
import platform
import shutil
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

SOURCES = Path(__file__).parents[1] / "kernels" / "src"
FLAGS = {
    "portable": [],
    "avx2": ["-mavx2", "-mfma"],
    "avx_vnni": ["-mavx2", "-mfma", "-mavxvnni"],
    "avx512_vnni": ["-mavx512f", "-mavx512bw", "-mavx512vl", "-mavx512vnni"],
    "c_api": [],
}
# By the number that the library calls them by: what a processor must have, as /proc/cpuinfo calls it.
FORMS = {"portable": set(), "avx2": {"avx2", "fma"}, "avx_vnni": {"avx_vnni"}, "avx512_vnni": {"avx512_vnni"}}
PANEL = 16


def compiler() -> str | None:
    """A C++ compiler for this processor, where there is one and the processor has forms of its own."""
    return shutil.which("g++") if platform.machine() in ("x86_64", "AMD64") else None


def forms() -> list[str]:
    """Those that this processor can run."""
    flags = set(Path("/proc/cpuinfo").read_text().partition("flags")[2].partition("\n")[0].split())
    return [name for name, needs in FORMS.items() if needs <= flags]


def build(folder: Path) -> Path:
    """Compile the library into a folder. RuntimeError with the compiler's words where it fails."""
    objects = []
    for name, flags in FLAGS.items():
        objects.append(str(folder / f"{name}.o"))
        source, common = str(SOURCES / f"{name}.cpp"), ["-O3", "-std=c++17", "-fPIC", "-fopenmp", "-ffp-contract=off"]
        _run(["g++", *common, *flags, "-c", source, "-o", objects[-1]])
    library = folder / "liblanes.so"
    _run(["g++", "-shared", "-fopenmp", *objects, "-o", str(library)])
    return library


def _run(command: list[str]) -> None:
    plain = {name: value for name, value in os.environ.items() if name != "LD_PRELOAD"}  # no compiler bears that
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=plain)
    if done.returncode:
        raise RuntimeError(done.stderr)


class _Weights(ctypes.Structure):
    _fields_ = (
        *((name, ctypes.c_void_p) for name in ("weights", "scales", "zero_points")),
        *((name, ctypes.c_int) for name in ("inputs", "columns", "block")),
    )


class Matrix:
    """A weight [N, K] in 4 bits. values [N, K] below 16; scales, zero_points [N, K / block], None where all are 8."""

    def __init__(
        self,
        library: Library,
        values: NDArray[np.uint8],
        scales: NDArray[np.float32],
        zero_points: NDArray[np.uint8] | None,
        block: int,
    ) -> None:
        self.columns, self.inputs = values.shape
        self.block = block
        room = np.zeros(values.size // 2 + 64, np.uint8)
        start = -room.ctypes.data % 64
        self._packed = room[start : start + values.size // 2]
        library.calls.edge_pack(_at(values), self.inputs, self.columns, _at(self._packed))
        self._scales = self._panels(scales)
        self._zeros = None if zero_points is None else self._panels(zero_points.astype(np.int32))
        zeros = None if self._zeros is None else self._zeros.ctypes.data
        self.structure = _Weights(
            self._packed.ctypes.data, self._scales.ctypes.data, zeros, self.inputs, self.columns, block
        )

    def _panels(self, per_block: NDArray[Any]) -> NDArray[Any]:
        panels = per_block.reshape(self.columns // PANEL, PANEL, -1)
        return np.ascontiguousarray(panels.transpose(0, 2, 1))

    @property
    def nbytes(self) -> int:
        return self._packed.nbytes + self._scales.nbytes


class Library:
    """The compiled library."""

    def __init__(self, path: Path) -> None:
        self.calls = ctypes.CDLL(str(path))

    def run(self, form: str, matrices: list[Matrix], threads: int = 1) -> Run:
        """Products of rows with all of these, which have one shape."""
        return Run(self, list(FORMS).index(form), matrices, threads)


class Run:
    """Products with several matrices, one after the other; the results of the last one are returned."""

    def __init__(self, library: Library, form: int, matrices: list[Matrix], threads: int) -> None:
        self._calls, self._form, self._matrices, self._threads = library.calls, form, matrices, threads
        self._weights = (_Weights * len(matrices))(*(matrix.structure for matrix in matrices))
        self._room: dict[int, tuple[NDArray[Any], ...]] = {}

    def __call__(self, rows: NDArray[np.float32]) -> NDArray[np.float32]:
        """Rows [M, K] to [M, N], which the next call overwrites."""
        count, first = len(rows), self._matrices[0]
        if count not in self._room:
            blocks = count * (first.inputs // first.block)
            shapes = (rows.size, np.int8), (blocks, np.float32), (blocks, np.int32), (count * first.columns, np.float32)
            self._room[count] = tuple(np.zeros(size, dtype) for size, dtype in shapes)
        room = self._room[count]
        number, threads = len(self._matrices), self._threads
        self._calls.edge_products(self._form, number, self._weights, _at(rows), count, *map(_at, room), threads)
        return room[-1].reshape(count, first.columns)


def _at(array: NDArray[Any]) -> ctypes.c_void_p:
    assert array.flags.c_contiguous
    return ctypes.c_void_p(array.ctypes.data)
