"""The choice among replicas: a prompt goes to one that has read most of its beginning.

Ray's own `PrefixCacheAffinityRouter` does the same, and comes with vLLM alone (`ray[llm]`).
"""

from __future__ import annotations

import hashlib
import json
import math
from collections import OrderedDict
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from ray.serve.request_router import PendingRequest, ReplicaID, RequestRouter, RunningReplica

FIRST = 256  # characters of the shortest beginning that counts
ENDS = 32  # of a prompt's beginnings, that many of the shortest and of the longest count
KNOWN = 65_536  # beginnings that are remembered
BEFORE = "model", "tools", "instructions", "system"  # fields whose text comes before a prompt's
PROMPTS = "messages", "prompt", "input"  # fields that a prompt is in


def beginnings(request: Mapping[str, Any]) -> list[bytes]:
    """What a request's prompt begins with, the shortest first, as hashes; none where it has no text, or a short one.
    A beginning ends where a message does, or after 256, 512, 1,024 characters and so on.

    request: the object in its body, which may be anything.
    """
    digest, length, after, found = hashlib.blake2b(digest_size=16), 0, FIRST, list[bytes]()
    for text in _texts(request):
        begin = 0
        while begin < len(text):
            end = min(len(text), begin + after - length)
            digest.update(text[begin:end].encode("utf-8", "replace"))
            length, begin = length + end - begin, end
            if length == after:
                after *= 2
            if length >= FIRST:
                found.append(digest.digest())
    return found if len(found) <= 2 * ENDS else found[:ENDS] + found[-ENDS:]


def _texts(request: Mapping[str, Any]) -> Iterator[str]:
    """What is before the prompt, and the prompt in its parts."""
    yield json.dumps([request.get(each) for each in BEFORE])
    said = next((request[each] for each in PROMPTS if request.get(each)), "")
    for part in said if isinstance(said, list) else [said]:
        yield part if isinstance(part, str) else json.dumps(part)


class BeginningRouter(RequestRouter):  # type: ignore[misc]  # which mypy does not read
    """Requests go to a replica where an answer can begin at once; of several, to the one that has read most of the
    prompt's beginning; of those, to the one that is least busy."""

    def initialize_state(self, parallel: int) -> None:
        """parallel: answers that grow at a time in a replica."""
        self._parallel = parallel
        self._readers = OrderedDict[bytes, set[ReplicaID]]()

    async def choose_replicas(
        self, candidate_replicas: Sequence[RunningReplica], pending_request: PendingRequest | None = None
    ) -> list[list[RunningReplica]]:
        """The replicas in the order in which they are tried."""
        known = dict[ReplicaID, int]()
        for number, each in enumerate(_asked(pending_request), 1):
            known |= dict.fromkeys(self._readers.get(each, ()), number)
        busy = {each.replica_id: self.replica_queue_len_cache.get(each.replica_id) for each in candidate_replicas}
        unknown = [each for each in candidate_replicas if busy[each.replica_id] is None]  # for some seconds
        busy |= {each.replica_id: length for each, length in await self._probe_queue_lens(unknown, 0)}

        def rank(replica: RunningReplica) -> tuple[bool, int, float]:
            there = busy[replica.replica_id]
            length = math.inf if there is None else there  # it does not say: it may be dead
            full = length >= self._parallel
            return full, 0 if full else -known.get(replica.replica_id, 0), length

        return [[each] for each in sorted(candidate_replicas, key=rank)]

    def on_request_routed(self, pending_request: PendingRequest, replica_id: ReplicaID, result: object) -> None:
        """Remember who reads a beginning."""
        for each in _asked(pending_request):
            self._readers.setdefault(each, set()).add(replica_id)
            self._readers.move_to_end(each)
        while len(self._readers) > KNOWN:
            self._readers.popitem(last=False)


def _asked(request: PendingRequest | None) -> list[bytes]:
    return [] if request is None or not request.args else request.args[0].beginnings
