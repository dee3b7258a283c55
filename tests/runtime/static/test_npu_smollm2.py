"""SmolLM2-135M on Qualcomm's simulator: a prompt's chunk and 32 tokens, next to the CPU over the same integers."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from npu_models import NAME, agreement, divergence, needs_simulator, static

import edge
from edge import catalog
from edge.runtime.engine.engine import Engine
from edge.runtime.text.tokenizer import Text
from edge.targets import read_target

SMOLLM2 = catalog.local(catalog.resolve("smollm2-135m-instruct"))  # in the user's cache, before tests get their own
TEXT = (
    "The lighthouse keeper climbed the stairs every evening to light the lamp. When the storm came, the waves rose "
    "higher than the rocks, and the ships at sea could see nothing but the beam that turned above them. In the morning "
    "the sea was calm again, and the keeper walked along the beach to see what the water had brought: planks, a "
    "barrel, and a bottle with a letter in it, which somebody had written many years ago. He read it twice, and "
    "then he climbed the stairs again."
)
CHUNK, STEPS = 64, 32


def teacher_forced(engine: Engine, tokens: np.ndarray) -> np.ndarray:
    """The logits after a chunk, and after each of the steps that follow it."""
    cache = engine.new_cache()
    made = [engine.step(cache, tokens[:CHUNK])[0].copy()]
    made += [engine.step(cache, tokens[i : i + 1])[0].copy() for i in range(CHUNK, CHUNK + STEPS)]
    return np.array(made)


@pytest.mark.skipif(SMOLLM2 is None or SMOLLM2.suffix != ".gguf", reason="the GGUF of SmolLM2 is not in the cache")
@pytest.mark.slow  # ten minutes: a step of the simulator takes ten seconds
def test_smollm2_on_the_simulator(tmp_path: Path) -> None:
    needs_simulator()
    given = {"target": NAME, "candidates": False, "draft_text": 0}
    bundle = edge.export(str(SMOLLM2), tmp_path / "smol.edge", weights="keep", **given)
    quality = read_target(bundle, NAME).quality
    print(f"CPU, {quality['check_tokens']:.0f} tokens: {quality}")
    assert quality["check_tokens"] > 200 and quality["top1_agreement"] >= 0.9
    assert quality["perplexity"] / quality["perplexity_float32"] <= 1.1
    tokens = np.array(Text(bundle).encode_prompt(TEXT), np.int64)
    assert len(tokens) >= CHUNK + STEPS
    cpu, simulator = (teacher_forced(static(bundle, provider), tokens) for provider in ("cpu", "qnn"))
    kl, same = divergence(simulator, cpu), agreement(simulator, cpu)
    print(f"simulator: KL {kl:.1e} from the CPU, same likeliest token {same:.1%} of {len(cpu)}")
    assert kl < 0.005 and same >= 0.98
