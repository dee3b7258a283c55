"""Policies: what each leaves out, that chats and drafts do not notice, and what is refused."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import random
import shutil
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from skip_models import in_units, skipping_logits, torch_model

import edge
from edge.bundle import Bundle
from edge.cli.main import main
from edge.errors import BundleError, EdgeError, InputError
from edge.manifest import File, Segment
from edge.runtime.engine.engine import Engine
from edge.runtime.load import open_engine
from edge.runtime.model import Model
from edge.runtime.skip import make_policy, skipdecode
from edge.runtime.skip.first import First
from edge.runtime.skip.skipdecode import SkipDecode
from edge.runtime.skip.unified import Unified, spread
from edge.runtime.speculate.planner import Planner
from edge.runtime.text.tokenizer import Text

LAYERS = 6  # of the small model
OPTIONS = edge.GenerateOptions(max_tokens=12)
QUESTIONS = ["The moon changes its shape", "A train leaves at nine", "Die Bibliothek öffnet um zehn Uhr"]


@pytest.fixture
def routed(by_layer: Bundle, tmp_path: Path) -> Bundle:
    """Units with routers, of which the third depends most on the prompt, and the last is never asked."""
    root = Path(shutil.copytree(by_layer.root, tmp_path / "routed.edge"))
    routers = np.random.default_rng(5).standard_normal((LAYERS - 2, by_layer.manifest.dims.hidden_size + 1))
    routers[3, -1] = np.inf
    return in_units(dataclasses.replace(by_layer, root=root), 1, routers)


def model(bundle: Bundle, skip: str, *, speculate: str = "off", exact: bool = False, chunk: int = 128) -> Model:
    engine = open_engine(bundle, skip=skip, context=400, exact=exact)
    return Model(bundle, engine, Text(bundle), speculate=speculate, prefill_chunk=chunk)


def test_unified_is_the_model_without_these_layers(by_layer: Bundle, six_layers: Path) -> None:
    engine = open_engine(by_layer, skip="unified:0.34", context=64)
    assert engine.routes is not None
    torch = torch_model(six_layers)
    ids = np.arange(20, 40)
    cache = engine.new_cache()
    logits = np.concatenate([engine.step(cache, ids[i : i + 10], np.arange(10)).copy() for i in (0, 10)])
    assert cache.held.tolist() == [20, 20, 0, 20, 0, 20]
    for layer in (4, 2):
        del torch.model.layers[layer]
    np.testing.assert_allclose(logits, skipping_logits(torch, ids, np.ones((4, 20), bool)), atol=2e-4)


def test_unified_spreads_what_it_leaves_out() -> None:
    for total in range(1, 40):
        for count in range(1, total + 1):
            chosen = spread(count, total)
            gaps = np.diff([-1, *chosen, total])
            assert len(set(chosen)) == count and chosen == sorted(chosen)
            assert count == 1 or max(gaps[1:-1]) - min(gaps[1:-1]) <= 1


def deep(by_layer: Bundle, layers: int, unit: int) -> Bundle:
    """A manifest of a deeper model, for policies that only look at it."""
    middle = list(range(1, layers - 1))
    spans = [[0], *(middle[i : i + unit] for i in range(0, len(middle), unit)), [layers - 1]]
    parts = ["start", *["layers"] * (len(spans) - 2), "end"]
    segments = [Segment(part, own) for part, own in zip(parts, spans, strict=True)]
    dims = dataclasses.replace(by_layer.manifest.dims, num_layers=layers)
    return Bundle(by_layer.root, dataclasses.replace(by_layer.manifest, segments=segments, dims=dims))


def test_skipdecode_never_needs_a_row_that_was_not_written(by_layer: Bundle) -> None:
    """Random depths, units, schedules and prompts: the layers of a place are among those of every place before it."""
    rng = np.random.default_rng(0)
    for _ in range(300):
        layers, unit = int(rng.integers(3, 40)), int(rng.integers(1, 5))
        least, most = sorted(int(n) for n in rng.integers(2, layers + 1, 2))
        bundle = deep(by_layer, layers, unit)
        policy = SkipDecode(bundle, least, most)
        prompt, capacity = int(rng.integers(1, 50)), int(rng.integers(50, 700))
        places = {"capacity": capacity, "ends": capacity, "positions": np.arange(capacity)}
        cache = type("Cache", (), {"prompt": prompt, "length": 0, **places})()
        before: set[int] | None = None
        for cache.length in range(capacity):
            route = policy.route(cache, 1)  # type: ignore[arg-type]
            assert before is None or set(route) <= before
            before = set(route)
            ran = [layer for unit in route for layer in bundle.manifest.segments[unit].layers]
            assert ran == sorted(ran) and ran[0] == 0 and ran[-1] == layers - 1
            assert least <= len(ran) < most + unit
            if cache.length < prompt:
                first = len(ran)
        assert len(ran) <= first


def test_skipdecode_bypasses_lower_to_middle_layers(by_layer: Bundle) -> None:
    policy = SkipDecode(deep(by_layer, 30, 1), 15, 30)
    assert policy._routes[0] == tuple(range(30))
    assert policy._routes[-1] == (*range(5), *range(20, 30))


def test_skipdecode_answers_as_torch_does(by_layer: Bundle, six_layers: Path) -> None:
    engine = open_engine(by_layer, skip="skipdecode:3-6", context=64)
    assert engine.routes is not None
    cache, ids = engine.new_cache(30), np.arange(40, 70)
    cache.prompt = 8
    found = [*engine.step(cache, ids[:8], np.arange(8)).copy()]
    ran = np.ones((LAYERS, 30), bool)
    for t in range(8, 30):
        route = engine.routes.policy.route(cache, 1)
        ran[:, t] = [i in route for i in range(LAYERS)]
        found.append(engine.step(cache, ids[t : t + 1])[0].copy())
        assert all(cache.held[g] == cache.length for g in route)
    assert ran[:, -1].sum() == 3
    np.testing.assert_allclose(found, skipping_logits(torch_model(six_layers), ids, ran), atol=2e-4)


def test_routers_whose_graph_does_not_show_what_they_read_are_refused(by_layer: Bundle, tmp_path: Path) -> None:
    root = Path(shutil.copytree(by_layer.root, tmp_path / "routed.edge"))
    routers = np.zeros((LAYERS - 2, by_layer.manifest.dims.hidden_size + 1), np.float32)
    np.save(root / "routers.npy", routers)
    files = [*by_layer.manifest.files, File("routers.npy", (root / "routers.npy").stat().st_size, "0" * 64)]
    manifest = dataclasses.replace(by_layer.manifest, routers="routers.npy", files=files)
    with pytest.raises(BundleError, match="does not show what unit 1 reads"):
        open_engine(Bundle(root, manifest), skip="first")


@pytest.mark.parametrize("seed", range(40))
def test_damaged_headers_of_routers_get_a_sentence(seed: int, routed: Bundle) -> None:
    choose, path = random.Random(seed), routed.root / "routers.npy"
    data = bytearray(path.read_bytes())
    for _ in range(choose.randint(1, 4)):
        data[choose.randrange(128)] = choose.choice([0, 10, 0xB0, *b"({['\"\\#,", choose.randrange(256)])
    path.write_bytes(data)
    with contextlib.suppress(BundleError):
        open_engine(routed, skip="first", context=64)


def test_first_leaves_out_what_the_prompts_mean_says(routed: Bundle, six_layers: Path) -> None:
    """The routers' probabilities beside Torch's hidden states, and the decision that holds for the whole answer."""
    import torch

    with torch.no_grad():
        ids = np.arange(60, 90)
        hidden = torch_model(six_layers)(torch.from_numpy(ids)[None], output_hidden_states=True).hidden_states
    routers = np.load(routed.root / "routers.npy")
    means = []
    for unit in range(3):
        x = hidden[unit + 1][0].numpy()
        x = x / np.sqrt((x**2).mean(1, keepdims=True) + 1e-6)
        means.append((1 / (1 + np.exp(-(x @ routers[unit, :-1] + routers[unit, -1])))).mean())
    for setting, out in (
        ("first", {u for u in range(3) if means[u] < 0.5}),
        ("first:skip=2", set(np.argsort(means)[:2].tolist())),
        ("first:threshold=1", {0, 1, 2}),
        ("first:threshold=0", set()),
    ):
        for chunk in (30, 7):
            engine = open_engine(routed, skip=setting, context=64)
            assert engine.routes is not None and isinstance(engine.routes.policy, First)
            cache = engine.new_cache()
            cache.prompt = len(ids)
            for start in range(0, len(ids), chunk):
                engine.step(cache, ids[start : start + chunk])
            np.testing.assert_allclose(engine.routes.policy.means(cache), means, atol=1e-4)
            for token in (5, 6, 7):
                engine.step(cache, np.array([token]))
            held = [33, *(30 if unit in out else 33 for unit in range(3)), 33, 33]
            assert cache.held.tolist() == held, setting


def test_ffn_leaves_out_the_blocks_that_turn_the_stream_least(by_half: Bundle, six_layers: Path) -> None:
    import torch

    ids, seen = np.arange(60, 90), []
    net = torch_model(six_layers)
    for layer in net.model.layers:
        layer.post_attention_layernorm.register_forward_pre_hook(lambda _, args: seen.append(args[0][0].numpy()))
    with torch.no_grad():
        after = net(torch.from_numpy(ids)[None], output_hidden_states=True).hidden_states
    cosines = [
        (b * a[0].numpy()).sum(1) / np.linalg.norm(b, axis=1) / np.linalg.norm(a[0].numpy(), axis=1)
        for b, a in zip(seen[1:4], after[2:5], strict=True)
    ]
    engine = open_engine(by_half, skip="ffn:0.34", context=64)
    assert engine.routes is not None
    cache = engine.new_cache()
    cache.prompt = len(ids)
    engine.step(cache, ids)
    policy = engine.routes.policy
    np.testing.assert_allclose(policy.means(cache), [c.mean() for c in cosines], atol=1e-4)  # type: ignore[attr-defined]
    left_out = set(engine.routes.everything) - set(policy.route(cache, 1))
    kept = int(np.argmin([c.mean() for c in cosines]))
    assert left_out == {2 * (i + 1) for i in range(3) if i != kept}
    engine.step(cache, ids[:1])
    assert (cache.held[[bool(layers) for layers in cache.layers]] == 31).all(), "attention is whole"


EVERY_POLICY = ["unified:0.2", "skipdecode:2-6", "first", "first:skip=2", "ffn:0.34"]
POLICIES = [*EVERY_POLICY, "skipdecode:3-5"]  # under which prompts leave a layer out too


@pytest.fixture
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """SkipDecode's layers fall within the first tokens of an answer."""
    monkeypatch.setattr(skipdecode, "HORIZON", 10)


