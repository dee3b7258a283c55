"""A KV cache in 8 bits: the graph over it, when it is taken, and what answers are like with it."""

from __future__ import annotations

import dataclasses
import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import onnx_ir as ir
import pytest
from graph_harness import tiny_model
from profile_example import example_profile
from transformers import AutoConfig

import edge
from edge.bundle import Bundle, BundleWriter, open_bundle
from edge.cli import main
from edge.errors import InputError
from edge.export.graph.step import DECODER
from edge.export.pipeline import finish
from edge.export.targets.cpu.kv8 import write_kv8
from edge.manifest import FLOAT32, INT8, KV8, KV8_STEP, KVLayer, KVLayout
from edge.runtime.budget import make_plan
from edge.runtime.costs import machine
from edge.runtime.costs.curve import store
from edge.runtime.costs.record import CurvePoint
from edge.runtime.decode.generate_options import GenerateOptions
from edge.runtime.engine.cache import KVCache
from edge.runtime.engine.engine import Engine
from edge.runtime.engine.variant import kv_dtypes
from edge.runtime.kernels.graph import attends_to_bytes
from edge.runtime.load import open_engine
from edge.runtime.memory.footprint import MemoryModel
from edge.runtime.memory.plan import needed
from edge.runtime.model import Model
from edge.runtime.profile.profile import bundle_info

CONTEXT = 128
TEXT = np.random.default_rng(5).integers(3, 300, 90)
BASE = {
    "hidden_size": 48,
    "intermediate_size": 80,
    "num_hidden_layers": 3,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "max_position_embeddings": 256,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": 0,
}
FAMILIES: dict[str, dict[str, Any]] = {
    "llama": {},
    "qwen3": {},  # keys are normed
    "phi3": {  # half of the channels are turned
        **{"head_dim": None, "hidden_size": 96, "num_attention_heads": 3, "num_key_value_heads": 1},
        "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0, "partial_rotary_factor": 0.5},
    },
    "gemma2": {  # windows and bounded scores
        "sliding_window": 12,
        "query_pre_attn_scalar": 16,
        "attn_logit_softcapping": 2.0,
    },
    "gemma3_text": {  # windows
        "sliding_window": 12,
        "layer_types": ["sliding_attention", "full_attention", "sliding_attention"],
        "query_pre_attn_scalar": 16,
    },
    "smollm3": {"no_rope_layers": [1, 0, 1]},  # a layer without positions
    "ernie4_5": {},  # pairs side by side
    "hunyuan_v1_dense": {},  # keys are normed after their rotation
}


@pytest.fixture(scope="module", params=list(FAMILIES))
def exported(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, tiny_checkpoint: Path) -> Bundle:
    """A small model of each kind of attention, in float32."""
    folder = tmp_path_factory.mktemp("kv8") / str(request.param)
    vocabulary = json.loads((tiny_checkpoint / "config.json").read_text())["vocab_size"]
    options = {**BASE, "vocab_size": vocabulary, **FAMILIES[request.param]}
    given = {name: value for name, value in options.items() if value is not None}
    tiny_model(AutoConfig.for_model(request.param, **given)).save_pretrained(folder)
    for file in tiny_checkpoint.glob("*token*"):
        shutil.copy(file, folder)
    return edge.export(folder, folder.with_suffix(".edge"), weights="fp32", candidates=False)


@dataclasses.dataclass
class Both:
    """Engines over one bundle, with a cache in floats and one in bytes."""

    floats: Engine
    bytes: Engine

    def run(self, sizes: list[int]) -> tuple[list[np.ndarray], list[KVCache]]:
        """Logits [S, V] of `TEXT` in steps of these sizes, with either, and the caches that they leave."""
        made, caches = [], []
        for engine in (self.floats, self.bytes):
            cache, rows, at = engine.new_cache(), [], 0
            for size in sizes:
                rows.append(engine.step(cache, TEXT[at : at + size], np.arange(size)).copy())
                at += size
            made.append(np.concatenate(rows))
            caches.append(cache)
        return made, caches


@pytest.fixture(scope="module")
def both(exported: Bundle) -> Both:
    return Both(open_engine(exported, context=CONTEXT), open_engine(exported, context=CONTEXT, kv=INT8))


