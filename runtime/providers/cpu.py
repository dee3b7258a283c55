"""The CPU execution provider: one thread pool for the process, and sessions over a bundle's graphs."""

from __future__ import annotations

import os

import onnxruntime as ort

from edge.bundle import Bundle
from edge.errors import BundleError, InputError

_pool_threads: int | None = None


def share_thread_pool(threads: int | None) -> int:
    """Size the pool that every session of this process shares; only the first call decides.

    One pool for all sessions matters: with pools of their own, 30 sessions in turn cost 90 ms a token where they
    cost 4 ms with a shared one, because idle pools spin.

    Returns:
        The threads of the pool: `threads`, or `default_threads` where it is None.
    """
    global _pool_threads
    if threads is not None and threads < 1:
        raise InputError(f"The number of threads must be at least 1, not {threads}.")
    if _pool_threads is None:
        _pool_threads = threads or default_threads()
        ort.set_global_thread_pool_sizes(_pool_threads, 1)
    return _pool_threads


def default_threads() -> int:
    """The threads of the pool where nobody says how many: the usable cores, at most 8."""
    return min(len(os.sched_getaffinity(0)), 8)


def open_session(bundle: Bundle, role: str) -> ort.InferenceSession:
    """A session over the graph with this role, its weights mapped from the bundle's `weights.bin`.

    Raises:
        BundleError: onnxruntime refuses the graph.
    """
    options = ort.SessionOptions()
    options.use_per_session_threads = False
    options.log_severity_level = 3  # its warnings are about the graph, which only the exporter can change
    # Else the second step of a shape takes all of its activations again, in one block, beside the first's, and keeps
    # both: 76 MB more for Whisper base's encoder, 6 MB for a chunk of 128 tokens of SmolLM2, at the same speed.
    options.enable_mem_pattern = False
    # Threads take an operator's work in small blocks: one that the system holds up delays a step less (2% faster).
    options.add_session_config_entry("session.dynamic_block_base", "4")
    options.add_session_config_entry("session.model_external_initializers_file_folder_path", str(bundle.root))
    path = bundle.path(bundle.manifest.graph(role).path)
    try:
        return ort.InferenceSession(path, options, providers=["CPUExecutionProvider"])
    except Exception as e:  # onnxruntime raises a dozen types without a common base
        raise BundleError(f"{path} could not be loaded by onnxruntime {ort.__version__}: {e}") from e
