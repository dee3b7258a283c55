"""Experts by our kernels: what the mathematics says, with the same bits whatever rows are next to each other."""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import onnxruntime as ort
import pytest
from numpy.typing import NDArray
from onnx import TensorProto, helper
from onnxruntime.capi.onnxruntime_pybind11_state import Fail, InvalidArgument, RuntimeException
from quantized_matrices import Matrix, matrix_of

from edge.runtime.kernels.library import DOMAIN, Kernels, Layout
from edge.runtime.providers import open_provider
from edge.runtime.providers.cpu import session_options

EXPERTS, CHOSEN, WIDTH, WIDE = 6, 3, 64, 32
BIASES = "gate_up.bias", "down.bias"
USUAL = {"alpha": 1.0, "beta": 0.0, "limit": np.inf}
Floats = NDArray[np.float32]


@pytest.fixture(autouse=True)
def _with_experts(kernels: Kernels) -> None:
    if not kernels.experts:
        pytest.skip("the library is of a version without experts")


@dataclass
class Mixture:
    """Experts: gate and up in turns, and down; a node over them."""

    gate_up: Matrix  # [E * 2 * WIDE, WIDTH]
    down: Matrix  # [E * WIDTH, WIDE]
    normalized: bool = False
    biases: dict[str, Floats] = field(default_factory=dict)
    gates: dict[str, float] = field(default_factory=dict)  # alpha, beta and limit
    packed: list[NDArray[np.uint8]] = field(default_factory=list)  # what sessions read for as long as they live

    def session(self, kernels: Kernels, *, left_out: str = "", **changes: int) -> ort.InferenceSession:
        attributes = {"k": CHOSEN, "experts": EXPERTS, "normalize_routing_weights": int(self.normalized)}
        with ExitStack() as stack:
            for name, matrix in (("gate", self.gate_up), ("down", self.down)):
                columns, inputs = matrix.values.shape
                layout = Layout(matrix.bits, inputs, columns, matrix.block, False, matrix.zero_points is not None)
                packed = aligned(kernels.packed_bytes(layout))
                kernels.pack(layout, matrix.stored(), matrix.scales, matrix.points(), packed)
                self.packed.append(packed)
                sizes = {"bits": matrix.bits, "K": inputs, "N": columns, "block_size": matrix.block}
                lent = stack.enter_context(kernels.lend(packed))
                sizes |= {"half": 0, "zero_points": int(layout.zero_points), "lent": lent}
                attributes |= {f"{name}.{fact}": size for fact, size in sizes.items()}
            names = ["x", "scores", "" if left_out == "weights" else "weights", *self.biases]
            return session(kernels, "QMoE", names, attributes | self.gates | changes)

    def expected(self, x: Floats, scores: Floats, weights: Floats) -> Floats:
        gate_up = floats(self.gate_up).reshape(EXPERTS, 2 * WIDE, WIDTH)
        down = floats(self.down).reshape(EXPERTS, WIDTH, WIDE)
        alpha, beta, limit = (self.gates.get(name, usual) for name, usual in USUAL.items())
        of_gate, of_down = (self.biases.get(name, np.zeros(EXPERTS)[:, None]) for name in BIASES)
        made = np.zeros_like(x)
        for t, row in enumerate(x):
            chosen = np.argsort(-scores[t], kind="stable")[:CHOSEN]
            shares = weights[t, chosen] / (weights[t, chosen].sum() if self.normalized else 1)
            for expert, share in zip(chosen, shares, strict=True):
                both = gate_up[expert] @ row + of_gate[expert]
                gate, up = np.minimum(both[::2], limit), np.clip(both[1::2], -limit, limit)
                inner = gate / (1 + np.exp(-alpha * gate)) * (up + beta)
                made[t] += share * (down[expert] @ inner + of_down[expert])
        return made


def aligned(size: int) -> NDArray[np.uint8]:
    """Memory that begins where mapped files do."""
    room = np.empty(size + 64, np.uint8)
    start = -room.ctypes.data % 64
    return room[start : start + size]


def floats(matrix: Matrix) -> Floats:
    zeros: Any = 2 ** (matrix.bits - 1)
    if matrix.zero_points is not None:
        zeros = matrix.zero_points.repeat(matrix.block, 1).astype(np.float32)
    return (matrix.values.astype(np.float32) - zeros) * matrix.scales.repeat(matrix.block, 1)


