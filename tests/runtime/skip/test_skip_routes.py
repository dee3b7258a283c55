"""Routes: our kernels leave out units of any decoder by one input, as a graph with a guard for each does."""

from __future__ import annotations

import dataclasses
import shutil
import statistics
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from encoder_decoder_harness import tiny_model
from skip_models import in_units as write_units
from transformers import T5Config
from unigram_tokenizers import SENTENCES, save_tokenizer

import edge
from edge.bundle import Bundle
from edge.manifest import INT8, KV8, SKIP, Segment
from edge.runtime.engine.engine import Engine
from edge.runtime.engine.graphs.batch_step import BatchStep
from edge.runtime.engine.graphs.segment_cache import SegmentedCache
from edge.runtime.engine.route import Route
from edge.runtime.engine.variant import Variant
from edge.runtime.engine.want import TOKENS
from edge.runtime.kernels.units import Units, take_units
from edge.runtime.load import open_engine
from edge.runtime.model import Model
from edge.runtime.skip.ffn import ByToken, limit
from edge.runtime.skip.skip_policy import AllLayers, FixedRoute
from edge.runtime.skip.units import InUnits, in_units, spans
from edge.runtime.text.tokenizer import Text

LAYERS = 6  # of the small model
STEPS = [37, 1, 1, 5, 1, 2, 16]
QUESTIONS = ["The moon changes its shape", "A train leaves at nine", "Why?"]


pytestmark = pytest.mark.usefixtures("library")


def over(bundle: Bundle, context: int = 64, **more: Any) -> Engine:
    return Engine(bundle, Variant(policy=AllLayers(bundle), context=context, **more))


def routed(bundle: Bundle, *, halves: bool = False, **more: Any) -> Engine:
    found = in_units(bundle, halves=halves)
    assert isinstance(found, InUnits)
    return over(found, **more)


def same_steps(a: Engine, b: Engine) -> None:
    """Bit for bit, in steps of many sizes."""
    one, other, rng = a.new_cache(), b.new_cache(), np.random.default_rng(0)
    for size in STEPS:
        tokens = rng.integers(3, 300, size)
        for rows in (np.arange(size), None):
            assert np.array_equal(a.step(one, tokens, rows), b.step(other, tokens, rows)), size
            if rows is not None:
                for cache in (one, other):
                    cache.truncate(cache.length - size)
    assert np.array_equal(a.step(one, tokens[:1], want=TOKENS), b.step(other, tokens[:1], want=TOKENS))


def test_the_whole_route_is_the_whole_graph_of_a_bundle_without_segments(quantized: list[Bundle]) -> None:
    whole, layers, halves = quantized
    assert not whole.manifest.segments
    same_steps(routed(whole), open_engine(whole, context=64))
    same_steps(routed(whole, halves=True), open_engine(whole, context=64))
    for bundle in (layers, halves):  # those that it has of its own
        assert in_units(bundle).manifest.segments == bundle.manifest.segments
        same_steps(routed(bundle), open_engine(bundle, context=64))


def test_the_same_over_keys_and_values_in_int8(quantized: list[Bundle]) -> None:
    engine = routed(quantized[0], role=KV8, kv=INT8)
    same_steps(engine, open_engine(quantized[0], context=64, kv=INT8))
    assert engine.new_cache().memory[0][0].dtype == np.int8


