"""The int8 prefill graph: the same model over the same cache, read in int8 where that costs less."""

from __future__ import annotations

import dataclasses
import json
import logging
import shutil
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from fake_drafters import AllOfIt, Guesser

import edge
from edge.bundle import MANIFEST, WEIGHTS, Bundle, open_bundle
from edge.cli.main import main
from edge.errors import BundleError, ExportError, InputError
from edge.manifest import LONGER, Graph, PrefillGraph, sealed
from edge.runtime.budget import make_plan
from edge.runtime.decode import loop as generate
from edge.runtime.decode.draft import NOTHING, Draft
from edge.runtime.decode.loop import prefill
from edge.runtime.engine.binding import Step, WholeBinding
from edge.runtime.engine.cache import KVCache
from edge.runtime.engine.engine import Engine, PrefillEngine
from edge.runtime.kernels.graph import attends_to_bytes
from edge.runtime.load import open_engine
from edge.runtime.memory import footprint as memory_model
from edge.runtime.memory.footprint import MemoryModel
from edge.runtime.memory.plan import needed
from edge.runtime.profile import ops
from edge.runtime.providers.provider import Buffer
from edge.runtime.speculate.drafter import Budget
from edge.runtime.speculate.speculation import Speculation
from edge.runtime.speculate.successors import FILE as SUCCESSORS


@pytest.fixture(scope="session")
def bundle(tmp_path_factory: pytest.TempPathFactory, tiny_checkpoint: Path) -> Bundle:
    target = tmp_path_factory.mktemp("prefill") / "tiny.edge"
    return edge.export(tiny_checkpoint, target, weights="int8", prefill_weights="int8", max_context=256)


@pytest.fixture
def engine(bundle: Bundle, onnxruntimes_kernels: None) -> Engine:
    return open_engine(bundle)


def prefill_of(engine: Engine) -> PrefillEngine:
    assert engine.prefill is not None
    return engine.prefill


@pytest.fixture
def from_64(monkeypatch: pytest.MonkeyPatch) -> None:
    """Prompts of this model's short context are long from 64 tokens on."""
    monkeypatch.setattr(generate, "PREFILL_GRAPH_FROM", 64)


def without_it(bundle: Bundle, speculate: str = "off") -> int:
    """The smallest budget for 200 tokens of context in which everything but the int8 prefill graph has its room."""
    plan = make_plan(bundle, "4GB", context=200, prefill=False, speculate=speculate)
    return needed(MemoryModel(bundle).footprint(plan.demand))


def tokens(size: int) -> np.ndarray:
    return np.random.default_rng(5).integers(3, 300, size)


def test_text_to_draft_from_is_written_in_the_decode_graph(tiny_checkpoint: Path, tmp_path: Path) -> None:
    """Which graph is faster is measured per bundle and device, and a bundle that is being written is none yet."""
    made = [
        edge.export(tiny_checkpoint, tmp_path / f"{kind}.edge", weights="int8", prefill_weights=kind, draft_text=300)
        for kind in ("none", "int8")
    ]
    narrow, prefill = (bundle.path(SUCCESSORS).read_bytes() for bundle in made)
    assert narrow == prefill and made[1].manifest.prefill is not None


def test_the_prefill_graph_reads_text_nearly_as_torch_does(bundle: Bundle) -> None:
    quality = bundle.manifest.quality
    assert quality["prefill_perplexity"] == pytest.approx(quality["perplexity_float32"], rel=0.05)
    assert 0 < quality["prefill_kl_mean"] < 0.05


