"""Leaving out layers is faster, on the kernels that a machine runs by default."""

from __future__ import annotations

import shutil
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import edge
from edge.bundle import Bundle
from edge.runtime.engine.engine import Engine
from edge.runtime.kernels.library import find_kernels
from edge.runtime.load import open_engine

TURNS = 60


@pytest.fixture(scope="module")
def wide(tiny_checkpoint: Path, tmp_path_factory: pytest.TempPathFactory) -> Bundle:
    """A random decoder whose layers take nearly all of a step's time; in segments where our kernels do not run."""
    import torch
    from transformers import AutoConfig, LlamaForCausalLM

    torch.set_num_threads(1)  # more wait for each other on a busy machine
    folder = tmp_path_factory.mktemp("wide")
    shutil.copytree(tiny_checkpoint, folder / "wide", ignore=shutil.ignore_patterns("*.safetensors"))
    sizes = {"hidden_size": 256, "intermediate_size": 768, "num_hidden_layers": 12, "head_dim": 64}
    LlamaForCausalLM(AutoConfig.from_pretrained(tiny_checkpoint, **sizes)).save_pretrained(folder / "wide")
    segments = None if find_kernels() is not None else 1
    options: dict[str, Any] = {"weights": "int8", "check": False, "candidates": False, "draft_text": 0}
    return edge.export(folder / "wide", folder / "wide.edge", segments=segments, **options)


def quickest(engines: list[Engine]) -> list[float]:
    """Seconds of each engine's quickest step, of many in turns: others may use the machine."""
    caches, found = [engine.new_cache() for engine in engines], [float("inf")] * len(engines)
    for engine, cache in zip(engines, caches, strict=True):
        cache.prompt = 64
        engine.step(cache, np.arange(3, 67))
    for _ in range(TURNS):
        for i, (engine, cache) in enumerate(zip(engines, caches, strict=True)):
            for _ in range(4):
                began = time.perf_counter()
                engine.step(cache, np.array([5]))
                found[i] = min(found[i], time.perf_counter() - began)
            cache.truncate(64)
    return found


@pytest.mark.parametrize("kv", ["float32", "auto"])
def test_half_of_the_layers_are_faster_than_all_of_them(wide: Bundle, kv: str) -> None:
    """About 1.8 times as fast; slower than the whole model, as it was when kernels were made one, fails."""
    whole, half = quickest([open_engine(wide, context=128, skip=skip, kv=kv) for skip in ("off", "unified:0.5")])
    assert half < whole, f"{1e6 * half:.0f} us instead of {1e6 * whole:.0f}"
