"""The drafters beside `lookup`: what they guess, what they take, and that answers do not change with them."""

from __future__ import annotations

import dataclasses
import json
import logging
import random
import shutil
import time
from pathlib import Path

import numpy as np
import pytest
from fake_engine import fake_model, says

from edge.bundle import Bundle, open_bundle, sha256_of
from edge.errors import BundleError, InputError
from edge.manifest import sealed
from edge.runtime.budget import make_plan
from edge.runtime.decode.draft import NOTHING
from edge.runtime.decode.generate_options import GenerateOptions
from edge.runtime.engine.engine import Engine
from edge.runtime.engine.variant import Variant, kv_dtypes
from edge.runtime.load import load, open_engine, start
from edge.runtime.load_options import LoadOptions
from edge.runtime.model import Model
from edge.runtime.speculate import cascade, model, recycle, trigram
from edge.runtime.speculate.drafter import Budget, Drafter, Setting
from edge.runtime.speculate.planner import Planner
from edge.runtime.speculate.recycle import Recycle
from edge.runtime.speculate.trigram import Trigram
from edge.runtime.text.tokenizer import Text

PROMPTS = ("The moon changes", "la la la la la la la la", "def largest(a, b, c): return max(a, b, c)")


def held(drafter: Drafter) -> int:
    """Bytes of all arrays that a drafter keeps."""
    arrays = vars(drafter).values()
    return sum(a.nbytes if isinstance(a, np.ndarray) else a.itemsize * len(a) for a in arrays if hasattr(a, "itemsize"))


def setting(folder: Path, context: int = 1000, limit: int | None = None, vocab: int | None = None) -> Setting:
    bundle = fake_model(folder, says("x"))[0].bundle
    if vocab is not None:
        dims = dataclasses.replace(bundle.manifest.dims, vocab_size=vocab)
        bundle = Bundle(bundle.root, dataclasses.replace(bundle.manifest, dims=dims))
    return Setting(bundle, context, limit=limit)


@pytest.mark.parametrize("vocab", [9, 100, 512, 1000, 49157, 70000])
def test_the_likeliest_tokens_are_found_as_sorting_finds_them(vocab: int) -> None:
    logits = np.random.default_rng(vocab).standard_normal((5, vocab)).astype(np.float32) * 4
    best, sure = recycle.matrix_rows(logits, 8)
    order = np.argsort(-logits, axis=1)[:, :8]
    np.testing.assert_array_equal(best, order)
    chances = np.exp(np.take_along_axis(logits, order, 1).astype(np.float64))
    share = chances[:, 0] / chances.sum(axis=1)
    np.testing.assert_array_equal(sure, [sum(s >= bound for bound in recycle.BOUNDS) for s in share])


def logits_of(vocab: int, *rows: dict[int, float]) -> np.ndarray:
    logits = np.full((len(rows), vocab), -20, np.float32)
    for out, row in zip(logits, rows, strict=True):
        for token, value in row.items():
            out[token] = value
    return logits


def test_recycle_drafts_what_the_model_held_likely_behind_the_latest_occurrence() -> None:
    drafter = Recycle(50)
    assert drafter.propose([3], Budget(4)) == NOTHING
    drafter.verified(np.array([3, 4, 3]), logits_of(50, {9: 9.0}, {5: 9.0, 6: 8.9}, {4: 9.0, 7: 8.0}))
    draft = drafter.propose([1, 3], Budget(4))
    assert (draft.tokens, draft.grades) == ([4, 5], [0, 0]), "as far as anything is known"
    for _ in range(2):
        drafter.verified(np.array([3]), logits_of(50, {4: 9.0, 7: 8.0}))
    assert drafter.propose([1, 3], Budget(4)).grades == [2, 0], "it was the same three times"
    drafter.verified(np.array([3, 3]), logits_of(50, {7: 9.0}, {4: 9.0}))
    assert drafter.propose([1, 3], Budget(4)).grades == [0, 0], "and no longer is"
    assert drafter.propose([3], Budget(1)).tokens == [4]
    drafter.verified(np.array([5]), logits_of(50, {3: 9.0}))
    assert drafter.propose([3], Budget(8)).tokens == [4, 5, 3, 4, 5, 3, 4, 5]