def session(kernels: Kernels, op: str, inputs: list[str], attributes: dict[str, Any]) -> ort.InferenceSession:
    while not inputs[-1]:
        inputs.pop()
    node = helper.make_node(op, inputs, ["y"], domain=DOMAIN, **attributes)
    given = [helper.make_tensor_value_info(name, TensorProto.FLOAT, None) for name in inputs if name]
    made = [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)]
    opsets = [helper.make_opsetid("", 21), helper.make_opsetid(DOMAIN, 1)]
    model = helper.make_model(helper.make_graph([node], "g", given, made), opset_imports=opsets, ir_version=10)
    open_provider("cpu")  # its threads
    options = session_options(None)
    options.log_severity_level = 4
    options.register_custom_ops_library(str(kernels.path))
    return ort.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])


def inputs_of(rows: int) -> dict[str, Floats]:
    rng = np.random.default_rng(rows)
    scores = rng.standard_normal((rows, EXPERTS)).astype(np.float32)
    weights = np.exp(scores) / np.exp(scores).sum(-1, keepdims=True)
    return {"x": rng.standard_normal((rows, WIDTH)).astype(np.float32), "scores": scores, "weights": weights}


def mixture(bits: int, *, points: bool = False, normalized: bool = False) -> Mixture:
    first = matrix_of(WIDTH, EXPERTS * 2 * WIDE, 32, bits, zeros=points)
    return Mixture(first, matrix_of(WIDE, EXPERTS * WIDTH, 32, bits, zeros=points), normalized)


@pytest.mark.parametrize(
    ("bits", "points", "normalized"), [(8, False, False), (4, True, True), (4, False, False), (2, False, True)]
)
def test_experts_compute_what_the_mathematics_says(kernels: Kernels, bits: int, points: bool, normalized: bool) -> None:
    mix, given = mixture(bits, points=points, normalized=normalized), inputs_of(9)
    (made,) = mix.session(kernels).run(None, given)
    expected = mix.expected(given["x"], given["scores"], given["weights"])
    assert np.abs(made - expected).max() < 0.02 * np.abs(expected).max()  # rows are rounded to 8 bits, twice


def clamped(bits: int) -> tuple[Mixture, dict[str, Floats]]:
    """gpt-oss's: biases, and a gate with a limit that many values pass."""
    mix, rng = mixture(bits, normalized=True), np.random.default_rng(3)
    sizes = zip(BIASES, (2 * WIDE, WIDTH), strict=True)
    mix.biases = {name: rng.standard_normal((EXPERTS, size)).astype(np.float32) for name, size in sizes}
    mix.gates = {"alpha": 1.702, "beta": 1.0, "limit": 0.5}
    return mix, inputs_of(9) | mix.biases


@pytest.fixture
def _with_biases(kernels: Kernels) -> None:
    if not kernels.biased_experts:
        pytest.skip("the library is of a version without biases of experts")


@pytest.mark.usefixtures("_with_biases")
@pytest.mark.parametrize("bits", [8, 4])
def test_experts_with_biases_and_a_limit_compute_what_the_mathematics_says(kernels: Kernels, bits: int) -> None:
    mix, given = clamped(bits)
    run = mix.session(kernels)
    made = run.run(None, given)[0]
    expected = mix.expected(given["x"], given["scores"], given["weights"])
    assert np.abs(made - expected).max() < 0.02 * np.abs(expected).max()
    alone = [run.run(None, given | {n: given[n][i : i + 1] for n in ("x", "scores", "weights")})[0] for i in range(9)]
    assert np.array_equal(np.concatenate(alone).view(np.uint32), made.view(np.uint32))


@pytest.mark.usefixtures("_with_biases")
def test_biases_of_zeros_and_a_limit_that_nothing_passes_change_no_bit(kernels: Kernels) -> None:
    mix, given = mixture(8), inputs_of(9)
    plain = mix.session(kernels).run(None, given)[0]
    sizes = zip(BIASES, (2 * WIDE, WIDTH), strict=True)
    mix.biases = {name: np.zeros((EXPERTS, size), np.float32) for name, size in sizes}
    mix.gates = {"limit": 1e30}
    assert np.array_equal(mix.session(kernels).run(None, given | mix.biases)[0], plain)


def test_without_weights_they_are_the_softmax_of_the_chosen_scores(kernels: Kernels) -> None:
    mix, given = mixture(8, normalized=True), inputs_of(5)
    of_weights = mix.session(kernels).run(None, given)[0]
    of_scores = mix.session(kernels, left_out="weights").run(None, {n: given[n] for n in ("x", "scores")})[0]
    assert np.abs(of_weights - of_scores).max() < 1e-5 * np.abs(of_weights).max()