@pytest.mark.parametrize("halves", [False, True])
def test_a_route_leaves_out_what_guards_do(quantized: list[Bundle], halves: bool) -> None:
    """Random routes, steps of many sizes, and roll-backs: the same logits and the same rows, bit for bit."""
    bundle = quantized[2 if halves else 1]
    guards, routes = over(bundle, 128), routed(quantized[0], halves=halves, context=128)
    units = guards.routes.everything
    assert routes.routes.everything == units and guards.variant.role == SKIP
    for seed in range(6):
        rng = np.random.default_rng(seed)
        caches = [engine.new_cache() for engine in (guards, routes)]
        for _ in range(14):
            if rng.random() < 0.3 and caches[0].length > 3:
                kept = int(rng.integers(1, caches[0].length))
                for cache in caches:
                    cache.truncate(kept)
            size = int(rng.choice([1, 1, 1, 2, 5, 9]))
            out, tokens = [i for i in units[1:-1] if rng.random() < 0.5], rng.integers(3, 300, size)
            found = []
            for engine, cache in zip((guards, routes), caches, strict=True):
                with engine.routes.through(cache, engine.routes.leaving_out(out)):
                    found.append(engine.step(cache, tokens, np.arange(size)).copy())
            assert np.array_equal(*found), (seed, out)
        a, b = caches
        assert isinstance(a, SegmentedCache) and isinstance(b, SegmentedCache) and np.array_equal(a.held, b.held)
        for unit, layers in enumerate(a.layers):
            for one, other in ((a.buffers[i], b.buffers[i]) for i in layers):
                for left, right in zip(one, other, strict=True):
                    assert np.array_equal(left[:, :, : a.held[unit]], right[:, :, : a.held[unit]])


@pytest.mark.parametrize("halves", [False, True])
@pytest.mark.parametrize("kv", [{}, {"role": KV8, "kv": INT8}])
def test_each_sequence_of_a_step_may_run_through_other_layers(
    quantized: list[Bundle], halves: bool, kv: dict[str, Any]
) -> None:
    """Random routes for each of up to five sequences: the logits and the rows of each alone, bit for bit."""
    engine = routed(quantized[0], halves=halves, **kv)
    slots, rng = engine.new_slots(engine.context, 5), np.random.default_rng(3)
    pairs = [(engine.new_cache(), engine.new_cache()) for _ in range(5)]
    for together, alone in pairs:
        slots.join(together)
        prompt = rng.integers(3, 300, rng.integers(2, 9))
        for cache in (together, alone):
            engine.step(cache, prompt)
    middle, odds = engine.routes.everything[1:-1], [0.0, 0.2, 0.5, 0.8, 1.0]
    for turn in range(12):
        if turn == 8:  # two leave, and the last one takes the first slot
            slots.leave(pairs[0][0])
            slots.leave(pairs[3][0])
            pairs = [pairs[4], *pairs[1:3]]
        count = len(pairs)
        left_out = [[i for i in middle if rng.random() < odds[(turn + n) % 5]] for n in range(count)]
        routes = [engine.routes.leaving_out(each) for each in left_out]
        tokens = rng.integers(3, 300, count)
        assert slots.caches == [together for together, _ in pairs]
        with ExitStack() as stack:
            for route, (together, _) in zip(routes, pairs, strict=True):
                stack.enter_context(engine.routes.through(together, route))
            found = engine.step_all(slots, tokens).copy()
        for n, (_, alone) in enumerate(pairs):
            with engine.routes.through(alone, routes[n]):
                assert np.array_equal(engine.step(alone, tokens[n : n + 1])[0], found[n]), (turn, n)
    for together, alone in pairs:
        assert np.array_equal(together.held, alone.held)
        for unit, layers in enumerate(alone.layers):
            for i in layers:
                for left, right in zip(alone.buffers[i], together.buffers[i], strict=True):
                    assert np.array_equal(left[:, :, : alone.held[unit]], right[:, :, : alone.held[unit]])


def test_a_layer_that_no_token_runs_through_keeps_its_rows_as_they_are(quantized: list[Bundle]) -> None:
    engine = routed(quantized[0])
    cache = engine.new_cache()
    engine.step(cache, np.arange(20, 30))
    before = [(key.copy(), value.copy()) for key, value in cache.buffers]
    with engine.routes.through(cache, engine.routes.leaving_out([2, 3])):
        for token in range(40, 50):
            engine.step(cache, np.array([token]))
    same = [all(map(np.array_equal, now, then)) for now, then in zip(cache.buffers, before, strict=True)]
    assert same == [False, False, True, True, False, False]


