"""An answer is the same whoever else is being served."""

from __future__ import annotations

import json
import random
import shutil
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
from running_server import running

from edge.bundle import Bundle, open_bundle
from edge.runtime.batch.answer import BatchAnswer
from edge.runtime.batch.batch import Batch
from edge.runtime.kernels.library import Kernels
from edge.runtime.load_options import LoadOptions
from edge.runtime.memory.process import private_bytes
from edge.serve.models import Models
from edge.serve.refusal import WorkerClosed
from edge.serve.rooms import Rooms
from edge.serve.worker import Worker

WORDS = ["moon", "train", "coffee", "library", "window", "garden", "river", "stone"]
COUNT = 24


@pytest.fixture(scope="module")
def client(pristine_tiny_bundle: Bundle) -> Iterator[httpx.Client]:
    with running(pristine_tiny_bundle, context=256) as client:
        yield client


def body(number: int) -> dict[str, Any]:
    draw = random.Random(number)
    prompt = "The " + " ".join(draw.choices(WORDS, k=draw.randint(2, 25)))
    found: dict[str, Any] = {"prompt": prompt, "max_tokens": draw.randint(3, 30), "temperature": 0}
    if number % 3 == 0:
        found |= {"temperature": 0.9, "seed": number, "top_k": 20}
    return found


def answer(client: httpx.Client, number: int) -> tuple[str, str]:
    response = client.post("/v1/completions", json=body(number))
    assert response.status_code == 200, response.text
    choice = response.json()["choices"][0]
    return choice["text"], choice["finish_reason"]


def leave(client: httpx.Client, number: int) -> None:
    """Begin to read an answer, and go away."""
    with client.stream("POST", "/v1/completions", json=body(number) | {"stream": True, "max_tokens": 200}) as response:
        next(response.iter_lines())


def test_answers_side_by_side_are_those_one_by_one(client: httpx.Client, library: Kernels) -> None:
    alone = [answer(client, i) for i in range(COUNT)]

    def ask(number: int) -> tuple[str, str]:
        if number % 4 == 1:
            leave(client, number)
        if number % 4 == 2:
            assert client.post("/v1/completions", content=b"{").status_code == 400
        return answer(client, number)

    for _ in range(2):
        with ThreadPoolExecutor(8) as pool:
            assert [*pool.map(ask, range(COUNT))] == alone


def test_a_prompt_that_begins_like_another_is_not_read_again(client: httpx.Client, library: Kernels) -> None:
    start = "The library opens at nine and the garden at ten. " * 3
    found = []
    for end in ("And the train?", "And the river?", "And the train?"):
        response = client.post("/v1/completions", json={"prompt": start + end, "max_tokens": 8, "temperature": 0})
        found.append(response.json())
    known = [each["usage"]["prompt_tokens_details"]["cached_tokens"] for each in found]
    prompts = [each["usage"]["prompt_tokens"] for each in found]
    assert prompts[1] // 2 < known[1] < prompts[1] and known[2] == prompts[2] - 1
    assert found[2]["choices"][0]["text"] == found[0]["choices"][0]["text"]


def test_several_answers_to_one_prompt_are_those_that_it_has_alone(client: httpx.Client, library: Kernels) -> None:
    start = {"prompt": "The library opens at nine and the garden at ten. And the river?", "max_tokens": 8}
    body = start | {"temperature": 0}
    (alone,) = client.post("/v1/completions", json=body).json()["choices"]
    together = client.post("/v1/completions", json=body | {"n": 4}).json()["choices"]
    assert [each["text"] for each in together] == [alone["text"]] * 4
    body = start | {"temperature": 1.5, "seed": 3}
    (first,) = client.post("/v1/completions", json=body).json()["choices"]
    drawn = client.post("/v1/completions", json=body | {"n": 4}).json()["choices"]
    assert len({each["text"] for each in drawn}) > 1 and drawn[0]["text"] == first["text"]


