"""A model on our kernels: the same logits, bit for bit, whatever its steps, threads and instructions are."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
from pathlib import Path

import numpy as np

from edge.bundle import Bundle, open_bundle
from edge.manifest import KV_DTYPES
from edge.runtime.engine.want import Likeliest
from edge.runtime.kernels.library import VARIABLE, Kernels
from edge.runtime.load import open_engine

SIZES = (1, 2, 3, 5, 8, 13, 16, 64, 128, 256)  # of steps


def logits_of(bundle: Bundle, size: int, threads: int) -> str:
    """A hash of the logits of a text in steps of `size` tokens, over both kinds of KV cache, or of its likeliest tokens
    where beams ask for those."""
    found = hashlib.sha256()
    vocab, encoded = bundle.manifest.dims.vocab_size, bundle.manifest.encoder is not None
    tokens = np.random.default_rng(0).integers(0, vocab, min(300, bundle.manifest.context))
    for kv in ("float32",) if encoded else KV_DTYPES:
        engine = open_engine(bundle, threads=threads, kv=kv)
        cache = engine.new_cache(cross=engine.encoder.encode_text(tokens[:33]) if engine.encoder else None)
        for start in range(0, len(tokens), size):
            piece = tokens[start : start + size]
            rows = np.arange(len(piece))
            if engine.ranks:
                logarithms, likeliest = engine.step(cache, piece, rows, want=Likeliest(8))
                found.update(np.concatenate([logarithms.view(np.uint32), likeliest], axis=1).tobytes())
            else:
                found.update(np.ascontiguousarray(engine.step(cache, piece, rows)).tobytes())
    return found.hexdigest()


def logits_elsewhere(bundle: Bundle, threads: int, form: str) -> list[str] | None:
    """In a process of its own, which has that many threads; None where this processor does not run the form."""
    command = [sys.executable, "-W", "error", __file__, str(bundle.root), str(threads)]
    environment = {**os.environ, VARIABLE: form}
    done = subprocess.run(command, capture_output=True, text=True, check=True, env=environment)
    return None if "cannot run" in done.stderr else done.stdout.split()


def test_logits_are_the_same_whatever_computes_them(kernels: Kernels, either: Bundle) -> None:
    found = {
        (form, threads): logits_elsewhere(either, threads, form)
        for form in ("avx2", "avx512_vnni")
        for threads in (1, 2, 5)  # more than this machine may have cores, too
    }
    whole = found["avx2", 1]
    assert whole is not None and len(whole) == len(SIZES)
    for (form, threads), hashes in found.items():
        if hashes is not None:
            assert set(hashes) == {whole[0]}, f"{form}, {threads} threads: steps of {SIZES}"


if __name__ == "__main__":
    for each in SIZES:
        print(logits_of(open_bundle(Path(sys.argv[1])), each, int(sys.argv[2])))