@pytest.mark.parametrize("vocab", [49152, 262144])
def test_recycle_takes_the_memory_that_it_says_and_keeps_to_a_limit(tmp_path: Path, vocab: int) -> None:
    free = setting(tmp_path / "free", vocab=vocab)
    assert held(recycle.make(free)) == recycle.nbytes(free)
    if vocab < 50000:
        assert recycle.nbytes(free) < 2_000_000
    assert held(recycle.make(setting(tmp_path / "just", vocab=vocab, limit=recycle.nbytes(free)))) > 0
    with pytest.raises(InputError, match="recycle takes .* more than the 5000 that are left"):
        recycle.make(setting(tmp_path / "none", vocab=vocab, limit=5000))


def test_an_export_seeds_recycle_with_what_the_model_held_likely(pristine_tiny_bundle: Bundle) -> None:
    found = recycle.read_seed(pristine_tiny_bundle)
    assert found is not None
    tokens, candidates, sure = found
    assert len(tokens) > 50 and candidates.shape == (len(tokens), 8) and len(sure) == len(tokens)
    assert len(set(tokens.tolist())) == len(tokens)
    drafter = recycle.make(Setting(pristine_tiny_bundle, 100))
    first = int(tokens[0])
    draft = drafter.propose([first], Budget(1))
    assert draft.tokens == [candidates[0, 0]] and draft.grades == [recycle.LEVELS + sure[0]]


@pytest.mark.parametrize(
    "spoil",
    [lambda raw: raw[:-1], lambda raw: b"", lambda raw: raw[:8] + b"\xff" * 4 + raw[12:]],
    ids=["cut off", "empty", "token out of the vocabulary"],
)
def test_a_damaged_seed_is_refused_in_a_sentence(tiny_bundle: Bundle, spoil: object) -> None:
    path = tiny_bundle.path(recycle.SEED)
    path.write_bytes(spoil(path.read_bytes()))  # type: ignore[operator]
    with pytest.raises(BundleError, match=r"recycle\.bin .* (again|export the bundle again)\.$"):
        recycle.read_seed(tiny_bundle)


def test_trigram_drafts_what_most_often_followed_two_tokens() -> None:
    drafter = Trigram(2**10, 1000)
    drafter.begin([1, 2, 7, 9, 1, 2, 8, 9, 1, 2, 8, 6, 1, 2])
    draft = drafter.propose([], Budget(8))
    assert draft.tokens[:2] == [8, 6], "8 came twice, 7 once; and of 9 and 6 behind it 6 is the latest"
    assert draft.tokens[2:4] == [1, 2], "and so on"
    drafter.accept([7, 5, 1, 2, 7, 5, 1, 2])
    assert drafter.propose([], Budget(2)).tokens == [7, 5], "counts follow the text"


def test_trigram_counts_a_turn_of_a_chat_once() -> None:
    once, twice = Trigram(2**10, 1000), Trigram(2**10, 1000)
    text = [random.Random(3).randrange(9) for _ in range(300)]
    once.begin(text)
    twice.begin(text[:200])
    twice.accept(text[200:220])
    twice.begin(text)
    assert once._counts == twice._counts and once._successors == twice._successors


def test_trigram_prefers_pairs_that_come_again_where_the_table_is_full() -> None:
    drafter, rng = Trigram(2**8, 20000), random.Random(1)
    song = [7, 8, 9, 10]
    drafter.begin(song * 20)
    for _ in range(40):
        drafter.accept([rng.randrange(20, 5000) for _ in range(40)] + song)
    assert drafter.propose([], Budget(2)).tokens == [7, 8] or drafter._pairs[0] is not None
    drafter.accept([7, 8])
    assert drafter.propose([], Budget(2)).tokens[:1] == [9]


