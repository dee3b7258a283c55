"""Which replica a prompt is given to."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("ray.serve", reason="needs the extra cluster")

from edge.cluster.router import ENDS, FIRST, BeginningRouter, beginnings

SYSTEM = {"role": "system", "content": "x" * 300}


def user(text: str) -> dict[str, str]:
    return {"role": "user", "content": text}


def test_beginnings_count_what_is_said_and_to_which_model() -> None:
    talk = [SYSTEM, user("y" * 300)]
    first = beginnings({"messages": talk})
    assert beginnings({"messages": talk, "temperature": 1}) == first
    assert beginnings({"messages": [SYSTEM, user("z" * 300)]})[:2] == first[:2]
    assert not {*first} & {*beginnings({"messages": talk, "model": "other"})}
    assert not {*first} & {*beginnings({"messages": talk, "tools": [{"type": "function"}]})}
    assert beginnings({"prompt": "short"}) == []


def test_a_conversation_that_goes_on_begins_with_all_of_the_last_turn() -> None:
    talk = [SYSTEM, user("What?")]
    before, longer = beginnings({"messages": talk}), beginnings({"messages": [*talk, user("That."), user("Why?")]})
    assert longer[: len(before)] == before and len(longer) == len(before) + 2


@pytest.mark.parametrize("name", ["prompt", "input", "messages"])
def test_long_and_odd_prompts_have_few_beginnings(name: str) -> None:
    assert len(beginnings({name: "\ud800" * (4 << 20)})) < 20
    assert len(beginnings({name: [user("x" * FIRST)] * 1000})) == 2 * ENDS
    for odd in (None, 3, {}, [], [None, 3, {"content": {}}], [["x"]]):
        assert beginnings({name: odd}) == []


class Router(BeginningRouter):  # type: ignore[misc]
    """One without Ray behind it. busy: requests of each replica; None: it does not say."""

    def __init__(self, busy: dict[str, int | None]) -> None:
        self.busy = busy
        self.initialize_state(2)
        self.candidates = [SimpleNamespace(replica_id=name) for name in busy]

    @property
    def replica_queue_len_cache(self) -> dict[str, int | None]:
        return {name: count for name, count in self.busy.items() if name != "quiet"}

    async def _probe_queue_lens(self, replicas: list[Any], backoff: int) -> list[tuple[Any, int | None]]:
        return [(each, self.busy[each.replica_id]) for each in replicas]

    def first(self, **request: Any) -> str:
        """The replica that is tried first."""
        (found,), *_ = asyncio.run(self.choose_replicas(self.candidates, pending(request)))
        return str(found.replica_id)


def pending(request: dict[str, Any]) -> Any:
    return SimpleNamespace(args=[SimpleNamespace(beginnings=beginnings(request))])


def test_a_prompt_goes_where_most_of_its_beginning_was_read() -> None:
    router, long = Router({"a": 0, "b": 1, "c": 0}), "x" * 600
    router.on_request_routed(pending({"prompt": long}), "b", None)
    router.on_request_routed(pending({"prompt": "x" * 300}), "c", None)
    assert router.first(prompt=long + "y") == "b"
    assert router.first(prompt="x" * 300 + "y" * 300) in ("b", "c")
    assert router.first(prompt="y" * 600) == "a"
    assert router.first(prompt="short") == "a"


def test_of_those_that_read_it_the_least_busy_one_has_it() -> None:
    router, prompt = Router({"a": 0, "b": 1, "c": 0}), "x" * 300
    router.on_request_routed(pending({"prompt": prompt}), "b", None)
    router.on_request_routed(pending({"prompt": prompt}), "c", None)
    assert router.first(prompt=prompt) == "c"


def test_one_that_is_full_or_does_not_answer_comes_last() -> None:
    router, prompt = Router({"a": 2, "b": 1, "quiet": None}), "x" * 300
    for each in ("a", "quiet"):
        router.on_request_routed(pending({"prompt": prompt}), each, None)
    assert router.first(prompt=prompt) == "b"
    router.busy |= {"b": 7}
    assert router.first(prompt=prompt) == "a", "the least busy one, where all are full"
