"""What an app may do wrong with a model: one chat from several threads, streams that are left, prompts of nothing, and
what is closed already. Each gets a sentence, and what comes afterwards is right."""

from __future__ import annotations

import gc
import random
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from fake_engine import END, FakeEngine, fake_model, says
from fake_speech import Script, fake_transcriber, noise, said
from fake_text2text import fake_text2text
from tiny_encoder_decoders import t5_bundle

import edge
from edge.bundle import Bundle
from edge.errors import BundleError, InputError
from edge.runtime.chat import UNDER_WAY, Chat
from edge.runtime.decode.answer import answer, collect
from edge.runtime.text.tokenizer import Text

HELLO = Script(said(0.0, " Hello.", 2.0))
QUESTIONS = ("The moon", "A train leaves", "la la la", "def f(a):", "The sea")


def talker(folder: Path, *answers: str) -> tuple[Chat, FakeEngine]:
    model, engine = fake_model(folder, says(*answers))
    return model.chat(), engine


def test_whatever_changes_a_chat_is_refused_while_an_answer_is_under_way(tmp_path: Path) -> None:
    chat, _ = talker(tmp_path, "Hello you.", "Fine.")
    first = chat.stream("hi")
    waiting = chat.stream("so")  # nobody has begun it
    begun = next(first).text
    for change in (
        lambda: chat.generate("how?"),
        lambda: chat.stream("how?"),
        lambda: next(waiting),
        chat.reset,
        chat.undo,
        chat.regenerate,
        lambda: chat.generate(""),
    ):
        with pytest.raises(InputError, match="still under way"):
            change()
    assert begun + "".join(piece.text for piece in first) == "Hello you."
    assert [m["content"] for m in chat.messages] == ["hi", "Hello you."]
    assert chat.generate("how?").text == "Fine."


@pytest.fixture(scope="module")
def model(pristine_tiny_bundle: Bundle) -> edge.Model:
    return edge.load(pristine_tiny_bundle.root, threads=1, context=512, kind=edge.Model)


def assert_goes_on_rightly(chat: Chat) -> None:
    """The next answer is what the model says that reads the whole conversation anew."""
    model, options = chat._model, edge.GenerateOptions(max_tokens=12)
    prompt = chat._turn("And now?", options).tokens
    cache = model.engine.new_cache()
    wanted = collect(answer(model.engine, model.text, cache, prompt, options, chunk=512, started_ns=0)).token_ids
    assert chat.generate("And now?", options).token_ids == wanted


class Broken(BaseException):
    """As KeyboardInterrupt, which may come anywhere."""


