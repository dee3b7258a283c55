"""A server whose models are on a cluster: its answers are those of one machine, and it outlives a node."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
from prometheus_client.parser import text_string_to_metric_families
from ray_nodes import SMALL, ray_nodes
from running_server import reached, running
from texts import SENTENCES

from edge.bundle import Bundle
from edge.errors import DeviceError, InputError
from edge.runtime.load_options import LoadOptions

KEY = "a key"
WAIT_S = 240.0
TOKENS = 24
GONE = "The machine that answered is no longer there; ask again."


@pytest.fixture(scope="module")
def homes(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("homes")


@pytest.fixture(scope="module")
def nodes(homes: Path) -> Iterator[Any]:
    with ray_nodes(homes) as cluster:
        yield cluster


@pytest.fixture(scope="module")
def cluster(nodes: Any) -> Iterator[Any]:
    from edge.cluster.address import joined

    with joined(nodes.address) as found:
        yield found


@contextmanager
def served(cluster: Any, bundle: Bundle, count: int) -> Iterator[httpx.Client]:
    """A client of a server with so many replicas of the tiny model."""
    from edge.cluster.front import Front
    from edge.cluster.serving import Wanted, serving
    from edge.serve.server import Address

    with (
        serving(cluster, {"tiny": bundle}, Wanted(LoadOptions(), 4, 8, count, count)) as handle,
        reached(Front(handle, Address("127.0.0.1", 0, KEY)).app) as client,
    ):
        client.headers["Authorization"] = f"Bearer {KEY}"
        client.timeout = httpx.Timeout(WAIT_S)
        yield client


@pytest.fixture(scope="module")
def client(cluster: Any, pristine_tiny_bundle: Bundle) -> Iterator[httpx.Client]:
    """Of a server with two replicas, each on a node of its own."""
    with served(cluster, pristine_tiny_bundle, 2) as found:
        yield found


def wanted(prompt: str, **fields: Any) -> dict[str, Any]:
    return {"prompt": prompt, "max_tokens": TOKENS, "temperature": 0.8, "seed": 1} | fields


def ask(client: httpx.Client, prompt: str, **fields: Any) -> dict[str, Any]:
    response = client.post("/v1/completions", json=wanted(prompt, **fields))
    assert response.status_code == 200, response.text
    found: dict[str, Any] = response.json()
    return found


def text(client: httpx.Client, prompt: str, **fields: Any) -> str:
    said: str = ask(client, prompt, **fields)["choices"][0]["text"]
    return said


def events(client: httpx.Client, prompt: str) -> Iterator[dict[str, Any]]:
    """The events of a stream; one without an end fails the test."""
    with client.stream("POST", "/v1/completions", json=wanted(prompt, stream=True)) as response:
        assert response.status_code == 200
        for line in response.iter_lines():
            if line == "data: [DONE]":
                return
            if line:
                yield (event := json.loads(line.removeprefix("data: ")))
                if "error" in event:
                    return
    raise AssertionError("The stream was cut off without a word.")


def test_a_node_that_is_killed_in_the_middle_loses_nothing_and_doubles_nothing(
    nodes: Any, homes: Path, pristine_tiny_bundle: Bundle, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Three replicas on three nodes have streams and whole answers under way, which are held until the node is dead.
    It comes first: two nodes are left."""
    import ray
    from cluster_work import HeldReplica

    from edge.cluster import serving
    from edge.cluster.address import joined

    monkeypatch.setattr(serving, "Replica", HeldReplica)
    prompts = [f"{i}: {SENTENCES[i % len(SENTENCES)]}" for i in range(24)]  # at most
    streams, whole = prompts[::2], prompts[1::2]
    with running(pristine_tiny_bundle) as alone:
        expected = {prompt: text(alone, prompt) for prompt in prompts}
    said: dict[str, list[str]] = {prompt: [] for prompt in streams}
    errors = dict[str, str]()

    def read(prompt: str) -> None:
        for event in events(there, prompt):
            if "error" in event:
                errors[prompt] = event["error"]["message"]
            else:
                said[prompt].append(event["choices"][0]["text"])

    def asked(home: str) -> set[str]:
        """The prompts that a node was asked."""
        file = homes / home / "asked.txt"
        return set(file.read_text().splitlines()) if file.exists() else set()

    with (
        joined(nodes.address) as cluster,
        served(cluster, pristine_tiny_bundle, 3) as there,
        ThreadPoolExecutor(len(prompts)) as pool,
    ):
        pending, victim, until = dict[str, Future[Any]](), "", time.monotonic() + WAIT_S
        for number, prompt in enumerate(prompts, 1):
            pending[prompt] = pool.submit(read, prompt) if prompt in said else pool.submit(text, there, prompt)
            while len(said[prompt]) < 2 if prompt in said else prompt not in asked("head") | asked("1") | asked("2"):
                assert time.monotonic() < until and not pending[prompt].done()
                time.sleep(0.01)
            victim = next((home for home in ("1", "2") if asked(home) & {*streams} and asked(home) & {*whole}), "")
            if victim and number >= 12:
                break
        assert victim and not any(each.done() for each in pending.values())
        streams, whole = ([each for each in some if each in pending] for some in (streams, whole))
        there_before, survivors = asked(victim), {"head", "1", "2"} - {victim}
        nodes.remove_node(nodes.of_home[victim], allow_graceful=False)
        for home in survivors:
            (homes / home / "go").touch()
        answers = {prompt: pending[prompt].result(WAIT_S) for prompt in whole}
        for prompt in streams:
            pending[prompt].result(WAIT_S)
        assert answers == {prompt: expected[prompt] for prompt in whole}
        for prompt in streams:
            found = "".join(said[prompt])
            assert found == expected[prompt] if prompt not in errors else expected[prompt].startswith(found)
        assert set(errors) <= there_before and set(errors.values()) == {GONE} and all(said[each] for each in errors)
        others = {prompt for home in survivors for prompt in asked(home)}
        assert there_before & set(whole) <= others, "what had not begun was asked again"
        assert not others & set(errors), "and nothing else"
        assert text(there, "one more") == text(there, "one more")
        while sum(each["Alive"] for each in ray.nodes()) > 2:  # the next tests begin with what Ray knows
            assert time.monotonic() < until + WAIT_S
            time.sleep(0.1)