@pytest.mark.parametrize(("size", "most"), [(26, 1e-4), (KV8_STEP, 0.03), (1, 0.03)], ids=["large", "small", "one"])
def test_what_is_read_are_the_bytes_times_their_scales(exported: Bundle, both: Both, size: int, most: float) -> None:
    """The same as floats that were rounded; a small step reads its own rows rounded as well."""
    floats, cache = both.floats.new_cache(), both.bytes.new_cache()
    both.floats.step(floats, TEXT[:64])
    both.bytes.step(cache, TEXT[:64])
    for layer, (exact, kept) in enumerate(zip(floats.buffers, cache.buffers, strict=True)):
        for values, rows, scale in zip(exact, kept, scales_of(exported, layer), strict=True):
            values[:] = rows * scale.reshape(1, values.shape[1], 1, -1)
    expected, found = (e.step(c, TEXT[64 : 64 + size]) for e, c in ((both.floats, floats), (both.bytes, cache)))
    assert np.abs(found - expected).max() <= most * np.abs(expected - expected.mean()).max()


@pytest.mark.parametrize("sizes", [[90], [60, 30], [1] * 90, [20, *[7] * 10]], ids=["whole", "two", "tokens", "sevens"])
def test_every_row_is_written_to_the_next_byte(exported: Bundle, both: Both, sizes: list[int]) -> None:
    """Both branches write the same rows: the first layer reads what no cache had a part in."""
    _, (floats, bytes_) = both.run(sizes)
    scales = scales_of(exported)
    for part, (exact, kept) in enumerate(zip(floats.buffers[0], bytes_.buffers[0], strict=True)):
        assert kept.dtype == np.int8
        exact, kept = exact[0, :, : len(TEXT)], kept[0, :, : len(TEXT)]
        steps = exact / scales[part].reshape(exact.shape[0], 1, -1)
        inside = np.abs(steps) < 127
        assert inside.mean() > 0.99
        assert np.abs(steps - kept)[inside].max() < 0.51


def scales_of(bundle: Bundle, layer: int = 0) -> list[np.ndarray]:
    """A layer's scales of keys and values, [heads * head_dim]."""
    import onnx
    from onnx import numpy_helper

    graph = onnx.load(bundle.path(bundle.manifest.graph(KV8).path), load_external_data=False).graph
    found = {tensor.name: tensor for tensor in graph.initializer}
    return [numpy_helper.to_array(found[f"kv8.{layer}.{part}"]) for part in ("key", "value")]


def test_turned_channels_share_the_scale_of_their_pair(exported: Bundle) -> None:
    """Whatever angle a position turns a pair by, neither of the two grows beyond what was measured."""
    layer = exported.manifest.kv.layers[0]
    keys = scales_of(exported)[0].reshape(layer.heads, layer.head_dim)
    half = layer.head_dim // 4 if exported.manifest.family == "phi3" else layer.head_dim // 2
    np.testing.assert_array_equal(keys[:, :half], keys[:, half : 2 * half])
    assert len(np.unique(keys)) == keys.size - layer.heads * half


def test_small_steps_give_bitwise_the_same_logits(both: Both) -> None:
    """So that answers can be checked bit for bit with drafts, as with floats."""
    (_, pairs), _ = both.run([30, *[2] * 30])
    (_, wide), _ = both.run([30, *[4, 6, KV8_STEP, 2, 4, 6] * 2])
    np.testing.assert_array_equal(pairs, wide)


def test_rows_can_be_dropped_and_written_again(both: Both) -> None:
    engine, cache = both.bytes, both.bytes.new_cache()
    engine.step(cache, TEXT[:40])
    first = engine.step(cache, TEXT[40:44]).copy()
    cache.truncate(40)
    engine.step(cache, TEXT[:3])
    cache.truncate(40)
    np.testing.assert_array_equal(engine.step(cache, TEXT[40:44]), first)


def test_a_cache_takes_a_quarter(both: Both) -> None:
    floats, bytes_ = both.floats.new_cache(), both.bytes.new_cache()
    assert bytes_.nbytes * 4 == floats.nbytes


def test_reproducible_answers_are_the_same_with_drafts(tiny_bundle: Bundle) -> None:
    prompt = "The moon changes its shape. The moon changes its shape. The moon"
    answers = {}
    for name in ("off", "lookup", "recycle", "trigram", "cascade"):
        model = load_decoder(tiny_bundle, kv=INT8, exact=True, speculate=name)
        answers[name] = model.generate(prompt, GenerateOptions(max_tokens=80)).token_ids
    assert len(set(map(tuple, answers.values()))) == 1


def load_decoder(bundle: Bundle, **options: Any) -> Model:
    model = edge.load(bundle.root, **options)
    assert isinstance(model, Model)
    return model


