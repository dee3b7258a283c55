"""Products of 4-bit weights by our kernels (`kernels/`) next to onnxruntime's MatMulNBits, in one run.

    python benchmarks/kernels.py                        # as this processor computes
    python benchmarks/kernels.py --without-avx512       # both as on a processor with AVX2 alone

Both run in sessions of onnxruntime. Each shape has so many different weights that they do not fit into caches. Runs of
the two take turns; figures are medians. The other threads of the machine should be idle.
"""

from __future__ import annotations

import argparse
import functools
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import onnxruntime as ort
from machine import cpu_name
from numpy.typing import NDArray
from report import table

from edge.runtime.kernels.library import DOMAIN, VARIABLE, Kernels, Layout, find_kernels
from edge.runtime.onnx_proto import ModelProto

SHAPES = {  # inputs and columns: SmolLM2-135M's, then those of a Llama of 1B
    "qkv": (576, 960),
    "o": (576, 576),
    "gate, up": (576, 3072),
    "down": (1536, 576),
    "head": (576, 49152),
    "1B qkv": (2048, 3072),
    "1B o": (2048, 2048),
    "1B gate, up": (2048, 16384),
    "1B down": (8192, 2048),
}
ROWS = (1, 2, 3, 4, 6, 8, 16, 64, 128, 256)
MEGABYTES = 200  # of weights
ROUNDS = 9
REST = 0.05  # seconds in which the other's threads stop waiting for work
SECONDS = 3.0  # after which a measurement has rounds enough, from the fourth on
FAULTS = Path(__file__).with_name("without_avx512.c")


@dataclass(frozen=True)
class Found:
    """Microseconds of a product."""

    block: int
    shape: str
    threads: int
    rows: int
    ours: float
    theirs: float


@dataclass(frozen=True)
class Product:
    """A node's constants, and its own numbers."""

    weights: list[NDArray[Any]]
    numbers: dict[str, int]


def model_of(inputs: int, columns: int, block: int, products: list[Product], domain: str) -> bytes:
    """All products, of the same rows."""
    nodes, stored, made = [], [], []
    numbers = {"K": inputs, "N": columns, "bits": 4, "block_size": block, "accuracy_level": 4}
    for i, product in enumerate(products):
        names = [f"w{i}.{j}" for j in range(len(product.weights))]
        for name, array in zip(names, product.weights, strict=True):
            kind = 2 if array.dtype == np.uint8 else 1
            tensor = {"name": name, "dims": array.shape, "data_type": kind, "raw_data": array.tobytes()}
            stored.append(tensor)
        attributes = [{"name": name, "i": each, "type": 2} for name, each in (numbers | product.numbers).items()]
        node = {"op_type": "MatMulNBits", "domain": domain, "input": ["a", *names], "output": [f"y{i}"]}
        nodes.append({**node, "name": f"y{i}", "attribute": attributes})
        made.append({"name": f"y{i}", "type": {"tensor_type": {"elem_type": 1}}})
    graph = {"name": "products", "node": nodes, "initializer": stored, "output": made}
    graph["input"] = [{"name": "a", "type": {"tensor_type": {"elem_type": 1}}}]
    opsets = [{"domain": "", "version": 21}, {"domain": domain, "version": 1}]
    content: bytes = ModelProto(ir_version=10, graph=graph, opset_import=opsets).SerializeToString()
    return content


def session_of(model: bytes, threads: int, kernels: Kernels | None) -> ort.InferenceSession:
    options = ort.SessionOptions()
    options.intra_op_num_threads, options.inter_op_num_threads = threads, 1
    options.enable_mem_pattern = False
    if kernels is not None:
        options.register_custom_ops_library(str(kernels.path))
    return ort.InferenceSession(model, options, providers=["CPUExecutionProvider"])


