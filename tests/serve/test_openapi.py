"""The description at `/openapi.json` is true: of every address, of every field, and of what comes back."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from running_server import running

pytest.importorskip("starlette")
pytest.importorskip("schemathesis")

import schemathesis
from hypothesis import HealthCheck, given, settings
from schemathesis import GenerationMode
from schemathesis.specs.openapi.checks import positive_data_acceptance

from edge.bundle import Bundle
from edge.serve.fields import Fields
from edge.serve.openapi import GOT, POSTED

CONTEXT = 64  # in which the longest answers end soon
EXAMPLES = 20  # of each kind for each address
# A template that takes whatever a message may have.
TEMPLATE = (
    "{% if tools %}{{ tools | tojson }}<tool_call>{% endif %}"
    "{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}assistant: "
)
# A request of each address that has what it must have.
LEAST: dict[str, dict[str, Any]] = {
    "/v1/chat/completions": {"messages": [{"role": "user", "content": "x"}], "max_tokens": 1},
    "/v1/completions": {"prompt": "x", "max_tokens": 1},
    "/v1/responses": {"input": "x", "max_output_tokens": 1},
    "/api/chat": {"stream": False, "options": {"num_predict": 1}},
    "/api/generate": {"stream": False, "options": {"num_predict": 1}},
    "/api/show": {},
}


@pytest.fixture(scope="module")
def client(pristine_tiny_bundle: Bundle) -> Iterator[httpx.Client]:
    manifest = dataclasses.replace(pristine_tiny_bundle.manifest, chat_template=TEMPLATE, chat_format=None)
    with running(Bundle(pristine_tiny_bundle.root, manifest), context=CONTEXT) as client:
        yield client


@pytest.fixture(scope="module")
def described(client: httpx.Client) -> Any:
    """The description, as a client reads it."""
    return schemathesis.openapi.from_dict(client.get("/openapi.json").json())


def test_every_address_is_described(pristine_tiny_bundle: Bundle) -> None:
    """A new address has its row in edge/serve/openapi.py."""
    from edge.runtime.load_options import LoadOptions
    from edge.serve.models import Models
    from edge.serve.server import Address, Server

    server = Server(Models({}, LoadOptions(), parallel=1, queue=1), Address("127.0.0.1", 1))
    there = {(method, route.path.replace(":path", "")) for route in server.app.routes for method in route.methods}
    assert there - {("HEAD", path) for path in GOT} == {("GET", p) for p in GOT} | {("POST", p) for p in POSTED}


@pytest.mark.parametrize("path", LEAST)
def test_the_fields_that_are_described_are_those_that_are_read(
    client: httpx.Client, monkeypatch: pytest.MonkeyPatch, path: str
) -> None:
    read: list[set[str]] = []

    class Reading(Fields):
        def __init__(self, found: Any, about: str = "") -> None:
            super().__init__(found, about)
            self._read = set[str]()
            if not about:
                read.append(self._read)

        def take(self, name: str, *more: Any) -> Any:
            self._read.add(name)
            return super().take(name, *more)

        def unread(self, *names: str) -> None:
            self._read.update(names)
            super().unread(*names)

    for module in ("openai", "responses", "ollama"):
        monkeypatch.setattr(f"edge.serve.{module}.Fields", Reading)
    assert client.post(path, json=LEAST[path]).status_code == 200
    ((schema, _), *_) = POSTED[path].asked
    assert max(read, key=len) == {"model", *schema["properties"]}


@pytest.mark.parametrize("mode", [GenerationMode.POSITIVE, GenerationMode.NEGATIVE], ids=["right", "wrong"])
@pytest.mark.parametrize("path", LEAST)
def test_whatever_is_asked_the_answer_is_as_described(
    client: httpx.Client, described: Any, path: str, mode: GenerationMode
) -> None:
    """No request fails in a way that nobody foresaw, and none that is wrong is obeyed."""
    cases = described[path]["POST"].as_strategy(generation_mode=mode)

    @given(case=cases)
    @settings(
        max_examples=EXAMPLES, derandomize=True, database=None, deadline=None, suppress_health_check=list(HealthCheck)
    )
    def ask(case: Any) -> None:
        # Schemas do not say all: that a prompt has words and fits, or that options go together.
        case.call_and_validate(base_url=str(client.base_url), excluded_checks=[positive_data_acceptance])

    ask()


@pytest.mark.parametrize("path", GOT)
def test_what_is_got_is_as_described(client: httpx.Client, described: Any, path: str) -> None:
    names = {"name": client.get("/v1/models").json()["data"][0]["id"]} if "{name}" in path else {}
    described[path]["GET"].Case(path_parameters=names).call_and_validate(base_url=str(client.base_url))