def test_nothing_is_computed_for_a_client_that_left(
    pristine_tiny_bundle: Bundle, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of an answer that would take 40 seconds."""
    push, tokens = BatchAnswer.push, list[int]()

    def slow(self: BatchAnswer, token: int) -> None:
        tokens.append(token)
        time.sleep(0.2)
        push(self, token)

    with running(pristine_tiny_bundle) as client:
        usage = client.post("/v1/completions", json=body(11) | {"max_tokens": 200}).json()["usage"]
        monkeypatch.setattr(BatchAnswer, "push", slow)
        leave(client, 11)
        began = time.monotonic()
        while True:
            lines = client.get("/metrics").text.splitlines()
            (growing,) = (line for line in lines if line.startswith("edge_growing_answers{"))
            if float(growing.split()[-1]) == 0:
                break
            assert time.monotonic() < began + 60
            time.sleep(0.05)
    assert len(tokens) < usage["completion_tokens"]


@pytest.mark.parametrize(("parallel", "queue", "n"), [(1, 0, 1), (4, 1, 16), (1, 0, 3)])
def test_one_request_that_finds_nobody_there_is_welcome(
    pristine_tiny_bundle: Bundle, parallel: int, queue: int, n: int
) -> None:
    with running(pristine_tiny_bundle, parallel=parallel, queue=queue) as client:
        body = {"messages": [{"role": "user", "content": "x"}], "max_tokens": 3, "n": n}
        for _ in range(2):
            assert len(client.post("/v1/chat/completions", json=body).json()["choices"]) == n


def test_a_worker_that_something_ends_is_replaced(
    pristine_tiny_bundle: Bundle, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A panic of a library is no Exception of Python's."""

    class Panic(BaseException):
        pass

    def panics(self: Batch) -> None:
        raise Panic

    body = {"prompt": "The moon", "max_tokens": 3, "temperature": 0}
    with running(pristine_tiny_bundle) as client:
        said = client.post("/v1/completions", json=body).json()["choices"]
        with monkeypatch.context() as patched:
            patched.setattr(Batch, "step", panics)
            response = client.post("/v1/completions", json=body)
            assert response.status_code == 500 and "Panic" not in response.text
        assert client.post("/v1/completions", json=body).json()["choices"] == said


def test_what_waits_too_long_in_line_is_sent_away(
    pristine_tiny_bundle: Bundle, monkeypatch: pytest.MonkeyPatch
) -> None:
    statuses: list[int] = []
    refused, push = threading.Event(), BatchAnswer.push

    def held(self: BatchAnswer, token: int) -> None:
        refused.wait(60)
        refused.set()  # else each token would be waited for
        push(self, token)

    with running(pristine_tiny_bundle, parallel=1, queue=1) as client:
        client.post("/v1/completions", json={"prompt": "x", "max_tokens": 1})
        monkeypatch.setattr(BatchAnswer, "push", held)

        def ask() -> None:
            response = client.post("/v1/completions", json={"prompt": "The moon", "max_tokens": 200, "temperature": 0})
            statuses.append(response.status_code)
            if response.status_code == 429:
                refused.set()
                assert int(response.headers["retry-after"]) > 0
                assert response.json()["error"]["type"] == "rate_limit_error"

        threads = [threading.Thread(target=ask) for _ in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert statuses.count(200) >= 1 and statuses.count(429) >= 1 and set(statuses) == {200, 429}


def test_several_models_are_loaded_when_they_are_asked(
    pristine_tiny_bundle: Bundle, int4_bundle: Bundle, tmp_path: Path
) -> None:
    other = open_bundle(shutil.copytree(int4_bundle.root, tmp_path / "other.edge"))
    with running(pristine_tiny_bundle, other) as client:
        texts = {}
        for name in ("tiny", "other", "tiny"):
            response = client.post("/v1/completions", json={"model": name, "prompt": "The moon", "max_tokens": 6})
            assert response.status_code == 200, response.text
            assert json.loads(response.text)["model"] == name
            texts.setdefault(name, response.json()["choices"][0]["text"])
        assert {each["name"] for each in client.get("/api/ps").json()["models"]} == {"tiny", "other"}
        assert client.post("/v1/completions", json={"prompt": "The moon"}).status_code == 404


@pytest.mark.parametrize(
    ("room", "there"),
    [
        (1, [["tiny"], ["other"], ["tiny"], ["third"], ["tiny"]]),
        (2, [["tiny"], ["other", "tiny"], ["other", "tiny"], ["third", "tiny"], ["third", "tiny"]]),
        (3, [["tiny"], ["other", "tiny"], ["other", "tiny"], ["other", "third", "tiny"], ["other", "third", "tiny"]]),
    ],
)
def test_with_a_memory_limit_those_leave_that_were_not_asked_for_the_longest_time(
    pristine_tiny_bundle: Bundle, int4_bundle: Bundle, tmp_path: Path, room: int, there: list[list[str]]
) -> None:
    names = ["tiny", "other", "third"]
    others = [open_bundle(shutil.copytree(int4_bundle.root, tmp_path / f"{name}.edge")) for name in names[1:]]
    bundles = [pristine_tiny_bundle, *others]
    asked = {"beams": 3, "context": 128}
    program = private_bytes()
    rooms = Rooms(dict(zip(names, bundles, strict=True)), 1 << 50, lambda name: LoadOptions(**asked))
    most, least = max(map(rooms.need, names)), min(map(rooms.need, names))
    limit = program + room * (most - program) + (least - program) // 2  # room for so many, and for no more
    with running(*bundles, memory=limit, **asked) as client:
        said = dict[str, str]()
        for name, expected in zip(("tiny", "other", "tiny", "third", "tiny"), there, strict=True):
            response = client.post(
                "/v1/completions", json={"model": name, "prompt": "The moon", "max_tokens": 6, "seed": 1}
            )
            assert response.status_code == 200, response.text
            text = response.json()["choices"][0]["text"]
            assert said.setdefault(name, text) == text
            assert sorted(each["name"] for each in client.get("/api/ps").json()["models"]) == expected
            assert private_bytes() < limit


def room_for_one(bundles: dict[str, Bundle], **asked: Any) -> int:
    """A limit that either of two models fits into, and both do not."""
    program = private_bytes()
    rooms = Rooms(bundles, 1 << 50, lambda name: LoadOptions(**asked))
    needs = [rooms.need(name) for name in bundles]
    return max(needs) + (min(needs) - program) // 2


def test_models_that_have_no_room_together_are_asked_at_the_same_time(
    pristine_tiny_bundle: Bundle, int4_bundle: Bundle, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither request takes the other's model away before it has answered."""
    other = open_bundle(shutil.copytree(int4_bundle.root, tmp_path / "other.edge"))
    asked = {"beams": 3, "context": 128}
    limit = room_for_one({"tiny": pristine_tiny_bundle, "other": other}, **asked)
    make, loads = Worker.make, list[str]()

    def slow(self: Worker, *given: Any, **more: Any) -> BatchAnswer:
        time.sleep(0.3)  # a long prompt's text that is made tokens
        return make(self, *given, **more)

    load = Models._load

    def counted(self: Models, name: str, *given: Any) -> Any:
        loads.append(name)
        return load(self, name, *given)

    monkeypatch.setattr(Worker, "make", slow)
    monkeypatch.setattr(Models, "_load", counted)
    with running(pristine_tiny_bundle, other, memory=limit, **asked) as client, ThreadPoolExecutor(4) as pool:

        def ask(name: str) -> int:
            body = {"model": name, "prompt": "The moon", "max_tokens": 4}
            return client.post("/v1/completions", json=body, timeout=60).status_code

        assert {*pool.map(ask, ["tiny", "other"] * 3)} == {200}
    assert len(loads) <= 6


def test_a_server_that_closes_while_a_busy_model_is_to_leave_closes_that_too(
    pristine_tiny_bundle: Bundle, int4_bundle: Bundle, tmp_path: Path
) -> None:
    bundles = {"tiny": pristine_tiny_bundle, "other": int4_bundle}
    asked = {"beams": 3, "context": 128}
    limit = room_for_one(bundles, **asked)
    models = Models(bundles, LoadOptions(memory=limit, **asked), parallel=2, queue=2)
    worker, hold = models.worker("tiny")
    with ThreadPoolExecutor(1) as pool:
        waits = pool.submit(models.worker, "other")
        while not models._leaving:
            time.sleep(0.01)
        models.close()
        with pytest.raises(WorkerClosed, match="closing"):
            waits.result(30)
    hold.close()
    assert worker.dead and not models.loaded


def test_what_a_process_grows_by_is_within_the_limit(pristine_tiny_bundle: Bundle, int4_bundle: Bundle) -> None:
    limit = private_bytes() + 300 * 10**6
    alone = Rooms({"tiny": pristine_tiny_bundle}, limit, lambda name: LoadOptions(beams=3))
    grown = np.ones(80 << 20, np.uint8)
    assert alone.options("tiny", []).memory == limit
    two = {"tiny": pristine_tiny_bundle, "other": int4_bundle}
    both = Rooms(two, private_bytes() + 1, lambda name: LoadOptions(beams=3))  # less than either needs
    more = np.ones(80 << 20, np.uint8)
    assert all(both.options(name, []).memory == both.need("tiny") < limit for name in two)
    assert both.fit(["tiny"]) and not both.fit(["tiny", "other"]) and grown.size == more.size


def test_onnxruntimes_kernels_serve_too(tiny_bundle: Bundle, onnxruntimes_kernels: None) -> None:
    """Whose rows depend on their neighbours in the last bits: all steps are of several rows, and prompts are cut at the
    same places."""
    with running(tiny_bundle, context=256) as client:
        alone = [answer(client, i) for i in range(8)]
        with ThreadPoolExecutor(4) as pool:
            assert [*pool.map(lambda i: answer(client, i), range(8))] == alone
