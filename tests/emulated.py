"""What test_other_processors.py asks of every processor, in one process there: starting it is what costs most.

Runs what a device runs: numpy, onnxruntime, edge and edge.runtime. `python emulated.py FOLDER RESULT` reads the
products and bundles of FOLDER and pickles a dict of what it found.
"""

from __future__ import annotations

import contextlib
import io
import pickle
import sys
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime as ort

import edge
from edge.bundle import Bundle, open_bundle
from edge.cli.main import main
from edge.runtime.cache import KVCache
from edge.runtime.engine import Engine
from edge.runtime.providers import cpu
from edge.runtime.speculate.planner import Planner
from edge.runtime.verify import GoldenCase, noise, read_golden

PROMPT = "la la la the moon la la la the moon la la"
TOKENS = 40
CUTS = ([2] * 20, [4] * 10, [16, 8, 6, 2, 8], [1] * 40, [3, 5, 1, 7, 9, 15])  # of 40 tokens


def found_in(folder: Path) -> dict[str, Any]:
    """All answers by name."""
    found: dict[str, Any] = {}
    for path in sorted(folder.glob("*.onnx")):
        found[path.stem] = product(path)
    for path in sorted(folder.glob("*.edge")):
        found[path.stem] = answers(open_bundle(path))
    return found


def product(path: Path) -> dict[int, Any]:
    """What the operator makes of the first M rows of its input, by M."""
    with np.load(path.with_suffix(".npz")) as kept:
        x, sizes = kept["x"], kept["sizes"]
    options = ort.SessionOptions()
    options.use_per_session_threads = False
    session = ort.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    return {int(size): session.run(None, {"x": x[:, :size]})[0][0] for size in sizes}


def answers(bundle: Bundle) -> dict[str, Any]:
    """The logits of the recorded answers, what `edge verify` says, and what a decoder writes."""
    engine, golden = Engine(bundle, threads=1), read_golden(bundle)
    found: dict[str, Any] = {"logits": np.concatenate([forced(engine, case) for case in golden.cases])}
    said = io.StringIO()
    with contextlib.redirect_stdout(said), contextlib.redirect_stderr(said):
        status = main(["verify", str(bundle.root), "--threads", "1"])
    found["verify"] = status, said.getvalue()
    if engine.wide is not None:  # its other graph is as in the bundle without
        found["wide"] = engine.wide.step(engine.new_cache(), text(engine, 40), np.arange(40)).copy()
    elif engine.encoder is None:
        found |= {"cuts": cuts(engine), "texts": texts(bundle)}
    return found


def forced(engine: Engine, case: GoldenCase) -> np.ndarray:
    """The logits [T, V] that choose each token of a recorded answer after the recorded ones before it."""
    cache, step, logits = cache_for(engine, case), np.array(case.prompt_ids, np.int64), list[np.ndarray]()
    for token in case.greedy_ids:
        logits.append(engine.step(cache, step)[0].copy())
        step = np.array([token], np.int64)
    return np.stack(logits)


def cache_for(engine: Engine, case: GoldenCase) -> KVCache:
    if engine.encoder is None:
        return engine.new_cache()
    if case.source_seed is None:
        return engine.new_cache(cross=engine.encoder.encode_text(np.array(case.source_ids, np.int64)))
    return engine.new_cache(cross=engine.encoder.encode_audio(noise(case.source_seed)))


def cuts(engine: Engine) -> list[np.ndarray]:
    """The logits [40, V] of one text, in exact steps of other sizes each."""
    engine, found = Engine(engine.bundle, exact=True), list[np.ndarray]()
    for sizes in CUTS:
        cache, rows = engine.new_cache(), list[np.ndarray]()
        for size in sizes:
            piece = text(engine, 40)[cache.length : cache.length + size]
            rows.append(engine.step(cache, piece, np.arange(size)).copy())
        found.append(np.concatenate(rows))
    return found


def text(engine: Engine, size: int) -> np.ndarray:
    return np.random.default_rng(5).integers(3, engine.bundle.manifest.dims.vocab_size, size)


def texts(bundle: Bundle) -> dict[str, tuple[list[int], int]]:
    """The ids of an exact answer and how many tokens were drafted, without drafts and with all that can be had."""
    Planner.cut = lambda planner, draft: draft  # type: ignore[method-assign]
    found = {}
    for speculate in ("off", "lookup"):
        model = edge.load(bundle.root, speculate=speculate, threads=1)
        result = model.generate(PROMPT, edge.GenerateOptions(max_tokens=TOKENS), raw=True)
        drafted = 0 if result.speculation is None else result.speculation["drafted"]
        found[speculate] = (result.token_ids, drafted)
    return found


if __name__ == "__main__":
    cpu.share_thread_pool(1)
    Path(sys.argv[2]).write_bytes(pickle.dumps(found_in(Path(sys.argv[1]))))
