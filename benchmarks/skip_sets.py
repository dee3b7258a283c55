"""Which layers a policy that reads prompts leaves out, for the prompts of one kind and of another."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from questions import read

from edge.bundle import Bundle
from edge.runtime.load import open_engine
from edge.runtime.model import Model
from edge.runtime.skip.engine import SegmentedEngine
from edge.runtime.text.tokenizer import Text

KINDS = ("translation", "math_reasoning")  # of Spec-Bench's questions
CONTEXT = 1024


def left_out(bundle: Bundle, skip: str, asked: list[str]) -> NDArray[np.float64]:
    """[prompts, layers]: 1 where the answer to a prompt leaves a layer out."""
    context = min(CONTEXT, bundle.manifest.context)
    engine = open_engine(bundle, skip=skip, context=context)
    assert isinstance(engine, SegmentedEngine)
    model, segments = Model(bundle, engine, Text(bundle), speculate="off"), bundle.manifest.segments
    found = np.ones((len(asked), bundle.manifest.dims.num_layers))
    for row, prompt in zip(found, asked, strict=True):
        ids = np.array(model.prompt_ids(prompt)[: context - 1], np.int64)
        cache = engine.new_cache(context)
        cache.prompt = len(ids)
        engine.step(cache, ids)
        for unit in engine.policy.route(cache, 1):
            row[segments[unit].layers] = 0.0
    return found


def report(bundle: Bundle, skip: str, questions: Path, count: int) -> dict[str, list[float]]:
    """The share of prompts of each kind that leave out each layer; printed where a layer is ever left out."""
    tasks = read(questions)
    asked = {kind: [question["turns"][0] for question in tasks[kind][:count]] for kind in KINDS}
    shares = {kind: left_out(bundle, skip, prompts).mean(axis=0) for kind, prompts in asked.items()}
    print(f"\n{skip}: share of {count} prompts that leave a layer out")
    for kind, share in shares.items():
        print(f"  {kind:16}", *(f"{layer}:{share[layer]:.0%}" for layer in np.flatnonzero(sum(shares.values()))))
    apart = float(np.abs(shares[KINDS[0]] - shares[KINDS[1]]).sum())
    print(f"  the mean sets differ by {apart:.2f} layers")
    return {kind: [round(float(value), 3) for value in share] for kind, share in shares.items()}
