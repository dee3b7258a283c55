"""Kernels of this project for the processor, where the package `edge_kernels` (edge-lm-kernels) is installed.

They compute what onnxruntime's operators compute, faster, and so that a row of a result does not depend on the rows
next to it. Without the package onnxruntime's own run.
"""

from __future__ import annotations

import ctypes
import logging
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edge.home import cache_dir, is_folder

PACKAGE = "edge_kernels"
VARIABLE, OFF = "EDGE_KERNELS", "off"  # the environment variable that names what computes, and this for none
INTERFACE = 9  # of the library: what its functions take, and what operators there are and check
DOMAIN = "edge"  # of their operators
INT8_DOMAIN = "edge.int8"  # of attention over a KV cache in bytes: an operator has one type
GGUF_DOMAIN = "edge.gguf"  # of what graphs of bundles have for matrices of GGUF files: see `gguf`

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Layout:
    """Storage format of a matrix. inputs, columns: its size. block: inputs that share a scale. half: whether scales are
    float16. zero_points: whether it has some."""

    bits: int
    inputs: int
    columns: int
    block: int
    half: bool
    zero_points: bool


@dataclass(frozen=True)
class GgufLayout:
    """Storage format of a matrix of a GGUF file. type: as files number them."""

    type: int
    inputs: int
    columns: int


@dataclass(frozen=True)
class GgufPanel:
    """Columns of a panel of such a matrix; bytes of a row in the file, and of a panel's weights and heads. A packed
    matrix has the weights of all panels, then their heads."""

    columns: int
    row: int
    weights: int
    heads: int


@dataclass(frozen=True)
class AttentionLimits:
    """What attention is computed of. largest_head: dimensions. more: whether scores may be bounded, and keys and values
    be those of another layer. sinks: whether heads may have some. mixed: whether a step may have, in a row, a token of
    each of several texts and several of the last one."""

    largest_head: int
    more: bool
    sinks: bool = False
    mixed: bool = False


@dataclass(frozen=True)
class Kernels:
    """The library. form: the instructions that it uses here. version: of the format of packed weights."""

    path: Path
    form: str
    version: int
    calls: Any

    @property
    def attention(self) -> AttentionLimits:
        """What attention may be of. A library of this interface that does not say has the limits of the first one."""
        found = getattr(self.calls, "edge_largest_head", None)
        if found is None:
            return AttentionLimits(256, more=False)
        sinks, mixed = (hasattr(self.calls, name) for name in ("edge_head_sinks", "edge_mixed_steps"))
        return AttentionLimits(int(found()), more=True, sinks=sinks, mixed=mixed)

    @property
    def state_rows(self) -> int:
        """The most rows that a state of linear attention may have; 0 where the library has no operators over states."""
        found = getattr(self.calls, "edge_most_state_rows", None)
        return 0 if found is None else int(found())

    @property
    def experts(self) -> bool:
        """True if experts are computed, and what scores them. A library of this interface that does not say has no such
        operators."""
        return hasattr(self.calls, "edge_experts")

    @property
    def biased_experts(self) -> bool:
        """True if experts may have biases, and gates with a limit."""
        return self.experts and bool(self.calls.edge_experts() > 1)

    def packed_bytes(self, layout: Layout) -> int:
        """Bytes of a matrix in the library's layout; 0 where it cannot have one."""
        size: int = self.calls.edge_packed_bytes(*_numbers(layout), int(layout.zero_points))
        return size

    def pack(
        self,
        layout: Layout,
        weights: NDArray[np.uint8],
        scales: NDArray[np.float32],
        zero_points: NDArray[np.uint8] | None,
        out: NDArray[np.uint8],
    ) -> None:
        """Bring a matrix as MatMulNBits has it into the library's layout: `packed_bytes` bytes."""
        zeros = None if zero_points is None else zero_points.ctypes.data
        self.calls.edge_pack(*_numbers(layout), weights.ctypes.data, scales.ctypes.data, zeros, out.ctypes.data)

    def gguf_bytes(self, layout: GgufLayout) -> int:
        """Bytes of a matrix of a GGUF file in the library's layout; 0 where it cannot have one."""
        size: int = self.calls.edge_gguf_bytes(layout.type, layout.inputs, layout.columns)
        return size

    def gguf_panel(self, layout: GgufLayout) -> GgufPanel | None:
        """What such a matrix is made of; None where the library cannot have it."""
        row, weights, heads = (ctypes.c_size_t() for _ in range(3))
        columns = self.calls.edge_gguf_panel(layout.type, layout.inputs, *map(ctypes.byref, (row, weights, heads)))
        return GgufPanel(columns, row.value, weights.value, heads.value) if columns else None

    def pack_gguf(
        self, layout: GgufLayout, rows: NDArray[np.uint8], weights: NDArray[np.uint8], heads: NDArray[np.uint8]
    ) -> bool:
        """Bring rows of a file [columns, bytes] into the library's layout, whole panels of them but for the last; False
        where a scale, or a weight that is a float, is no finite number."""
        sizes = layout.type, layout.inputs, len(rows)
        return bool(self.calls.edge_gguf_pack(*sizes, rows.ctypes.data, weights.ctypes.data, heads.ctypes.data))

    @contextmanager
    def lend(self, packed: NDArray[np.uint8]) -> Iterator[int]:
        """Register a packed matrix: operators that are made within this context find it by the number that this yields.
        The matrix must stay in memory as long as they do."""
        lent = self.calls.edge_lend(packed.ctypes.data, packed.size)
        try:
            yield lent
        finally:
            self.calls.edge_take_back(lent)