def test_drafts_run_in_steps_that_attend_to_bytes(tiny_bundle: Bundle) -> None:
    model, floats = load_decoder(tiny_bundle, kv=INT8), load_decoder(tiny_bundle, kv=FLOAT32)
    assert model.speculation is not None and floats.speculation is not None
    width, all_of_it = (each.speculation.planner._width for each in (model, floats))
    assert width == (all_of_it if model.engine.independent else KV8_STEP)


def test_a_chat_goes_on_where_it_was(tiny_bundle: Bundle) -> None:
    model, options = load_decoder(tiny_bundle, kv=INT8, speculate="off"), GenerateOptions(max_tokens=5)
    chat = model.chat()
    chat.generate("A train leaves at nine.", options)
    before = chat.cached_tokens
    assert chat.generate("And then?", options).generated_tokens > 0
    assert chat.cached_tokens > before


# When it is taken


@pytest.mark.usefixtures("onnxruntimes_kernels")
def test_without_a_memory_limit_the_cache_has_floats(tiny_bundle: Bundle) -> None:
    assert load_decoder(tiny_bundle).engine.kv.dtype == FLOAT32
    assert load_decoder(tiny_bundle, kv=INT8).engine.kv.dtype == INT8


def test_on_our_kernels_it_has_bytes_unless_told_else(tiny_bundle: Bundle) -> None:
    if not attends_to_bytes(tiny_bundle):
        pytest.skip("edge-lm-kernels do not run here")
    model = load_decoder(tiny_bundle)
    assert model.engine.kv.dtype == INT8 and model.engine.independent and model.engine.supports_batching
    assert load_decoder(tiny_bundle, kv=FLOAT32).engine.kv.dtype == FLOAT32
    assert kv_dtypes(tiny_bundle) == [INT8]
    assert kv_dtypes(tiny_bundle, provider="openvino") == [FLOAT32, INT8]
    assert kv_dtypes(tiny_bundle, whole=False) == [FLOAT32]
    assert open_engine(tiny_bundle).kv.dtype == FLOAT32


def test_on_our_kernels_prompts_are_answered_side_by_side_as_alone(tiny_bundle: Bundle) -> None:
    if not attends_to_bytes(tiny_bundle):
        pytest.skip("edge-lm-kernels do not run here")
    model, options = load_decoder(tiny_bundle), GenerateOptions(max_tokens=12)
    prompts = ["the harbour", "a lighthouse in the rain", "hi"]
    alone = [model.generate(prompt, options, raw=True).token_ids for prompt in prompts]
    assert [each.token_ids for each in model.generate_all(prompts, options, raw=True)] == alone


@pytest.fixture
def planned(paper_bundle: Bundle) -> Bundle:
    """A bundle for planning alone, with a graph for such a cache and 64 kB of floats for each token."""
    manifest = paper_bundle.manifest
    graphs = [*manifest.graphs, dataclasses.replace(manifest.graph("decoder"), role=KV8)]
    dims = dataclasses.replace(manifest.dims, num_layers=8, vocab_size=50_000)
    kv = KVLayout(FLOAT32, [KVLayer(16, 64)] * 8)
    return Bundle(paper_bundle.root, dataclasses.replace(manifest, graphs=graphs, dims=dims, kv=kv, context=4096))


