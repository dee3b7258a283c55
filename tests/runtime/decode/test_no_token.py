"""Logits that are not finite numbers, and graphs that fail, end in a sentence: whatever chooses the tokens."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from fake_engine import FakeEngine, fake_model
from numpy.typing import NDArray
from tiny_encoder_decoders import t5_bundle, whisper_bundle

import edge
from edge.bundle import Bundle
from edge.errors import BundleError, InputError
from edge.runtime.decode.beam import beam_search, new_cache
from edge.runtime.decode.beam_options import BeamOptions
from edge.runtime.decode.loop import chosen
from edge.runtime.decode.rules.no_repeat_ngram import NoRepeatNgrams
from edge.runtime.decode.rules.suppress import Suppress
from edge.runtime.decode.sampling import ProcessedSampler, SamplingOptions, _draw, greedy, make_sampler
from edge.runtime.engine.engine import Engine
from edge.runtime.engine.failures import FAILURES, failed
from edge.runtime.engine.variant import Variant
from edge.runtime.engine.want import TOKENS
from edge.runtime.load import open_engine
from edge.runtime.model import Model
from edge.runtime.text.tokenizer import Text

V = 300
NOT_NUMBERS: dict[str, Callable[[NDArray[np.float32]], None]] = {
    "one nan": lambda row: row.__setitem__(-1, np.nan),
    "first nan": lambda row: row.__setitem__(0, np.nan),
    "all nan": lambda row: row.fill(np.nan),
    "one inf": lambda row: row.__setitem__(7, np.inf),
    "inf and nan": lambda row: row.__setitem__(slice(3, 5), [np.inf, np.nan]),
    "all inf": lambda row: row.fill(np.inf),
    "all -inf": lambda row: row.fill(-np.inf),
}
SAMPLERS = [
    SamplingOptions(),
    SamplingOptions(repetition_penalty=1.3),
    *(SamplingOptions(temperature=t, seed=0) for t in (1e-300, 1.0, 1e308)),
    *(SamplingOptions(temperature=1.0, top_k=k, seed=0) for k in (1, 5, V - 1, V, 10**9)),
    SamplingOptions(temperature=1.0, top_p=0.5, seed=0),
    SamplingOptions(temperature=1.0, min_p=1.0, seed=0),
    SamplingOptions(temperature=0.7, top_k=50, top_p=0.9, min_p=0.1, repetition_penalty=1e-38, seed=0),
]


@pytest.mark.parametrize("what", NOT_NUMBERS)
@pytest.mark.parametrize("options", SAMPLERS, ids=str)
def test_no_sampler_chooses_among_what_are_no_numbers(what: str, options: SamplingOptions) -> None:
    for seed in range(5):
        row = np.random.default_rng(seed).standard_normal(V).astype(np.float32)
        NOT_NUMBERS[what](row)
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            with pytest.raises(BundleError, match="logits are not finite numbers"):
                make_sampler(options, [0, 5, 5])(row)


@pytest.mark.parametrize("temperature", [0.0, 1e-300, 1e-45, 1e-9, 1.0, 1e9, 1e308])
@pytest.mark.parametrize("penalty", [None, 1e-46, 1e-38, 1.5, 1e38, 1e300])
def test_finite_logits_of_any_size_give_a_token_that_is_possible(temperature: float, penalty: float | None) -> None:
    rng = np.random.default_rng(0)
    rows = {
        "huge": np.clip(rng.standard_normal(V) * 2e38, -3.4e38, 3.4e38),
        "tiny": rng.standard_normal(V) * 1e-42,
        "alone": np.r_[np.full(V - 1, -np.inf), 0.5],
        "two": np.r_[1.0, np.full(V - 2, -np.inf), 1.0],
        "equal": np.zeros(V),
    }
    for more in ({}, {"top_k": 1}, {"top_k": 299}, {"top_p": 1e-300}, {"top_p": 0.5}, {"min_p": 1.0}):
        if temperature == 0 and more:
            continue
        options = SamplingOptions(temperature=temperature, repetition_penalty=penalty, seed=2**63, **more)
        for name, row in rows.items():
            given = row.astype(np.float32)
            token = make_sampler(options, [0, 5, V - 1])(given)
            assert np.isfinite(given[token]), (name, token)
            assert token == make_sampler(options, [0, 5, V - 1])(given)


def test_a_draw_never_takes_a_weight_of_zero() -> None:
    weights = np.zeros(600, np.float32)
    weights[[3, 255]] = 0.1, 1e-8
    for uniform in (0.0, 0.5, 1 - 2**-53):
        assert weights[_draw(weights, uniform)] > 0


def test_rules_that_forbid_every_token_say_so() -> None:
    sampler = ProcessedSampler([Suppress(range(V))], greedy, [0])
    drawn = ProcessedSampler([NoRepeatNgrams(1)], make_sampler(SamplingOptions(temperature=1.0)), range(V))
    for each in (sampler, drawn):
        with pytest.raises(InputError, match="rules of this answer forbid every token"):
            each(np.zeros(V, np.float32))
        with pytest.raises((BundleError, InputError)):
            each(np.full(V, np.nan, np.float32))


@pytest.mark.parametrize("what", NOT_NUMBERS)
@pytest.mark.parametrize("at", [0, 1, 3])
def test_every_kind_of_answer_ends_with_the_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, what: str, at: int
) -> None:
    """At the first token or a later one; the answers before are as they were."""
    model, _ = fake_model(tmp_path, lambda history: ord("a") + len(history) % 3, speculate="lookup")
    run = FakeEngine.step
    counted = 0

    def step(self: FakeEngine, *args: Any, **more: Any) -> NDArray[np.float32]:
        nonlocal counted
        logits = run(self, *args, **more)
        if counted == at:
            for row in logits:
                NOT_NUMBERS[what](row)
        counted += 1
        return logits

    monkeypatch.setattr(FakeEngine, "step", step)
    for options in ({}, {"temperature": 1.0, "seed": 1}, {"temperature": 1.0, "top_k": 3}, {"repetition_penalty": 1.1}):
        for ask in (model.generate, model.chat().generate):
            counted = 0
            with pytest.raises(BundleError, match="logits are not finite numbers"):
                ask("aaa", max_tokens=50, **options)
            assert counted > at


def without_numbers(bundle: Bundle, value: float, part: slice) -> Bundle:
    """The bundle, which the test may harm, with this value in some scales of its head."""
    graph = onnx.load(bundle.path("graphs/decoder.onnx"), load_external_data=False).graph
    names = {name for node in graph.node if "logits" in node.output for name in node.input}
    (scales,) = (each for each in graph.initializer if each.name in names and each.name.endswith("scales"))
    place = {entry.key: entry.value for entry in scales.external_data}
    held = np.memmap(bundle.path("weights.bin"), np.float32, "r+", int(place["offset"]), (int(place["length"]) // 4,))
    held[part] = value
    held.flush()
    return bundle


HARM = {"nan": (np.nan, slice(None)), "one nan": (np.nan, slice(9, 10)), "inf": (np.inf, slice(None))}


@pytest.mark.parametrize("harm", HARM)
@pytest.mark.parametrize("speculate", ["off", "auto"])
def test_a_bundle_whose_head_has_no_numbers_gives_no_answer(
    tiny_bundle: Bundle, onnxruntimes_kernels: None, harm: str, speculate: str
) -> None:
    bundle = without_numbers(tiny_bundle, *HARM[harm])
    model = Model(bundle, open_engine(bundle, context=64, exact=True), Text(bundle), speculate=speculate)
    for ask in (
        lambda: model.generate("The moon"),
        lambda: model.generate("The moon", temperature=1.0),
        lambda: model.chat().generate("The moon"),
        lambda: model.generate_all(["The moon", "A train"]),
    ):
        with pytest.raises(BundleError, match="logits are not finite numbers"):
            ask()


@pytest.mark.parametrize("harm", HARM)
def test_a_graph_asked_for_tokens_names_none(tiny_bundle: Bundle, onnxruntimes_kernels: None, harm: str) -> None:
    engine = open_engine(without_numbers(tiny_bundle, *HARM[harm]), context=64)
    for size in (1, 3, 40):
        cache = engine.new_cache()
        cache.prompt = size
        assert (engine.step(cache, np.arange(3, 3 + size), np.arange(size), want=TOKENS) == -1).all()
    with pytest.raises(BundleError, match="logits are not finite numbers"):
        chosen(-1)


@pytest.mark.parametrize("harm", HARM)
@pytest.mark.parametrize("beams", [1, 3])
def test_a_translator_whose_head_has_no_numbers_gives_no_text(
    tmp_path: Path, onnxruntimes_kernels: None, harm: str, beams: int
) -> None:
    bundle = without_numbers(t5_bundle(tmp_path), *HARM[harm])
    engine = open_engine(bundle)
    assert engine.encoder is not None
    if beams == 1:
        model = edge.Text2Text(bundle, engine, Text(bundle))
        for options in ({}, {"temperature": 1.0}, {"no_repeat_ngram": 2}):
            with pytest.raises(BundleError, match="logits are not finite numbers"):
                model.generate("the moon", beams=1, **options)
        return
    options = BeamOptions(beams, max_tokens=5)
    cross = engine.encoder.encode_text(np.array([5, 6, 1]))
    with pytest.raises(BundleError, match="logits are not finite numbers"):
        beam_search(engine, new_cache(engine, 1, options, cross), [0], options, eos=[1])


@pytest.mark.parametrize("harm", HARM)
@pytest.mark.parametrize("options", [{"language": "en"}, {}, {"language": "en", "beams": 2}], ids=str)
def test_a_transcriber_whose_head_has_no_numbers_gives_no_text(
    tmp_path: Path, onnxruntimes_kernels: None, harm: str, options: dict[str, Any]
) -> None:
    from edge.runtime.speech.transcribe import Transcriber
    from edge.runtime.speech.words import spoken

    bundle = without_numbers(whisper_bundle(tmp_path), *HARM[harm])
    model = Transcriber(bundle, open_engine(bundle), spoken(bundle))
    with pytest.raises(BundleError, match="logits are not finite numbers"):
        model.transcribe(np.random.default_rng(0).standard_normal(16000).astype(np.float32) * 0.1, **options)


@pytest.mark.parametrize("role", ["decoder", "kv8"])
def test_a_graph_that_fails_while_it_runs_is_a_sentence(
    tiny_bundle: Bundle, onnxruntimes_kernels: None, role: str
) -> None:
    """Its logits are taken for a matrix of another size."""
    path = tiny_bundle.path(tiny_bundle.manifest.graph(role).path)
    graph = onnx.load(path, load_external_data=False)
    nodes = graph.graph.node
    last = next(node for node in nodes if "logits" in node.output)
    last.output[0] = "before"
    wrong = onnx.numpy_helper.from_array(np.array([7, -1, 320], np.int64), "wrong")
    graph.graph.initializer.append(wrong)
    nodes.insert([*nodes].index(last) + 1, onnx.helper.make_node("Reshape", ["before", "wrong"], ["logits"]))
    path.write_bytes(graph.SerializeToString())
    variant = Variant(role, "int8" if role == "kv8" else "float32", context=64)
    model = Model(tiny_bundle, Engine(tiny_bundle, variant), Text(tiny_bundle), speculate="off")
    with pytest.raises(BundleError, match=r"^A graph of .* failed while it ran \(.*\); check the bundle with edge"):
        model.generate("The moon")
    chat = model.chat()
    with pytest.raises(BundleError):
        chat.generate("The moon")
    assert not chat.messages


@pytest.mark.parametrize("error", [*(each for each in FAILURES if each is not MemoryError), MemoryError], ids=str)
def test_whatever_a_graph_raises_is_one_sentence(pristine_tiny_bundle: Bundle, error: type[Exception]) -> None:
    for said in ("two\nlines.", "", "x" * 5000, "Failed to allocate memory for requested buffer of size 123"):
        made = failed(pristine_tiny_bundle, error(said))
        memory = error is MemoryError or "allocate" in said
        assert isinstance(made, InputError if memory else BundleError)
        assert "\n" not in str(made) and str(made).endswith(".") and len(str(made)) < 600


@pytest.mark.parametrize("error", [MemoryError("no room"), RuntimeError("no shape")], ids=str)
def test_an_encoder_that_fails_is_a_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: Exception) -> None:
    engine = open_engine(t5_bundle(tmp_path))
    assert engine.encoder is not None

    def fails() -> None:
        raise error

    monkeypatch.setattr(engine.encoder._session, "bind", fails)
    with pytest.raises((InputError, BundleError), match="no room|no shape"):
        engine.encoder.encode_text(np.array([5, 6, 1]))
