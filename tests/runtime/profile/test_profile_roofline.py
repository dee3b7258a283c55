"""What binds an operator, and a step's time by part and by layer."""

from __future__ import annotations

import pytest
from profile_example import example_profile

from edge.profile.roofline import ARITHMETIC, CACHES, MEMORY, NEITHER, kind_of, limit_of, path_of, step_times
from edge.runtime.costs.record import Op, Peaks

PEAKS = Peaks(10.0, {"float32": 100.0, "int8": 1000.0}, cache_gb_per_s=50.0)


@pytest.mark.parametrize(
    ("us", "moved", "flops", "arithmetic", "name", "reached"),
    [
        (200.0, 1_000_000, 1_000_000, "float32", MEMORY, 0.5),  # 100 us at 10 GB/s
        (200.0, 1_000, 10_000_000, "float32", ARITHMETIC, 0.5),  # 100 us at 100 GFLOP/s
        (20.0, 1_000, 10_000_000, "int8", ARITHMETIC, 0.5),
        (40.0, 1_000_000, 0, None, CACHES, 0.5),  # 25 GB/s: more than memory gives
        (10.0, 1_000, 1_000, "float32", NEITHER, 0.01),
        (200.0, 1_000, 10_000_000, "unheard of", NEITHER, 0.0005),
    ],
)
def test_the_nearer_roof_binds(
    us: float, moved: int, flops: int, arithmetic: str | None, name: str, reached: float
) -> None:
    found = limit_of(us, moved, flops, arithmetic, PEAKS)
    assert found is not None and found.name == name and found.reached == pytest.approx(reached)


def test_nothing_binds_what_moves_nothing_or_is_unknown() -> None:
    assert limit_of(5.0, 0, 0, None, PEAKS) is None and limit_of(5.0, None, None, None, PEAKS) is None


@pytest.mark.parametrize(
    ("node", "path"),
    [
        ("layers.3/self_attn/qkv_proj/parts.0/MatMulNBits_node_2", "self_attn/qkv_proj"),
        ("model/layers.3/mlp/Mul_node_2", "mlp"),
        ("layers.29/Add_node_362", ""),
        ("lm_head/MatMulNBits_node_364", "lm_head"),
        ("start/conv1/MatMul_node_7/MatMulAddFusion", "start/conv1/MatMul_node_7"),
        ("BiasGelu_token_6", ""),
        ("/layers.2/MatMulNBits", ""),
    ],
)
def test_a_part_has_the_same_name_in_every_layer(node: str, path: str) -> None:
    assert path_of(node) == path


def test_operators_are_of_few_kinds() -> None:
    types = ["MatMulNBits", "GroupQueryAttention", "SkipLayerNormalization", "Mul", "Transpose"]
    assert [kind_of(each) for each in types] == [
        "matrix product", "attention", "normalisation", "value by value", "moving data"
    ]  # fmt: skip


def test_parts_and_layers_add_up_to_the_step() -> None:
    profile = example_profile()
    one, many = step_times(profile.ops, profile.peaks)
    assert (one.graph, one.size, many.size) == ("decoder", 1, 128)
    for step in (one, many):
        assert step.us == pytest.approx(sum(part.us for part in step.parts))
        nodes = [node for layer in step.layers.values() for node in layer]
        assert step.us == pytest.approx(sum(us for _, us in nodes))
        for i, part in enumerate(step.parts):
            assert part.us == pytest.approx(sum(us for place, us in nodes if place == i))
        assert [part.us for part in step.parts] == sorted((part.us for part in step.parts), reverse=True)
    assert list(one.layers) == ["0", "1", "2", "head"]
    assert one.parts[0].path == "" and one.parts[0].limit is not None


def test_what_took_no_time_is_left_out() -> None:
    ops = [Op("decoder", 1, str(i), "Mul", f"layers.{i}/Mul", 5, us, 8, 2) for i, us in enumerate([2.0, 0.0, -1.0])]
    (step,) = step_times(ops, PEAKS)
    assert step.us == 2 and list(step.layers) == ["0"] and step.parts[0].nodes == 1


def test_a_part_with_an_unknown_node_is_unknown() -> None:
    ops = [Op("decoder", 1, "0", "Conv", f"layers.{i}/c/Conv", 5, 2.0, 8, None if i else 4) for i in range(2)]
    (part,) = step_times(ops, PEAKS)[0].parts
    assert (part.nodes, part.bytes, part.flops, part.gflop_per_s) == (2, 16, None, None)
    assert part.gb_per_s == pytest.approx(0.004)