def test_a_limit_takes_bytes_where_floats_do_not_fit(planned: Bundle) -> None:
    bundle, kinds = planned, kv_dtypes(planned)
    context = bundle.manifest.context
    floats = make_plan(bundle, "4GB", context=context, kv=kinds)
    assert floats.demand.kv == FLOAT32
    enough = needed(floats.footprint)
    tight = make_plan(bundle, enough - enough // 50, context=context, kv=kinds, speculate="off")
    assert tight.demand.kv == INT8 and tight.demand.context == context
    kept = tight.footprint.running["KV cache"]
    assert kept * 4 == floats.footprint.running["KV cache"]


def test_floats_are_given_up_before_steps_are_narrower_than_eight(planned: Bundle) -> None:
    bundle = planned
    budgets = range(needed(make_plan(bundle, "4GB", context=2000, speculate="auto").footprint), 0, -(2**18))
    seen: list[tuple[str, int]] = []
    for budget in budgets:
        try:
            demand = make_plan(bundle, budget, context=2000, speculate="auto", kv=kv_dtypes(bundle)).demand
        except InputError:
            break
        if not seen or seen[-1] != (demand.kv, demand.width):
            seen.append((demand.kv, demand.width))
    floats, rest = [w for kv, w in seen if kv == FLOAT32], [w for kv, w in seen if kv == INT8]
    assert seen == [(FLOAT32, w) for w in floats] + [(INT8, w) for w in rest]  # floats first, then never again
    assert floats and min(floats) >= KV8_STEP >= max(rest)
    assert rest == sorted(rest, reverse=True)


def test_the_memory_model_knows_what_large_steps_unpack(planned: Bundle) -> None:
    model, demand = MemoryModel(planned), make_plan(planned, kv=[INT8]).demand
    bytes_ = model.footprint(demand).running
    floats = model.footprint(dataclasses.replace(demand, kv=FLOAT32)).running
    assert bytes_["activations"] > floats["activations"]
    assert bytes_["KV cache"] < floats["KV cache"]


# What cannot be


@pytest.mark.parametrize(
    "options, said",
    [
        (["--kv", "int4"], "There is no KV cache in 'int4'; choose auto, float32 or int8."),
        (["--kv", "int8", "--skip", "unified:0.2"], "has 2 layers"),
    ],
)
def test_what_cannot_be_kept_is_said_in_a_sentence(
    tiny_bundle: Bundle, capsys: pytest.CaptureFixture[str], options: list[str], said: str
) -> None:
    assert main.main(["run", str(tiny_bundle.root), "Hello", *options]) == 2
    assert said in capsys.readouterr().err


def test_layers_are_not_left_out_over_bytes(by_layer: Bundle) -> None:
    with pytest.raises(InputError, match="needs all layers in one graph"):
        edge.load(by_layer.root, kv=INT8, skip="unified:0.2")


def test_an_older_bundle_is_told_from_one_with_the_graph(tiny_bundle: Bundle) -> None:
    manifest = tiny_bundle.manifest
    graphs = [graph for graph in manifest.graphs if graph.role != KV8]
    older = Bundle(tiny_bundle.root, dataclasses.replace(manifest, graphs=graphs))
    assert kv_dtypes(older) == [FLOAT32]
    with pytest.raises(InputError, match="no graph over a KV cache in int8; export the model again"):
        kv_dtypes(older, INT8)


# Export


def test_an_export_measures_the_cache_against_torch(tiny_bundle: Bundle) -> None:
    quality = open_bundle(tiny_bundle.root).manifest.quality
    assert quality["kv8_kl_mean"] < quality["kl_mean"] + 0.02
    assert quality["kv8_kl_mean"] != quality["kl_mean"]


def test_a_cache_that_would_lose_too_much_is_left_out(
    tiny_checkpoint: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(finish, "MAX_LOST", -1.0)
    said: list[str] = []
    bundle = edge.export(tiny_checkpoint, tmp_path / "x.edge", weights="fp32", candidates=False, say=said.append)
    assert not any(graph.role == KV8 for graph in bundle.manifest.graphs)
    assert not list(bundle.root.rglob("kv8*"))
    assert any("the bundle has float32 alone" in line for line in said)


def test_an_engine_over_bytes_knows_their_costs(tiny_bundle: Bundle) -> None:
    def curve(eight: float) -> list[CurvePoint]:
        return [CurvePoint(size, 100, ms, ms, ms, 9) for size, ms in ((1, 4.0), (8, eight))]

    device = machine.describe("cpu", open_engine(tiny_bundle).threads)  # as the first engine of this process chose
    measured = dataclasses.replace(example_profile(), device=device, bundle=bundle_info(tiny_bundle))
    store(dataclasses.replace(measured, curve=curve(13.0), curve_int8=curve(35.0)))
    floats, ints = (open_engine(tiny_bundle, kv=kv).costs for kv in (FLOAT32, INT8))
    assert floats is not None and ints is not None
    assert floats.ms(8, 100) == 13.0 and ints.ms(8, 100) == 35.0


def test_scales_of_a_short_text_have_room_for_larger_values(exported: Bundle, tmp_path: Path) -> None:
    layers = [(np.ones((each.heads, each.head_dim), np.float32),) * 2 for each in exported.manifest.kv.layers]
    found = {}
    for tokens in (64, 2048):
        with BundleWriter(tmp_path / f"{tokens}.edge") as writer:
            writer.write_file(DECODER, exported.path(DECODER).read_bytes())
            path = writer.staging / write_kv8(writer, layers, tokens).path
            values = ir.load(path).graph.initializers["kv8.0.key"].const_value
            assert values is not None
            found[tokens] = values.numpy() * 127
    assert np.allclose(found[64], 1.8) and np.allclose(found[2048], 1.2)
