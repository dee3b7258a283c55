"""What a client sees where the machine that answers dies: one whole answer, or an error that it understands."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import httpx
import pytest
from running_server import reached

pytest.importorskip("ray.serve", reason="needs the extra cluster")

from ray.exceptions import ActorDiedError, RayTaskError

from edge.cluster import front
from edge.serve.server import Address

BODY = {"model": "tiny", "prompt": "x", "input": "x", "messages": [{"role": "user", "content": "x"}], "stream": True}
CHUNK: dict[str, Any] = {"id": "1", "object": "chat.completion.chunk", "created": 1, "model": "tiny"}
CHUNK["choices"] = [{"index": 0, "delta": {"role": "assistant", "content": "One"}, "finish_reason": None}]
DELTA = {"type": "response.output_text.delta", "delta": "One", "sequence_number": 0, "output_index": 0, "logprobs": []}
DELTA |= {"content_index": 0, "item_id": "1"}
OF_OLLAMA = {"model": "tiny", "created_at": "", "message": {"role": "assistant", "content": "One"}, "done": False}
STREAMED = {
    "/v1/chat/completions": f"data: {json.dumps(CHUNK)}\n\n",
    "/v1/responses": f"event: response.output_text.delta\ndata: {json.dumps(DELTA)}\n\n",
    "/api/chat": f"{json.dumps(OF_OLLAMA)}\n",
}
GONE = "The machine that answered is no longer there; ask again."

Part = dict[str, Any] | BaseException | None


def start(kind: str = "application/json") -> dict[str, Any]:
    return {"type": "http.response.start", "status": 200, "headers": [(b"content-type", kind.encode())]}


def body(text: str, more: bool = False) -> dict[str, Any]:
    return {"type": "http.response.body", "body": text.encode(), "more_body": more}


def died() -> ActorDiedError:
    return ActorDiedError()


class Replicas:
    """Stand-ins for replicas. Each request that comes gets the next of these responses; after the last it waits."""

    def __init__(self, *responses: Sequence[Part]) -> None:
        self.left, self.asked, self.cancelled = list(responses), list[front.Asked](), threading.Event()

    def options(self, *, stream: bool) -> Replicas:
        assert stream
        return self

    @property
    def answer(self) -> Replicas:
        return self

    def remote(self, asked: front.Asked) -> Answer:
        self.asked.append(asked)
        return Answer(self.left.pop(0), self.cancelled.set)


class Answer:
    def __init__(self, parts: Sequence[Part], cancel: Callable[[], None]) -> None:
        self._parts, self.cancel = self._given([None, *parts]), cancel

    async def _given(self, parts: Sequence[Part]) -> AsyncIterator[Part]:
        for part in parts:
            if isinstance(part, BaseException):
                raise part
            yield part
        if isinstance(parts[-1], dict) and parts[-1].get("more_body", True):
            await asyncio.Event().wait()

    def __aiter__(self) -> AsyncIterator[Part]:
        return self._parts

    def __anext__(self) -> Any:
        return anext(self._parts)


@contextmanager
def server(*responses: Sequence[Part]) -> Iterator[tuple[httpx.Client, Replicas, front.Front]]:
    replicas = Replicas(*responses)
    made = front.Front(replicas, Address("127.0.0.1", 0))
    with reached(made.app) as client:
        yield client, replicas, made


WHOLE = [start(), body('{"said": 1}')]


@pytest.mark.parametrize(
    "lost",
    [
        [died()],
        [start(), died()],
        [start("text/event-stream"), died()],
        [asyncio.CancelledError()],
    ],
)
def test_what_was_not_begun_is_asked_again_elsewhere(lost: Sequence[Part]) -> None:
    with server(lost, lost, WHOLE) as (client, replicas, _):
        response = client.post("/v1/completions", json=BODY)
        assert (response.status_code, response.json()) == (200, {"said": 1})
        assert len(replicas.asked) == 3 and replicas.asked[0] is replicas.asked[2]


def test_a_request_that_ends_every_replica_ends_three_at_most() -> None:
    with server([died()], [died()], [died()], WHOLE) as (client, replicas, _):
        response = client.post("/v1/completions", json=BODY)
        assert response.status_code == 503 and response.headers["retry-after"] == "1"
        assert response.json()["error"]["message"] == GONE and len(replicas.asked) == 3


def test_an_error_of_the_program_is_not_tried_again() -> None:
    failed = RayTaskError("answer", "a traceback", ValueError("x"))
    with server([failed], WHOLE) as (client, replicas, _):
        response = client.post("/api/chat", json=BODY)
        assert response.status_code == 500 and "its log says more" in response.json()["error"]
        assert len(replicas.asked) == 1


def test_an_answer_that_was_whole_stays_so() -> None:
    """The replica dies after its last message."""
    with server([*WHOLE, died()]) as (client, _, _), client.stream("POST", "/v1/completions", json=BODY) as response:
        assert response.read() == b'{"said": 1}'


@contextmanager
def broken_off(path: str) -> Iterator[str]:
    """The address of a server whose replica dies in the middle of a stream."""
    kind = "application/x-ndjson" if path.startswith("/api/") else "text/event-stream"
    event = STREAMED[path]
    with server([start(kind), body(event, True), body(event, True), died()], WHOLE) as (client, replicas, _):
        yield str(client.base_url)
        assert len(replicas.asked) == 1, "what was said once is not said again"


def test_a_chat_that_had_begun_ends_with_an_error_of_openais_client() -> None:
    openai = pytest.importorskip("openai")
    with broken_off("/v1/chat/completions") as base, openai.OpenAI(base_url=f"{base}/v1", api_key="none") as client:
        said = []
        with pytest.raises(openai.APIError, match=GONE):
            for chunk in client.chat.completions.create(model="tiny", messages=BODY["messages"], stream=True):
                said.append(chunk.choices[0].delta.content)
    assert said == ["One", "One"]


def test_a_response_that_had_begun_ends_with_an_error_of_openais_client() -> None:
    openai = pytest.importorskip("openai")
    with broken_off("/v1/responses") as base, openai.OpenAI(base_url=f"{base}/v1", api_key="none") as client:
        said = []
        with pytest.raises(openai.APIError, match=GONE):
            for event in client.responses.create(model="tiny", input="x", stream=True):
                said.append(event.delta)
    assert said == ["One", "One"]


def test_the_event_of_an_error_has_its_number() -> None:
    with broken_off("/v1/responses") as base:
        *_, kind, data = httpx.post(f"{base}/v1/responses", json=BODY).text.strip().splitlines()
    told = json.loads(data.removeprefix("data: "))
    assert kind == "event: error" and told["type"] == "error"
    assert (told["message"], told["sequence_number"]) == (GONE, 2)


def test_a_chat_that_had_begun_ends_with_an_error_of_ollamas_client() -> None:
    ollama = pytest.importorskip("ollama")
    with broken_off("/api/chat") as base:
        said = []
        with pytest.raises(ollama.ResponseError, match=GONE):
            for part in ollama.Client(base).chat(model="tiny", messages=BODY["messages"], stream=True):
                said.append(part.message.content)
    assert said == ["One", "One"]


def test_what_the_front_itself_refuses_no_replica_sees() -> None:
    with server() as (client, replicas, _):
        assert client.get("/health").json() == {"status": "ok"}
        assert client.post("/v1/completions", content=b"x" * (5 << 20)).status_code == 413
        assert client.get("/v1/models", headers={"Host": "evil.example"}).status_code == 403
        assert client.get("/v1/models", headers={"Origin": "http://evil.example"}).status_code == 403
        assert replicas.asked == []
    with reached(front.Front(replicas, Address("127.0.0.1", 0, key="a key")).app) as client:
        assert client.get("/v1/models").status_code == 401
        assert client.get("/metrics").status_code == 401


def test_nothing_more_is_computed_for_a_client_that_went_away() -> None:
    event = STREAMED["/v1/chat/completions"]
    with server([start("text/event-stream"), body(event, True)]) as (client, replicas, _):
        with client.stream("POST", "/v1/chat/completions", json=BODY) as response:
            lines = response.iter_lines()
            assert next(lines) == event.strip()
            assert not replicas.cancelled.is_set()
        assert replicas.cancelled.wait(30)


def test_answers_end_with_a_sentence_where_the_server_does() -> None:
    event = STREAMED["/v1/chat/completions"]
    with server([start("text/event-stream"), body(event, True)], [start()]) as (client, _, made):
        with client.stream("POST", "/v1/chat/completions", json=BODY) as response:
            lines = response.iter_lines()
            assert next(lines) == event.strip()
            made.close()
            assert [json.loads(line[6:])["error"]["message"] for line in lines if line] == [
                "The server is closing; ask again."
            ]
        assert client.post("/v1/completions", json=BODY).status_code == 503


def test_a_request_that_nobody_takes_is_told_so(monkeypatch: pytest.MonkeyPatch) -> None:
    async def nobody(self: Answer, parts: Sequence[Part]) -> AsyncIterator[Part]:
        await asyncio.Event().wait()
        yield None

    monkeypatch.setattr(front, "TAKEN_S", 0.1)
    monkeypatch.setattr(Answer, "_given", nobody)
    with server([]) as (client, replicas, _):
        response = client.post("/v1/completions", json=BODY)
        assert response.status_code == 503 and "No machine of the cluster takes" in response.text
        assert replicas.cancelled.is_set()
