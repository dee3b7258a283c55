"""`blend` and the bundle's table of successors: what the table holds, what is drafted, and how it is counted."""

from __future__ import annotations

import itertools
import math
import random
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import SimpleNamespace

import pytest
from fake_engine import fake_model, says, with_table

import edge
from edge.bundle import Bundle
from edge.errors import BundleError, InputError
from edge.export.drafts import successors as own_text
from edge.export.drafts.prompts import PREVIOUS, by_themselves
from edge.export.drafts.successors import BEFORE, own_answers, successors
from edge.export.request.choices import default_tokens
from edge.runtime.budget import make_plan
from edge.runtime.load import load
from edge.runtime.memory.plan import needed
from edge.runtime.model import Model
from edge.runtime.speculate import blend
from edge.runtime.speculate.drafter import Budget, Setting, table_bytes
from edge.runtime.speculate.planner import Planner
from edge.runtime.speculate.successors import (
    FILE,
    HEAD,
    LEAST,
    LEVELS,
    NONE,
    SLOT,
    STEP,
    Context,
    Successors,
    level_of,
    write_table,
)


def bytes_bundle(folder: Path, table: Mapping[Context, tuple[int, int]] | bytes) -> Bundle:
    return with_table(fake_model(folder, says("x"))[0].bundle, table)


def drafter(folder: Path, table: Mapping[Context, tuple[int, int]], limit: int | None = None) -> blend.Blend:
    return blend.make(Setting(bytes_bundle(folder, table), 500, limit=limit))


@pytest.mark.parametrize("count", [0, 1, 2, 3, 700])
def test_a_table_gives_back_what_was_written_and_of_several_contexts_the_longest(count: int, tmp_path: Path) -> None:
    rng = random.Random(count)
    contexts = {tuple(rng.randrange(250) for _ in range(rng.randint(1, 3))) for _ in range(count)}
    written = {context: (rng.randrange(259), rng.randrange(12)) for context in contexts}
    table = Successors(bytes_bundle(tmp_path, written))
    asked = [*contexts, *(tuple(rng.randrange(250) for _ in range(3)) for _ in range(500))]
    for context in asked:
        filled = (NONE,) * (3 - len(context)) + context
        wanted = next((written[context[i:]] for i in range(len(context)) if context[i:] in written), None)
        assert table.after(*filled) == wanted


def test_a_draft_goes_on_while_all_of_it_may_hold(tmp_path: Path) -> None:
    """Behind the first token whose path is less likely than what can pay there is nothing, copied or from the table."""
    copies = drafter(tmp_path / "copies", {})
    said = drafter(tmp_path / "said", {(40 + i,): (41 + i, 6) for i in range(20)})
    for made, text in ((copies, [*range(1, 30), 60, 5]), (said, [90, 91, 40])):
        made.begin(text)
        whole = made.propose(text, Budget(7))
        chances = list(itertools.accumulate((blend.PRIORS[grade] for grade in whole.grades), float.__mul__))
        assert len(whole.tokens) == 7
        for count in (1, 2, 4):
            short = made.propose(text, Budget(7, min_chance=chances[count - 1] + 1e-9))
            assert short.tokens == whole.tokens[:count] and short.grades == whole.grades[:count]


