"""Where the library of kernels is. It is onnxruntime's to load, and `edge.runtime`'s to ask."""

from pathlib import Path

LIBRARY = Path(__file__).parent / "libedge_kernels.so"
