"""What docs/reference/python-api.md says may be shared between threads."""

from __future__ import annotations

import dataclasses
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest
from tiny_encoder_decoders import t5_bundle, whisper_bundle

import edge
from edge.bundle import Bundle
from edge.errors import InputError

PROMPTS = [f"The moon {i} " * (i + 1) for i in range(6)]
SOUND = (np.random.default_rng(1).standard_normal(16000) * 0.1).astype(np.float32)


@pytest.fixture(scope="module")
def model(pristine_tiny_bundle: Bundle) -> Iterator[edge.Model]:
    with edge.load(pristine_tiny_bundle.root, context=512, kind=edge.Model) as found:
        yield found


@pytest.fixture(scope="module")
def translator(tmp_path_factory: pytest.TempPathFactory) -> Iterator[edge.Text2Text]:
    with edge.load(t5_bundle(tmp_path_factory.mktemp("t5")).root, kind=edge.Text2Text) as found:
        yield found


@pytest.fixture(scope="module")
def transcriber(tmp_path_factory: pytest.TempPathFactory) -> Iterator[edge.Transcriber]:
    with edge.load(whisper_bundle(tmp_path_factory.mktemp("whisper")).root, kind=edge.Transcriber) as found:
        yield found


def text(pieces: Iterator[edge.Piece]) -> str:
    return "".join(piece.text for piece in pieces)


@pytest.mark.parametrize("kind", ["generate", "stream", "chat", "generate_all"])
def test_threads_that_share_a_model_get_the_texts_that_each_gets_alone(model: edge.Model, kind: str) -> None:
    ask: dict[str, Callable[[str], str]] = {
        "generate": lambda prompt: model.generate(prompt, max_tokens=30).text,
        "stream": lambda prompt: text(model.stream(prompt, max_tokens=30)),
        "chat": lambda prompt: model.chat().generate(prompt, max_tokens=30).text,
        "generate_all": lambda prompt: model.generate_all([prompt, "x"], max_tokens=30)[0].text,
    }
    alone = [ask[kind](prompt) for prompt in PROMPTS]
    with ThreadPoolExecutor(4) as pool:
        assert list(pool.map(ask[kind], PROMPTS * 3)) == alone * 3


def test_threads_share_a_translator_and_a_transcriber(
    translator: edge.Text2Text, transcriber: edge.Transcriber
) -> None:
    alone = [translator.generate(prompt, max_tokens=20).text for prompt in PROMPTS]
    said = transcriber.transcribe(SOUND, temperatures=(0.0,)).text
    with ThreadPoolExecutor(4) as pool:
        heard = [pool.submit(transcriber.transcribe, SOUND, temperatures=(0.0,)) for _ in range(3)]
        assert list(pool.map(lambda prompt: translator.generate(prompt, max_tokens=20).text, PROMPTS * 3)) == alone * 3
        assert [each.result().text for each in heard] == [said] * 3


def test_one_answer_at_a_time_has_drafts(model: edge.Model) -> None:
    drafts: Any = model.speculation
    assert not drafts.taken.locked()
    first, second = (model.stream("moon moon moon moon", max_tokens=60) for _ in range(2))
    next(first), next(first)
    assert drafts.taken.locked()
    *_, last = second
    assert last.timings.speculation is not None and last.timings.speculation.draft_s == 0
    *_, last = first
    assert last.timings.speculation is not None and last.timings.speculation.draft_s > 0


def test_several_streams_of_one_thread_are_open_next_to_each_other(model: edge.Model) -> None:
    alone = [model.generate(prompt, max_tokens=20).text for prompt in PROMPTS]
    streams = [model.stream(prompt, max_tokens=20) for prompt in PROMPTS]
    found = [""] * len(streams)
    for _ in range(21):
        for i, stream in enumerate(streams):
            piece = next(stream, None)
            found[i] += "" if piece is None else piece.text
    assert found == alone


def test_a_thread_goes_on_with_the_stream_that_another_began(model: edge.Model, transcriber: edge.Transcriber) -> None:
    stream = model.stream("The moon", max_tokens=20)
    begun = next(stream).text
    with ThreadPoolExecutor(1) as pool:
        assert begun + pool.submit(text, stream).result() == model.generate("The moon", max_tokens=20).text
        answers = model.answers(PROMPTS, max_tokens=20)
        first = next(answers)
        rest = pool.submit(list, answers).result()
        whole = model.generate_all(PROMPTS, max_tokens=20)
        assert {i: result.text for i, result in [first, *rest]} == {i: each.text for i, each in enumerate(whole)}
        running = transcriber.transcribe_stream(np.tile(SOUND, 40), temperatures=(0.0,))
        heard = [next(running)]
        heard += pool.submit(list, running).result()
        assert [each.text for each in heard] == [
            each.text for each in transcriber.transcribe(np.tile(SOUND, 40), temperatures=(0.0,)).segments
        ]


def test_a_chat_answers_one_at_a_time(model: edge.Model) -> None:
    chat = model.chat()
    stream = chat.stream("The moon", max_tokens=20)
    next(stream)
    with ThreadPoolExecutor(1) as pool, pytest.raises(InputError, match="still under way"):
        pool.submit(chat.generate, "hi").result()
    assert text(stream)


def test_options_results_and_bundles_do_not_change(model: edge.Model) -> None:
    for each in (edge.GenerateOptions(), model.generate("The moon", max_tokens=2), model.bundle):
        with pytest.raises(dataclasses.FrozenInstanceError):
            setattr(each, dataclasses.fields(each)[0].name, None)  # type: ignore[arg-type]  # all are dataclasses


USES: dict[str, Callable[[Any, Any, Any, Callable[[], bool]], Any]] = {
    "generate": lambda m, t, w, on: m.generate("The moon", max_tokens=480, interrupted=on),
    "stream": lambda m, t, w, on: list(m.stream("The moon", max_tokens=480, interrupted=on)),
    "chat": lambda m, t, w, on: m.chat().generate("The moon", max_tokens=480, interrupted=on),
    "generate_all": lambda m, t, w, on: m.generate_all(PROMPTS, max_tokens=400, interrupted=on),
    "translate": lambda m, t, w, on: t.generate("The moon", max_tokens=50, beams=1, interrupted=on),
    "beams": lambda m, t, w, on: t.generate("The moon", max_tokens=50, beams=3, interrupted=on),
    "transcribe": lambda m, t, w, on: w.transcribe(SOUND, temperatures=(0.0,), interrupted=on),
}


@pytest.mark.parametrize("use", USES)
def test_closing_a_model_ends_what_another_thread_asked_for_at_its_next_step(
    pristine_tiny_bundle: Bundle, translator: edge.Text2Text, transcriber: edge.Transcriber, use: str
) -> None:
    """A function that is asked before every step lets some of them pass, then waits until the model was closed."""
    loaded = [
        edge.load(root, kind=kind)
        for root, kind in (
            (pristine_tiny_bundle.root, edge.Model),
            (translator.bundle.root, edge.Text2Text),
            (transcriber.bundle.root, edge.Transcriber),
        )
    ]
    steps, reached, closed = [0], threading.Event(), threading.Event()

    def asked() -> bool:
        steps[0] += 1
        if steps[0] == 3:
            reached.set()
            assert closed.wait(30)
        return False

    with ThreadPoolExecutor(1) as pool:
        answer = pool.submit(USES[use], *loaded, asked)
        assert reached.wait(30)
        for each in loaded:
            each.close()
        closed.set()
        with pytest.raises(InputError, match="was closed; load it again"):
            answer.result(30)
    assert steps[0] <= 12, "a draft's tokens are given before the next step"
