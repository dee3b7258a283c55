"""A memory limit counts what runs: answers of several threads and chats share it, and what has no room waits."""

from __future__ import annotations

import _thread
import gc
import random
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tiny_encoder_decoders import t5_bundle, whisper_bundle

import edge
from edge.bundle import Bundle
from edge.errors import InputError
from edge.runtime.memory.shares import Share, Shares

CONTEXT = 256
LONG_S = 30  # for what would wait for ever


class Watched(Shares):
    """Shares that know how much was taken at most, and by how many."""

    def __init__(self, total: int, refuse: bool = False) -> None:
        super().__init__(total, refuse=refuse, name="tiny")
        self.total, self.most, self.answers = total, 0, 0

    def _enter(self, share: Share, instead: Share | None) -> bool:
        entered = super()._enter(share, instead)
        there = self._there()
        self.most = max(self.most, sum(each.size for each in there))
        self.answers = max(self.answers, sum(not each.idle for each in there))
        return entered


@pytest.fixture(scope="module")
def loaded(pristine_tiny_bundle: Bundle) -> Iterator[edge.Model]:
    model = edge.load(pristine_tiny_bundle.root, memory="2GB", context=CONTEXT, threads=1, kind=edge.Model)
    yield model
    model.close()


@pytest.fixture
def model(loaded: edge.Model) -> edge.Model:
    """A model with room for one answer of the whole context."""
    limit(loaded, 1)
    return loaded


def limit(model: Any, answers: float, refuse: bool = False) -> Watched:
    """Give a model's memory room for so many answers."""
    shares = Watched(int(model.engine.plan.answer_bytes() * answers), refuse)
    model.engine.shares = shares
    return shares


def in_thread(work: Callable[[], Any]) -> Any:
    """What `work` gives in another thread, which must not take for ever."""
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(work).result(LONG_S)


@pytest.mark.parametrize("seed", range(4))
def test_whatever_threads_ask_for_the_limit_holds_and_all_get_their_texts(loaded: edge.Model, seed: int) -> None:
    loaded.engine.shares = None
    prompts = [f"The moon {i} " * (i + 1) for i in range(4)]
    expected = [loaded.generate(prompt, max_tokens=30).text for prompt in prompts]
    shares = limit(loaded, 1 + seed)
    stop = time.monotonic() + LONG_S

    def answers(worker: int) -> None:
        draw = random.Random(seed * 100 + worker)
        chats = [loaded.chat() for _ in range(2)]
        for _ in range(6):
            at = draw.randrange(len(prompts))
            what = draw.choice(["generate", "stream", "leave", "close", "chat", "all"])
            if what == "generate":
                assert loaded.generate(prompts[at], max_tokens=30).text == expected[at]
            elif what == "stream":
                assert "".join(piece.text for piece in loaded.stream(prompts[at], max_tokens=30)) == expected[at]
            elif what in ("leave", "close"):
                stream: Any = loaded.stream(prompts[at], max_tokens=30)
                next(stream)
                if what == "close":
                    stream.close()
                del stream
            elif what == "chat":
                chat = draw.choice(chats)
                chat.reset()
                assert chat.generate(prompts[at], max_tokens=30).text == expected[at]
                if len(prompts[at]) < 60:
                    chat.generate("And?", max_tokens=5)
            else:
                found = loaded.generate_all(prompts, max_tokens=30)
                assert [each.text for each in found] == expected
            assert time.monotonic() < stop

    with ThreadPoolExecutor(6) as pool:
        for each in [pool.submit(answers, worker) for worker in range(6)]:
            each.result(2 * LONG_S)
    assert 0 < shares.most <= shares.total
    gc.collect()
    assert not [each for each in shares._there() if not each.idle], "all shares were given back"


def test_as_many_answers_run_together_as_there_is_room_for(loaded: edge.Model) -> None:
    for room in (1, 3):
        shares = limit(loaded, room)
        with ThreadPoolExecutor(6) as pool:
            list(pool.map(lambda i: loaded.generate("moon " * 9, max_tokens=CONTEXT), range(12)))
        assert shares.answers <= room
        assert room == 1 or shares.answers > 1


@pytest.mark.parametrize("what", ["generate", "stream", "chat", "generate_all", "answers"])
def test_a_thread_that_would_wait_for_itself_is_refused(model: edge.Model, what: str) -> None:
    stream = model.stream("The moon", max_tokens=CONTEXT)
    next(stream)
    ask: dict[str, Callable[[], Any]] = {
        "generate": lambda: model.generate("hi", max_tokens=CONTEXT),
        "stream": lambda: next(model.stream("hi", max_tokens=CONTEXT)),
        "chat": lambda: model.chat().generate("hi", max_tokens=CONTEXT),
        "generate_all": lambda: model.generate_all(["hi", "so"], max_tokens=CONTEXT),
        "answers": lambda: next(model.answers(["hi"], max_tokens=CONTEXT)),
    }
    with pytest.raises(InputError, match="would wait for itself"):
        ask[what]()
    del stream
    ask[what]()