def test_a_row_has_the_same_bits_whatever_rows_are_next_to_it(kernels: Kernels) -> None:
    mix, given = mixture(4, points=True), inputs_of(40)
    run = mix.session(kernels)
    whole = run.run(None, given)[0]
    for size in (1, 2, 7):
        parts = [run.run(None, {n: v[i : i + size] for n, v in given.items()})[0] for i in range(0, 40, size)]
        assert np.array_equal(np.concatenate(parts).view(np.uint32), whole.view(np.uint32))


def test_scores_have_the_same_bits_whatever_rows_are_next_to_them(kernels: Kernels) -> None:
    rng = np.random.default_rng(0)
    x, router = (rng.standard_normal((n, 80)).astype(np.float32) for n in (33, 5))
    run = session(kernels, "FusedMatMul", ["x", "router"], {"transB": 1})
    whole = run.run(None, {"x": x, "router": router})[0]
    assert np.abs(whole - x @ router.T).max() < 1e-4
    alone = np.concatenate([run.run(None, {"x": x[i : i + 1], "router": router})[0] for i in range(33)])
    assert np.array_equal(alone, whole)


def test_of_equal_scores_the_first_experts_are_chosen(kernels: Kernels) -> None:
    mix, given = mixture(8), inputs_of(2)
    given["scores"][:] = 1
    made = mix.session(kernels).run(None, given)[0]
    expected = mix.expected(given["x"], given["scores"], given["weights"])
    assert np.abs(made - expected).max() < 0.02 * np.abs(expected).max()


@pytest.mark.usefixtures("_with_biases")
def test_an_expert_whose_weight_is_0_is_not_computed(kernels: Kernels) -> None:
    mix, given = clamped(8)
    mix.normalized, left_out = False, 2
    given["weights"][3:] = 0
    given["weights"][:, left_out] = 0
    for name in BIASES:
        given[name][left_out] = np.nan
    made = mix.session(kernels).run(None, given)[0]
    assert not made[3:].any()
    mix.biases = {name: np.nan_to_num(given[name]) for name in BIASES}
    expected = mix.expected(given["x"], given["scores"], given["weights"])
    assert np.abs(made - expected).max() < 0.02 * np.abs(expected).max()


@pytest.mark.parametrize("what", ["x", "weights"])
def test_what_is_no_number_makes_its_row_none_and_no_other(kernels: Kernels, what: str) -> None:
    mix, given = mixture(8), inputs_of(4)
    run = mix.session(kernels)
    before = run.run(None, given)[0]
    given[what][2] = np.nan
    made = run.run(None, given)[0]
    assert np.isnan(made[2]).all()
    assert np.array_equal(np.delete(made, 2, 0), np.delete(before, 2, 0))


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"k": EXPERTS + 1}, "k is 7"),
        ({"experts": 5}, "not whole panels of 5 experts"),
        ({"experts": 12}, "down does not read"),
        ({"gate.lent": 10**9}, "no packed weights"),
    ],
)
def test_attributes_that_do_not_fit_are_refused(kernels: Kernels, changes: dict[str, int], reason: str) -> None:
    with pytest.raises((Fail, InvalidArgument, RuntimeException), match=reason):
        mixture(8).session(kernels, **changes)


@pytest.mark.usefixtures("_with_biases")
@pytest.mark.parametrize("name", BIASES)
def test_biases_of_other_sizes_are_refused(kernels: Kernels, name: str) -> None:
    mix, given = clamped(8)
    run = mix.session(kernels)
    with pytest.raises((Fail, InvalidArgument), match="_experts_bias"):
        run.run(None, given | {name: given[name][:, 1:]})


@pytest.mark.usefixtures("_with_biases")
@pytest.mark.parametrize("gates", [{"alpha": 0.0}, {"limit": -1.0}, {"beta": float("inf")}])
def test_gates_that_no_activation_has_are_refused(kernels: Kernels, gates: dict[str, float]) -> None:
    mix = mixture(8)
    mix.gates = gates
    with pytest.raises((Fail, InvalidArgument, RuntimeException), match="no activation|not a finite number"):
        mix.session(kernels)


@pytest.mark.parametrize(
    ("name", "shape"), [("x", (3, WIDTH + 16)), ("scores", (2, EXPERTS)), ("scores", (3, 5)), ("weights", (3, 1))]
)
def test_inputs_of_other_sizes_are_refused(kernels: Kernels, name: str, shape: tuple[int, ...]) -> None:
    given = inputs_of(3) | {name: np.zeros(shape, np.float32)}
    mix = mixture(8)
    run = mix.session(kernels)
    with pytest.raises((Fail, InvalidArgument), match="QMoE"):
        run.run(None, given)