@pytest.mark.usefixtures("soon")
@pytest.mark.parametrize("skip", POLICIES)
def test_chat_turns_are_what_a_fresh_run_says(routed: Bundle, by_half: Bundle, skip: str) -> None:
    """The second turn does not see which layers the first answer skipped."""
    bundle = by_half if skip.startswith("ffn") else routed
    talk = model(bundle, skip).chat()
    for question in QUESTIONS:
        answer = talk.generate(question, OPTIONS)
        prompt = talk._cached[: answer.prompt_tokens]
        engine = model(bundle, skip).engine
        cache = engine.new_cache()
        cache.prompt = len(prompt)
        logits = engine.step(cache, np.array(prompt))
        ids = []
        for _ in answer.token_ids:
            ids.append(int(logits[-1].argmax()))
            logits = engine.step(cache, np.array(ids[-1:]))
        assert ids == answer.token_ids
        assert skip.startswith("unified") or cache.held.min() < cache.length, "layers were left out"


@pytest.mark.usefixtures("soon")
@pytest.mark.parametrize("skip", EVERY_POLICY)
def test_answers_in_threads_are_those_alone(
    routed: Bundle, by_half: Bundle, skip: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Prompts that a policy observes are observed unit by unit in turns."""
    shared = model(by_half if skip.startswith("ffn") else routed, skip)
    assert isinstance(shared.engine, Engine)
    alone = [shared.generate(question, OPTIONS).token_ids for question in QUESTIONS]
    policy, turn = shared.engine.routes.policy, threading.Barrier(len(QUESTIONS))
    observe = policy.observe

    def in_turns(*args: Any) -> None:
        turn.wait(60)
        observe(*args)

    monkeypatch.setattr(policy, "observe", in_turns)
    with ThreadPoolExecutor(len(QUESTIONS)) as threads:
        together = list(threads.map(lambda question: shared.generate(question, OPTIONS).token_ids, QUESTIONS))
    assert together == alone


@pytest.mark.usefixtures("soon")
@pytest.mark.parametrize("drafter", ["lookup", "recycle", "trigram", "cascade", "blend"])
@pytest.mark.parametrize("skip", EVERY_POLICY)
def test_chats_with_drafts_under_a_policy_go_as_chats_without(
    routed: Bundle, by_half: Bundle, skip: str, drafter: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Turn after turn: drafts that did not hold leave no row behind, in no layer."""
    monkeypatch.setattr(Planner, "cut", lambda self, draft: draft)
    bundle, options = by_half if skip.startswith("ffn") else routed, edge.GenerateOptions(max_tokens=24)
    plain = model(bundle, skip, exact=True).chat()
    drafting = model(bundle, skip, exact=True, speculate=drafter).chat()
    drafted = accepted = 0
    for question in [*QUESTIONS, QUESTIONS[0]]:
        wanted, got = plain.generate(question, options), drafting.generate(question, options)
        assert got.token_ids == wanted.token_ids
        assert got.speculation is not None
        drafted += got.speculation["drafted"]
        accepted += got.speculation["accepted"]
    assert drafted > accepted, "some did not hold"


def test_a_draft_ends_where_the_layers_of_an_answer_fall(routed: Bundle) -> None:
    engine = open_engine(routed, skip="skipdecode:2-6", context=400)
    assert engine.routes is not None
    cache = engine.new_cache(60)
    engine.step(cache, np.arange(20, 30))
    cache.prompt = 10
    routes = []
    while cache.room:
        found = set()
        for _ in range(engine.max_exact_step(cache)):
            found.add(engine.routes.policy.route(cache, 1))
            engine.step(cache, np.array([40]))
        routes += found
    assert len(routes) == len(set(routes)) == 5, "as many tokens as a level has, and none of the next one"


@pytest.mark.usefixtures("soon")
@pytest.mark.parametrize("skip", POLICIES)
def test_prompts_in_chunks_get_the_same_answer(routed: Bundle, by_half: Bundle, skip: str) -> None:
    bundle, prompt = by_half if skip.startswith("ffn") else routed, " ".join(QUESTIONS)
    whole, parts = (model(bundle, skip, exact=True, chunk=c).generate(prompt, OPTIONS) for c in (128, 5))
    assert whole.token_ids == parts.token_ids


@pytest.mark.parametrize(
    ("skip", "sentence"),
    [
        ("sometimes", "There is no skip policy 'sometimes'"),
        ("unified", "'' is no share of the layers"),
        ("unified:1", "'1' is no share"),
        ("unified:-0.1", "'-0.1' is no share"),
        ("unified:nan", "'nan' is no share"),
        ("skipdecode:3", "'3' is no range"),
        ("skipdecode:5-4", "does not go from 2"),
        ("skipdecode:4-7", "no more than the 6"),
        ("skipdecode:1-4", "from 2 or more"),
        ("first", "has no routers"),
        ("ffn:0.2", "export it with --segments ffn"),
    ],
)
def test_settings_out_of_range_get_a_sentence(by_layer: Bundle, skip: str, sentence: str) -> None:
    with pytest.raises(InputError, match=sentence):
        make_policy(skip, by_layer)


@pytest.mark.parametrize("setting", ["5", "skip=4", "skip=-1", "skip=x", "threshold=1.1", "threshold=x", "budget=2"])
def test_settings_of_routers_out_of_range_get_a_sentence(routed: Bundle, setting: str) -> None:
    with pytest.raises(InputError, match="is not understood; write first"):
        make_policy(f"first:{setting}", routed)


def test_routers_of_another_model_are_refused(routed: Bundle) -> None:
    np.save(routed.root / "routers.npy", np.zeros((4, 9), np.float32))
    with pytest.raises(BundleError, match="routers of another model"):
        make_policy("first", routed)
    (routed.root / "routers.npy").write_bytes(b"not an array")
    with pytest.raises(BundleError, match="cannot be read as routers"):
        make_policy("first", routed)


def test_a_bundle_of_too_few_layers_says_so(tiny_bundle: Bundle) -> None:
    for skip in ("unified:0.2", "skipdecode:2-2", "first", "ffn:0.2"):
        with pytest.raises(InputError, match="has 2 layers; the first and the last one always run, so none can be"):
            edge.load(tiny_bundle.root, skip=skip)


def test_policies_that_need_whole_layers_say_so(by_half: Bundle) -> None:
    with pytest.raises(EdgeError, match="export it with --segments N"):
        make_policy("first", by_half)
    policy = make_policy("unified:0.34", by_half)
    assert isinstance(policy, Unified) and policy.left_out == [3, 4, 7, 8]


def test_the_command_skips(by_layer: Bundle, capsys: pytest.CaptureFixture[str]) -> None:
    said = {}
    for skip in ("off", "unified:0", "unified:0.5"):
        options = ["--raw", "--json", "--max-tokens", "12", "--speculate", "off", "--skip", skip]
        assert main(["run", str(by_layer.root), "The moon changes", *options]) == 0
        said[skip] = json.loads(capsys.readouterr().out)["token_ids"]
    assert said["off"] == said["unified:0"] != said["unified:0.5"]


def test_segments_are_shown(by_layer: Bundle, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["inspect", str(by_layer.root)]) == 0
    assert "6 segments" in capsys.readouterr().out
