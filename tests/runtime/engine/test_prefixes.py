"""What several prompts begin with is read once, and every answer is the one of a prompt read afresh, bit for bit."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest

import edge
from edge.bundle import Bundle
from edge.runtime.batch.answer import BatchAnswer
from edge.runtime.batch.batch import Batch
from edge.runtime.decode.generate_options import GenerateOptions
from edge.runtime.decode.loop import prefill
from edge.runtime.engine.cache import KVCache
from edge.runtime.engine.engine import Engine
from edge.runtime.engine.prefixes import LEAST, RECENT, grouped
from edge.runtime.kernels.library import Kernels
from edge.runtime.memory.shares import Shares

HEAD = "The library opens at nine and the garden at ten, and the train leaves between the two of them. "
ENDS = ["And the river?", "And the train to the river?", "Coffee", "And the river?", "Is it open?", "Moon"]
CHUNK = 16


@pytest.fixture(params=["our kernels", "onnxruntime's"])
def exact(request: pytest.FixtureRequest) -> bool:
    """Whether rows are the same however they were run."""
    if request.param == "our kernels":
        request.getfixturevalue("library")
        return True
    request.getfixturevalue("onnxruntimes_kernels")
    return False


def loaded(bundle: Bundle, **options: Any) -> edge.Model:
    return edge.load(bundle.root, **{"context": 512, "prefill_chunk": CHUNK, "threads": 1} | options, kind=edge.Model)


@pytest.fixture
def model(pristine_tiny_bundle: Bundle, exact: bool) -> Iterator[edge.Model]:
    with loaded(pristine_tiny_bundle) as found:
        yield found


@pytest.fixture
def read(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The tokens of steps of several tokens, and of those that begin a text."""
    sizes: list[int] = []
    step = Engine.step

    def counted(self: Engine, cache: KVCache, tokens: Any, *given: Any, **more: Any) -> Any:
        if cache.length < cache.prompt:
            sizes.append(len(tokens))
        return step(self, cache, tokens, *given, **more)

    monkeypatch.setattr(Engine, "step", counted)
    return sizes


def afresh(model: edge.Model, prompt: str, **options: Any) -> Any:
    model.prefixes.forget()
    return model.generate(prompt, **options)


def last(stream: Any) -> edge.Piece:
    *_, piece = stream
    return piece


@pytest.mark.parametrize("drawn", [{"temperature": 0}, {"temperature": 0.9, "seed": 7}, {"temperature": 0.9}])
def test_answers_are_those_of_prompts_that_are_read_afresh(model: edge.Model, drawn: dict[str, Any]) -> None:
    if "seed" not in drawn and drawn["temperature"]:
        for end in ENDS:  # they leave what others begin with
            model.generate(HEAD + end, max_tokens=12, **drawn)
        drawn = {"temperature": 0}
    known = [model.generate(HEAD + end, max_tokens=12, **drawn) for end in ENDS]
    assert [each.token_ids for each in known] == [
        afresh(model, HEAD + end, max_tokens=12, **drawn).token_ids for end in ENDS
    ]


def test_what_was_known_is_counted_and_not_read_again(model: edge.Model, exact: bool, read: list[int]) -> None:
    prompts = [model.prompt_ids(HEAD + end) for end in ENDS]
    head = len(model.prompt_ids(HEAD)) - 1
    for i, end in enumerate(ENDS):
        read.clear()
        known = last(model.stream(HEAD + end, max_tokens=4)).timings.cached_tokens
        assert sum(read) == len(prompts[i]) - known
        assert known == 0 if i == 0 else known >= head // 2
        assert exact or known % CHUNK == 0
    assert known < len(prompts[-1])