def measure(
    kernels: Kernels, shape: str, block: int, threads: list[int], rows: list[int], megabytes: float
) -> list[Found]:
    """Both over one shape."""
    inputs, columns = SHAPES[shape]
    random = np.random.default_rng(0)
    number = max(2, int(megabytes * 1e6 / (inputs * columns * (0.5 + 4 / block))))
    layout = Layout(4, inputs, columns, block, half=False, zero_points=False)
    ours, theirs, kept, lent = [], [], [], ExitStack()
    for _ in range(number):
        values = random.integers(0, 256, (columns, inputs // block, block // 2), np.uint8)
        scales = ((random.random((columns, inputs // block)) + 0.5) * 0.01).astype(np.float32)
        packed = aligned(kernels.packed_bytes(layout))
        kernels.pack(layout, values, scales, None, packed)
        kept.append(packed)
        ours.append(Product([], {"half": 0, "zero_points": 0, "lent": lent.enter_context(kernels.lend(packed))}))
        theirs.append(Product([values, scales.reshape(-1)], {}))
    models = [
        model_of(inputs, columns, block, products, domain)
        for products, domain in ((ours, DOMAIN), (theirs, "com.microsoft"))
    ]
    del ours, theirs
    found, last = [], [f"y{number - 1}"]
    for count in threads:
        sessions = [session_of(model, count, mine) for model, mine in zip(models, (kernels, None), strict=True)]
        for size in rows:
            given = {"a": random.standard_normal((size, inputs), np.float32)}
            mine, his = (functools.partial(session.run, last, given) for session in sessions)
            made, wanted = mine()[0], his()[0]
            assert np.abs(made - wanted).max() < 1e-5 * np.abs(wanted).max(), "they compute the same"
            ours_took, theirs_took = paired(mine, his)
            found.append(Found(block, shape, count, size, ours_took / number * 1e6, theirs_took / number * 1e6))
    lent.close()
    return found


def aligned(size: int) -> NDArray[np.uint8]:
    """Bytes that begin where vectors do."""
    room = np.zeros(size + 64, np.uint8)
    start = -room.ctypes.data % 64
    return room[start : start + size]


def paired(ours: Callable[[], Any], theirs: Callable[[], Any]) -> tuple[float, float]:
    """Median seconds of both, which take turns."""
    seconds: tuple[list[float], list[float]] = ([], [])
    began = time.perf_counter()
    for number in range(ROUNDS):
        for run, kept in zip((ours, theirs), seconds, strict=True):
            time.sleep(REST)
            run()
            started = time.perf_counter()
            run()
            kept.append(time.perf_counter() - started)
        if number >= 3 and time.perf_counter() - began > SECONDS:
            break
    return median(seconds[0]), median(seconds[1])


def show(found: list[Found], form: str) -> None:
    """Ratios to onnxruntime, and what several rows cost next to one."""
    for block, threads in dict.fromkeys((each.block, each.threads) for each in found):
        here = [each for each in found if (each.block, each.threads) == (block, threads)]
        sizes = list(dict.fromkeys(each.rows for each in here))
        for title, value in (
            ("times as fast as onnxruntime", lambda each, one: each.theirs / each.ours),
            ("of what one row costs", lambda each, one: each.ours / one.ours),
        ):
            lines = [["rows", *map(str, sizes)]]
            for shape in dict.fromkeys(each.shape for each in here):
                line = {each.rows: each for each in here if each.shape == shape}
                lines.append([shape, *(f"{value(line[size], line[sizes[0]]):.2f}" for size in sizes)])
            print(f"\n{form}, blocks of {block}, {threads} thread(s): {title}\n{table(lines)}")


def parse(arguments: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shapes", nargs="+", choices=SHAPES, default=list(SHAPES))
    parser.add_argument("--blocks", nargs="+", type=int, default=[32])
    parser.add_argument("--rows", nargs="+", type=int, default=list(ROWS))
    parser.add_argument("--threads", nargs="+", type=int, default=[1, 2])
    parser.add_argument("--megabytes", type=float, default=MEGABYTES, help="of weights, of each shape")
    parser.add_argument("--without-avx512", action="store_true")
    return parser.parse_args(arguments)


def again_without_avx512() -> None:
    """This process once more, on a processor that says it has AVX2 alone."""
    if "cpuid_fault" not in Path("/proc/cpuinfo").read_text():
        sys.exit("This machine cannot hide what its processor has (no cpuid_fault).")
    library = Path(tempfile.mkdtemp()) / "without_avx512.so"
    subprocess.run(["gcc", "-O1", "-shared", "-fPIC", str(FAULTS), "-o", str(library)], check=True)
    given = [each for each in sys.argv[1:] if each != "--without-avx512"]
    hidden = {"LD_PRELOAD": str(library), VARIABLE: "avx2"}
    os.execve(sys.executable, [sys.executable, __file__, *given], {**os.environ, **hidden})


def main(arguments: list[str] | None = None) -> None:
    args = parse(arguments)
    if args.without_avx512:
        again_without_avx512()
    kernels = find_kernels()
    if kernels is None:
        sys.exit("edge-lm-kernels is not installed, or this processor cannot run it.")
    found: list[Found] = []
    for block in args.blocks:
        for shape in args.shapes:
            if SHAPES[shape][0] % block == 0:
                found += measure(kernels, shape, block, args.threads, args.rows, args.megabytes)
                print(f"blocks of {block}: {shape}", file=sys.stderr)
    print(f"{cpu_name()}, onnxruntime {ort.__version__}")
    show(found, kernels.form)


if __name__ == "__main__":
    main()
