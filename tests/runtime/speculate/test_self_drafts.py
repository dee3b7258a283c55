"""A model that drafts with some of its layers says what it says without drafts, and knows what that takes."""

from __future__ import annotations

import gc
import itertools
import json
import weakref
from typing import Any

import numpy as np
import pytest

from edge.bundle import Bundle
from edge.cli.main import main
from edge.errors import InputError
from edge.runtime.decode.generate_options import GenerateOptions
from edge.runtime.engine.engine import Engine
from edge.runtime.engine.graphs.segment_cache import SegmentedCache
from edge.runtime.load import load, open_engine
from edge.runtime.model import Model
from edge.runtime.speculate import self as drafts
from edge.runtime.speculate.drafter import Budget, Setting
from edge.runtime.speculate.layers import WINDOW, Exits, Search, choice
from edge.runtime.speculate.planner import Planner

PROMPTS = ["Why does the moon change its shape?", "A train leaves at nine. The train leaves at nine."]
SETTINGS = ["self", "self=exit", "self=unified:0.34", "self=2,3"]
DRAWN = GenerateOptions(max_tokens=60, temperature=0.9, top_p=0.95, repetition_penalty=1.1, seed=4)


def eager(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every draft is run, however little it promises."""
    monkeypatch.setattr(Planner, "cut", lambda self, draft: draft)
    monkeypatch.setattr(Planner, "budget", lambda self, most, context, forced: Budget(min(most, 4)))


@pytest.mark.parametrize("options", [GenerateOptions(max_tokens=90), DRAWN], ids=["greedy", "drawn"])
@pytest.mark.parametrize("asked", SETTINGS)
def test_an_answer_is_the_same_bit_for_bit(
    asked: str, options: GenerateOptions, by_layer: Bundle, monkeypatch: pytest.MonkeyPatch
) -> None:
    eager(monkeypatch)
    plain = load(by_layer.root, context=200, threads=2, speculate="off", exact=True)
    drafted = load(by_layer.root, context=200, threads=2, speculate=asked, exact=True)
    tokens = 0
    for prompt in PROMPTS:
        wanted, got = plain.generate(prompt, options), drafted.generate(prompt, options)  # type: ignore[union-attr]
        assert got.token_ids == wanted.token_ids and got.finish_reason == wanted.finish_reason
        tokens += got.speculation["drafted"]  # type: ignore[index]
    assert tokens > 100


def drafter(bundle: Bundle, setting: str | None = None) -> tuple[Engine, drafts.SelfDraft]:
    name = "self" if setting is None else f"self={setting}"
    engine = open_engine(bundle, context=200, threads=2, speculate=name)
    assert engine.routes is not None
    return engine, drafts.make(Setting(bundle, 200, setting, engine=engine))


def test_drafting_leaves_the_cache_as_it_was(by_layer: Bundle) -> None:
    engine, own = drafter(by_layer)
    cache, text = engine.new_cache(), np.random.default_rng(1).integers(3, 300, 60).tolist()
    engine.step(cache, np.array(text[:-1], np.int64))
    own.share(cache)
    own.begin(text[:20])
    before = [buffer[:, :, : cache.length].copy() for pair in cache.buffers for buffer in pair]
    state = cache.length, cache.reusable, cache.held.tolist()
    asked = [own.propose(text, Budget(5)) for _ in range(4)]
    assert own._choice._tries == 1, "other layers were tried, once for this text"  # type: ignore[attr-defined]
    assert asked[1:] == asked[:-1] and len(asked[0].tokens) == 5
    after = [buffer[:, :, : cache.length] for pair in cache.buffers for buffer in pair]
    assert all(np.array_equal(a, b) for a, b in zip(before, after, strict=True))
    cache.sync()
    assert (cache.length, cache.reusable, cache.held.tolist()) == state


def test_all_layers_draft_what_the_model_says(by_layer: Bundle) -> None:
    engine, own = drafter(by_layer, "unified:0")
    cache, text = engine.new_cache(), np.random.default_rng(2).integers(3, 300, 30).tolist()
    logits = engine.step(cache, np.array(text, np.int64))
    said = []
    for _ in range(6):
        said.append(int(logits[-1].argmax()))
        logits = engine.step(cache, np.array(said[-1:], np.int64))
    cache.truncate(len(text))
    own.share(cache)
    own.begin([*text, said[0]])
    assert own.propose([*text, said[0]], Budget(5)).tokens == said[1:] and own.cost == 1.0


def test_the_search_keeps_the_set_that_is_right_most_often() -> None:
    units = [(i,) for i in range(1, 11)]
    search = Search(units)
    wrong = {3, 7, 8}  # leaving these out hurts

    def right(out: list[tuple[int, ...]]) -> float:
        return 0.9 - 0.25 * len(wrong & {unit[0] for unit in out})

    first, tries = right(list(search.left_out(4))), 0  # evenly spread ones
    while search.tries:
        trial = list(search.trial())
        assert len(trial) == len(search.left_out(4)) == 4
        search.tried(trial, right(trial))
        tries += 1
    assert first < 0.9 and right(list(search.left_out(4))) == 0.9 and tries <= 40


def test_the_exit_is_where_most_tokens_come_for_the_layers_that_run() -> None:
    rng, units = np.random.default_rng(0), [(i,) for i in range(1, 7)]
    for chances, wanted in (([0.1, 0.1, 0.9, 0.9, 0.9, 0.9], 2), ([0.85] * 6, 0), ([0.05] * 5 + [0.95], 5)):
        exits, taken = Exits(units, 20), []
        for _ in range(400):
            out = exits.left_out(4)
            taken.append(6 - len(out))
            exits.drafted(out, bool(rng.random() < chances[taken[-1]]))
        assert np.bincount(taken[200:], minlength=6).argmax() == wanted, chances


def test_a_draft_that_cannot_pay_is_declined(by_layer: Bundle) -> None:
    """Random layers agree with nobody: nearly all steps are plain ones."""
    model = load(by_layer.root, context=400, threads=2, speculate="self")
    result = model.generate(PROMPTS[0], GenerateOptions(max_tokens=300))  # type: ignore[union-attr]
    assert result.speculation is not None and result.speculation["drafted"] < 0.1 * result.speculation["steps"]


def test_a_turn_of_a_chat_goes_on_from_its_cache(by_layer: Bundle, monkeypatch: pytest.MonkeyPatch) -> None:
    eager(monkeypatch)
    said = {}
    for name in ("off", "self=exit"):
        model = load(by_layer.root, context=300, threads=2, speculate=name, exact=True)
        assert isinstance(model, Model)
        chat = model.chat()
        said[name] = [list(chat.stream(prompt, GenerateOptions(max_tokens=30))) for prompt in PROMPTS]
    texts = {name: [[piece.text for piece in turn] for turn in turns] for name, turns in said.items()}
    assert texts["off"] == texts["self=exit"]
    assert said["self=exit"][1][-1].timings.cached_tokens == said["off"][1][-1].timings.cached_tokens > 0


def test_an_answer_next_to_one_that_drafts_runs_all_layers(by_layer: Bundle, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each drafted token is followed by a step of the other answer."""
    eager(monkeypatch)
    model = load(by_layer.root, context=300, threads=2, speculate="self=2,3", exact=True)
    assert isinstance(model, Model)
    options = GenerateOptions(max_tokens=60)
    alone = [model.generate(prompt, options).token_ids for prompt in PROMPTS]
    step, other, said, beside = model.engine.step, model.stream(PROMPTS[1], options), list[int](), [False]

    def both(cache: SegmentedCache, *args: Any, **given: Any) -> Any:
        logits = step(cache, *args, **given)
        if cache.forced is not None and not beside[0]:
            beside[0] = True
            said.extend(piece.token_id for piece in itertools.islice(other, 1) if piece.token_id is not None)
            beside[0] = False
        return logits

    monkeypatch.setattr(model.engine, "step", both)
    assert model.generate(PROMPTS[0], options).token_ids == alone[0]
    assert len(said) > 30 and said == alone[1][: len(said)]


def test_nothing_keeps_the_cache_of_an_answer_that_ended(by_layer: Bundle, monkeypatch: pytest.MonkeyPatch) -> None:
    eager(monkeypatch)
    model = load(by_layer.root, context=200, threads=2, speculate="self=exit")
    assert isinstance(model, Model)
    caches, new_cache = [], model.engine.new_cache
    monkeypatch.setattr(model.engine, "new_cache", lambda *args: caches.append(new_cache(*args)) or caches[-1])
    for prompt in PROMPTS:
        result = model.generate(prompt, GenerateOptions(max_tokens=20))
        assert result.speculation is not None and result.speculation["drafted"] > 0
    kept = [weakref.ref(cache) for cache in caches]
    caches.clear()
    gc.collect()
    assert [cache() for cache in kept] == [None, None]


def test_memory_is_known_and_limited(by_layer: Bundle) -> None:
    few, many = (drafts.nbytes(Setting(by_layer, 200, which)) for which in ("2,3", None))
    assert 0 < few <= many
    with pytest.raises(InputError, match="The drafter self takes .* more than the 1000 that are left"):
        drafts.make(Setting(by_layer, 200, limit=1000))


def test_profiling_drafters_measures_it_over_the_segments(
    by_layer: Bundle, tiny_bundle: Bundle, capsys: pytest.CaptureFixture[str]
) -> None:
    others = ["off", "blend", "cascade", "lookup", "recycle", "trigram"]
    for bundle, names in ((tiny_bundle, others), (by_layer, [*others, "self"])):
        main(["profile", str(bundle.root), "--speculate", "--seconds", "1", "--json"])
        found = [each["drafter"] for each in json.loads(capsys.readouterr().out)]
        assert found[0] == "off" and sorted(found) == sorted(names)


def test_what_cannot_be_asked_is_said_in_a_sentence(by_layer: Bundle, by_half: Bundle, tiny_bundle: Bundle) -> None:
    with pytest.raises(InputError, match=r"tiny-llama has 2 layers; the first and the last one always run"):
        load(tiny_bundle.root, speculate="self")
    with pytest.raises(InputError, match=r"The drafter self skips layers .* --skip unified:0.3 does not run"):
        load(by_layer.root, speculate="self", skip="unified:0.3")
    with pytest.raises(InputError, match="'deep' does not say which layers draft"):
        load(by_layer.root, speculate="self=deep")
    with pytest.raises(InputError, match=r"Layer 0 of .* these can, each as a whole: 1, 2, 3, 4\."):
        choice(by_layer, "0,2")
    assert choice(by_half, "2,3").units == [(3, 4), (5, 6)]
    assert len(choice(by_half, "exit").units) == 4 and WINDOW <= 16