def test_answers_are_those_of_one_machine(client: httpx.Client, pristine_tiny_bundle: Bundle) -> None:
    talk = {"model": "tiny", "messages": [{"role": "user", "content": SENTENCES[0]}], "stream": True}
    with running(pristine_tiny_bundle) as alone:
        for prompt in SENTENCES:
            assert ask(client, prompt)["choices"] == ask(alone, prompt)["choices"]
            said = "".join(event["choices"][0]["text"] for event in events(client, prompt))
            assert said == text(alone, prompt)
        for path, more in (
            ("/v1/chat/completions", {"max_tokens": 8, "temperature": 0}),
            ("/api/chat", {"options": {"num_predict": 8, "temperature": 0}}),
        ):
            told = [each.post(path, json=talk | more) for each in (client, alone)]
            said = [re.sub(r'"(id|created|created_at|\w+_duration)": ("[^"]*"|[0-9]+)', "", each.text) for each in told]
            assert said[0] == said[1] and len(said[0].splitlines()) > 3
            assert told[0].headers["content-type"] == told[1].headers["content-type"]
        for body in (wanted("x", nonsense=1), wanted("x " * 3000), {"prompt": 3}):
            refused = [each.post("/v1/completions", json=body) for each in (client, alone)]
            assert refused[0].status_code == 400 and refused[0].json() == refused[1].json()
        assert client.get("/nowhere").status_code == 404
        assert client.get("/openapi.json").json() == alone.get("/openapi.json").json()


def test_who_has_no_key_asks_nothing(client: httpx.Client) -> None:
    assert client.get("/health", headers={"Authorization": ""}).json() == {"status": "ok"}
    assert client.get("/v1/models", headers={"Authorization": "Bearer other"}).status_code == 401
    assert client.get("/v1/models").json()["data"][0]["id"] == "tiny"