def test_trigram_takes_the_memory_that_it_says_and_keeps_to_a_limit(tmp_path: Path) -> None:
    for limit in (None, 100_000):
        asked = setting(tmp_path / str(limit), 5000, limit)
        drafter = trigram.make(asked)
        drafter.begin(list(range(5000)))
        drafter.accept(list(range(50)))
        assert held(drafter) == trigram.nbytes(asked) <= (limit or 2_000_000)
    with pytest.raises(InputError, match="trigram takes at least"):
        trigram.make(setting(tmp_path / "small", 5000, 10_000))


def test_cascade_asks_the_next_drafter_where_those_before_have_nothing_to_say(tmp_path: Path) -> None:
    drafter = cascade.make(setting(tmp_path, vocab=100))
    text = [1, 2, 3, 4, 9, 8, 2, 3]
    drafter.begin(text)
    assert drafter.propose(text, Budget(2)).grades[0] == 2, "lookup: two tokens matched"
    drafter.begin([50])  # another text: the trigrams of the first one are still known
    drafter.accept([2, 3])
    draft = drafter.propose([50, 2, 3], Budget(3))
    assert draft.tokens == [4, 9, 8] and draft.grades[0] >= cascade.TRIGRAM
    drafter.begin([60, 61])
    assert drafter.propose([60, 61], Budget(3)) == NOTHING
    drafter.verified(np.array([61, 62]), logits_of(100, {62: 9.0}, {2: 9.0}))
    draft = drafter.propose([60, 61], Budget(3))
    assert draft.tokens == [62, 2] and draft.grades[0] >= cascade.RECYCLE
    drafter.begin([9, 8])
    drafter.verified(np.array([2]), logits_of(100, {61: 9.0}))
    drafter.begin([9, 8])
    draft = drafter.propose([9, 8], Budget(5))
    assert draft.tokens[:2] == [2, 3], "trigrams as far as they go"
    assert all(0 <= grade < len(drafter.priors) for grade in draft.grades)


@pytest.mark.parametrize("limit", [None, 1_000_000, 500_000, 200_000, 10_000])
def test_cascade_leaves_out_what_has_no_room(tmp_path: Path, limit: int | None) -> None:
    asked = setting(tmp_path, 5000, limit, vocab=49152)
    drafter = cascade.make(asked)
    assert sum(held(each) for each in drafter._all) == cascade.nbytes(asked) <= (limit or 3_000_000)
    assert len(drafter._all) == {None: 3, 1_000_000: 3}.get(limit, len(drafter._all)) >= 1


def with_bundle(bundle: Bundle, path: Path | str, context: int = 200, limit: int | None = None) -> Setting:
    return Setting(bundle, context, str(path), limit, 2)


def test_the_model_itself_drafts_what_it_says_and_its_cache_keeps_in_step(tiny_bundle: Bundle) -> None:
    whole = load(tiny_bundle.root, context=200, threads=2, speculate="off")
    ids = whole.prompt_ids(PROMPTS[0])  # type: ignore[union-attr]
    said = whole.generate(PROMPTS[0], GenerateOptions(max_tokens=60)).token_ids  # type: ignore[union-attr]
    drafter = model.make(with_bundle(tiny_bundle, tiny_bundle.root))
    text, rng = [*ids, said[0]], random.Random(0)
    drafter.begin(text)
    at, right, asked = 1, 0, 0
    ran: list[int] = []
    step = drafter._engine.step
    drafter._engine.step = lambda cache, tokens: (ran.extend(tokens), step(cache, tokens))[1]  # type: ignore[method-assign]
    while at < len(said) - 6:
        draft = drafter.propose(text, Budget(4))
        assert drafter.propose(text, Budget(4)) == draft, "it may be asked twice"
        right += sum(a == b for a, b in zip(draft.tokens, said[at:], strict=False))
        asked += 4
        more = said[at : at + rng.randrange(1, 5)]
        drafter.accept(more)
        text += more
        at += len(more)
    assert asked > 12 and right > 0.7 * asked, "what the model says is what it drafted"
    assert len(ran) < 12 * len(text), "nothing is run from the start again"