@pytest.mark.parametrize("seed", range(6))
def test_a_chat_that_was_left_anywhere_goes_on_as_if_it_read_all_anew(
    seed: int, model: edge.Model, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Closed, dropped, interrupted between two instructions of a step, or never begun, at random."""
    choose = random.Random(seed)
    chat, graphs = model.chat(), model.engine.graphs

    def breaks(after: int) -> None:
        run, left = graphs.run, [after]

        def wrapped(*args: Any, **more: Any) -> Any:
            left[0] -= 1
            if left[0] == 0:
                args[0].length += 1  # rows that say they are written, and are not
                raise Broken
            return run(*args, **more)

        monkeypatch.setattr(graphs, "run", wrapped)

    for _ in range(4):
        if chat.messages and (back := choose.choice(["undo", "again", "load", "on"])) != "on":
            if back == "undo":
                chat.undo()
            elif back == "again":
                chat.regenerate(max_tokens=choose.randint(1, 8))
            else:
                chat.reset(chat.messages)
        stream = chat.stream(choose.choice(QUESTIONS), max_tokens=8)
        what = choose.choice(["close", "drop", "break", "never", "read", "late"])
        if what in ("close", "drop"):
            for _ in range(choose.randint(1, 5)):
                next(stream)
        if what == "close":
            stream.close()
        elif what == "break":
            breaks(choose.randint(1, 5))
            with pytest.raises(Broken):
                for _ in range(8):
                    next(stream)
            monkeypatch.undo()
        elif what == "read":
            list(stream)
        elif what == "late":  # after another one
            chat.generate(choose.choice(QUESTIONS), max_tokens=3)
            list(stream)
        del stream
        gc.collect()
    assert_goes_on_rightly(chat)
    chat.reset()
    assert chat.generate("The sea", max_tokens=6).text == model.generate("The sea", max_tokens=6).text


def test_a_failure_before_anything_was_said_is_no_part_of_the_conversation(tmp_path: Path) -> None:
    chat, engine = talker(tmp_path, "Hello you.", "Fine.")
    chat.generate("hi")
    kept, run = chat.messages, engine.step

    def fails(*args: Any, **more: Any) -> Any:
        raise BundleError("A graph failed.")

    engine.step = fails  # type: ignore[method-assign]
    with pytest.raises(BundleError):
        chat.generate("how?")
    assert chat.messages is kept
    engine.step = run  # type: ignore[method-assign]
    assert chat.generate("how?").text == "Fine."


def test_one_chat_asked_by_many_threads_answers_one_and_refuses_the_others(model: edge.Model) -> None:
    chat, told, answered = model.chat(), list[str](), list[str]()
    start = threading.Barrier(6)

    def ask(number: int) -> None:
        start.wait()
        for turn in range(2):  # all of which the context holds, should each be answered
            try:
                answered.append(chat.generate(f"Question {number}, {turn}", max_tokens=6).text)
            except InputError as e:
                told.append(str(e))
            time.sleep(0.002)

    threads = [threading.Thread(target=ask, args=(number,)) for number in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert len(told) + len(answered) == 12 and set(told) <= {UNDER_WAY}
    # A thread may note its answer after another one's that came later.
    assert sorted(m["content"] for m in chat.messages if m["role"] == "assistant") == sorted(answered)
    assert_goes_on_rightly(chat)


STREAMS: dict[str, Callable[[Path], Any]] = {
    "chat": lambda folder: talker(folder, "Hello you.")[0].stream("hi"),
    "model": lambda folder: fake_model(folder, says("Hello you."))[0].stream("hi"),
    "answers": lambda folder: fake_model(folder, says("Hello you."))[0].answers(["hi"]),
    "translator": lambda folder: fake_text2text(folder)[0].stream("hi"),
    "transcriber": lambda folder: fake_transcriber(folder, HELLO)[0].transcribe_stream(noise(2.0)),
}


@pytest.mark.parametrize("kind", STREAMS)
def test_a_stream_that_two_threads_read_refuses_one_and_loses_nothing(tmp_path: Path, kind: str) -> None:
    stream, wanted = STREAMS[kind](tmp_path / "a"), list(STREAMS[kind](tmp_path / "b"))
    inner = "_segments" if kind == "transcriber" else "_pieces"
    pieces, begun, goes_on = getattr(stream, inner), threading.Event(), threading.Event()

    def slow() -> Any:
        begun.set()
        goes_on.wait(30)
        yield from pieces

    setattr(stream, inner, slow())
    got: list[Any] = []
    reader = threading.Thread(target=lambda: got.extend(stream))
    reader.start()
    assert begun.wait(30)
    for ask in (lambda: next(stream), *((stream.close,) if hasattr(stream, "close") else ())):
        with pytest.raises(InputError, match="Another thread reads this stream; read it in one thread"):
            ask()
    goes_on.set()
    reader.join(30)
    assert len(got) == len(wanted) > 0


def test_a_stream_passes_on_what_is_sent_and_thrown_into_it() -> None:
    from edge.runtime.decode.stream import Stream

    seen: list[str] = []

    def pieces() -> Any:
        try:
            yield 1
            raise ValueError("of its own")
        except KeyError:
            seen.append("thrown")
            yield 2
        finally:
            seen.append("closed")

    stream = Stream(pieces())
    assert next(stream) == 1 and stream.throw(KeyError("x")) == 2
    stream.close()
    assert seen == ["thrown", "closed"]
    stream = Stream(pieces())
    assert stream.send(None) == 1
    with pytest.raises(ValueError, match="of its own"):
        next(stream)
    seen.clear()
    stream = Stream(pieces())
    next(stream)
    del stream
    gc.collect()
    assert seen == ["closed"]


def test_streams_of_one_model_and_its_batches_do_not_mix(model: edge.Model) -> None:
    alone = [model.generate(q, max_tokens=8).text for q in QUESTIONS]
    streams = [model.stream(q, max_tokens=8) for q in QUESTIONS]
    texts = ["" for _ in QUESTIONS]
    together = model.answers(QUESTIONS, max_tokens=8)
    apart = dict(model.answers(QUESTIONS, max_tokens=8))
    found = {}
    for _ in range(8):
        for i, stream in enumerate(streams):
            piece = next(stream, None)
            texts[i] += "" if piece is None else piece.text
        found |= dict([one for one in [next(together, None)] if one is not None])
    assert texts == alone
    assert {i: each.text for i, each in found.items()} == {i: each.text for i, each in apart.items()}


@pytest.mark.parametrize("beams", [1, 3])
def test_streams_of_one_translator_do_not_mix(tmp_path: Path, beams: int) -> None:
    model = edge.load(t5_bundle(tmp_path).root, kind=edge.Text2Text)
    texts = ["the moon", "a train", "la la la"]
    alone = [model.generate(text, max_tokens=6, beams=beams).text for text in texts]
    streams = [model.stream(text, max_tokens=6, beams=beams) for text in texts]
    left = model.stream("the sea", max_tokens=6, beams=beams)
    next(left)
    found = ["" for _ in texts]
    for _ in range(8):
        for i, stream in enumerate(streams):
            piece = next(stream, None)
            found[i] += "" if piece is None else piece.text
    del left
    assert found == alone and [model.generate(text, max_tokens=6, beams=beams).text for text in texts] == alone


def test_a_translators_cache_that_was_interrupted_is_not_used_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = edge.load(t5_bundle(tmp_path).root, kind=edge.Text2Text)
    model.generate("the moon", max_tokens=4, beams=1)
    assert len(model._spare) == 1

    def fails(*args: Any) -> None:
        raise Broken

    with monkeypatch.context() as patched:
        patched.setattr(model.engine.graphs, "run", fails)
        with pytest.raises(Broken):
            model.generate("the moon", max_tokens=4, beams=1)
    assert not model._spare
    model.generate("the moon", max_tokens=4, beams=1)
    model.close()
    assert not model._spare, "a closed model keeps no caches"


def test_transcriptions_of_one_model_do_not_mix(tmp_path: Path) -> None:
    model, _ = fake_transcriber(tmp_path, HELLO)
    sound = noise(3)
    alone = [segment.text for segment in model.transcribe_stream(sound)]
    both = [model.transcribe_stream(sound), model.transcribe_stream(sound)]
    assert [[next(each).text] for each in both] == [alone, alone]


@pytest.mark.parametrize("use", ["generate", "stream", "answers", "chat", "old chat", "engine"])
def test_a_closed_model_says_so_to_who_asks_and_to_what_is_under_way(pristine_tiny_bundle: Bundle, use: str) -> None:
    model = edge.load(pristine_tiny_bundle.root, kind=edge.Model)
    stream, chat = model.stream("The moon", max_tokens=500), model.chat()
    next(stream)
    model.close()
    model.close()
    ask: dict[str, Callable[[], object]] = {
        "generate": lambda: model.generate("hi"),
        "stream": lambda: model.stream("hi"),
        "answers": lambda: list(model.answers(["hi", "so"])),
        "chat": model.chat,
        "old chat": lambda: chat.generate("hi"),
        "engine": lambda: model.engine,
    }
    with pytest.raises(InputError, match="was closed; load it again"):
        ask[use]()
    with pytest.raises(InputError, match="was closed; load it again"):
        assert len(list(stream)) < 100, "an answer that is under way ends at its next step"


ODD_PROMPTS: list[Any] = [
    *(None, 0, 1.5, True, b"hi", bytearray(b"hi"), memoryview(b"hi"), {}, {"role": "user", "content": "hi"}, set()),
    *([], (), ["hi"], [None], [1], [{}], [{"role": "user"}], [{"role": 1, "content": "hi"}], iter(["hi"]), object()),
    *([{"role": "user", "content": None}], [{"role": "user", "content": ["hi"]}], [[("role", "user")]], range(2)),
    *("", " \n\t", "\ud800", "a\udfff"),
]


def test_odd_prompts_get_a_sentence_everywhere(tmp_path: Path) -> None:
    model, _ = fake_model(tmp_path / "decoder", lambda history: END)
    translator, _ = fake_text2text(tmp_path / "text")
    for prompt in ODD_PROMPTS:
        for ask in (
            model.generate,
            lambda prompt: model.generate(prompt, raw=True),
            lambda prompt: model.generate("hi", system=0 if isinstance(prompt, str | None) else prompt),
            lambda prompt: list(model.answers([prompt])),
            lambda prompt: model.chat().generate(prompt),
            lambda prompt: model.chat(system=0 if isinstance(prompt, str | None) else prompt),
            translator.generate,
            translator.candidates,
            lambda prompt: model.generate("hi", raw=0 if isinstance(prompt, bool | None) else prompt),
        ):
            with pytest.raises(InputError) as caught:
                ask(prompt)
            assert "\n" not in str(caught.value) and len(str(caught.value)) < 300
    for prompts in (None, "hi", b"hi", {"a": 1}, 3):
        with pytest.raises(InputError, match="Prompts are a list"):
            model.answers(prompts)  # type: ignore[arg-type]
    for width in (0, -1, 1.5, "2", True):
        with pytest.raises(InputError, match="side by side"):
            model.answers(["hi"], width=width)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "prompt", ["a\0b", "\u202eright to left", "e\u0301" * 50, "\U0001f600", np.str_("hi"), "\ufeff x"]
)
def test_odd_texts_are_prompts_like_others(tmp_path: Path, prompt: str) -> None:
    model, _ = fake_model(tmp_path, says("yes"))
    assert model.generate(prompt).text == "yes"


def empty(text: Text) -> None:
    text.encode = lambda s: []  # type: ignore[method-assign]


def test_a_prompt_of_which_the_tokenizer_leaves_nothing_gets_a_sentence(tmp_path: Path) -> None:
    model, engine = fake_model(tmp_path / "decoder", lambda history: END)
    translator, _ = fake_text2text(tmp_path / "text")
    chat = model.chat()
    empty(model.text)
    empty(translator.text)
    for ask in (
        lambda: model.generate("\u200b"),
        lambda: model.generate("\u200b", raw=True),
        lambda: list(model.answers(["\u200b", "\u200c"])),
        lambda: chat.generate("\u200b"),
        lambda: translator.generate("\u200b"),
        lambda: translator.stream("\u200b"),
    ):
        with pytest.raises(InputError, match="The text has no tokens"):
            ask()
    assert not engine.steps and not chat.messages


def test_a_template_that_renders_nothing_gets_a_sentence(tmp_path: Path) -> None:
    model, _ = fake_model(tmp_path, lambda history: END, template="{# nothing #}")
    with pytest.raises(InputError, match="The text has no tokens"):
        model.generate("hi")
    with pytest.raises(InputError, match="The text has no tokens"):
        model.chat().generate("hi")


@pytest.mark.parametrize("token", [259, 10**6, 2**31, -1])
def test_tokens_that_the_model_does_not_have_get_a_sentence_before_a_step(tmp_path: Path, token: int) -> None:
    model, engine = fake_model(tmp_path / "decoder", lambda history: END)
    translator, _ = fake_text2text(tmp_path / "text")
    for text in (model.text, translator.text):
        text.encode = lambda s: [1, token, 2]  # type: ignore[method-assign]
    for ask in (
        lambda: model.generate("hi"),
        lambda: model.chat().generate("hi"),
        lambda: list(model.answers(["hi", "so"])),
        lambda: translator.generate("hi"),
    ):
        with pytest.raises(BundleError, match=f"gives the token {token}, and its model has 259"):
            ask()
    assert not engine.steps


def test_a_text_far_too_long_is_refused_before_the_tokenizer_works_on_it(tmp_path: Path) -> None:
    model, _ = fake_model(tmp_path / "decoder", lambda history: END)
    translator, _ = fake_text2text(tmp_path / "text")
    for text in (model.text, translator.text):
        text.encode = lambda s: pytest.fail("it was asked")  # type: ignore[method-assign]
    long = "word " * 2_000_000
    for ask in (
        lambda: model.generate(long),
        lambda: model.generate(long, raw=True),
        lambda: model.chat().generate(long),
        lambda: list(model.answers([long])),
        lambda: translator.generate(long),
    ):
        with pytest.raises(InputError, match="characters, which cannot fit"):
            ask()


@pytest.mark.parametrize(
    "sound",
    [
        *(None, 3, b"talk.wav", ["talk.wav"], {}, [0.0] * 16000, "nowhere.wav", "a\0b.wav", "", Path("a" * 300)),
        *(np.zeros(0, np.float32), np.zeros((2, 16000), np.float32), np.float32(0), np.zeros(16000, np.int16)),
        *(np.zeros(16000, np.complex64), np.zeros(16000, object), np.full(16000, np.nan), np.full(16000, np.inf)),
        *(np.full(16000, 1e300), np.zeros(10, np.float32), np.full(16000, "a"), np.zeros(16000, bool)),
    ],
    ids=lambda sound: f"{type(sound).__name__} {getattr(sound, 'dtype', '')}",
)
def test_odd_sounds_get_a_sentence(tmp_path: Path, sound: Any) -> None:
    model, _ = fake_transcriber(tmp_path, HELLO)
    with pytest.raises(InputError) as caught:
        model.transcribe(sound)
    assert "\n" not in str(caught.value) and len(str(caught.value)) < 600


@pytest.mark.parametrize("path", [None, 3, b"tiny.edge", ["tiny.edge"]])
def test_a_bundle_is_loaded_by_a_path_alone(path: Any) -> None:
    with pytest.raises(InputError, match="by the path of its folder"):
        edge.load(path)


@pytest.mark.parametrize("kind", ["Model", 3, edge.load])
def test_a_kind_is_a_class(tiny_bundle: Bundle, kind: Any) -> None:
    with pytest.raises(InputError, match="The kind must be a class"):
        edge.load(tiny_bundle.root, kind=kind)