def test_a_prompt_that_begins_like_another_goes_where_that_was_read(client: httpx.Client) -> None:
    for number in range(5):
        beginning = f"{number} " + " ".join(SENTENCES)[:300]
        ask(client, f"{beginning} One", max_tokens=2)
        for word in ("Two", "Three"):
            usage = ask(client, f"{beginning} {word}", max_tokens=2)["usage"]
            assert usage["prompt_tokens_details"]["cached_tokens"] > 20


def test_figures_are_those_of_all_replicas(client: httpx.Client) -> None:
    """Prompts that nobody has read go to the replica with less to do, here to both."""

    def answers() -> dict[str, float]:
        families = {each.name: each for each in text_string_to_metric_families(client.get("/metrics").text)}
        found = families["edge_answers"].samples
        return {each.labels["replica"]: each.value for each in found if each.name == "edge_answers_total"}

    before = sum(answers().values())
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda i: text(client, f"Say {i}."), range(8)))
    assert len(answers()) == 2 and sum(answers().values()) == before + 8


def test_once_a_cluster_was_left_nothing_asks_for_it_again(pristine_tiny_bundle: Bundle) -> None:
    """Ray has a thread that asks for more replicas, here every tenth of a second. It would start another cluster, where
    Ray was imported before edge, and is not told of the end of a deployment that takes too long to end."""
    pytest.importorskip("ray.serve", reason="needs the extra cluster")
    code = (
        "import ray, sys, time\n"
        "from functools import partial\n"
        "from pathlib import Path\n"
        "wait, asked = ray.wait, []\n"
        "ray.wait = lambda *given, **more: (asked.append(1), wait(*given, **more))[1]\n"
        "from edge.bundle import open_bundle\n"
        "from edge.cluster import serving\n"
        "from edge.cluster.address import joined\n"
        "from edge.runtime.load_options import LoadOptions\n"
        "serving.AutoscalingConfig = partial(serving.AutoscalingConfig, metrics_interval_s=0.1)\n"
        "def delete(name): raise TimeoutError\n"
        "serving.serve.delete = delete\n"
        "wanted = serving.Wanted(LoadOptions(), 4, 8, 1, 1)\n"
        "bundles = {'tiny': open_bundle(Path(sys.argv[1]))}\n"
        "init = ray.init\n"
        "ray.init = lambda *given, **options: init(*given, **options) if given else print('another one')\n"
        "with joined('local', 1) as cluster, serving.serving(cluster, bundles, wanted) as handle:\n"
        "    handle.options(stream=True)\n"  # from when on its thread asks
        "    before = len(asked)\n"
        "    while len(asked) < before + 3: time.sleep(0.1)\n"
        "time.sleep(1)\n"
        "print('ends')\n"
    )
    environment = {name: value for name, value in os.environ.items() if name != "RAY_ENABLE_AUTO_CONNECT"}
    command = [sys.executable, "-c", code, str(pristine_tiny_bundle.root)]
    found = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=WAIT_S)
    assert found.stdout == "ends\n", found.stderr


def test_a_cluster_without_room_says_so(
    cluster: Any, pristine_tiny_bundle: Bundle, client: httpx.Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    from edge.cluster import serving

    monkeypatch.setattr(serving, "FREED_S", 0)
    for count, sentence in ((3, "room for 2 replicas, not for 3"), (1, "the cluster has 0 that are free")):
        with pytest.raises(InputError, match=sentence), served(cluster, pristine_tiny_bundle, count):
            pass


def test_a_model_that_cannot_be_loaded_names_the_node(
    nodes: Any, cluster: Any, pristine_tiny_bundle: Bundle, monkeypatch: pytest.MonkeyPatch
) -> None:
    from cluster_work import Refusing

    from edge.cluster import serving

    monkeypatch.setattr(serving, "Replica", Refusing)
    monkeypatch.setattr(serving, "STARTS", 1)
    nodes.add_node(**SMALL)
    with (
        pytest.raises(DeviceError, match=r"On the node .+: The model is refused"),
        served(cluster, pristine_tiny_bundle, 1),
    ):
        pass