def test_a_model_follows_another_text_and_stays_within_its_context(tiny_bundle: Bundle) -> None:
    drafter = model.make(with_bundle(tiny_bundle, tiny_bundle.root, context=40))
    drafter.begin([5, 6, 7, 8])
    first = drafter.propose([5, 6, 7, 8], Budget(3))
    drafter.begin([5, 6, 9])
    drafter.propose([5, 6, 9], Budget(3))
    drafter.begin([5, 6, 7, 8])
    assert drafter.propose([5, 6, 7, 8], Budget(3)).tokens == first.tokens
    text = [5 + i % 7 for i in range(39)]
    drafter.begin(text)
    assert len(drafter.propose(text, Budget(8)).tokens) == 2
    drafter.accept([4, 4])
    assert drafter.propose([*text, 4, 4], Budget(8)) == NOTHING


def test_a_cheap_model_reads_the_prompt_before_it_is_asked(tiny_bundle: Bundle) -> None:
    ran: list[int] = []
    drafter = model.make(with_bundle(tiny_bundle, tiny_bundle.root))
    step = drafter._engine.step
    drafter._engine.step = lambda cache, tokens: (ran.append(len(tokens)), step(cache, tokens))[1]  # type: ignore
    drafter.begin([5, 6, 7, 8])
    assert ran == [], "as large as the other model: it may never be asked"
    drafter.cost = 0.1
    for tokens in ([5, 6, 7, 8], [5, 6, 7, 8]):
        drafter.begin(tokens)
    drafted = drafter.propose([5, 6, 7, 8], Budget(2))
    assert ran == [4, 1, 1], "the prompt once, its last token again with the first draft, and one step more"
    assert len(drafted.tokens) == 2


def test_a_model_reads_no_more_of_a_text_than_the_answer_can_lose(tiny_bundle: Bundle) -> None:
    drafter, asked = model.make(with_bundle(tiny_bundle, tiny_bundle.root)), list[tuple[float, int]]()
    drafter.cost = 0.1
    drafter.begin([5, 6, 7])

    def afford(share: float, size: int) -> bool:
        asked.append((share, size))
        return len(asked) not in (1, 4)

    drafter.accept([8] * 40)
    text = [5, 6, 7, *[8] * 40]
    assert drafter.propose(text, Budget(5, afford=afford)) == NOTHING
    assert len(drafter.propose(text, Budget(5, afford=afford)).tokens) == 2
    assert asked == [(0.1, 40), (0.1, 40), (0.1, 1), (0.1, 1)]


def test_a_model_that_is_too_large_to_be_tried_says_so(tiny_bundle: Bundle, caplog: pytest.LogCaptureFixture) -> None:
    model.make(with_bundle(tiny_bundle, tiny_bundle.root))
    assert "tiny-llama is 100% of the size of tiny-llama: it hardly drafts" in caplog.text
    caplog.clear()
    groups = [dataclasses.replace(group, bytes=5 * group.bytes) for group in tiny_bundle.manifest.groups]
    larger = dataclasses.replace(tiny_bundle, manifest=dataclasses.replace(tiny_bundle.manifest, groups=groups))
    model.make(with_bundle(larger, tiny_bundle.root))
    assert not caplog.text


def test_a_model_stops_drafting_where_its_own_probability_is_low(tiny_bundle: Bundle) -> None:
    drafter = model.make(with_bundle(tiny_bundle, tiny_bundle.root))
    drafter.begin([5, 6, 7, 8])
    assert len(drafter.propose([5, 6, 7, 8], Budget(8, min_chance=0.0)).tokens) == 8
    assert len(drafter.propose([5, 6, 7, 8], Budget(8, min_chance=0.999)).tokens) == 1
    drafter.begin([5, 6] * 70)
    assert drafter.propose([5, 6] * 70, Budget(8)) == NOTHING, "a model as large as this reads no long prompt"