def test_logits_have_the_same_bits(model: edge.Model, exact: bool) -> None:
    """After a prompt, and after an answer that was begun from it."""
    engine, rng = model.engine, np.random.default_rng(3)
    text = rng.integers(10, 200, 100)

    def logits(cache: KVCache, tokens: np.ndarray) -> np.ndarray:
        made = prefill(engine, cache, tokens, chunk=CHUNK, interrupted=lambda: False)
        assert made is not None
        return made.copy()

    first = engine.new_cache(200)
    logits(first, text)
    assert model.prefixes.leave(text.tolist(), first, model.prefixes.whole(len(text))) is not None
    for shared in (99, 70, 33):
        other = np.concatenate([text[:shared], rng.integers(10, 200, 30)])
        one, two = engine.new_cache(200), engine.new_cache(200)
        assert model.prefixes.begin(other.tolist(), one) == (shared if exact else shared - shared % CHUNK)
        assert np.array_equal(logits(one, other[one.length :]), logits(two, other))
        length = one.length
        for a, b in zip(one.buffers, two.buffers, strict=True):
            assert all(np.array_equal(x[:, :, :length], y[:, :, :length]) for x, y in zip(a, b, strict=True))


def test_a_process_that_answers_one_prompt_copies_nothing(model: edge.Model, monkeypatch: pytest.MonkeyPatch) -> None:
    def copied(*_: object) -> None:
        raise AssertionError

    monkeypatch.setattr(KVCache, "begin", copied)
    monkeypatch.setattr(KVCache, "first_rows", copied)
    model.generate(HEAD, max_tokens=8)
    assert model.prefixes.bytes
    with pytest.raises(AssertionError):
        model.generate(HEAD, max_tokens=8)


def test_memory_does_not_grow_with_the_number_of_calls(model: edge.Model) -> None:
    store = model.prefixes
    sizes = []
    for i in range(4 * RECENT):
        model.generate(f"{i} {HEAD}", max_tokens=4)
        model.chat(system=f"You are number {i}.").generate(HEAD, max_tokens=4)
        sizes.append(store.bytes)
        assert len(store._texts) <= RECENT and store.bytes <= store.limit
    assert sizes[-1] <= max(sizes[: 2 * RECENT])
    assert store.limit <= model.engine.kv.bytes_per_token * model.engine.context


def test_a_server_keeps_what_memory_has_room_for(model: edge.Model) -> None:
    store = model.prefixes
    for i in range(2 * RECENT):
        model.generate(f"{i} {HEAD}", max_tokens=2)
        store.serve()
    assert len(store._texts) > RECENT


def answered(model: edge.Model, *prompts: list[int]) -> list[BatchAnswer]:
    """As a server answers them, side by side."""
    options = GenerateOptions(max_tokens=8, temperature=0)
    batch = Batch(model.engine, model.text, capacity=512, width=4, chunk=CHUNK, fair=True, prefixes=model.prefixes)
    made = [BatchAnswer(i, (prompt, None), options, model.engine, model.text) for i, prompt in enumerate(prompts)]
    for each in made:
        batch.add(each)
    while not batch.idle:
        batch.step()
    assert not any(each.error for each in made)
    return made


