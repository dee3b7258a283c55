"""4 bits for the decoders of tiny random encoder-decoders, calibrated on what they answer."""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import partial
from typing import Any

import encoder_decoder_configs
import pytest
import torch
from encoder_decoder_harness import tiny_model
from graph_harness import TinyCheckpoint
from transformers import BartConfig, M2M100Config, T5Config, T5GemmaConfig, T5GemmaModuleConfig
from transformers.modeling_outputs import BaseModelOutput
from whisper_files import tiny_whisper

from edge.export.facts.tensors import Format, QTensor
from edge.export.quantize import gptq_layers
from edge.export.quantize.allocate import bits_of, log_probabilities, most_sensitive_in_8_bits
from edge.export.quantize.calibration import TextInputs
from edge.export.quantize.calibration_cache import CalibrationCache
from edge.export.quantize.calibration_set import AnswerSet, Example
from edge.export.quantize.encoder_decoder import of_layers
from edge.export.quantize.gptq_layers import SolveOptions, solve_layers
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


GEMMA: dict[str, Any] = dict(
    vocab_size=VOCABULARY,
    hidden_size=64,
    intermediate_size=96,
    head_dim=16,
    sliding_window=5,
    num_hidden_layers=2,
    num_attention_heads=4,
    num_key_value_heads=2,
)


def t5gemma() -> Any:
    half = T5GemmaModuleConfig(**GEMMA, max_position_embeddings=64)
    return tiny_model(T5GemmaConfig(encoder=half, decoder=half, vocab_size=VOCABULARY))


MODELS: dict[str, Callable[[], Any]] = {
    "t5": lambda: tiny_model(T5Config(**T5, feed_forward_proj="gated-gelu")),
    "bart": lambda: tiny_model(BartConfig(**BART)),
    "m2m_100": lambda: tiny_model(M2M100Config(**BART)),
    "t5gemma": t5gemma,
    "t5gemma2": lambda: tiny_model(encoder_decoder_configs.t5gemma2(GEMMA, GEMMA)),
    "whisper": tiny_whisper,
}


def examples_of(model: Any, seed: int, count: int = 12) -> list[Example]:
    """Random inputs and random answers to them."""
    generator = torch.Generator().manual_seed(seed)
    width = model.get_decoder().config.hidden_size
    encoded = torch.randn(count, 9, width, generator=generator)
    answers = torch.randint(3, VOCABULARY, (count, 1, 20), generator=generator)
    return [Example(BaseModelOutput(e[None]), a) for e, a in zip(encoded, answers, strict=True)]


def checkpoint_of(model: Any) -> Any:
    checkpoint: Any = TinyCheckpoint(model)
    checkpoint.name, checkpoint.stored_type = "tiny", lambda name: "F32"
    return checkpoint


@torch.no_grad()
def error(model: Any, examples: list[Example], wanted: list[torch.Tensor]) -> float:
    return sum(float((each.run(model) - logits).square().mean()) for each, logits in zip(examples, wanted, strict=True))


def silent(*told: Any) -> None:
    pass


def solved(answers: AnswerSet) -> dict[str, QTensor]:
    return solve_layers(answers, SolveOptions(Format(4, BLOCK)), silent, CalibrationCache())


@pytest.mark.parametrize("family", MODELS)
@torch.no_grad()
def test_every_matrix_of_the_layers_is_solved_and_answers_better_than_rounded(family: str) -> None:
    model, rounded = MODELS[family](), MODELS[family]()
    checkpoint = checkpoint_of(model)
    answers, other = AnswerSet(model, examples_of(model, 0, count=24), of_layers(checkpoint)), examples_of(model, 1)
    wanted = [example.run(model) for example in other]
    found = solved(answers)
    groups = [group for layer in range(len(answers.layers)) for group in answers.readers(layer)]
    linears = {name for name, m in model.get_decoder().named_modules() if isinstance(m, torch.nn.Linear)}
    own = {name for name in linears if not re.search(r"(encoder_attn|EncDecAttention|cross_attn)\.[kv]", name)}
    assert {name.partition("decoder.")[2] for name in found} == {f"{name}.weight" for name in own}
    assert sorted(name for group in groups for name in group) == sorted(found)
    together = 2 if family == "t5gemma2" else 3  # whose keys and values are made of the input's text, too
    assert {len(group) for group in groups} >= {1, together}, "query, key and value read the same"
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
    answers = AnswerSet(model, examples_of(model, 0, count=3), of_layers(checkpoint_of(model)))
    answers.begin()
    for layer in range(len(answers.layers)):
        answers.advance(layer, {})
    for example, hidden in zip(answers.examples, answers.hidden, strict=True):
        whole: list[Any] = []
        handle = answers.layers[-1].register_forward_hook(lambda *call, whole=whole: whole.append(call[-1]))
        example.run(model)
        handle.remove()
        torch.testing.assert_close(hidden, whole[0] if isinstance(whole[0], torch.Tensor) else whole[0][0])


def test_an_interrupted_calibration_goes_on_and_ends_as_one_that_was_not(monkeypatch: pytest.MonkeyPatch) -> None:
    model = MODELS["t5"]()
    examples = examples_of(model, 0)
    monkeypatch.setattr(gptq_layers, "answer", lambda *_: examples)
    given = TextInputs([], 0, [])
    calibrate = partial(gptq_layers.quantize_encoder_decoder, checkpoint_of(model), given, BLOCK)
    whole = calibrate(silent)
    solved: list[int] = []
    solve = gptq_layers.solve

    def counted(*args: Any, **others: Any) -> Any:
        solved.append(1)
        return solve(*args, **others)

    def interrupted(done: int, total: int, text: str) -> None:
        if (done, text) == (1, "quantizing to 4 bits"):
            raise KeyboardInterrupt

    monkeypatch.setattr(gptq_layers, "solve", counted)
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
    answers = AnswerSet(model, examples_of(model, 0), of_layers(checkpoint))
    examples = list(answers.examples)
    wanted = log_probabilities(model, examples)
    weights = solved(answers)
    groups = [group for layer in range(len(answers.layers)) for group in answers.readers(layer)]
    plain = divergence(model, examples, wanted)
    budget = bits_of(weights) + 0.8
    found = most_sensitive_in_8_bits(answers, examples, wanted, weights, budget, checkpoint.read, silent)
    assert bits_of(weights) < bits_of(found) <= budget and found.keys() == weights.keys()
    assert all(len({found[name].bits for name in group}) == 1 for group in groups)
    assert divergence(model, examples, wanted) == pytest.approx(plain), "measuring leaves the model as it was"
    parameters = dict(model.named_parameters())
    for name, weight in found.items():
        parameters[name].copy_(torch.from_numpy(weight.dequantize()))
    assert divergence(model, examples, wanted) < 0.9 * plain


def divergence(model: Any, examples: list[Example], wanted: list[torch.Tensor]) -> float:
    found = log_probabilities(model, examples)
    return sum(float((p.exp() * (p - q)).sum()) for p, q in zip(wanted, found, strict=True))