def test_the_memory_of_a_drafting_model_is_known_and_limited(tiny_bundle: Bundle) -> None:
    asked = with_bundle(tiny_bundle, tiny_bundle.root)
    kv = 200 * dataclasses.replace(tiny_bundle.manifest.kv, dtype=kv_dtypes(tiny_bundle)[0]).bytes_per_token
    assert model.nbytes(asked) > kv
    assert model.nbytes(with_bundle(tiny_bundle, tiny_bundle.root, 400)) >= model.nbytes(asked) + kv
    with pytest.raises(InputError, match="The model that drafts, .*, takes .* more than the 1000 that are left"):
        model.make(with_bundle(tiny_bundle, tiny_bundle.root, limit=1000))


def test_a_model_with_another_tokenizer_is_refused_in_a_sentence(tiny_bundle: Bundle, tmp_path: Path) -> None:
    other = Path(shutil.copytree(tiny_bundle.root, tmp_path / "other.edge"))
    path = other / "tokenizer.json"
    raw = json.loads(path.read_text())
    ids = raw["model"]["vocab"]
    one, two = sorted(ids, key=ids.__getitem__)[40:42]
    ids[one], ids[two] = ids[two], ids[one]
    path.write_text(json.dumps(raw))
    listed = json.loads((other / "edge.json").read_text())
    for file in listed["files"]:
        if file["path"] == "tokenizer.json":
            file |= {"size": path.stat().st_size, "sha256": sha256_of(path)}
    (other / "edge.json").write_text(sealed(listed))
    missing = tmp_path / "nothing"
    asked = f"model={missing}"
    with pytest.raises(InputError, match=r"cannot draft for tiny-llama: their tokenizers differ \(token 40 is "):
        model.make(with_bundle(tiny_bundle, other))
    with pytest.raises(InputError, match=r"cannot draft for tiny-llama: their tokenizers differ"):
        load(tiny_bundle.root, speculate=f"model={other}")
    options = LoadOptions(speculate=asked)
    for make in (lambda: model.make(with_bundle(tiny_bundle, missing)), lambda: start(tiny_bundle, options)):
        with pytest.raises(BundleError, match="There is no bundle at"):
            make()


def test_a_model_drafts_nothing_behind_a_token_that_it_does_not_know(tiny_bundle: Bundle) -> None:
    """Equal tokenizers, and a vocabulary that was padded less."""
    engine = open_engine(tiny_bundle, context=60, threads=2)
    vocab = tiny_bundle.manifest.dims.vocab_size
    for cost in (0.1, 1.0):
        drafter = model.DraftModel(engine, vocab, cost)
        drafter.begin([5, 6, 7])
        first = drafter.propose([5, 6, 7], Budget(3))
        assert len(first.tokens) == 3
        drafter.accept([8, vocab])
        assert drafter.propose([5, 6, 7, 8, vocab], Budget(3)) == NOTHING
        drafter.accept([9])
        assert drafter.propose([5, 6, 7, 8, vocab, 9], Budget(3)) == NOTHING
        drafter.begin([5, vocab, 7])
        assert drafter.propose([5, vocab, 7], Budget(3)) == NOTHING
        drafter.begin([5, 6, 7])
        assert drafter.propose([5, 6, 7], Budget(3)).tokens == first.tokens


def test_a_tokenizer_written_another_way_is_the_same(tiny_bundle: Bundle, tmp_path: Path) -> None:
    other = Path(shutil.copytree(tiny_bundle.root, tmp_path / "other.edge"))
    path = other / "tokenizer.json"
    path.write_text(json.dumps(json.loads(path.read_text()), indent=3))
    listed = json.loads((other / "edge.json").read_text())
    for file in listed["files"]:
        if file["path"] == "tokenizer.json":
            file |= {"size": path.stat().st_size, "sha256": sha256_of(path)}
    (other / "edge.json").write_text(sealed(listed))
    assert open_bundle(other).manifest != tiny_bundle.manifest
    model.make(with_bundle(tiny_bundle, other))


