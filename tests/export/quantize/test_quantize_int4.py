"""Calibrated 4-bit weights on tiny random models: solving one matrix, walking a decoder, tuning scales."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from graph_harness import tiny_model
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import ByteLevel, Sequence, Split
from transformers import Gemma3TextConfig, LlamaConfig, Phi3Config, Qwen3Config

from edge.errors import ExportError
from edge.export.checkpoint import open_checkpoint
from edge.export.facts.checkpoint import TokenizerFiles
from edge.export.facts.tensors import Format, QTensor, matrices
from edge.export.graph.weights import pack_bits, pack_blocks
from edge.export.quantize import gptq_layers, gptq_quick, quantize, sampled
from edge.export.quantize.allocate import WINDOWS, Unit, bits_of, choose, measure
from edge.export.quantize.calibration import WINDOW, calibration_windows
from edge.export.quantize.calibration_cache import CalibrationCache
from edge.export.quantize.calibration_set import TextSet
from edge.export.quantize.gptq_layers import SolveOptions, solve_decoder
from edge.export.quantize.method import Options
from edge.export.quantize.rtn import round_to_nearest
from edge.export.quantize.sampled import PIECE, PREFIX, _draw, sampled_windows
from edge.export.quantize.scales import Teacher, tune_scales
from edge.export.quantize.solve import search, spread
from edge.export.quantize.solve import solve as solve_arrays
from edge.export.reference.in_numpy import Reference
from edge.home import cache_dir
from edge.manifest import Tokens

SIZES: dict[str, Any] = dict(
    vocab_size=256,
    hidden_size=40,
    intermediate_size=72,
    num_hidden_layers=2,
    num_attention_heads=4,
    num_key_value_heads=2,
    max_position_embeddings=128,
    pad_token_id=0,
    bos_token_id=0,
    eos_token_id=1,
)
CONFIGS = {
    "llama, tied": lambda: LlamaConfig(**SIZES, tie_word_embeddings=True),
    "llama, wide": lambda: LlamaConfig(
        **SIZES | {"hidden_size": 128, "intermediate_size": 256}, tie_word_embeddings=True
    ),
    "llama, untied, biases": lambda: LlamaConfig(**SIZES, tie_word_embeddings=False, attention_bias=True),
    "qwen3": lambda: Qwen3Config(**SIZES, head_dim=12),
    "gemma3": lambda: Gemma3TextConfig(
        **SIZES, head_dim=16, sliding_window=8, layer_types=["sliding_attention", "full_attention"]
    ),
    "phi3": lambda: Phi3Config(**SIZES),
}


def solve(
    w: torch.Tensor, h: torch.Tensor, bits: int, block_size: int, rounds: int = 2, symmetric: bool = False
) -> QTensor:
    return solve_arrays(w.numpy(), h.numpy(), Format(bits, block_size, symmetric), rounds)


def inputs_with_correlations(k: int, rows: int = 512, seed: int = 0) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    mix = torch.randn(k, k, generator=generator) * torch.logspace(0, -2, k)
    return torch.randn(rows, k, generator=generator) @ mix


def output_error(w: torch.Tensor, quantized: QTensor, x: torch.Tensor) -> float:
    off = x @ (torch.from_numpy(quantized.dequantize()) - w).T
    return float(off.square().mean() / (x @ w.T).square().mean())


@pytest.mark.parametrize("symmetric", [False, True])
@pytest.mark.parametrize("bits", [4, 8])
def test_search_comes_close_to_every_scale_and_zero_point(bits: int, symmetric: bool) -> None:
    torch.manual_seed(0)
    w, weights, size = torch.randn(64, 96) * 0.05 + 0.01, torch.rand(96) + 0.1, 32
    top = 2**bits - 1
    found = search(w.numpy(), weights.numpy(), Format(bits, size, symmetric))
    scales, zeros = map(torch.from_numpy, found)

    def errors(scales: torch.Tensor, zeros: torch.Tensor) -> torch.Tensor:
        scale, zero = (torch.from_numpy(spread(each.numpy(), size, 96)) for each in (scales, zeros))
        q = (torch.round(w / scale) + zero).clamp(0, top)
        return ((q - zero) * scale - w).square().mul(weights).view(64, -1, size).sum(-1)

    blocks = w.view(64, -1, size)
    low, high = blocks.amin(-1), blocks.amax(-1)
    full = 2 * torch.maximum(high, -low) / top if symmetric else (high - low) / top
    least = torch.full_like(full, torch.inf)
    for shrink in torch.linspace(0.55, 1.1, 200).tolist():
        for off in (0.0,) if symmetric else (-1.0, 0.0, 1.0):
            middle = torch.zeros_like(full) if symmetric else (low + high) / 2 / (full * shrink)
            zero = torch.full_like(full, (top + 1) / 2) if symmetric else torch.round(top / 2 - middle + off)
            least = torch.minimum(least, errors(full * shrink, zero.clamp(0, top)))
    ratio = errors(scales, zeros).sum() / least.sum()
    assert 0.99 < ratio < (1.025 if bits == 4 else 1.35)  # 8 bits: chance finds better among hundreds
    assert not symmetric or bool((zeros == (top + 1) / 2).all())


@pytest.mark.parametrize("block_size", [16, 32, 64])
def test_solving_beats_rounding_on_correlated_inputs(block_size: int) -> None:
    x = inputs_with_correlations(96)
    w = torch.randn(48, 96, generator=torch.Generator().manual_seed(1))
    solved = solve(w, x.T @ x, 4, block_size)
    rounded = round_to_nearest(w.numpy(), 4, block_size, symmetric=False)
    assert output_error(w, solved, x) < 0.5 * output_error(w, rounded, x)


def test_each_round_of_descent_and_refitting_lowers_the_error() -> None:
    x = inputs_with_correlations(128)
    w = torch.randn(32, 128, generator=torch.Generator().manual_seed(1))
    errors = [output_error(w, solve(w, x.T @ x, 4, 32, rounds=rounds), x) for rounds in (0, 1, 2)]
    assert errors[2] < errors[1] < errors[0]


def test_a_symmetric_solution_has_no_zero_points_and_still_beats_rounding() -> None:
    x = inputs_with_correlations(96)
    w = torch.randn(48, 96, generator=torch.Generator().manual_seed(1))
    solved = solve(w, x.T @ x, 4, 32, symmetric=True)
    assert solved.zero_points is None and (solved.scales > 0).all()
    assert output_error(w, solved, x) < 0.6 * output_error(w, round_to_nearest(w.numpy(), 4, 32), x)


def test_a_weight_that_lies_on_a_grid_is_found_again() -> None:
    """As those of a Q4_1 file whose minima are multiples of its scales."""
    rng = np.random.default_rng(0)
    q = rng.integers(0, 16, (24, 4, 32))
    q[..., 0], q[..., 1] = 0, 15
    scales = rng.uniform(0.01, 0.1, (24, 4, 1)).astype(np.float16).astype(np.float32)
    w = torch.from_numpy((scales * (q - rng.integers(3, 12, (24, 4, 1)))).reshape(24, 128).astype(np.float32))
    x = inputs_with_correlations(128)
    assert output_error(w, solve(w, x.T @ x, 4, 32), x) < 1e-4


def test_inputs_that_calibration_never_saw_are_rounded_plainly() -> None:
    x = inputs_with_correlations(64)
    x[:, 10:20] = 0
    w = torch.randn(8, 64, generator=torch.Generator().manual_seed(1))
    for moment in (x.T @ x, torch.zeros(64, 64)):
        off = torch.from_numpy(solve(w, moment, 4, 32).dequantize()) - w
        assert torch.isfinite(off).all()
        assert off[:, 10:20].abs().max() < 0.5  # two steps of a normal block


def test_blocks_need_not_divide_the_columns() -> None:
    x = inputs_with_correlations(72)
    w = torch.randn(8, 72, generator=torch.Generator().manual_seed(1))
    solved = solve(w, x.T @ x, 4, 32)
    assert (solved.q.shape, solved.scales.shape) == ((8, 72), (8, 3))
    assert output_error(w, solved, x) < 0.01


def test_scales_are_float16_values_and_zero_points_integers() -> None:
    x = inputs_with_correlations(64)
    w = torch.randn(8, 64, generator=torch.Generator().manual_seed(1))
    solved = solve(w, x.T @ x, 4, 32)
    assert np.array_equal(solved.scales, solved.scales.astype(np.float16).astype(np.float32))
    assert solved.zero_points is not None and solved.zero_points.max() < 16 and solved.q.max() < 16


def windows_of(model: Any, count: int = 5, length: int = 40) -> torch.Tensor:
    return torch.randint(0, model.config.vocab_size, (count, length), generator=torch.Generator().manual_seed(2))


def divergence(model: Any, wanted: torch.Tensor, windows: torch.Tensor) -> float:
    with torch.no_grad():
        got = model(windows).logits.log_softmax(-1)
    return float((wanted.exp() * (wanted - got)).sum(-1).mean())


def walk(model: Any, windows: torch.Tensor) -> tuple[TextSet, Teacher, dict[str, QTensor]]:
    decoder = TextSet(model, windows)
    with torch.no_grad():
        head = decoder.head.data.clone()
        wanted = model.model(windows).last_hidden_state * decoder.head_scale
        weights, finals = solve_decoder(decoder, SolveOptions(Format(4, 32)), lambda *_: None, CalibrationCache())
    torch.testing.assert_close(finals, wanted, rtol=1e-3, atol=1e-4)  # of the float model, to the end
    return decoder, Teacher(finals, head), weights


@pytest.mark.parametrize("family", CONFIGS)
def test_walking_a_decoder_and_tuning_bring_it_closer_to_the_float_model(family: str) -> None:
    model, windows = tiny_model(CONFIGS[family]()), None
    windows = windows_of(model)
    with torch.no_grad():
        wanted = model(windows).logits.log_softmax(-1)
    originals = {n: p.detach().clone() for n, p in model.named_parameters() if p.ndim == 2}
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if name in originals:
                rounded = round_to_nearest(originals[name].numpy(), 4, 32, symmetric=False)
                parameter.copy_(torch.from_numpy(rounded.dequantize()))
    rounding = divergence(model, wanted, windows)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if name in originals:
                parameter.copy_(originals[name])

    decoder, teacher, weights = walk(model, windows)
    assert set(weights) == set(originals)
    for name, weight in weights.items():
        kernels = torch.from_numpy(weight.dequantize())  # what they will compute with
        if "layers" in name:
            assert not model.get_parameter(name).numel(), name  # freed once its layer is done
            model.get_parameter(name).data = kernels
        assert torch.equal(model.get_parameter(name), kernels), name
    walked = divergence(model, wanted, windows)
    assert walked < rounding

    tuned = tune_scales(decoder, dict(weights), teacher, lambda *_: None)
    fresh = tiny_model(CONFIGS[family]())
    with torch.no_grad():
        for name, weight in tuned.items():
            assert np.array_equal(weight.q, weights[name].q)
            fresh.get_parameter(name).copy_(torch.from_numpy(weight.dequantize()))
    assert divergence(fresh, wanted, windows) < walked


def test_values_are_judged_by_what_attention_makes_of_their_errors() -> None:
    model = tiny_model(CONFIGS["llama, untied, biases"]())
    windows = windows_of(model, count=16)
    attention = model.model.layers[0].self_attn
    decoder = TextSet(model, windows)
    with torch.no_grad():
        attention.k_proj.weight.mul_(0.1)  # broad attention, which averages over many tokens
        decoder.begin()
        hidden = decoder.hidden
        moments = {names[0]: moment for names, moment in decoder.groups(0)}
        after = decoder.hidden
        assert all(torch.equal(new, decoder.run(0, old)) for old, new in zip(hidden, after, strict=True))
        original = attention.v_proj.weight.detach().clone()

        def outputs() -> torch.Tensor:
            name = "model.layers.0.self_attn.o_proj.weight"
            with decoder.watch(0) as inputs:
                return torch.cat([(decoder.run(0, h), inputs.by_weight[name][0])[1] for h in hidden])

        wanted, errors = outputs(), []
        for judge in "qv":  # queries are judged by their inputs alone
            solution = solve(original, moments[f"model.layers.0.self_attn.{judge}_proj.weight"], 4, 32)
            attention.v_proj.weight.copy_(torch.from_numpy(solution.dequantize()))
            errors.append(float((outputs() - wanted).square().sum()))
    assert errors[1] < 0.95 * errors[0]


def test_matrices_that_are_packed_together_share_one_format() -> None:
    model = tiny_model(CONFIGS["llama, tied"]())
    _, _, weights = walk(model, windows_of(model))
    for layer in range(2):
        for members in (("self_attn.q", "self_attn.k", "self_attn.v"), ("mlp.gate", "mlp.up")):
            formats = {
                (w.bits, w.block_size, w.zero_points is None)
                for w in (weights[f"model.layers.{layer}.{m}_proj.weight"] for m in members)
            }
            assert len(formats) == 1


def byte_tokenizer() -> str:
    """A tokenizer whose tokens are single bytes."""
    alphabet = sorted(ByteLevel.alphabet())
    tokenizer = Tokenizer(WordLevel({c: i for i, c in enumerate(alphabet)}, unk_token=alphabet[0]))
    tokenizer.pre_tokenizer = Sequence([ByteLevel(add_prefix_space=False, use_regex=False), Split("", "isolated")])
    return tokenizer.to_str()


class TinyCheckpoint:
    kind, name, licence = "directory", "tiny", None

    def __init__(self, model: Any, add_bos: bool = False) -> None:
        self.config = model.config.to_dict()
        self.tokenizer = TokenizerFiles(byte_tokenizer(), None, Tokens(0, [1], 0, add_bos))
        self._tensors = {n: p.detach().numpy().copy() for n, p in model.named_parameters()}

    def names(self) -> list[str]:
        return list(self._tensors)

    def shape(self, name: str) -> tuple[int, ...]:
        return self._tensors[name].shape

    def read(self, name: str, rows: slice | None = None) -> np.ndarray:
        return self._tensors[name][rows or slice(None)].copy()

    def blocks(self, name: str) -> None:
        return None

    def stored_type(self, name: str) -> str:
        return "F32"


def test_int4_quantizes_every_matrix_of_a_checkpoint_and_reports_its_progress() -> None:
    checkpoint = TinyCheckpoint(tiny_model(CONFIGS["llama, tied"]()))
    told: list[tuple[int, int, str]] = []
    result = quantize(
        checkpoint, "int4", Options(calibration="Fish and chips. " * 40, progress=lambda *done: told.append(done))
    )
    assert list(result) == matrices(checkpoint)
    for weight in result.values():
        assert isinstance(weight, QTensor) and weight.bits == 4
    assert OPTIONAL - {"tuning scales"} <= {text for _, _, text in told}
    assert all(0 <= done <= total for done, total, _ in told)


@pytest.mark.parametrize("options", [{"block_size": 16}, {"symmetric": True}])
def test_a_format_for_all_is_not_held_to_the_bits_of_an_effort(options: dict[str, Any]) -> None:
    checkpoint = TinyCheckpoint(tiny_model(CONFIGS["llama, tied"]()))
    result = quantize(checkpoint, "int4", Options(calibration="Fish and chips. " * 40, **options))
    assert {w.bits for w in result.values() if isinstance(w, QTensor)} == {4}


def test_int4_takes_a_block_size() -> None:
    checkpoint = TinyCheckpoint(tiny_model(CONFIGS["llama, tied"]()))
    result = quantize(checkpoint, "int4", Options(block_size=16, calibration="Fish and chips. " * 10))
    assert {w.block_size for w in result.values() if isinstance(w, QTensor)} == {16}


FISH = "Fish and chips. " * 40
TUNING, CHOOSING = "tuning scales", ("trying 4 bits", "measuring what bits bring")
OPTIONAL = {"quantizing to 4 bits", "writing text to calibrate on", TUNING, *CHOOSING}


@pytest.mark.parametrize(
    ("effort", "sizes", "stages"),
    [
        ("quick", {64}, {"quantizing to 4 bits"}),
        ("normal", {64, 128}, OPTIONAL - {TUNING}),
        ("best", {32, 64, 128}, OPTIONAL),
    ],
)
def test_an_effort_says_what_is_done(effort: str, sizes: set[int], stages: set[str]) -> None:
    checkpoint, told = TinyCheckpoint(tiny_model(CONFIGS["llama, wide"]())), dict[str, int]()
    result = quantize(
        checkpoint,
        "int4",
        Options(calibration=FISH, effort=effort, progress=lambda _, total, text: told.update({text: total})),
    )
    assert {w.block_size for w in result.values() if isinstance(w, QTensor)} == sizes
    assert told.keys() & OPTIONAL == stages
    given = len(calibration_windows(checkpoint, FISH))
    assert told.get(TUNING, 0) == {"quick": 0, "normal": 0, "best": 2 * 3 * given}[effort]


def test_after_an_interruption_no_finished_layer_is_calibrated_again(monkeypatch: pytest.MonkeyPatch) -> None:
    checkpoint, solve_one = TinyCheckpoint(tiny_model(CONFIGS["llama, tied"]())), gptq_layers._solve
    # Groups: five of each layer and one of the vocabulary.
    solved, told, stop = list[int](), set[str](), 8

    def solve_until(*arguments: Any) -> Any:
        if len(solved) == stop:
            raise KeyboardInterrupt
        solved.append(1)
        return solve_one(*arguments)

    def run() -> dict[str, Any]:
        told.clear()
        return dict(quantize(checkpoint, "int4", Options(calibration=FISH, progress=lambda *done: told.add(done[2]))))

    monkeypatch.setattr(gptq_layers, "_solve", solve_until)
    with pytest.raises(KeyboardInterrupt):
        run()
    (kept,) = (cache_dir() / "exports").iterdir()
    assert {"formats.safetensors", "layer.0.safetensors"} <= {file.name for file in kept.iterdir()}
    solved, stop = [], 100
    again = run()
    assert len(solved) == 6 and "writing text to calibrate on" not in told
    assert not kept.exists()  # the export is done
    solved = []
    whole = run()
    assert len(solved) == 11
    for name, weight in whole.items():
        assert all(np.array_equal(getattr(weight, part), getattr(again[name], part)) for part in ("q", "scales"))


def test_int4_without_zero_points_is_in_the_blocks_that_npus_take() -> None:
    checkpoint = TinyCheckpoint(tiny_model(CONFIGS["llama, tied"]()))
    result = quantize(checkpoint, "int4", Options(symmetric=True, calibration=FISH))
    for weight in result.values():
        assert isinstance(weight, QTensor)
        assert (weight.block_size, weight.zero_points) == (32, None)
        assert np.array_equal(weight.scales, weight.scales.astype(np.float16).astype(np.float32))
    with pytest.raises(ExportError, match="--symmetric does not apply to int8 weights; omit it, or choose int4"):
        quantize(checkpoint, "int8", Options(symmetric=True))


FORMATS = [Format(4, 32), Format(4, 64), Format(8, 32)]


def test_the_unit_that_does_most_harm_gets_the_bits() -> None:
    model = tiny_model(CONFIGS["qwen3"]())
    windows, harmed = windows_of(model), "model.layers.1.mlp.down_proj.weight"
    original = {name: p.detach().numpy().copy() for name, p in model.named_parameters()}
    decoder, teacher, weights = walk(model, windows)
    weights[harmed] = dataclasses.replace(weights[harmed], scales=1.5 * weights[harmed].scales)
    units = measure(decoder, weights, teacher, FORMATS, original.__getitem__, lambda *_: None)
    assert sorted(name for unit in units for name in unit.names) == sorted(weights)
    worst = max(units, key=lambda unit: unit.harms[FORMATS[0]])
    assert worst.names == (harmed,) and worst.harms[FORMATS[2]] < 0.1 * worst.harms[FORMATS[0]]
    all_4 = sum(unit.costs[FORMATS[0]] for unit in units)
    chosen = choose(units, all_4)
    assert chosen is not None and chosen[harmed].bits == 8  # for which others have larger blocks
    assert sum(unit.costs[chosen[unit.names[0]]] for unit in units) <= all_4
    assert choose(units, 0.9 * sum(unit.costs[FORMATS[1]] for unit in units)) is None


@pytest.mark.parametrize("family", ["llama, tied", "qwen3", "gemma3", "phi3"])
def test_the_shares_of_matrices_add_up_to_the_divergence(family: str) -> None:
    model = tiny_model(CONFIGS[family]())
    windows = windows_of(model)[:WINDOWS]
    original = {name: p.detach().numpy().copy() for name, p in model.named_parameters()}
    with torch.no_grad():
        wanted = model(windows).logits.log_softmax(-1)
    weights = {name: round_to_nearest(w, 8, 32, symmetric=False) for name, w in original.items() if w.ndim == 2}
    with torch.no_grad():
        finals = model.model(windows).last_hidden_state / getattr(model.config, "logits_scaling", 1.0)
        teacher = Teacher(finals, model.lm_head.weight.data.clone())
        for name, weight in weights.items():
            model.get_parameter(name).copy_(torch.from_numpy(weight.dequantize()))
        whole = divergence(model, wanted, windows)
    form = Format(8, 32)
    units = measure(TextSet(model, windows), weights, teacher, [form], original.__getitem__, lambda *_: None)
    assert sum(unit.harms[form] for unit in units) == pytest.approx(whole, rel=0.1)


def test_bits_are_taken_until_the_harm_is_small_enough() -> None:
    small, large = Format(4, 64), Format(8, 64)
    units = [
        Unit((name,), {small: harm, large: 0.0}, {small: 4.0, large: 8.0})
        for name, harm in zip("abc", (3, 1, 2), strict=True)
    ]
    assert choose(units, enough=3.0) == {"a": large, "b": small, "c": small}
    assert choose(units, enough=1.0) == {"a": large, "b": small, "c": large}
    assert choose(units, room=16.0) == {"a": large, "b": small, "c": small}


def test_matrices_get_the_bits_that_are_named() -> None:
    checkpoint = TinyCheckpoint(tiny_model(CONFIGS["llama, wide"]()))
    at = {
        bits: quantize(checkpoint, "int4", Options(calibration=FISH, effort="quick", bits=bits)) for bits in (7.0, 9.0)
    }
    sizes = {bits: {w.bits for w in result.values() if isinstance(w, QTensor)} for bits, result in at.items()}
    assert sizes[7.0] == {4, 8} and 8 in sizes[9.0]
    assert bits_of(at[7.0]) <= 7 < bits_of(at[9.0]) <= 9
    for result in at.values():
        attention = {result[f"model.layers.0.self_attn.{part}_proj.weight"].bits for part in "qkv"}
        assert len(attention) == 1  # they are packed together
    with pytest.raises(
        ExportError, match=r"int4 takes 4\.\d\d bits a weight or more here; name more than 4\.1 with --bits"
    ):
        quantize(checkpoint, "int4", Options(calibration=FISH, effort="quick", bits=4.1))
    with pytest.raises(ExportError, match=r"the perplexity is expected at 1\.\d+ of the float model's; name more"):
        quantize(checkpoint, "int4", Options(calibration=FISH, effort="quick", perplexity=1 + 1e-9))
    with pytest.raises(ExportError, match="--bits, --size and --perplexity do not apply to int8 weights; choose int4"):
        quantize(checkpoint, "int8", Options(bits=5))


class Counter:
    """A model after whose token n comes n + 1, all but surely, and which remembers what it read."""

    def __init__(self) -> None:
        self.read: list[torch.Tensor] = []

    def __call__(self, tokens: torch.Tensor, past_key_values: Any, **_: Any) -> Any:
        assert past_key_values == (sum(r.shape[1] for r in self.read) or None)
        self.read.append(tokens)
        logits = torch.zeros(len(tokens), 1, 4096)
        logits.scatter_(2, (tokens[:, -1:, None] + 1) % 4096, 40.0)
        return SimpleNamespace(logits=logits, past_key_values=sum(r.shape[1] for r in self.read))


def test_a_model_goes_on_with_pieces_of_the_calibration_text() -> None:
    text = torch.randint(0, 4096, (3, 300), generator=torch.Generator().manual_seed(1))
    text[:, 0] = 7  # what each window begins with
    model = Counter()
    windows = sampled_windows(model, text, 1, lambda *_: None)
    assert windows.shape == text.shape and (windows[:, 0] == 7).all()
    assert (model.read[0][:, 0] == 7).all() and model.read[0].shape == (8, 1 + PREFIX)  # 3 x 299 tokens in pieces
    written = torch.nn.functional.pad(windows[:, 1:].reshape(-1), (0, 8 * PIECE - 3 * 299)).view(8, PIECE)
    given = text[:, 1:].reshape(-1).unfold(0, PREFIX, 1)
    for piece in written[:7]:
        assert (given == piece[:PREFIX]).all(1).any()
        assert ((piece[PREFIX:] - piece[PREFIX - 1 : -1]) % 4096 == 1).all()
    assert torch.equal(windows, sampled_windows(Counter(), text, 1, lambda *_: None))  # the same every time


@pytest.mark.parametrize("family", CONFIGS)
def test_every_family_goes_on_as_it_would_without_a_cache(family: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sampled, "TOGETHER", 2)  # so that there are several batches
    model = tiny_model(CONFIGS[family]())
    with torch.no_grad():
        model.lm_head.weight.mul_(1e4)  # so that the likeliest token is the only one
    given = windows_of(model)
    windows = sampled_windows(model, given, 0, lambda *_: None)
    assert windows.shape == given.shape
    length = min(PIECE, windows.shape[1])
    pieces = windows.reshape(-1)[: windows.numel() // length * length].view(-1, length)
    with torch.no_grad():
        wanted = model(pieces).logits.argmax(-1)
    assert (wanted[:, PREFIX - 1 : -1] == pieces[:, PREFIX:]).float().mean() > 0.98


def test_text_is_drawn_from_the_models_own_distribution() -> None:
    wanted = torch.tensor([0.5, 0.25, 0.15, 0.08, 0.02])
    drawn = _draw(wanted.log().expand(20_000, -1), torch.Generator().manual_seed(0))
    counts = torch.bincount(drawn[:, 0], minlength=5)
    chi_square = float(((counts - 20_000 * wanted).square() / (20_000 * wanted)).sum())
    assert chi_square < 18.5  # one in a thousand with four degrees of freedom


def test_a_calibration_text_that_is_too_short_is_refused() -> None:
    checkpoint = TinyCheckpoint(tiny_model(CONFIGS["llama, tied"]()))
    with pytest.raises(ExportError, match="holds 5 tokens, fewer than the 128"):
        quantize(checkpoint, "int4", Options(calibration="short"))


def test_the_built_in_text_gives_whole_windows_within_the_models_context() -> None:
    checkpoint = TinyCheckpoint(tiny_model(CONFIGS["llama, tied"]()))
    assert calibration_windows(checkpoint, None).shape[1] == SIZES["max_position_embeddings"]
    checkpoint.config["max_position_embeddings"] = 4096
    windows = calibration_windows(checkpoint, None)
    assert windows.shape == (24, WINDOW)
    alphabet = byte_tokenizer()
    text = Tokenizer.from_str(alphabet).decode(windows[0].tolist()).replace(" ", "")
    assert "im_start" not in text  # chat marks that the tokenizer does not know are left out


def test_windows_begin_with_the_token_that_the_model_was_trained_to_begin_with() -> None:
    model = tiny_model(CONFIGS["llama, tied"]())
    assert (calibration_windows(TinyCheckpoint(model, add_bos=True), None)[:, 0] == 0).all()
    assert not (calibration_windows(TinyCheckpoint(model), None)[:, 0] == 0).all()


@pytest.mark.parametrize("form", [Format(4, 128), Format(4, 64), Format(4, 32), Format(8, 64), Format(4, 32, True)])
@pytest.mark.parametrize("columns", [576, 960, 1536, 40])
def test_a_format_counts_the_bits_that_are_stored(form: Format, columns: int) -> None:
    w = np.random.default_rng(0).standard_normal((6, columns)).astype(np.float32)
    matrix = round_to_nearest(w, form.bits, form.block_size, symmetric=form.symmetric)
    stored = pack_blocks(matrix).nbytes + 4 * matrix.scales.size
    if matrix.zero_points is not None:
        stored += pack_bits(matrix.zero_points, form.bits).nbytes
    assert form.size(*w.shape) == 8 * stored


@pytest.mark.parametrize("effort", ["normal", "best"])
def test_calibration_writes_nothing_into_the_checkpoint(tmp_path: Path, effort: str) -> None:
    tiny_model(CONFIGS["llama, tied"]()).save_pretrained(tmp_path)
    (tmp_path / "tokenizer.json").write_text(byte_tokenizer())
    checkpoint = open_checkpoint(tmp_path)
    before = {name: checkpoint.read(name).copy() for name in checkpoint.names()}
    quantize(checkpoint, "int4", Options(calibration=FISH, effort=effort))
    for name, values in before.items():
        assert np.array_equal(checkpoint.read(name), values), name


@pytest.mark.parametrize("family", ["llama, tied", "llama, untied, biases", "gemma3", "phi3"])
def test_one_run_of_the_reference_brings_a_decoder_closer_than_rounding(family: str) -> None:
    model = tiny_model(CONFIGS[family]())
    checkpoint, windows = TinyCheckpoint(model), windows_of(model)
    calibrating = gptq_quick.Calibrating(checkpoint, Format(4, 32), windows.numpy())
    Reference(checkpoint, windows.shape[1]).hidden(calibrating.texts, calibrating)
    assert set(calibrating.weights) == set(matrices(checkpoint))
    with torch.no_grad():
        wanted = model(windows).logits.log_softmax(-1)
        errors = []
        rounded = {n: round_to_nearest(checkpoint.read(n), 4, 32, symmetric=False) for n in matrices(checkpoint)}
        for weights in (calibrating.weights, rounded):
            for name, weight in weights.items():
                model.get_parameter(name).copy_(torch.from_numpy(weight.dequantize()))
            errors.append(divergence(model, wanted, windows))
    assert errors[0] < errors[1]