def test_threads_that_have_shares_do_not_wait_in_a_circle(model: edge.Model) -> None:
    limit(model, 2)
    both, refused = threading.Barrier(2), []

    def twice() -> None:
        stream = model.stream("The moon", max_tokens=CONTEXT)
        next(stream)
        both.wait(LONG_S)
        try:
            model.generate("hi", max_tokens=CONTEXT)
        except InputError as e:
            refused.append(str(e))
        both.wait(LONG_S)

    with ThreadPoolExecutor(2) as pool:
        for each in [pool.submit(twice) for _ in range(2)]:
            each.result(LONG_S)
    assert len(refused) == 2


def test_a_stream_of_a_thread_that_ended_is_not_waited_for(model: edge.Model) -> None:
    def begin() -> Any:
        stream = model.stream("The moon", max_tokens=CONTEXT)
        next(stream)
        return stream

    handed = in_thread(begin)
    with pytest.raises(InputError, match="would wait for itself"):
        model.generate("hi", max_tokens=CONTEXT)
    next(handed)
    del handed
    model.generate("hi", max_tokens=CONTEXT)


def test_a_stream_that_nobody_has_any_more_gives_its_share_back(model: edge.Model) -> None:
    stream: Any = model.stream("The moon", max_tokens=CONTEXT)
    next(stream)
    ring = [stream]
    ring.append(ring)  # only the collector finds it
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(model.generate, "hi", max_tokens=3)
        time.sleep(0.2)
        assert not waiting.done()
        del stream, ring
        gc.collect()
        waiting.result(LONG_S)


def test_a_stream_of_which_no_piece_was_taken_has_no_share(model: edge.Model) -> None:
    streams = [model.stream("The moon", max_tokens=CONTEXT) for _ in range(3)]
    assert model.generate("hi", max_tokens=2).generated_tokens == 2
    assert [len(list(stream)) > 1 for stream in streams] == [True] * 3


def test_an_answer_without_room_is_refused_where_that_is_asked_for(model: edge.Model) -> None:
    limit(model, 1, refuse=True)
    stream = model.stream("The moon", max_tokens=CONTEXT)
    next(stream)
    with pytest.raises(InputError, match="no room for another answer at present"):
        in_thread(lambda: model.generate("hi", max_tokens=CONTEXT))
    del stream
    in_thread(lambda: model.generate("hi", max_tokens=CONTEXT))


def test_waiting_is_chosen_when_a_model_is_loaded(pristine_tiny_bundle: Bundle) -> None:
    with edge.load(pristine_tiny_bundle.root, memory="2GB", when_full="refuse", threads=1, kind=edge.Model) as model:
        assert model.engine.shares is not None and model.engine.shares._refuse
    with pytest.raises(InputError, match="when_full must be wait or refuse, not 'never'"):
        edge.load(pristine_tiny_bundle.root, memory="2GB", when_full="never")
    with pytest.raises(InputError, match="is for a memory limit"):
        edge.load(pristine_tiny_bundle.root, when_full="refuse")


def test_a_thread_that_waits_is_interrupted_by_ctrl_c(model: edge.Model) -> None:
    begun, done = threading.Event(), threading.Event()

    def hold() -> None:
        stream = model.stream("The moon", max_tokens=CONTEXT)
        next(stream)
        begun.set()
        done.wait(LONG_S)

    holder = threading.Thread(target=hold)
    holder.start()
    begun.wait(LONG_S)
    with pytest.raises(KeyboardInterrupt):
        threading.Timer(0.3, _thread.interrupt_main).start()
        model.generate("hi", max_tokens=CONTEXT)
    done.set()
    holder.join()
    assert model.generate("hi", max_tokens=2).generated_tokens == 2


def held_elsewhere(model: Any, begin: Callable[[], Iterator[Any]]) -> Callable[[], None]:
    """Another thread holds a stream; what lets it go."""
    begun, done = threading.Event(), threading.Event()

    def hold() -> None:
        stream = begin()
        next(stream)
        begun.set()
        done.wait(LONG_S)

    thread = threading.Thread(target=hold)
    thread.start()
    assert begun.wait(LONG_S)

    def release() -> None:
        done.set()
        thread.join()

    return release


@pytest.mark.parametrize("what", ["generate", "chat", "generate_all"])
def test_an_answer_that_waits_ends_when_it_is_interrupted(model: edge.Model, what: str) -> None:
    release = held_elsewhere(model, lambda: iter(model.stream("The moon", max_tokens=CONTEXT)))
    asked = time.monotonic()
    options = edge.GenerateOptions(max_tokens=CONTEXT, interrupted=lambda: time.monotonic() > asked + 0.2)
    ask: dict[str, Callable[[], Any]] = {
        "generate": lambda: model.generate("hi", options),
        "chat": lambda: model.chat().generate("hi", options),
        "generate_all": lambda: model.generate_all(["hi"], options)[0],
    }
    assert ask[what]().finish_reason == "interrupted"
    release()