@pytest.mark.parametrize(
    "options", [GenerateOptions(max_tokens=120), GenerateOptions(max_tokens=60, temperature=0.9, seed=4)]
)
@pytest.mark.parametrize("name", ["recycle", "trigram", "model", "cascade"])
def test_an_answer_is_the_same_bit_for_bit_with_every_drafter(
    name: str, options: GenerateOptions, tiny_bundle: Bundle, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Planner, "cut", lambda self, draft: draft)
    monkeypatch.setattr(Planner, "budget", lambda self, most, context, forced: Budget(min(most, 6)))
    asked = f"model={tiny_bundle.root}" if name == "model" else name
    plain = load(tiny_bundle.root, context=200, threads=2, speculate="off", exact=True)
    drafted = load(tiny_bundle.root, context=200, threads=2, speculate=asked, exact=True)
    tokens = 0
    for prompt in PROMPTS * 2:
        wanted, got = plain.generate(prompt, options), drafted.generate(prompt, options)  # type: ignore[union-attr]
        assert got.token_ids == wanted.token_ids and got.finish_reason == wanted.finish_reason
        tokens += got.speculation["drafted"]  # type: ignore[index]
    assert tokens > 20


@pytest.mark.parametrize("name", ["recycle", "trigram"])
def test_drafting_and_learning_take_far_less_time_than_a_step(name: str) -> None:
    vocab, rng = 49152, np.random.default_rng(0)
    drafter: Drafter = Recycle(vocab) if name == "recycle" else Trigram(2**15, 5000)
    logits, text = rng.standard_normal((1, vocab)).astype(np.float32), rng.integers(0, 300, 1500).tolist()
    drafter.begin(text[:1000])
    best = 1.0
    for at in range(1000, 1500):
        began = time.perf_counter()
        drafter.propose(text[:at], Budget(8))
        if drafter.reads_logits:
            drafter.verified(np.array(text[at - 1 : at]), logits)
        drafter.accept(text[at : at + 1])
        best = min(best, time.perf_counter() - began)
    assert best < 500e-6, "0.05 ms were measured where nothing else ran, of a step of 3 ms"


@pytest.mark.parametrize("name", ["recycle", "model", "auto"])
def test_a_named_drafter_that_a_memory_limit_leaves_out_is_told_once(
    name: str, tiny_bundle: Bundle, caplog: pytest.LogCaptureFixture
) -> None:
    asked = f"model={tiny_bundle.root}" if name == "model" else name
    roomy = make_plan(tiny_bundle, "1GB", context=128, speculate=asked)
    tight = dataclasses.replace(roomy, demand=dataclasses.replace(roomy.demand, width=1, drafts=0))
    for plan, said in ((roomy, 0), (tight, name != "auto")):
        answering = Model(tiny_bundle, Engine(tiny_bundle, Variant(plan=plan)), Text(tiny_bundle), speculate=asked)
        with caplog.at_level(logging.WARNING):
            for _ in range(2):
                assert (answering.generate("hi", GenerateOptions(max_tokens=2)).speculation is None) == (plan is tight)
        told = [record.message for record in caplog.records if "hardly drafts" not in record.message]
        assert told == said * [
            f"The memory limit has no room for the drafter {asked}: tiny-llama answers without it, more slowly."
        ]


def test_nothing_is_told_of_drafts_that_nobody_asked_for(tiny_bundle: Bundle, caplog: pytest.LogCaptureFixture) -> None:
    answering = load(tiny_bundle.root, context=128, threads=2, memory="9GB", speculate="off")
    with caplog.at_level(logging.WARNING):
        answering.generate("hi", GenerateOptions(max_tokens=2))  # type: ignore[union-attr]
    assert answering.engine.plan.demand.width == 1 and not caplog.records  # type: ignore[union-attr]