@pytest.mark.parametrize("model_type", ["qwen2", "qwen3", "phi3", "smollm3", "ernie4_5", "hunyuan_v1_dense"])
def test_biases_head_norms_and_packed_projections_are_turned_as_well(
    tiny_checkpoint: Path, tmp_path: Path, model_type: str
) -> None:
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    config = json.loads((tiny_checkpoint / "config.json").read_text())
    names = "vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers", "max_position_embeddings"
    sizes = {name: config[name] for name in (*names, "num_attention_heads", "num_key_value_heads")}
    ids = {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
    shutil.copytree(tiny_checkpoint, tmp_path / "model")
    made = AutoConfig.for_model(model_type, **sizes, initializer_range=0.2, head_dim=16, **ids)
    torch.manual_seed(3)
    model = AutoModelForCausalLM.from_config(made)
    with torch.no_grad():
        for name, values in model.named_parameters():
            if values.ndim == 1:
                values.add_(0.2 * torch.randn(values.shape))
            elif "o_proj" in name:  # an outlier channel, as trained models have them
                values[7] *= 8
    model.save_pretrained(tmp_path / "model")
    options = {"weights": "fp32", "prefill_weights": "int8", "max_context": 128}
    exported = edge.export(tmp_path / "model", tmp_path / "x.edge", **options)
    assert exported.manifest.quality["prefill_kl_mean"] < 0.05


def test_rows_do_not_depend_on_how_they_are_cut(engine: Engine) -> None:
    prefill, text = prefill_of(engine), tokens(100)
    whole, pieces = engine.new_cache(), engine.new_cache()
    at_once = prefill.step(whole, text, np.arange(100))
    start = 0
    for size in (37, 2, 1, 3, 16, 41):
        found = prefill.step(pieces, text[start : start + size], np.arange(size))
        assert np.array_equal(found, at_once[start : start + size])
        start += size
    for a, b in zip(whole.buffers, pieces.buffers, strict=True):
        assert np.array_equal(a[0][:, :, :100], b[0][:, :, :100]) and np.array_equal(a[1][:, :, :100], b[1][:, :, :100])


def test_no_row_is_run_alone(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    """Kernels round a lone row otherwise, on some processors in models as small as this one. At the very end of the
    context there is no position for one more, and the last row is alone."""
    prefill, text, shapes = prefill_of(engine), tokens(256), []

    class Seen(Step):
        def __init__(
            self, bound: WholeBinding, cache: KVCache, size: int, rows: int, outputs: dict[str, Buffer]
        ) -> None:
            shapes.append((size, rows))
            super().__init__(bound, cache, size, rows, outputs)

    monkeypatch.setattr("edge.runtime.engine.prefill_engine.Step", Seen)
    ends = np.array([126, 127, 254, 255])
    cache, whole = engine.new_cache(256), prefill.step(engine.new_cache(256), text, ends)
    found = [prefill.step(cache, text[start:end])[0] for start, end in ((0, 127), (127, 128), (128, 255), (255, 256))]
    assert shapes == [(256, 4), (128, 2), (2, 2), (128, 2), (1, 2)]
    assert cache.length == 256 and whole.shape == (4, engine.bundle.manifest.dims.vocab_size)
    assert np.array_equal(found[:3], whole[:3])
    np.testing.assert_allclose(found[3], whole[3], atol=1e-4)


def test_rows_do_not_depend_on_their_neighbours(engine: Engine) -> None:
    text = tokens(20)
    other = text.copy()
    other[12:] = tokens(28)[20:]
    prefill = prefill_of(engine)
    first = prefill.step(engine.new_cache(), text, np.arange(12))
    assert np.array_equal(first, prefill.step(engine.new_cache(), other, np.arange(12)))


def test_one_form_continues_in_the_cache_of_the_other(engine: Engine) -> None:
    text = tokens(60)
    cache, reference = engine.new_cache(), engine.new_cache()
    prefill_of(engine).step(cache, text[:50])
    mixed = engine.step(cache, text[50:]).copy()
    alone = engine.step(reference, text)
    assert np.linalg.norm(mixed - alone) < 0.1 * np.linalg.norm(alone)


@pytest.mark.usefixtures("from_64")
def test_long_prompts_are_read_in_it_and_only_those(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    graph, sizes = prefill_of(engine), list[int]()
    decode_step, graph_step = engine.step, graph.step
    monkeypatch.setattr(engine, "step", lambda c, t: sizes.append(-len(t)) or decode_step(c, t))
    monkeypatch.setattr(graph, "step", lambda c, t: sizes.append(len(t)) or graph_step(c, t))

    def read(size: int) -> list[int]:
        sizes.clear()
        prefill(engine, engine.new_cache(), tokens(size), chunk=20, interrupted=lambda: False)
        return list(sizes)

    assert read(63) == [-20, -20, -20, -3]
    assert read(64) == [20 * LONGER, 64 - 20 * LONGER]
    assert read(63) == [-20, -20, -20, -3]  # that it is open now changes nothing


@pytest.mark.usefixtures("from_64", "onnxruntimes_kernels")
def test_an_answer_is_the_same_whatever_was_asked_before(bundle: Bundle) -> None:
    options, questions = edge.GenerateOptions(max_tokens=12), ("the harbour wall, " * n for n in (2, 12, 5, 12))
    first, second = (edge.load(bundle.root, context=256) for _ in range(2))
    prompt = "a lighthouse, " * 14
    fresh = first.generate(prompt, options, raw=True)
    for question in questions:
        second.generate(question, options, raw=True)
    assert prefill_of(first.engine).session and fresh.prompt_tokens >= 64
    assert second.generate(prompt, options, raw=True).token_ids == fresh.token_ids


@pytest.mark.usefixtures("from_64", "onnxruntimes_kernels")
def test_drafts_are_verified_in_the_decode_graph(bundle: Bundle, monkeypatch: pytest.MonkeyPatch) -> None:
    model = edge.load(bundle.root, context=256)

    def guess(text: Sequence[int], budget: Budget) -> Draft:
        return Draft(list(range(3, 3 + budget.tokens)), [0] * budget.tokens) if budget.tokens else NOTHING

    model.__dict__["speculation"] = Speculation(Guesser(guess), AllOfIt(width=15))
    prefill, read, ran = prefill_of(model.engine), [], []
    prefill_step, narrow = prefill.step, model.engine.step
    monkeypatch.setattr(prefill, "step", lambda c, t: read.append(len(t)) or prefill_step(c, t))
    monkeypatch.setattr(model.engine, "step", lambda c, t, *a, **k: ran.append(len(t)) or narrow(c, t, *a, **k))
    result = model.generate("the harbour wall, " * 12, edge.GenerateOptions(max_tokens=40), raw=True)
    assert result.generated_tokens > 1 and read == [result.prompt_tokens]
    assert max(ran) > 11


@pytest.mark.usefixtures("onnxruntimes_kernels")
def test_a_loaded_bundle_has_not_opened_it(bundle: Bundle) -> None:
    model = edge.load(bundle.root)
    model.generate("hi", edge.GenerateOptions(max_tokens=2))
    assert "session" not in vars(prefill_of(model.engine))


@pytest.mark.parametrize("kv", ["auto", "float32"])
def test_it_is_not_opened_where_our_kernels_run(bundle: Bundle, kv: str, caplog: pytest.LogCaptureFixture) -> None:
    """They read prompts faster without it, and no plan counts it."""
    if not attends_to_bytes(bundle):
        pytest.skip("edge-lm-kernels do not run here")
    assert edge.load(bundle.root, kv=kv).engine.prefill is None
    limited = edge.load(bundle.root, kv=kv, memory="1GB").engine
    assert limited.prefill is None and limited.plan is not None and not limited.plan.demand.prefill
    assert not caplog.text


def test_both_forms_share_embedding_and_head(bundle: Bundle, tiny_checkpoint: Path, tmp_path: Path) -> None:
    alone = edge.export(tiny_checkpoint, tmp_path / "n.edge", weights="int8", max_context=256, check=False)
    assert alone.manifest.prefill is None and bundle.manifest.prefill is not None
    sizes = [b.path(WEIGHTS).stat().st_size for b in (alone, bundle)]
    own = sum(group.bytes for group in bundle.manifest.prefill.groups)
    tensors = 2 * 10 + 4  # matrices with their scales, norms, the rotation; each begins on a page
    assert own <= sizes[1] - sizes[0] <= own + 64 * 64 * 4 + tensors * 4096
    assert bundle.manifest.groups == alone.manifest.groups


@pytest.fixture
def largest_when_it_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a model this small reading the tokenizer is the peak, whatever it holds."""
    monkeypatch.setattr(memory_model, "BPE_READING", 0)
    monkeypatch.setattr(memory_model, "TO_LOAD", 0)


@pytest.mark.usefixtures("largest_when_it_runs", "onnxruntimes_kernels")
def test_a_memory_limit_leaves_it_out_first_and_says_so_once(bundle: Bundle, caplog: pytest.LogCaptureFixture) -> None:
    roomy = make_plan(bundle, "1GB", context=200)
    assert roomy.demand.prefill
    without = dataclasses.replace(roomy.demand, prefill=False)
    tight = make_plan(bundle, needed(MemoryModel(bundle).footprint(without)), context=200)
    assert tight.demand == without
    limit = needed(tight.footprint)
    with caplog.at_level(logging.WARNING):
        engine = open_engine(bundle, memory=limit, context=200)
    assert engine.prefill is None
    assert [r.message for r in caplog.records] == [
        "The memory limit has no room for the int8 prefill graph of tiny-llama: prompts are read without it, more "
        "slowly."
    ]
    prefill(engine, engine.new_cache(), tokens(100), chunk=64, interrupted=lambda: False)
    assert len(caplog.records) == 1


@pytest.mark.usefixtures("largest_when_it_runs", "onnxruntimes_kernels")
def test_edge_run_says_once_that_a_limit_leaves_it_out(
    bundle: Bundle, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("edge.runtime.memory.process.private_bytes", lambda: 0)  # the tests' own memory does not count
    limit = without_it(bundle)
    prompt = "A lighthouse stands at the end of the wall. " * 3
    options = ["--memory", str(limit), "--context", "200", "--raw", "--kv", "float32", "--max-tokens", "3"]
    assert main(["run", str(bundle.root), prompt, *options]) == 0
    assert caplog.text.count("has no room for the int8 prefill graph") == 1


@pytest.mark.usefixtures("onnxruntimes_kernels")
def test_what_will_not_be_used_takes_no_memory_from_a_plan(bundle: Bundle) -> None:
    assert bundle.manifest.prefill is not None
    manifest = dataclasses.replace(bundle.manifest, prefill=PrefillGraph("int8", 2, bundle.manifest.prefill.groups))
    newer = dataclasses.replace(bundle, manifest=manifest)
    assert "int8 prefill graph" in make_plan(bundle, "4GB").footprint.running
    assert "int8 prefill graph" not in make_plan(newer, "4GB").footprint.running
    plan = edge.load(bundle.root, memory="4GB").engine.plan
    assert plan is not None and plan.demand.prefill


@pytest.mark.usefixtures("largest_when_it_runs", "onnxruntimes_kernels")
def test_inspect_and_plan_say_what_it_takes(bundle: Bundle, capsys: pytest.CaptureFixture[str]) -> None:
    assert bundle.manifest.prefill is not None
    graph = bundle.path("graphs/prefill.onnx").stat().st_size
    assert main(["inspect", str(bundle.root), "--json"]) == 0
    shown = json.loads(capsys.readouterr().out)["prefill"]["bytes"]
    assert shown == graph + sum(group.bytes for group in bundle.manifest.prefill.groups)
    assert main(["inspect", str(bundle.root)]) == 0
    assert "a graph in int8, " in capsys.readouterr().out
    for budget, said in (
        ("9GB", "used for long prompts"),
        (str(without_it(bundle, "auto")), "omitted: long prompts take longer"),
    ):
        assert main(["plan", str(bundle.root), "--context", "200", "--memory", budget, "--speculate", "off"]) == 0
        assert said in capsys.readouterr().out


@pytest.mark.usefixtures("onnxruntimes_kernels")
def test_a_form_of_another_version_is_left_out(bundle: Bundle, caplog: pytest.LogCaptureFixture) -> None:
    newer = dataclasses.replace(bundle.manifest, prefill=PrefillGraph("int8", 2, bundle.manifest.prefill.groups))
    assert open_engine(dataclasses.replace(bundle, manifest=newer)).prefill is None
    assert "version 2" in caplog.text and "upgrade edge" in caplog.text


def test_a_missing_graph_is_named(bundle: Bundle, tmp_path: Path) -> None:
    copy = Path(shutil.copytree(bundle.root, tmp_path / "copy.edge"))
    (copy / "graphs/prefill.onnx").unlink()
    with pytest.raises(BundleError, match=r"prefill\.onnx is missing from the bundle"):
        edge.load(copy)
    raw = json.loads((copy / MANIFEST).read_text())
    raw["graphs"] = [graph for graph in raw["graphs"] if Graph(**graph).role != "prefill"]
    (copy / MANIFEST).write_text(sealed(raw))
    with pytest.raises(BundleError, match="described without its graph"):
        open_bundle(copy)


def test_what_cannot_have_one_is_refused(tiny_checkpoint: Path, tmp_path: Path) -> None:
    from transformers import AutoConfig, AutoModelForCausalLM

    with pytest.raises(InputError, match="no prefill weights 'int3'; choose one of int8, none"):
        edge.export(tiny_checkpoint, tmp_path / "x.edge", prefill_weights="int3")
    assert main(["export", str(tiny_checkpoint), "-o", str(tmp_path / "x.edge"), "--prefill-weights", "int3"]) == 2
    shutil.copytree(tiny_checkpoint, tmp_path / "gemma")
    sizes = {"vocab_size": 320, "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2, "head_dim": 16,
             "num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 128}  # fmt: skip
    AutoModelForCausalLM.from_config(AutoConfig.for_model("gemma3_text", **sizes)).save_pretrained(tmp_path / "gemma")
    with pytest.raises(ExportError, match="norms it otherwise; choose --prefill-weights none"):
        edge.export(tmp_path / "gemma", tmp_path / "x.edge", weights="int8", prefill_weights="int8")
    assert not (tmp_path / "x.edge").exists()


def test_eval_measures_the_form(bundle: Bundle, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = tmp_path / "text.txt"
    text.write_text("The lighthouse at the end of the harbour wall was built in 1874. " * 12)
    found = []
    for options in ([], ["--prefill-graph"]):
        assert main(["eval", str(bundle.root), "--text", str(text), "--window", "64", "--json", *options]) == 0
        found.append(json.loads(capsys.readouterr().out))
    assert "(prefill)" in json.dumps(found[1]) and "(prefill)" not in json.dumps(found[0])
    assert found[0] != found[1]


def test_eval_of_a_form_that_is_not_there_is_refused(
    pristine_tiny_bundle: Bundle, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text = tmp_path / "text.txt"
    text.write_text("Some words to read. " * 20)
    assert main(["eval", str(pristine_tiny_bundle.root), "--text", str(text), "--prefill-graph"]) == 2
    assert "has no int8 prefill graph to measure" in capsys.readouterr().err


def test_its_operators_are_profiled_at_the_size_of_a_prompts_step(bundle: Bundle) -> None:
    found = [op for op in ops.measure(bundle, context=64, sizes=(1, 16), seconds=0.2).ops if op.graph == "prefill"]
    assert {(op.size, op.context) for op in found} == {(32, 64)}
    products = [op for op in found if op.op_type.startswith("MatMul")]
    body = sum(g.parameters for g in bundle.manifest.groups if g.name in ("attention", "feed_forward"))
    assert 32 * body < sum(op.flops or 0 for op in products) <= 2 * 32 * body  # the last layer runs few rows


def test_a_form_of_another_version_is_not_profiled(bundle: Bundle) -> None:
    assert bundle.manifest.prefill is not None
    manifest = dataclasses.replace(bundle.manifest, prefill=PrefillGraph("int8", 2, bundle.manifest.prefill.groups))
    newer = dataclasses.replace(bundle, manifest=manifest)
    assert "prefill" not in {op.graph for op in ops.measure(newer, context=64, sizes=(1, 16), seconds=0.2).ops}