def test_a_server_knows_a_conversation_to_its_end_and_copies_none_of_it(
    model: edge.Model, exact: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    ids = model.prompt_ids(HEAD)
    with monkeypatch.context() as patched:
        patched.delattr(KVCache, "first_rows")
        (first,) = answered(model, ids)
    longer = [[*ids, *first.tokens, *model.prompt_ids(end)] for end in ENDS[:3]]
    found = answered(model, *longer)
    known = len(ids) + len(first.tokens) - 1 if exact else len(ids) - len(ids) % CHUNK
    assert found[0].timings.cached_tokens == known == min(each.timings.cached_tokens for each in found)
    for prompt, each in zip(longer, found, strict=True):
        model.prefixes.forget()
        assert answered(model, prompt)[0].tokens == each.tokens


def test_answers_that_grow_from_one_prompt_are_both_known(model: edge.Model, library: Kernels) -> None:
    ids, store = model.prompt_ids(HEAD), model.prefixes
    store.serve()
    cache, said = model.engine.new_cache(), [[*range(30, 50)], [*range(60, 80)]]
    prefill(model.engine, cache, np.array(ids), chunk=CHUNK, interrupted=lambda: False)
    left = store.leave(ids, cache, store.whole(len(ids)))
    for each in said:
        grown = model.engine.new_cache()
        prefill(model.engine, grown, np.array([*ids, *each]), chunk=CHUNK, interrupted=lambda: False)
        store.extend(left, [*ids, *each], grown)
    if store.exact:
        for each in said:
            begun, fresh = model.engine.new_cache(), model.engine.new_cache()
            assert store.begin([*ids, *each, 5], begun) == len(ids) + len(each)
            prefill(model.engine, fresh, np.array([*ids, *each]), chunk=CHUNK, interrupted=lambda: False)
            for a, b in zip(begun.first_rows(begun.length), fresh.first_rows(fresh.length), strict=True):
                assert np.array_equal(a[0], b[0]) and np.array_equal(a[1], b[1])


def test_a_model_that_was_closed_keeps_nothing(model: edge.Model) -> None:
    chat, stream = model.chat(), model.stream(HEAD, max_tokens=20)
    chat.generate(HEAD, max_tokens=4)
    other = model.chat().stream(HEAD + HEAD, max_tokens=20)
    next(stream), next(other)
    held = [weakref.ref(part) for text in model.prefixes._texts for pair in text.rows for part in pair]
    model.close()
    stream.close()
    other.close()
    del chat, stream, other
    gc.collect()
    assert held and not any(ref() is not None for ref in held)
    assert model._prefixes is not None and not model._prefixes.bytes


def test_a_conversation_that_starts_over_keeps_what_it_begins_with(
    model: edge.Model, exact: bool, read: list[int]
) -> None:
    said = afresh_chat(model, ["And the river?"])
    chat = model.chat(system=HEAD)
    for message in ("Coffee", "And the moon?"):
        chat.generate(message, max_tokens=8, temperature=0)
    model.prefixes.forget()
    chat.reset()
    read.clear()
    found = last(chat.stream("And the river?", max_tokens=8, temperature=0))
    assert found.timings.cached_tokens > len(model.prompt_ids(HEAD)) // 2
    assert sum(read) == found.timings.prompt_tokens - found.timings.cached_tokens
    assert exact or found.timings.cached_tokens % CHUNK == 0
    assert [each["content"] for each in chat.messages] == said


def afresh_chat(model: edge.Model, messages: list[str]) -> list[str]:
    chat = model.chat(system=HEAD)
    for message in messages:
        model.prefixes.forget()
        chat.generate(message, max_tokens=8, temperature=0)
    model.prefixes.forget()
    return [each["content"] for each in chat.messages]


def test_conversations_begin_with_what_others_said_first(model: edge.Model) -> None:
    """Those that are gone, and those that go on meanwhile."""
    turns = ["And the river?", "And the moon?", "Coffee"]
    said = afresh_chat(model, turns)
    first = model.chat(system=HEAD)
    known = []
    for _ in range(2):
        chats = [model.chat(system=HEAD) for _ in range(2)]
        for turn in turns:
            for chat in [first, *chats]:
                if len(chat.messages) > 2 * len(turns):
                    continue
                known.append(last(chat.stream(turn, max_tokens=8, temperature=0)).timings.cached_tokens)
        assert [each["content"] for each in chats[0].messages] == said
        assert [each["content"] for each in chats[1].messages] == said
    assert [each["content"] for each in first.messages] == said
    assert known[0] == 0 and min(known[1:]) > len(model.prompt_ids(HEAD)) // 2


@pytest.mark.parametrize("width", [None, 2, 1])
def test_prompts_of_a_list_read_their_header_once(
    model: edge.Model, exact: bool, read: list[int], width: int | None
) -> None:
    prompts = [f"{head}{end}{i}" for i, end in enumerate(ENDS) for head in (HEAD, "Another one. " + HEAD)]
    options: dict[str, Any] = {"max_tokens": 8, "temperature": 0, "raw": True}
    if width == 1:
        alone = [afresh(model, prompt, **options).token_ids for prompt in prompts]
    else:
        alone = []
        for prompt in prompts:
            model.prefixes.forget()
            alone += [each.token_ids for each in model.generate_all([prompt], width=width, **options)]
    model.prefixes.forget()
    read.clear()
    assert [each.token_ids for each in model.generate_all(prompts, width=width, **options)] == alone
    whole = sum(len(model.prompt_ids(prompt, raw=True)) for prompt in prompts)
    assert sum(read) < (whole / 2.5 if exact else whole / 1.5)
    assert len(model.prefixes._texts) <= RECENT


def test_prompts_that_begin_alike_come_together() -> None:
    a, b = [*range(100, 130)], [*range(200, 250)]
    prompts = [[*a, 1], [*b, 1], [5], [*a, 3, 4], [*b, *range(60)], [*a, 1, 2], [6] * 70]
    order = grouped(prompts)
    assert sorted(order) == [*range(7)]
    assert [[i for i in order if i in group] for group in ([0, 3, 5], [1, 4])] == [[0, 5, 3], [4, 1]]
    places = {i: place for place, i in enumerate(order)}
    assert max(places[i] for i in (0, 3, 5)) - min(places[i] for i in (0, 3, 5)) == 2
    assert order[:2] == [4, 1], "the longest first"
    assert grouped([]) == []


def test_a_memory_limit_counts_what_is_kept_and_takes_it_back(pristine_tiny_bundle: Bundle, library: Kernels) -> None:
    with loaded(pristine_tiny_bundle, memory="2GB") as model:
        plan = model.engine.plan
        assert plan is not None
        total = int(plan.answer_bytes() * 1.2)
        shares = model.engine.shares = Shares(total, refuse=True, name="tiny")

        def taken() -> int:
            return sum(share.size for share in shares._there())

        said = model.generate(HEAD, max_tokens=8, temperature=0).token_ids
        assert 0 < model.prefixes.bytes == taken() <= total
        found = last(model.stream(HEAD, max_tokens=8, temperature=0))
        assert found.timings.cached_tokens == found.timings.prompt_tokens - 1
        for _ in range(3):  # what an answer needs goes first
            share = shares.take(total, lambda: False)
            assert share is not None and not model.prefixes.bytes
            assert model.prefixes.keep(model.prompt_ids(HEAD), model.engine.new_cache()) is None
            assert not model.prefixes.bytes and taken() == total
            share.close()
            assert model.generate(HEAD, max_tokens=8, temperature=0).token_ids == said
            assert model.generate_all([HEAD, HEAD + "x"], max_tokens=8, temperature=0)[0].token_ids == said
            assert taken() <= total
        chat = model.chat(system=HEAD)
        chat.generate("Coffee", max_tokens=8)
        model.generate("x", max_tokens=400)  # takes the room of both
        assert taken() <= total
        assert chat.generate("And the moon?", max_tokens=8, temperature=0).prompt_tokens > LEAST


def test_threads_share_what_was_read(model: edge.Model) -> None:
    prompts = [HEAD + end for end in ENDS]
    alone = [afresh(model, prompt, max_tokens=10, temperature=0).text for prompt in prompts]
    for _ in range(3):
        with ThreadPoolExecutor(4) as pool:
            found = pool.map(lambda prompt: model.generate(prompt, max_tokens=10, temperature=0).text, prompts * 2)
            assert [*found] == alone * 2


def test_where_more_than_rows_belongs_to_a_text_nothing_is_kept(by_layer: Bundle) -> None:
    with edge.load(by_layer.root, skip="skipdecode:3-6", context=256, kind=edge.Model) as model:
        said = [model.generate(HEAD + end, max_tokens=8).token_ids for end in ENDS[:3]]
        chat = model.chat(system="The moon is in the garden.")
        chat.generate("moon", max_tokens=8)
        chat.reset()
        assert not model.prefixes.bytes
        assert last(chat.stream("moon", max_tokens=8)).timings.cached_tokens == 0
    with edge.load(by_layer.root, skip="skipdecode:3-6", context=256, kind=edge.Model) as other:
        assert [other.generate(HEAD + end, max_tokens=8).token_ids for end in reversed(ENDS[:3])] == said[::-1]