@pytest.mark.parametrize("harm", ["cut", "short", "levels", "token", "full"])
def test_a_damaged_table_is_refused_in_a_sentence(harm: str, tmp_path: Path) -> None:
    raw = bytearray(write_table({(1,): (2, 3), (4, 5): (258, 11)}))
    if harm == "levels":
        raw[4] = 7
    if harm == "full":
        raw[8:] = (1 << 32 | 1 << 24).to_bytes(8, "little") * ((len(raw) - 8) // 8)
    if harm == "token":
        raw = bytearray(write_table({(1,): (259, 3)}))
    bundle = bytes_bundle(tmp_path, bytes({"cut": raw[:-8], "short": raw[:4]}.get(harm, raw)))
    with pytest.raises(BundleError, match=r"successors\.bin .*\.$"):
        blend.make(Setting(bundle, 500))


def test_what_the_table_says_is_drafted_where_nothing_matched(tmp_path: Path) -> None:
    made = drafter(tmp_path, {(1, 2): (3, 10), (2, 3): (4, 9), (4,): (5, 0)})
    made.begin([1, 2])
    draft = made.propose([1, 2], Budget(6))
    assert draft.tokens == [3, 4, 5], "to its end, each behind the longest context that the table has"
    chances = [blend.PRIORS[grade] for grade in draft.grades]
    assert chances[0] > 0.8 and chances[2] < 0.2, "as likely as it says"


def test_a_sure_table_goes_before_one_matched_token_and_a_long_match_before_the_table(tmp_path: Path) -> None:
    made = drafter(tmp_path, {(7,): (9, 11)})
    made.begin([7, 8, 1, 2, 7])
    assert made.propose([7, 8, 1, 2, 7], Budget(3)).tokens[0] == 9
    text = [1, 2, 3, 4, 7, 8, 1, 2, 3, 4, 7]
    made.begin(text)
    assert made.propose(text, Budget(3)).tokens[:2] == [8, 1]


def test_a_match_is_the_better_the_more_of_its_earlier_places_went_on_alike() -> None:
    def chance(text: Sequence[int]) -> float:
        made = blend.Blend(256, None)
        made.begin(text)
        draft = made.propose(text, Budget(1))
        assert draft.tokens[0] == 2
        return blend.PRIORS[draft.grades[0]]

    always, once = [1, 2, 9, 1, 2, 8, 1, 2, 7, 1], [1, 2, 9, 1]
    seldom = [1, 9, 3, 1, 8, 4, 1, 7, 5, 1, 6, 5, 1, 2, 10, 1]
    assert chance(always) > chance(once) > chance(seldom)


def test_what_the_table_says_of_a_match_counts(tmp_path: Path) -> None:
    text, found = [1, 2, 9, 1], {}
    for name, table in {"none": {(5,): (5, 5)}, "same": {(1,): (2, 10)}, "other": {(1,): (3, 1)}}.items():
        made = drafter(tmp_path / name, table)
        made.begin(text)
        draft = made.propose(text, Budget(1))
        assert draft.tokens == [2]
        found[name] = blend.PRIORS[draft.grades[0]]
    assert found["same"] > found["none"] > found["other"]


def held(made: blend.Blend, bundle: Bundle) -> int:
    index = sum(v.itemsize * len(v) for v in vars(made._lookup).values() if hasattr(v, "itemsize"))
    counts = sum(len(v) for v in vars(made).values() if isinstance(v, bytearray))
    return index + counts + (bundle.path(FILE).stat().st_size if made._table is not None else 0)


def test_blend_takes_the_memory_that_it_says_and_leaves_the_table_out_where_it_has_no_room(tmp_path: Path) -> None:
    bundle = bytes_bundle(tmp_path, {(i, j): (i, 3) for i in range(250) for j in range(60)})
    size = bundle.path(FILE).stat().st_size
    index = 2048 * blend.PLACE
    for limit, files, table in (
        *((None, True, True), (size + index, True, True)),
        *((size + index - 1, True, False), (40_000, True, False), (None, False, False)),
    ):
        setting = Setting(bundle, 2000, limit=limit, files=files)
        made = blend.make(setting)
        made.begin(list(range(250)) * 20)
        assert held(made, bundle) == blend.nbytes(setting) <= (limit or 2**30) and (made._table is not None) == table


def test_a_budget_counts_the_table_and_under_a_tight_one_there_is_none(tiny_bundle: Bundle) -> None:
    bundle = with_table(tiny_bundle, HEAD.pack(21, LEVELS) + bytes(SLOT << 21))  # an empty one, larger than the model
    size = bundle.path(FILE).stat().st_size
    free = make_plan(bundle, context=200, speculate="auto").demand
    assert free.drafts == table_bytes("auto", bundle, 200) == size + table_bytes("auto", bundle, 200, files=False)
    budgets = itertools.count(needed(make_plan(bundle, context=200, speculate="auto").footprint), -100_000)
    plans = (make_plan(bundle, budget, context=200, speculate="auto").demand for budget in budgets)
    tight = next(demand for demand in plans if demand.drafts < size)
    assert tight.width == 4 and tight.drafts == table_bytes("auto", bundle, 200, files=False)


def test_drafting_takes_far_less_time_than_a_step(tmp_path: Path) -> None:
    rng = random.Random(0)
    made = drafter(tmp_path, {(a, b): (rng.randrange(250), rng.randrange(12)) for a in range(250) for b in range(60)})
    text, best = [rng.randrange(250) for _ in range(1500)], 1.0
    made.begin(text[:1000])
    for at in range(1000, 1500):
        began = time.perf_counter()
        made.propose(text[:at], Budget(15))
        made.accept(text[at : at + 1])
        best = min(best, time.perf_counter() - began)
    assert best < 500e-6, "0.02 ms were measured where nothing else ran, of a step of 3 ms"


def test_a_successor_counts_once_for_each_answer() -> None:
    before = [0] * BEFORE
    repeated, twice = [*before, *[11, 12, 13, 14] * 50], [*before, 21, 22, 23, 24]
    found = successors([repeated, twice, twice, *([*before, 31 + i, 12, 15] for i in range(4))])
    assert found[22,][0] == 23 and found[23,][0] == 24
    assert (11, 12) not in found, "what one answer repeats says nothing of the next"
    assert found[12,][0] == 15, "four answers outweigh fifty times in one"


@pytest.mark.parametrize("share", [0.25, 0.5, 0.8])
def test_levels_are_what_comes_true_in_answers_that_were_not_counted(share: float) -> None:
    rng = random.Random(3)

    def answer() -> list[int]:
        said = [0] * BEFORE
        while len(said) < 60:
            word = rng.randrange(100, 120)
            said += [word, word + 100 if rng.random() < share else rng.randrange(300, 400)]
        return said

    found, right, seen, claimed = successors([answer() for _ in range(60)]), 0, 0, 0.0
    for other in (answer() for _ in range(60)):
        for at in range(BEFORE + 1, len(other)):
            context = next((c for n in (3, 2, 1) if (c := tuple(other[at - n : at])) in found), None)
            if context is not None:
                token, level = found[context]
                right, seen = right + (token == other[at]), seen + 1
                claimed += 1 / (1 + math.exp(-(LEAST + STEP * (level + 0.5))))
    assert seen > 500 and right / seen == pytest.approx(claimed / seen, abs=0.08)
    word = found[110,]
    assert word[0] == 210 and abs(word[1] - level_of(share)) <= 2


def test_a_model_as_large_as_a_tests_writes_no_text_of_itself_and_others_about_as_long() -> None:
    assert default_tokens(100_000) == 0 and default_tokens(134_000_000) == 8_000
    assert 1000 < default_tokens(1_700_000_000) < 2000


class Recorder:
    """In the place of a model: whatever it is asked it says the same, and what it was asked is kept."""

    def __init__(self) -> None:
        self.engine, self.text = SimpleNamespace(context=900), SimpleNamespace(special=frozenset[int]())
        self.asked: list[list[str]] = []

    def prompt_ids(self, question: str, raw: bool, think: bool) -> list[int]:
        return [0, 0]

    def generate_all(self, prompts: Sequence[str], options: object, raw: bool) -> list[SimpleNamespace]:
        self.asked.append(list(prompts))
        return [SimpleNamespace(token_ids=[1, 2, 3], text=" is drawn") for _ in prompts]


@pytest.mark.parametrize("opening", ["<user>", ""])
def test_built_in_prompts_are_answered_in_turns_with_drawn_ones(opening: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """As long as there are some, and where the model has a template for them."""
    monkeypatch.setattr(own_text, "_opening", lambda model: opening)
    built_in, model = by_themselves(), Recorder()
    assert len(built_in) > 100 and not any(PREVIOUS in prompt for prompt in built_in)
    blocks = len(built_in) // 16 + 2
    answers = list(itertools.islice(own_answers(model), 32 * blocks))  # type: ignore[arg-type]
    assert answers == [[0, 0, 1, 2, 3]] * len(answers)
    questions = [question for block in model.asked[1::2] for question in block]
    drawn = [question.endswith("is drawn") for question in questions]
    if opening:
        assert [question for question in questions if not question.endswith("is drawn")] == built_in
        assert drawn[:64] == [False, True] * 32 and all(drawn[-32:])
    else:
        assert all(drawn)
    assert all(len(block) == 32 for block in model.asked[1::2])


@pytest.fixture(scope="module")
def with_own_text(tiny_checkpoint: Path, tmp_path_factory: pytest.TempPathFactory) -> Bundle:
    return edge.export(tiny_checkpoint, tmp_path_factory.mktemp("own") / "own.edge", weights="int8", draft_text=5000)


@pytest.mark.usefixtures("onnxruntimes_kernels")
def test_an_export_counts_what_follows_what_in_the_models_own_answers(with_own_text: Bundle) -> None:
    model = load(with_own_text.root, context=with_own_text.manifest.context, speculate="off")
    assert isinstance(model, Model)
    answers, written = list[list[int]](), 0
    for answer in own_answers(model):
        answers.append(answer)
        written += len(answer) - BEFORE
        if written >= 5000:
            break
    found = successors(answers)
    assert with_own_text.path(FILE).read_bytes() == write_table(found) and len(found) > 3


@pytest.mark.parametrize("temperature", [0.0, 0.9])
def test_an_answer_is_the_same_bit_for_bit_with_the_table(
    temperature: float, with_own_text: Bundle, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Planner, "cut", lambda self, draft: draft)
    monkeypatch.setattr(Planner, "budget", lambda self, most, context, forced: Budget(min(most, 6)))
    options = edge.GenerateOptions(max_tokens=100, temperature=temperature, seed=5)
    plain, drafted = (
        load(with_own_text.root, context=250, threads=2, speculate=name, exact=True) for name in ("off", "auto")
    )
    assert isinstance(plain, Model) and isinstance(drafted, Model)
    tokens = 0
    for prompt in ("The moon changes", "la la la la la la", "What is a train?"):
        wanted, got = plain.generate(prompt, options), drafted.generate(prompt, options)
        assert got.token_ids == wanted.token_ids and got.finish_reason == wanted.finish_reason
        assert got.speculation is not None and got.speculation["drafter"] == "blend"
        tokens += got.speculation["drafted"]
    assert tokens > 20


def test_a_text_to_draft_from_must_have_a_size(tiny_checkpoint: Path, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="cannot have -1 tokens"):
        edge.export(tiny_checkpoint, tmp_path / "x.edge", draft_text=-1)
    assert not (tmp_path / "x.edge").exists()
