"""Peak rates of this machine, measured: the lines of a roofline.

Arithmetic is that of onnxruntime's own kernels, for a chunk of 512 tokens and a matrix of 2048 x 2048 weights that
stays in the caches, which may be less than what the processor could.

Source: Williams, Waterman, Patterson, Roofline: an insightful visual performance model for multicore architectures
(CACM 2009).
"""

from __future__ import annotations

import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edge.runtime.costs import machine
from edge.runtime.costs.record import Peaks
from edge.runtime.onnx_proto import model_of
from edge.runtime.providers import AUTO, open_provider
from edge.runtime.providers.provider import Provider

MEMORY_BYTES = 256 << 20  # more than the caches of any small device hold
CACHE_BYTES = 4 << 20
CACHE_READS = 32  # in a row by each thread: starting one takes longer than reading its share once
ROWS, WIDTH = 512, 2048
BLOCK = 128  # weights of 4 bits that share a scale: the kernels are fastest with this many
LEAST = 3  # minimum of runs of each, after a warm-up
FLOAT, UINT8, INT8, INT32 = 1, 2, 3, 6  # TensorProto.DataType, onnx/onnx.proto
INT_ATTRIBUTE = 2  # AttributeProto.AttributeType
TYPES: dict[Any, int] = {np.dtype(np.float32): FLOAT, np.dtype(np.uint8): UINT8, np.dtype(np.int8): INT8}


def measure(provider: Provider | None = None, *, seconds: float = 3.0, width: int = WIDTH) -> Peaks:
    """Measure the rates at which this machine reads memory and multiplies matrices, with the provider's threads.

    Args:
        provider: what runs the products; default: the best that this machine has.
        seconds: about how long it may take. Everything is measured a few times in any case.
        width: rows and columns of the weights' matrix.
    """
    provider = provider or open_provider(AUTO)
    count = provider.threads
    share = seconds / 5
    operations = 2 * ROWS * width * width
    spare = machine.available_bytes() or MEMORY_BYTES
    return Peaks(
        memory_gb_per_s=_read_gb_per_s(np.ones(min(MEMORY_BYTES, spare // 8) // 4, np.float32), count, 1, share),
        gemm_gflop_per_s={
            name: operations / _best_s(_product(provider, name, width), share) / 1e9
            for name in ("float32", "int8", "int4")
        },
        cache_gb_per_s=_read_gb_per_s(np.ones(CACHE_BYTES // 4, np.float32), count, CACHE_READS, share),
    )


def _read_gb_per_s(buffer: NDArray[np.float32], threads: int, times: int, seconds: float) -> float:
    """Gigabytes per second at which threads read a buffer, each its part of it `times` times, by numpy's maximum: the
    fastest of its functions that read everything and leave the interpreter free."""
    parts = np.array_split(buffer, threads)

    def read(part: NDArray[np.float32]) -> None:
        for _ in range(times):
            part.max()

    with ThreadPoolExecutor(threads) as pool:
        return buffer.nbytes * times / _best_s(lambda: list(pool.map(read, parts)), seconds) / 1e9


def _best_s(run: Callable[[], object], seconds: float) -> float:
    """Seconds of the fastest of several runs: a peak is what the machine reaches undisturbed."""
    run()
    best, until, count = float("inf"), time.perf_counter() + seconds, 0
    while count < LEAST or time.perf_counter() < until:
        start = time.perf_counter()
        run()
        best = min(best, time.perf_counter() - start)
        count += 1
    return best


def _product(provider: Provider, arithmetic: str, width: int) -> Callable[[], object]:
    """A run of a graph that multiplies ROWS x width with width x width weights."""
    rng = np.random.default_rng(0)
    if arithmetic == "float32":
        a: NDArray[Any] = rng.standard_normal((ROWS, width), np.float32)
        weights = {"b": rng.standard_normal((width, width), np.float32)}
        model = _model("MatMul", a, weights, FLOAT)
    elif arithmetic == "int8":
        a = rng.integers(0, 255, (ROWS, width), np.uint8)
        model = _model("MatMulInteger", a, {"b": rng.integers(-127, 127, (width, width), np.int8)}, INT32)
    else:
        a = rng.standard_normal((ROWS, width), np.float32)
        blocks = width // BLOCK
        packed = {
            "b": rng.integers(0, 255, (width, blocks, BLOCK // 2), np.uint8),
            "scales": np.full(width * blocks, 0.01, np.float32),
        }
        numbers = {"K": width, "N": width, "bits": 4, "block_size": BLOCK, "accuracy_level": 4}
        model = _model("MatMulNBits", a, packed, FLOAT, domain="com.microsoft", **numbers)
    session = provider.open_model(model, f"a product in {arithmetic}")
    feeds = {"a": a}
    return lambda: session.run(feeds)


def _model(
    op_type: str, a: NDArray[Any], weights: dict[str, NDArray[Any]], output: int, domain: str = "", **numbers: int
) -> bytes:
    """A model of one node, whose first input is given and whose other inputs are weights."""
    attributes = [{"name": name, "i": number, "type": INT_ATTRIBUTE} for name, number in numbers.items()]
    node = {"input": ["a", *weights], "output": ["y"], "op_type": op_type, "domain": domain, "attribute": attributes}
    tensors = [
        {"name": name, "dims": array.shape, "data_type": TYPES[array.dtype], "raw_data": array.tobytes()}
        for name, array in weights.items()
    ]
    return model_of([node], {"a": TYPES[a.dtype]}, {"y": output}, tensors)
