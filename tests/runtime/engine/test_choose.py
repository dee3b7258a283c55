"""Where only the likeliest token is asked for, it leaves the graph alone, and it is the one that the logits name."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime as ort
import pytest
from graph_harness import session_options
from transformers import AutoConfig, LlamaForCausalLM

import edge
from edge.bundle import Bundle
from edge.export.graph.step import INT64, add_output, new_graph
from edge.export.targets.cpu.lowering import CPU, block_size
from edge.runtime.decode.generate_options import GenerateOptions
from edge.runtime.engine.cache import KVCache
from edge.runtime.engine.engine import Engine
from edge.runtime.engine.variant import Variant
from edge.runtime.engine.want import LOGITS, TOKENS
from edge.runtime.load import load, open_engine
from edge.runtime.model import Model
from edge.runtime.skip.skip_policy import AllLayers
from edge.runtime.text.tokenizer import Text


@pytest.mark.parametrize("vocab", [50, 64, 320, 1031, 49152, 50257, 151936])
def test_the_first_of_the_largest_logits_is_found_wherever_it_stands(vocab: int) -> None:
    (builder, op), block = new_graph("likeliest", CPU), block_size(vocab)
    logits = builder.input("logits", ir.DataType.FLOAT, [1, "R", vocab])
    add_output(builder, op.likeliest(logits, vocab), "tokens", [1, "R"], INT64)
    model = ir.to_proto(ir.Model(builder.graph, ir_version=10)).SerializeToString()
    onnx.checker.check_model(model)
    session = ort.InferenceSession(model, session_options(), providers=["CPUExecutionProvider"])
    rng = np.random.default_rng(vocab)
    for rows in (1, 2, 7):
        given = rng.integers(-4, 5, (1, rows, vocab)).astype(np.float32)  # many equals
        given[0, 0, [min(block, vocab) - 1, vocab - 1]] = 9
        given[0, -1] = -3
        found = session.run(["tokens"], {"logits": given})[0]
        assert found.dtype == np.int64 and np.array_equal(found, given.argmax(axis=2))


def test_blocks_divide_the_vocabulary_where_they_can() -> None:
    assert [block_size(v) for v in (49152, 262144, 32000, 128256, 50257)] == [256] * 5
    assert [block_size(v) for v in (6000, 151936, 32003)] == [250, 128, 256]


@pytest.mark.parametrize("exact", [False, True])
def test_tokens_are_those_of_the_logits(tiny_bundle: Bundle, exact: bool) -> None:
    engine = open_engine(tiny_bundle, context=100, threads=2, exact=exact)
    assert engine.chooses
    one, other = engine.new_cache(), engine.new_cache()
    rng = np.random.default_rng(0)
    for size in (17, 1, 1, 5, 2, 1):
        tokens = rng.integers(3, 200, size)
        for rows in (None, np.arange(size)):
            wanted = engine.step(one, tokens, rows).argmax(axis=1)
            found = engine.step(other, tokens, rows, want=TOKENS)
            assert found.dtype == np.int64 and np.array_equal(found, wanted)
        assert one.length == other.length


def test_every_form_of_a_decoder_says_it_with_any_vocabulary(tiny_checkpoint: Path, tmp_path: Path) -> None:
    """One that no blocks divide: the whole graph, a KV cache in int8, segments, and several sequences."""
    folder = Path(shutil.copytree(tiny_checkpoint, tmp_path / "odd", ignore=shutil.ignore_patterns("*.safetensors")))
    config = AutoConfig.from_pretrained(tiny_checkpoint, vocab_size=1031, num_hidden_layers=3)
    LlamaForCausalLM(config).save_pretrained(folder)
    options: dict[str, Any] = dict(check=False, candidates=False, draft_text=0, calibration="la " * 400)
    bundle = edge.export(folder, tmp_path / "odd.edge", weights="int8", segments=1, **options)
    forms: dict[str, Engine] = {kv: open_engine(bundle, context=64, kv=kv) for kv in ("float32", "int8")}
    forms["segments"] = Engine(bundle, Variant(policy=AllLayers(bundle), context=64))
    tokens, rows = np.arange(3, 10), np.arange(7)
    for name, engine in forms.items():
        assert b"Pad" in bundle.path(bundle.manifest.graph(engine.variant.role).path).read_bytes(), name
        cache = engine.new_cache()
        wanted = engine.step(cache, tokens, rows).argmax(axis=1)
        cache.truncate(0)
        assert np.array_equal(engine.step(cache, tokens, rows, want=TOKENS), wanted), name
    model = Model(bundle, forms["float32"], Text(bundle), speculate="off")
    prompts, length = ["la la", "The moon", "a b c"], GenerateOptions(max_tokens=12)
    alone = [model.generate(prompt, length, raw=True).token_ids for prompt in prompts]
    assert [each.token_ids for each in model.generate_all(prompts, length, raw=True)] == alone


@pytest.mark.parametrize("speculate", ["off", "lookup", "trigram"])
def test_a_greedy_answer_takes_no_logits_from_the_graph_behind_its_prompt(tiny_bundle: Bundle, speculate: str) -> None:
    assert_no_logits_leave(tiny_bundle, "la la la la la", speculate=speculate)


@pytest.mark.parametrize("options", [{"skip": "unified:0.3"}, {"speculate": "self=2,3"}], ids=str)
def test_nor_does_one_over_segments(by_layer: Bundle, options: dict[str, str]) -> None:
    """But for what `self` drafts, whose steps have a route of their own: it asks how sure it is."""
    assert_no_logits_leave(by_layer, "The moon turns and turns and turns", **options)


def assert_no_logits_leave(bundle: Bundle, prompt: str, **options: str) -> None:
    """Behind the prompt of a greedy answer, which is the same as where they do."""

    def answer(chooses: bool) -> tuple[list[int], int]:
        """The answer, and the steps of its own whose logits were taken."""
        model = load(bundle.root, context=200, threads=2, exact=True, **options)
        assert isinstance(model, Model)
        model.engine.chooses = chooses
        engine, run, routes = model.engine, model.engine.step, list[object]()

        def step(cache: KVCache, *args: Any, **given: Any) -> Any:
            if given.get("want", LOGITS) == LOGITS:
                routes.append(getattr(cache, "forced", None))
            return run(cache, *args, **given)

        with mock.patch.object(engine, "step", step):
            ids = model.generate(prompt, GenerateOptions(max_tokens=40)).token_ids
        return ids, routes.count(None)

    with_logits, without = answer(False), answer(True)
    assert with_logits[0] == without[0] and len(without[0]) > 5
    assert without[1] == 1 < with_logits[1], "the prompt's step alone"


@pytest.mark.parametrize(
    "options",
    [GenerateOptions(max_tokens=30, temperature=0.8, seed=1), GenerateOptions(max_tokens=30, repetition_penalty=1.2)],
    ids=["drawn", "penalty"],
)
def test_samplers_that_read_logits_still_do(tiny_bundle: Bundle, options: GenerateOptions) -> None:
    said = []
    for chooses in (False, True):
        model = load(tiny_bundle.root, context=200, threads=2, speculate="lookup", exact=True)
        assert isinstance(model, Model)
        model.engine.chooses = chooses
        said.append(model.generate("la la la la la", options).token_ids)
    assert said[0] == said[1]


def test_bundles_without_the_output_still_answer(tiny_bundle: Bundle) -> None:
    def answer() -> tuple[bool, list[int]]:
        model = Model(tiny_bundle, open_engine(tiny_bundle, context=200, threads=2, exact=True), Text(tiny_bundle))
        return model.engine.chooses, model.generate("The moon", GenerateOptions(max_tokens=30)).token_ids

    chooses, wanted = answer()
    path = tiny_bundle.path("graphs/decoder.onnx")
    graph = onnx.load(path, load_external_data=False)
    kept = [output for output in graph.graph.output if output.name != "tokens"]
    del graph.graph.output[:]
    graph.graph.output.extend(kept)
    path.write_bytes(graph.SerializeToString())
    assert chooses and answer() == (False, wanted)
