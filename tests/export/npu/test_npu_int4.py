"""Weights of 4 bits in blocks: better than rounding alone, and the simulator computes what the CPU computes."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from decoder_configs import VOCABULARY
from npu_models import (
    CONTEXT,
    NAME,
    agreement,
    bundle_of,
    checkpoint_of,
    divergence,
    needs_simulator,
    plain,
    static,
    walk,
)

from edge.bundle import Bundle
from edge.errors import InputError
from edge.export.targets.kind import Wanted, check_wanted
from edge.export.targets.npu.blocks import BLOCK, STEPS, Blocks, in_blocks
from edge.targets import read_target

SIZES = [16, 8, 3, *[1] * 5, 8, 8, 8, 1, 1, 6]
TEXTS = np.random.default_rng(3).integers(3, VOCABULARY, (3, CONTEXT))


def floats(blocks: Blocks) -> np.ndarray:
    """The weight [N, K]."""
    steps = np.repeat(blocks.steps.astype(np.float32), BLOCK, axis=0)
    return (blocks.q.astype(np.float32) * steps * blocks.scale).T


def test_a_weight_in_blocks_is_near_for_the_inputs_it_has() -> None:
    random = np.random.default_rng(0)
    weight = random.standard_normal((48, 4 * BLOCK)).astype(np.float32)
    weight[:, :BLOCK] *= 0.1  # blocks of other sizes, whose steps are smaller
    inputs = (random.standard_normal((999, 8)) @ random.standard_normal((8, 4 * BLOCK))).astype(np.float32)
    made, rounded = (in_blocks(weight, moment) for moment in (inputs.T @ inputs, np.eye(4 * BLOCK, dtype=np.float32)))
    for blocks in (made, rounded):
        assert blocks.q.shape == (4 * BLOCK, 48) and blocks.steps.shape == (4, 48) and blocks.scale.shape == (48,)
        assert blocks.steps.min() >= 1 and blocks.steps.max() <= STEPS
        assert blocks.steps[0].mean() < 0.3 * blocks.steps[1:].mean()
    assert np.square(floats(rounded) - weight).mean() < 0.015 * weight.var()
    exact = inputs @ weight.T
    errors = [np.square(inputs @ floats(blocks).T - exact).mean() for blocks in (made, rounded)]
    assert errors[0] < 0.25 * errors[1]


@pytest.fixture(scope="module", params=["llama", "qwen2"])  # the second adds a bias to query, key and value
def bundle(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Bundle:
    wide = checkpoint_of(request.param, hidden_size=96, intermediate_size=96)
    return bundle_of(wide, tmp_path_factory.mktemp(request.param), weights="int4")


def test_they_take_half_the_memory_and_stay_close(bundle: Bundle, tmp_path: Path) -> None:
    int8 = bundle_of(checkpoint_of(bundle.manifest.family, hidden_size=96, intermediate_size=96), tmp_path)
    sizes = [each.path(f"targets/{NAME}/weights.bin").stat().st_size for each in (bundle, int8)]
    assert sizes[0] < 0.75 * sizes[1]  # small ones are padded to whole pages
    moved = [read_target(each, NAME).graphs[0].cost for each in (bundle, int8)]
    assert moved[0] is not None and moved[1] is not None and moved[0].weights < 0.65 * moved[1].weights
    ours, theirs = (walk(engine, TEXTS[0], SIZES) for engine in (static(bundle), plain(bundle)))
    assert divergence(ours, theirs) < 0.3


def test_the_simulator_computes_them(bundle: Bundle) -> None:
    needs_simulator()
    engine = static(bundle, "qnn")
    for session in engine.sessions.values():
        assert set(engine.provider.placement(session)) == {"QNNExecutionProvider"}
    cpu = static(bundle)
    ours, theirs = (np.concatenate([walk(each, text, SIZES) for text in TEXTS]) for each in (engine, cpu))
    kl, same = divergence(ours, theirs), agreement(ours, theirs)
    print(f"{bundle.manifest.family}: KL {kl:.1e}, same likeliest token {same:.1%} of {len(ours)}")
    assert kl < 0.00001 and same >= 0.95  # an untrained model's best tokens are nearly equal


def test_what_cannot_be_is_a_sentence() -> None:
    with pytest.raises(InputError, match="There are no target weights 'int3' for npu-qualcomm; choose int8 or int4"):
        check_wanted(Wanted(NAME, weights="int3"), checkpoint_of("llama"), CONTEXT)