def answers(bundle: Bundle, skip: str, **options: Any) -> list[list[int]]:
    model = edge.load(bundle.root, skip=skip, context=256, **options)
    assert isinstance(model, Model) and isinstance(model.engine.bundle, InUnits) is (skip != "off")
    assert model.engine.variant.role != SKIP
    return [model.generate(question, max_tokens=12).token_ids for question in QUESTIONS]


def guarded(bundle: Bundle, skip: str, monkeypatch: pytest.MonkeyPatch) -> list[list[int]]:
    """The same with a guard for each unit, whose keys and values are in float32."""
    with monkeypatch.context() as patch:
        patch.setattr("edge.runtime.load.as_asked", lambda bundle, *given: bundle)
        model = edge.load(bundle.root, skip=skip, context=256)
        assert isinstance(model, Model) and model.engine.variant.role == SKIP
        return [model.generate(question, max_tokens=12).token_ids for question in QUESTIONS]


@pytest.mark.parametrize(
    ("skip", "segments"), [("unified:0.34", 1), ("skipdecode:2-5", 1), ("ffn:0.34", 2), ("unified:0.34", 2)]
)
def test_policies_need_no_segments_and_say_what_they_say_with_guards(
    quantized: list[Bundle], skip: str, segments: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole, with_segments = quantized[0], quantized[segments]
    found = answers(whole, skip, kv="float32")
    assert found == guarded(with_segments, skip, monkeypatch)
    assert found != answers(whole, "off", kv="float32")
    assert answers(whole, skip, kv="int8") == answers(with_segments, skip, kv="int8")


def with_routers(bundle: Bundle, root: Path) -> Bundle:
    """A copy of a bundle in layers with routers of random weights."""
    root = Path(shutil.copytree(bundle.root, root))
    width = bundle.manifest.dims.hidden_size
    routers = np.random.default_rng(5).standard_normal((LAYERS - 2, width + 1))
    return write_units(dataclasses.replace(bundle, root=root), 1, routers)


@pytest.mark.parametrize("skip", ["unified:0.34", "skipdecode:2-5", "ffn:0.34", "ffn:token=0.34", "first:skip=2"])
@pytest.mark.parametrize("kv", ["float32", "int8"])
def test_prompts_side_by_side_run_the_same_layers_as_alone(
    quantized: list[Bundle], skip: str, kv: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Answers of several lengths, of which the next one begins as soon as another ends: a token of each runs through
    layers of its own."""
    routes_of, apart, run = list[int](), list[bool](), BatchStep.run

    def counted(self: BatchStep, caches: Any, tokens: Any, turns: Any) -> Any:
        routes_of.append(len({route for route, _ in turns}))
        apart.append(len({cache.length - cache.prompt for cache in caches}) > 1)
        return run(self, caches, tokens, turns)

    monkeypatch.setattr(BatchStep, "run", counted)
    bundle = with_routers(quantized[1], tmp_path / "routed.edge") if skip.startswith("first") else quantized[0]
    engine = open_engine(bundle, skip=skip, context=256, kv=kv)
    model = Model(engine.bundle, engine, Text(bundle), speculate="off")
    prompts = [*QUESTIONS, "A short one", " ".join(QUESTIONS), "And another"]
    options = edge.GenerateOptions(max_tokens=24, circles="allow", stop=["e", "t"])
    alone = [model.generate(prompt, options).token_ids for prompt in prompts]
    for width in (2, 5):
        assert [each.token_ids for each in model.generate_all(prompts, options, width=width)] == alone
    assert any(apart), "they ended at different times"
    if skip.startswith(("skipdecode", "first")):
        assert max(routes_of) > 1, "they ran through different layers"


@pytest.mark.parametrize("kv", ["float32", "int8"])
def test_each_token_leaves_out_the_feed_forward_blocks_behind_a_redundant_one(quantized: list[Bundle], kv: str) -> None:
    """The tokens of one step decide by themselves; each then says what it says on a route of what it ran through."""
    engine = open_engine(quantized[0], skip="ffn:token=0.34", context=256, kv=kv)
    assert engine.routes is not None and isinstance(engine.routes.policy, ByToken)
    plain = routed(quantized[0], halves=True, context=256, **({"role": KV8, "kv": INT8} if kv == "int8" else {}))
    assert plain.routes is not None
    policy, rng = engine.routes.policy, np.random.default_rng(7)
    a, b, prompt = engine.new_cache(), plain.new_cache(), rng.integers(3, 300, 48)
    a.prompt = len(prompt)
    assert np.array_equal(engine.step(a, prompt), plain.step(b, prompt))
    limits = policy.limits(a)
    assert limits is not None and sorted(np.flatnonzero(limits <= 1)) == policy.candidates
    shares = list[float]()
    for size in (1, 5, 1, 16, 30):
        tokens = rng.integers(3, 300, size)
        found = engine.step(a, tokens, np.arange(size)).copy()
        assert a.last_step is not None
        ran = a.last_step[1].ran.array  # type: ignore[attr-defined]
        assert engine.routes.layers_run(a) == LAYERS * size - (~ran).sum() / 2
        for i in range(size):
            route = tuple(int(unit) for unit in np.flatnonzero(ran[:, i]))
            with plain.routes.through(b, route):
                assert np.array_equal(plain.step(b, tokens[i : i + 1])[0], found[i]), (size, i)
            of_candidates = ran[policy.candidates, i]
            assert of_candidates[0] and (np.diff(of_candidates.astype(int)) <= 0).all(), "all behind the first one"
            shares.append(float((~of_candidates).sum()))
    assert len(set(shares)) > 1, "tokens decide differently"
    assert abs(statistics.mean(shares) - policy.count) < 0.5


def test_what_tokens_leave_out_is_the_share_that_is_asked_for_of_the_prompts() -> None:
    rng = np.random.default_rng(0)
    for blocks, tokens, count in ((3, 40, 2), (9, 100, 6), (12, 7, 8), (2, 5, 1)):
        cosines = rng.random((blocks, tokens), np.float32)
        redundant = cosines >= limit(cosines, count)
        first = np.where(redundant.any(axis=0), redundant.argmax(axis=0), blocks - 1)
        assert 0 <= (blocks - 1 - first).mean() - count <= blocks / tokens, (blocks, count)
    assert limit(cosines, 2) == -1, "only the blocks behind the first one can be left out"


def test_what_tokens_decide_needs_our_kernels(quantized: list[Bundle], onnxruntimes_kernels: None) -> None:
    with pytest.raises(edge.InputError, match=r"ffn:token=0\.34 needs edge_kernels.*ffn:0\.34 goes without"):
        edge.load(quantized[2].root, skip="ffn:token=0.34")


@pytest.mark.parametrize("wanted", ["ffn:token=", "ffn:token=1", "ffn:token=-0.1", "ffn:token=x", "ffn:tokens=0.1"])
def test_a_share_that_is_none_is_a_sentence(quantized: list[Bundle], wanted: str) -> None:
    with pytest.raises(edge.InputError, match="is no share of the layers"):
        edge.load(quantized[0].root, skip=wanted)


@pytest.mark.parametrize("drafter", ["lookup", "trigram"])
def test_drafts_are_checked_by_what_each_token_decides(quantized: list[Bundle], drafter: str) -> None:
    plain, model = (
        edge.load(quantized[0].root, kind=Model, skip="ffn:token=0.34", speculate=each, context=256)
        for each in ("off", drafter)
    )
    for question in QUESTIONS:
        wanted = plain.generate(question, max_tokens=48, circles="allow").token_ids
        assert model.generate(question, max_tokens=48, circles="allow").token_ids == wanted


@pytest.mark.parametrize("drafter", ["self", "self=exit", "self=2,3", "lookup"])
@pytest.mark.parametrize("kv", ["float32", "int8"])
def test_drafts_of_parts_of_the_model_need_no_segments(quantized: list[Bundle], drafter: str, kv: str) -> None:
    plain = edge.load(quantized[0].root, kind=Model, speculate="off", context=256, kv=kv)
    model = edge.load(quantized[0].root, kind=Model, speculate=drafter, context=256, kv=kv)
    assert (model.engine.routes is not None) is drafter.startswith("self")
    for question in QUESTIONS:
        wanted = plain.generate(question, max_tokens=24).token_ids
        assert model.generate(question, max_tokens=24).token_ids == wanted


@pytest.mark.parametrize("skip", ["unified:0.34", "skipdecode:2-5", "ffn:0.34", "ffn:token=0.34"])
def test_a_chats_next_turn_does_not_see_what_the_last_answer_skipped(quantized: list[Bundle], skip: str) -> None:
    model = edge.load(quantized[0].root, kind=Model, skip=skip, context=512, speculate="off")
    chat, greedy = model.chat(), edge.GenerateOptions(max_tokens=8, circles="allow")
    for question in QUESTIONS[:2]:
        answer = chat.generate(question, greedy)
        prompt, cache = chat._cached[: answer.prompt_tokens], model.engine.new_cache()
        cache.prompt = len(prompt)
        logits, ids = model.engine.step(cache, np.array(prompt)), list[int]()
        for _ in answer.token_ids:
            ids.append(int(logits[-1].argmax()))
            logits = model.engine.step(cache, np.array(ids[-1:]))
        assert ids == answer.token_ids
        if not skip.startswith("ffn:token"):  # whose layers all have rows
            assert isinstance(cache, SegmentedCache) and cache.held.min() < cache.length, "layers were left out"


def test_a_route_for_another_number_of_units_is_refused(quantized: list[Bundle]) -> None:
    engine = routed(quantized[0])
    cache, provider = engine.new_cache(), engine.provider
    engine.step(cache, np.arange(5))
    for units in (LAYERS - 1, LAYERS + 1, 0):
        binding = engine.graphs._bind(cache, 1)
        binding.share({"units.run": provider.adopt(np.ones(units, np.bool_))})
        step = engine.graphs._step(cache, 1, 1, "logits")
        with pytest.raises(Exception, match=r"units\.run"):
            step.run(cache, engine.routes.everything, None, binding)


@pytest.mark.parametrize(("tokens", "rows"), [(1, 2), (4, 3), (4, 5), (1, 0)])
def test_a_route_for_another_number_of_rows_is_refused(quantized: list[Bundle], tokens: int, rows: int) -> None:
    engine = routed(quantized[0])
    cache, provider = engine.new_cache(), engine.provider
    engine.step(cache, np.arange(5))
    binding = engine.graphs._bind(cache, tokens)
    binding.share({"units.run": provider.adopt(np.ones((LAYERS, rows), np.bool_))})
    step = engine.graphs._step(cache, tokens, 1, "logits")
    cache.append(np.arange(5, 5 + tokens), engine.routes.everything, alike=False)
    with pytest.raises(Exception, match=r"route is of|the number of the step's rows is 0"):
        step.run(cache, engine.routes.everything, None, binding)


@pytest.mark.parametrize("guards", [False, True])
@pytest.mark.parametrize(
    "route",
    [(1, 2, 5), (0, 3), (), (0, 1, 2, 3, 4), (0, 1, 2, 3, 4, 5, 6), (0, 2, 2, 5), (0, 3, 1, 5), (-1, 0, 5), (0, 5, 0)],
)
def test_a_policy_whose_route_is_none_is_refused_before_the_step(
    quantized: list[Bundle], route: tuple[int, ...], guards: bool
) -> None:
    """Without the first layer, whose keys a later step needs; of another number of units; out of order."""
    engine = over(quantized[1]) if guards else routed(quantized[0])
    cache = engine.new_cache()
    wanted = engine.step(cache, np.arange(5)).copy()
    cache.truncate(0)
    engine.routes.policy = FixedRoute(route)
    with pytest.raises(edge.InputError, match="0 to 5, in this order, of which the first and the last one run in"):
        engine.step(cache, np.arange(5))
    assert cache.length == 0, "nothing of it is left"
    engine.routes.policy = AllLayers(engine.bundle)
    assert np.array_equal(engine.step(cache, np.arange(5)), wanted)


def test_rows_that_a_policy_left_unwritten_are_not_there_for_later_steps(quantized: list[Bundle]) -> None:
    """A layer that joins again sees the tokens that ran through it, on both kernels, whatever the policy."""

    class Wandering(FixedRoute):
        uniform = False

        def route(self, cache: SegmentedCache, size: int) -> Route:
            rng = np.random.default_rng(cache.length)
            return 0, *(unit for unit in range(1, LAYERS - 1) if rng.random() < 0.5), LAYERS - 1

    found = []
    for engine in (over(quantized[1]), routed(quantized[0])):
        engine.routes.policy = Wandering(())
        cache = engine.new_cache()
        found.append([engine.step(cache, np.array([7 + i])).copy() for i in range(20)])
        assert cache.held[1:-1].min() > 0 and cache.held[1:-1].max() < 20
    assert np.array_equal(*found)


def test_a_bundle_exported_before_has_its_units_from_its_one_graph(quantized: list[Bundle]) -> None:
    """Segments were files of their own, and there was no graph of all."""
    graphs = [graph for graph in quantized[1].manifest.graphs if graph.role != SKIP]
    earlier = dataclasses.replace(quantized[1], manifest=dataclasses.replace(quantized[1].manifest, graphs=graphs))
    same_steps(routed(earlier), open_engine(quantized[0], context=64))


def test_a_graph_whose_stream_has_no_names_says_how_layers_can_be_left_out(
    quantized: list[Bundle], tmp_path: Path
) -> None:
    """As edge wrote graphs before they were cut."""
    import onnx

    bundle = Bundle(Path(shutil.copytree(quantized[0].root, tmp_path / "earlier.edge")), quantized[0].manifest)
    path = bundle.path("graphs/decoder.onnx")
    graph = onnx.load(path, load_external_data=False)
    for node in graph.graph.node:
        for names in (node.input, node.output):
            for place, name in enumerate(names):
                if name.startswith("layer.") and name.endswith((".x", ".added")):
                    names[place] = f"earlier.{name}"
    path.write_bytes(graph.SerializeToString())
    for asked in ({"skip": "unified:0.34"}, {"speculate": "self"}):
        with pytest.raises(edge.InputError, match="has no segments, which skipping needs where edge_kernels cannot"):
            open_engine(bundle, **asked)  # type: ignore[arg-type]
    open_engine(bundle, context=16)


def test_a_bundle_that_cannot_run_in_units_says_how_it_can(quantized: list[Bundle], onnxruntimes_kernels: None) -> None:
    with pytest.raises(edge.InputError, match="has no segments, which skipping needs where"):
        edge.load(quantized[0].root, skip="unified:0.34")


@pytest.fixture(scope="module")
def t5(tmp_path_factory: pytest.TempPathFactory) -> list[Bundle]:
    """A gated T5 of four decoder layers in int8, without segments, in layers, and in half-layers."""
    folder = tmp_path_factory.mktemp("t5")
    tokenizer = save_tokenizer(folder / "tiny-t5", ["<pad>", "</s>", "<unk>"], "$A </s>")
    sizes: dict[str, Any] = {"d_model": 64, "d_kv": 16, "d_ff": 160, "num_layers": 1, "num_decoder_layers": 4}
    sizes |= {"num_heads": 4, "feed_forward_proj": "gated-gelu"}
    ways: list[int | str | None] = [None, 1, "ffn"]
    source, config = folder / "tiny-t5", T5Config(vocab_size=len(tokenizer), decoder_start_token_id=0, **sizes)
    tiny_model(config).save_pretrained(source)
    return [edge.export(source, folder / f"{way}.edge", weights="int8", segments=way, check=False) for way in ways]


@pytest.mark.parametrize("skip", ["unified:0", "unified:0.25", "ffn:0.25"])
@pytest.mark.parametrize("beams", [1, 3])
def test_encoder_decoders_search_with_beams_as_with_guards(
    t5: list[Bundle], skip: str, beams: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    def said(bundle: Bundle, skip: str) -> list[list[int]]:
        model = edge.load(bundle.root, kind=edge.Text2Text, skip=skip)
        return [model.generate(text, beams=beams, max_tokens=10).token_ids for text in SENTENCES]

    found = said(t5[0], skip)
    if skip == "unified:0":
        assert found == said(t5[0], "off")
    monkeypatch.setattr("edge.runtime.load.as_asked", lambda bundle, *given: bundle)
    assert found == said(t5[2 if skip.startswith("ffn") else 1], skip)


def test_routers_decide_as_with_guards(
    quantized: list[Bundle], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bundle = with_routers(quantized[1], tmp_path / "routed.edge")
    found = []
    for guards in (False, True):
        if guards:
            monkeypatch.setattr("edge.runtime.load.as_asked", lambda bundle, *given: bundle)
        engine = open_engine(bundle, skip="first:skip=2", context=256, kv="float32")
        assert engine.routes is not None and engine.routes.policy.watched[0] == 1
        assert (engine.variant.role == SKIP) is guards
        model = Model(engine.bundle, engine, Text(bundle))
        found.append([model.generate(question, max_tokens=12).token_ids for question in QUESTIONS])
    assert found[0] == found[1]


def test_kernels_that_cannot_be_used_leave_the_way_with_guards(
    quantized: list[Bundle], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def full(*given: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("edge.runtime.kernels.graph.packed_weights", full)
    with pytest.raises(edge.BundleError, match="cannot be used here; it runs without --skip"):
        open_engine(quantized[0], skip="unified:0.34", kv="int8")
    engine = open_engine(quantized[1], skip="unified:0.34", kv="int8")
    assert (engine.variant.role, engine.new_cache().memory[0][0].dtype) == (SKIP, np.float32)
    assert "is in float32 instead of int8" in caplog.text
    engine.step(engine.new_cache(), np.arange(5))


def test_graphs_that_are_not_as_exporters_write_them_are_not_taken(quantized: list[Bundle]) -> None:
    from edge.runtime.kernels.graph_check import parse_graph

    path, units = quantized[0].path("graphs/decoder.onnx"), Units(tuple(spans(LAYERS, 1)))
    pairs = ["attention", "feed_forward"]
    wrong = [
        *spans(LAYERS, 1)[:1],
        *(Segment(part, [1, 2]) for part in pairs),
        *(Segment(part, [i]) for i in (3, 4) for part in pairs),
        Segment("end", [LAYERS - 1]),
    ]
    with pytest.raises(ValueError, match="halves are not of one layer"):
        take_units(parse_graph(path).graph, Units(tuple(wrong)))
    renamed = {
        "layer.2.feed_forward.x": "elsewhere",
        "layer.3.attention.added": "layer.2.feed_forward.x.after",
        "layer.3.attention.x": "seqlens_k.1",
    }
    for old, new in renamed.items():
        graph = parse_graph(path).graph
        for node in graph.node:
            for names in (node.input, node.output):
                for place, name in enumerate(names):
                    names[place] = new if name == old else name
        with pytest.raises(ValueError, match="not named|not made in one unit|other names"):
            take_units(graph, units)
