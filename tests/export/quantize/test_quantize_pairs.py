"""4 bits for the decoders of tiny random encoder-decoders, calibrated on what they answer."""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from encoder_decoder_harness import tiny_model
from graph_harness import TinyCheckpoint
from transformers import BartConfig, M2M100Config, T5Config, T5GemmaConfig, T5GemmaModuleConfig
from transformers.modeling_outputs import BaseModelOutput
from whisper_files import tiny_whisper

from edge.export.quantize import gptq_pairs
from edge.export.quantize.allocate import bits_of
from edge.export.quantize.allocate_pairs import answers, most_sensitive_in_8_bits
from edge.export.quantize.encoder_decoder import of_layers
from edge.export.quantize.gptq_pairs import solve_layers
from edge.export.quantize.kept import Kept
from edge.export.quantize.pairs import Pair, PairDecoder
from edge.export.quantize.rtn import round_to_nearest

VOCABULARY, BLOCK = 60, 16
T5 = dict(vocab_size=VOCABULARY, d_model=64, d_kv=16, d_ff=96, num_layers=1, num_decoder_layers=2, num_heads=4)
BART = dict(
    vocab_size=VOCABULARY,
    d_model=64,
    encoder_layers=1,
    decoder_layers=2,
    encoder_attention_heads=4,
    decoder_attention_heads=4,
    encoder_ffn_dim=96,
    decoder_ffn_dim=96,
    max_position_embeddings=64,
)


def t5gemma() -> Any:
    sizes = dict(hidden_size=64, intermediate_size=96, head_dim=16, max_position_embeddings=64, sliding_window=5)
    heads = dict(num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2)
    half = T5GemmaModuleConfig(**sizes, **heads, vocab_size=VOCABULARY)
    return tiny_model(T5GemmaConfig(encoder=half, decoder=half, vocab_size=VOCABULARY))


MODELS: dict[str, Callable[[], Any]] = {
    "t5": lambda: tiny_model(T5Config(**T5, feed_forward_proj="gated-gelu")),
    "bart": lambda: tiny_model(BartConfig(**BART)),
    "m2m_100": lambda: tiny_model(M2M100Config(**BART)),
    "t5gemma": t5gemma,
    "whisper": tiny_whisper,
}


def pairs_of(model: Any, seed: int, count: int = 12) -> list[Pair]:
    """Random inputs and random answers to them."""
    generator = torch.Generator().manual_seed(seed)
    width = model.get_decoder().config.hidden_size
    encoded = torch.randn(count, 9, width, generator=generator)
    answers = torch.randint(3, VOCABULARY, (count, 1, 20), generator=generator)
    return [Pair(BaseModelOutput(e[None]), a) for e, a in zip(encoded, answers, strict=True)]


def checkpoint_of(model: Any) -> Any:
    checkpoint: Any = TinyCheckpoint(model)
    checkpoint.name, checkpoint.stored_type = "tiny", lambda name: "F32"
    return checkpoint


@torch.no_grad()
def error(model: Any, pairs: list[Pair], wanted: list[torch.Tensor]) -> float:
    return sum(float((pair.run(model) - logits).square().mean()) for pair, logits in zip(pairs, wanted, strict=True))


def silent(*told: Any) -> None:
    pass


@pytest.mark.parametrize("family", MODELS)
@torch.no_grad()
def test_every_matrix_of_the_layers_is_solved_and_answers_better_than_rounded(family: str) -> None:
    model, rounded = MODELS[family](), MODELS[family]()
    checkpoint = checkpoint_of(model)
    pairs, other = pairs_of(model, 0, count=24), pairs_of(model, 1)
    wanted = [pair.run(model) for pair in other]
    found, groups = solve_layers(model, pairs, of_layers(checkpoint), BLOCK, silent, Kept())
    linears = {name for name, m in model.get_decoder().named_modules() if isinstance(m, torch.nn.Linear)}
    own = {name for name in linears if not re.search(r"(encoder_attn|EncDecAttention|cross_attn)\.[kv]", name)}
    assert {name.partition("decoder.")[2] for name in found} == {f"{name}.weight" for name in own}
    assert sorted(name for group in groups for name in group) == sorted(found)
    assert {len(group) for group in groups} >= {1, 3}, "query, key and value read the same"
    assert {(weight.bits, weight.method) for weight in found.values()} == {(4, "gptq")}
    parameters = dict(rounded.named_parameters())
    for name in found:
        parameters[name].copy_(
            torch.from_numpy(round_to_nearest(parameters[name].numpy(), 4, BLOCK, symmetric=False).dequantize())
        )
    assert error(model, other, wanted) < 0.9 * error(rounded, other, wanted)


