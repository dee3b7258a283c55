"""The CPU execution provider: one thread pool for the process, and sessions over a bundle's graphs."""

from __future__ import annotations

import contextlib
import logging
import os
from pathlib import Path

import onnxruntime as ort

from edge.bundle import WEIGHTS, Bundle
from edge.errors import BundleError, InputError, on_one_line
from edge.runtime.huge_pages import huge_pages
from edge.runtime.memory import libraries, release_code
from edge.runtime.providers.instructions import ARM

MOST_THREADS = 16  # that may be asked for, or twice the cores: threads without work spin, thousands stop the machine

# On Arm attention by blocks (flash) gives a token other last bits in a step of 3 tokens than in one of 2: drafts would
# change answers. Without blocks all steps agree. onnxruntime reads this when it makes a session. The scores of a step
# are then in memory as a whole.
if ARM:
    os.environ.setdefault("ORT_GQA_DISABLE_FLASH_ATTENTION", "1")

LIBRARIES = libraries()  # onnxruntime and numpy among them

_pool_threads: int | None = None
_told = False  # whether it was said that the pool keeps its size


def share_thread_pool(threads: int | None, arena: int = -1) -> int:
    """Size the pool that every session of this process shares. Only the first call decides; the first one after it
    that asks for another size is answered with a warning in the log.

    One pool for all sessions matters: with pools of their own, 30 sessions in turn cost 90 ms a token where they
    cost 4 ms with a shared one, because idle pools spin. Activations come from one arena as well.

    Args:
        arena: bytes of the arena's first region, in memory that the system hands out as it is written; default: 1 MB.

    Returns:
        The threads of the pool: `threads`, or `default_threads` where it is None.
    """
    global _pool_threads, _told
    check_threads(threads)
    if _pool_threads is None:
        _pool_threads = threads or default_threads()
        ort.set_global_thread_pool_sizes(_pool_threads, 1)
        _share_arena(arena)
    elif threads not in (None, _pool_threads) and not _told:
        _told = True
        logging.getLogger(__name__).warning(
            "All models of a process share one pool of threads, which the first one set to %d; the %d asked for now "
            "are not used.",
            _pool_threads,
            threads,
        )
    return _pool_threads


def check_threads(threads: int | None) -> None:
    """Raise InputError where a pool cannot have so many threads."""
    if threads is not None and threads < 1:
        raise InputError(f"The number of threads must be at least 1, not {threads}.")
    most = max(MOST_THREADS, 2 * (os.cpu_count() or 1))
    if threads is not None and threads > most:
        raise InputError(f"The number of threads must be at most {most} on this machine, not {threads}.")


def _share_arena(first: int) -> None:
    """Let all sessions of this process take their activations from one arena: what one is done with, the next uses.

    Of 30 s of audio that is 10 MB between Whisper's graphs, and as much again because one arena has fewer gaps than
    three. Weights are not in it: a model that is dropped gives them back. Each further region is twice as large as the
    one before, and one large region has fewer gaps than many.
    """
    memory = ort.OrtMemoryInfo("Cpu", ort.OrtAllocatorType.ORT_ARENA_ALLOCATOR, 0, ort.OrtMemType.DEFAULT)
    growth = {"max_mem": 0, "arena_extend_strategy": 0, "initial_chunk_size_bytes": first}
    # A program that has registered an arena of its own keeps it, and the sessions here take from that one.
    with contextlib.suppress(RuntimeError):
        ort.create_and_register_allocator(memory, ort.OrtArenaCfg(growth))


def default_threads() -> int:
    """The threads of the pool where nobody says how many: the usable cores, at most 8."""
    return min(usable_cores(), 8)


def usable_cores() -> int:
    """Cores that this process may use."""
    if hasattr(os, "sched_getaffinity"):  # not on macOS, nor on Windows
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def open_session(bundle: Bundle, role: str) -> ort.InferenceSession:
    """A session over the graph with this role, its weights mapped from the bundle's `weights.bin`.

    Raises:
        BundleError: onnxruntime refuses the graph.
    """
    path = bundle.path(bundle.manifest.graph(role).path)
    return open_model(bundle, path, str(path))


def release_unused() -> None:
    """Give back what importing the libraries and making sessions has run of their code; it takes 1 ms, and what runs
    again some more."""
    release_code(LIBRARIES)


def open_model(bundle: Bundle, model: Path | bytes, name: str) -> ort.InferenceSession:
    """A session over a model that points at the bundle's weights: a file, or the bytes of one; `name` is for errors.

    Raises:
        BundleError: onnxruntime refuses it.
    """
    options = ort.SessionOptions()
    options.use_per_session_threads = False
    options.log_severity_level = 3  # its warnings are about the graph, which only the exporter can change
    # Else the second step of a shape takes all of its activations again, in one block, beside the first's, and keeps
    # both: 76 MB more for Whisper base's encoder, 6 MB for a chunk of 128 tokens of SmolLM2, at the same speed.
    options.enable_mem_pattern = False
    # Else an operator's buffer waits for the next one that needs its size, in the next layer or at the end, and is
    # there all the while: 26 MB of what Whisper base's encoder holds, 6 MB for a chunk of 128 tokens of SmolLM2-135M.
    options.enable_mem_reuse = False
    # Threads take an operator's work in small blocks: one that the system holds up delays a step less (2% faster).
    options.add_session_config_entry("session.dynamic_block_base", "4")
    options.add_session_config_entry("session.use_env_allocators", "1")
    options.add_session_config_entry("session.model_external_initializers_file_folder_path", str(bundle.root))
    try:
        with huge_pages(bundle.path(WEIGHTS).stat().st_size):
            return ort.InferenceSession(model, options, providers=["CPUExecutionProvider"], enable_fallback=False)
    except Exception as e:  # onnxruntime raises a dozen types without a common base
        raise BundleError(
            f"{name} could not be loaded by onnxruntime {ort.__version__} ({on_one_line(e)}); export or copy the "
            "bundle again."
        ) from e