def test_a_model_that_is_closed_is_waited_for_no_more(pristine_tiny_bundle: Bundle) -> None:
    model = edge.load(pristine_tiny_bundle.root, memory="2GB", context=CONTEXT, threads=1, kind=edge.Model)
    limit(model, 1)
    release = held_elsewhere(model, lambda: iter(model.stream("The moon", max_tokens=CONTEXT)))
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(model.generate, "hi", max_tokens=CONTEXT)
        time.sleep(0.2)
        model.close()
        with pytest.raises(InputError, match="was closed; load it again"):
            waiting.result(LONG_S)
    release()


def test_chats_that_nobody_asks_give_up_their_caches_and_go_on_as_before(loaded: edge.Model) -> None:
    loaded.engine.shares = None
    said = ["The moon", "and the sea", "and the sun"]
    expected = [loaded.chat() for _ in range(4)]
    texts = [[chat.generate(f"{words} {i}", max_tokens=12).text for words in said] for i, chat in enumerate(expected)]
    assert loaded.engine.plan is not None
    shares = limit(loaded, 1)
    shares._total = shares.total = loaded.engine.plan.answer_bytes() + loaded.engine.plan.cache_bytes(40)
    chats = [loaded.chat() for _ in range(4)]
    found: list[list[str]] = [[] for _ in chats]
    for words in said:
        for i, chat in enumerate(chats):
            found[i].append(chat.generate(f"{words} {i}", max_tokens=12).text)
    assert found == texts
    assert shares.most <= shares.total
    assert any(not chat.cached_tokens for chat in chats), "there was no room for all of them"
    assert chats[-1].cached_tokens, "the latest one keeps its own"
    chats.clear()
    del chat
    gc.collect()
    assert not shares._there()


def test_threads_that_share_a_translator_keep_to_its_limit(tmp_path: Path) -> None:
    with edge.load(t5_bundle(tmp_path).root, memory="2GB", threads=1, beams=2, kind=edge.Text2Text) as model:
        alone = [model.generate(f"the moon {i}", max_tokens=20).text for i in range(8)]
        shares = limit(model, 1)
        with ThreadPoolExecutor(4) as pool:
            assert list(pool.map(lambda i: model.generate(f"the moon {i}", max_tokens=20).text, range(8))) == alone
        assert 0 < shares.most <= shares.total
        assert len(model._spare) <= 1
        stream = model.stream("the moon", max_tokens=50, beams=2)
        next(stream)
        with pytest.raises(InputError, match="would wait for itself"):
            model.candidates("the sun", max_tokens=59, beams=2)


def test_threads_that_share_a_transcriber_keep_to_its_limit(tmp_path: Path) -> None:
    with edge.load(whisper_bundle(tmp_path).root, memory="2GB", threads=1, kind=edge.Transcriber) as model:
        sound = (np.random.default_rng(1).standard_normal(16000) * 0.1).astype(np.float32)
        alone = model.transcribe(sound, temperatures=(0.0,)).text
        shares = limit(model, 1)
        with ThreadPoolExecutor(3) as pool:
            found = list(pool.map(lambda _: model.transcribe(sound, temperatures=(0.0,)).text, range(3)))
        assert found == [alone] * 3
        assert shares.answers == 1 and shares.most <= shares.total


def test_without_a_limit_nothing_is_counted(pristine_tiny_bundle: Bundle) -> None:
    with edge.load(pristine_tiny_bundle.root, threads=1, kind=edge.Model) as model:
        assert model.engine.shares is None


@pytest.mark.parametrize("already", [True, False])
def test_a_stream_waits_where_another_thread_goes_on_with_the_one_that_this_one_began(
    model: edge.Model, monkeypatch: pytest.MonkeyPatch, already: bool
) -> None:
    """As in a server, whose pool of threads takes the next piece of any stream, or will do so soon."""
    monkeypatch.setattr("edge.runtime.memory.shares.GRACE_S", 0 if already else LONG_S)
    began, other = model.stream("The moon", max_tokens=CONTEXT), model.stream("hi", max_tokens=3)
    next(began)
    goes_on = threading.Event()

    def go_on() -> list[Any]:
        if not already:
            time.sleep(0.2)
        first = next(began)
        goes_on.set()
        time.sleep(0.3)
        return [first, *began]

    with ThreadPoolExecutor(1) as pool:
        rest = pool.submit(go_on)
        assert not already or goes_on.wait(LONG_S)
        assert next(other).text is not None, "it waited for the other"
        assert rest.done() or rest.result(LONG_S)


def test_a_chat_counts_the_memory_that_its_cache_has_taken(model: edge.Model) -> None:
    plan, chat = model.engine.plan, model.chat()
    assert plan is not None
    limit(model, 2)
    chat.generate("The moon and the sea and the sun. " * 4, max_tokens=30)
    assert chat._share is not None
    most, rows = chat._share.size, chat._cache.length
    assert most == plan.cache_bytes(rows)
    chat.reset()
    chat.generate("hi", max_tokens=2)
    assert chat._cache.length < rows // 2 and chat._share.size == most
    chat._drop()
    chat.generate("hi", max_tokens=2)
    assert chat._share.size < most