def _numbers(layout: Layout) -> tuple[int, ...]:
    return layout.bits, layout.inputs, layout.columns, layout.block, int(layout.half)


@cache
def find_kernels() -> Kernels | None:
    """The library, where it is installed, this processor has the instructions it needs, and it computes correct
    results; else None and, once, a warning that says why."""
    if os.environ.get(VARIABLE) == OFF or find_spec(PACKAGE) is None:
        return None
    library = Path(import_module(PACKAGE).LIBRARY)
    try:
        calls = ctypes.CDLL(str(library))
        if calls.edge_interface() != INTERFACE:
            without_kernels(f"the {PACKAGE} that is installed is of another version of edge; build it again")
            return None
        _declare(calls)
        form = calls.edge_form()
        version = calls.edge_format()
    except (OSError, AttributeError) as e:
        without_kernels(f"the library of {PACKAGE} cannot be loaded ({e})")
        return None
    if form is None:
        wanted = os.environ.get(VARIABLE)
        lacks = "this processor lacks what they need (x86: AVX2; Arm: dot products)"
        without_kernels(f"this processor cannot run {wanted}" if wanted else lacks)
        return None
    kernels = Kernels(library, form.decode(), version, calls)
    if not _computes(kernels):
        without_kernels(f"{PACKAGE} computes wrong results here")
        return None
    return kernels


def map_weights() -> bool:
    """True if the weights of products in blocks are in files of the cache folder, which every process maps, and not in
    a process's private memory."""
    folder = cache_dir()
    try:
        while not folder.exists() and folder != folder.parent:
            folder = folder.parent
    except OSError:  # nobody may look into it
        return False
    return find_kernels() is not None and is_folder(folder) and os.access(folder, os.W_OK)


@cache
def without_kernels(why: str) -> None:
    """Warn once that onnxruntime's own kernels run, and why."""
    _log.warning("onnxruntime's own kernels run, more slowly: %s.", why)


def _declare(calls: Any) -> None:
    number, memory = ctypes.c_int, ctypes.c_void_p
    calls.edge_form.restype = ctypes.c_char_p
    calls.edge_packed_bytes.restype, calls.edge_packed_bytes.argtypes = ctypes.c_size_t, (number,) * 6
    calls.edge_pack.restype, calls.edge_pack.argtypes = None, (number,) * 5 + (memory,) * 4
    calls.edge_check.restype = number
    calls.edge_gguf_bytes.restype, calls.edge_gguf_bytes.argtypes = ctypes.c_size_t, (number,) * 3
    calls.edge_gguf_panel.restype, calls.edge_gguf_panel.argtypes = number, (number,) * 2 + (memory,) * 3
    calls.edge_gguf_pack.restype, calls.edge_gguf_pack.argtypes = number, (number,) * 3 + (memory,) * 3
    calls.edge_gguf_check.restype = number
    calls.edge_lend.restype, calls.edge_lend.argtypes = ctypes.c_int64, (memory, ctypes.c_size_t)
    calls.edge_take_back.restype, calls.edge_take_back.argtypes = None, (ctypes.c_int64,)


@cache
def computes_gguf(kernels: Kernels | None) -> bool:
    """True if our kernels run here, and products with matrices of GGUF files have the results of the plain
    implementation; else a warning says so once."""
    if kernels is None:
        return False
    if kernels.calls.edge_gguf_check():
        return True
    _log.warning("GGUF files are not read as they are: %s computes wrong results with their blocks here.", PACKAGE)
    return False


def reads_gguf(*, biased_experts: bool = False) -> bool:
    """True if kernels that compute blocks of GGUF files run here. biased_experts: gpt-oss's experts, too, which an
    older library lacks."""
    kernels = find_kernels()
    return kernels is not None and computes_gguf(kernels) and not (biased_experts and not kernels.biased_experts)


def _computes(kernels: Kernels) -> bool:
    """True if a few products have the results of the library's plain implementation."""
    return bool(kernels.calls.edge_check())