@pytest.mark.parametrize("family", MODELS)
@torch.no_grad()
def test_layers_that_are_run_one_by_one_say_what_the_whole_model_says(family: str) -> None:
    model = MODELS[family]()
    pairs = pairs_of(model, 0, count=3)
    decoder = PairDecoder(model, pairs)
    for layer in range(len(decoder.layers)):
        decoder.advance(layer)
    for pair, hidden in zip(pairs, decoder.hidden, strict=True):
        whole: list[Any] = []
        handle = decoder.layers[-1].register_forward_hook(lambda *call, whole=whole: whole.append(call[-1]))
        pair.run(model)
        handle.remove()
        torch.testing.assert_close(hidden, whole[0] if isinstance(whole[0], torch.Tensor) else whole[0][0])


class Given:
    """Material that is there already."""

    key = "given"

    def __init__(self, model: Any) -> None:
        self.made = pairs_of(model, 0)

    def pairs(self, model: Any, report: Any, kept: Kept) -> list[Pair]:
        return self.made


def test_an_interrupted_calibration_goes_on_and_ends_as_one_that_was_not(monkeypatch: pytest.MonkeyPatch) -> None:
    model = MODELS["t5"]()
    checkpoint, material = checkpoint_of(model), Given(model)
    calibrate = partial(gptq_pairs.quantize_layers, checkpoint, material, BLOCK)
    whole = calibrate(silent)
    solved: list[int] = []
    solve = gptq_pairs.solve

    def counted(*args: Any, **others: Any) -> Any:
        solved.append(1)
        return solve(*args, **others)

    def interrupted(done: int, total: int, text: str) -> None:
        if (done, text) == (1, "quantizing to 4 bits"):
            raise KeyboardInterrupt

    monkeypatch.setattr(gptq_pairs, "solve", counted)
    with pytest.raises(KeyboardInterrupt):
        calibrate(interrupted)
    first = len(solved)
    again = calibrate(silent)
    assert 0 < first < len(solved) == len(whole), "no layer is solved twice"
    assert again.keys() == whole.keys()
    assert all((again[name].dequantize() == whole[name].dequantize()).all() for name in whole)


@torch.no_grad()
def test_groups_in_8_bits_stay_whole_and_within_the_budget_and_bring_the_answers_closer() -> None:
    model, checkpoint = MODELS["bart"](), checkpoint_of(MODELS["bart"]())
    pairs = pairs_of(model, 0)
    wanted = answers(model, pairs)
    weights, groups = solve_layers(model, pairs, of_layers(checkpoint), BLOCK, silent, Kept())
    plain = divergence(model, pairs, wanted)
    budget = bits_of(weights) + 0.8
    found = most_sensitive_in_8_bits(model, pairs, wanted, weights, groups, budget, checkpoint.read, silent)
    assert bits_of(weights) < bits_of(found) <= budget and found.keys() == weights.keys()
    assert all(len({found[name].bits for name in group}) == 1 for group in groups)
    assert divergence(model, pairs, wanted) == pytest.approx(plain), "measuring leaves the model as it was"
    parameters = dict(model.named_parameters())
    for name, weight in found.items():
        parameters[name].copy_(torch.from_numpy(weight.dequantize()))
    assert divergence(model, pairs, wanted) < 0.9 * plain


def divergence(model: Any, pairs: list[Pair], wanted: list[torch.Tensor]) -> float:
    found = answers(model, pairs)
    return sum(float((p.exp() * (p - q)).sum()) for p, q in zip(wanted, found, strict=True))
