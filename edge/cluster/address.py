"""A cluster of Ray: how it is joined, and what its nodes have."""

from __future__ import annotations

import contextlib
import logging
import os
import signal
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import grpc
import ray

from edge.errors import InputError, on_one_line
from edge.runtime.providers.threads import default_threads

AUTO, LOCAL, CLIENT = "auto", "local", "ray://"
ANSWER_S = 5.0  # in which an address answers
MOST_THREADS = 8  # of a model, where nobody says how many: as on one machine
FORMS = f"{AUTO} (the cluster that this machine is a node of), {LOCAL} (this machine alone) or HOST:PORT"


@dataclass(frozen=True)
class Node:
    """A machine of a cluster. number: Ray's name for it; name: what people call it; processors: that Ray may use."""

    number: str
    name: str
    processors: int


@dataclass(frozen=True)
class Cluster:
    """A cluster that this process has joined. threads: that each model computes with."""

    address: str
    nodes: Sequence[Node]
    threads: int

    @property
    def models(self) -> int:
        """How many models there is room for at a time: at least one on each node."""
        return sum(node.processors // self.threads for node in self.nodes)


@contextmanager
def joined(address: str, threads: int | None = None) -> Iterator[Cluster]:
    """Join the cluster at an address, and leave it in the end, by which all that this process started there ends.

    Args:
        address: `auto`, `local` or HOST:PORT.
        threads: that each model computes with; default: the processors of the smallest node, at most 8.

    Raises:
        InputError: the address is none, or does not answer; the cluster is of another version; or no node has so many
            processors.
    """
    # The library reports to its makers what it is used for, where nobody says that it may not.
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    os.environ.setdefault("RAY_BACKEND_LOG_LEVEL", "fatal")  # lines that only its developers understand
    asked = _checked(address)
    before = signal.getsignal(signal.SIGTERM)
    try:
        _join(asked, threads)
        signal.signal(signal.SIGTERM, before)  # Ray has set its own
        nodes = [_node(each) for each in ray.nodes() if each["Alive"]]
        yield _cluster(address, [node for node in nodes if node.processors], threads)
    finally:
        ray.shutdown()


def _checked(address: str) -> str:
    """The address, once something answers there."""
    if address == LOCAL:
        return address
    if address == AUTO:
        address = os.environ.get("RAY_ADDRESS", AUTO)
        if address == AUTO:
            return address
    if address.startswith(CLIENT):
        raise InputError(
            f"{address} is an address of Ray's client, by which none of this runs; make this machine a node "
            f"(ray start --address HOST:PORT) and name {AUTO}."
        )
    host, _, port = address.rpartition(":")
    if not host or not port.isdigit():
        raise InputError(f"The cluster {address!r} is none of {FORMS}.")
    with grpc.insecure_channel(address) as channel:
        try:
            grpc.channel_ready_future(channel).result(ANSWER_S)
        except grpc.FutureTimeoutError:
            raise InputError(
                f"No cluster answers at {address}; ray start --head starts one, and says at which address."
            ) from None
    return address


def _join(address: str, threads: int | None) -> None:
    options: dict[str, Any] = {"log_to_driver": False, "logging_level": logging.ERROR}
    if address == LOCAL:
        options |= {"num_cpus": max(threads or 0, default_threads()), "include_dashboard": False}
    try:
        ray.init(address, **options)
    except (ConnectionError, RuntimeError, TimeoutError, ValueError, AssertionError) as e:
        if address == AUTO:
            raise InputError(
                "This machine is no node of a cluster; ray start --head makes it the first one, and "
                f"ray start --address HOST:PORT one of another's ({on_one_line(e)})."
            ) from None
        raise InputError(f"The cluster at {address} cannot be joined: {on_one_line(e)}.") from None


def _node(found: dict[str, Any]) -> Node:
    name = f"{found['NodeManagerHostname']} ({found['NodeManagerAddress']})"
    return Node(found["NodeID"], name, int(found["Resources"].get("CPU", 0)))


def _cluster(address: str, nodes: Sequence[Node], threads: int | None) -> Cluster:
    if not nodes:
        raise InputError(f"No node of the cluster at {address} has processors for Ray; start one with --num-cpus.")
    smallest = min(node.processors for node in nodes)
    most = max(node.processors for node in nodes)
    if threads is not None and threads > most:
        raise InputError(f"No node of the cluster has {threads} processors for a model; the largest has {most}.")
    return Cluster(address, nodes, threads or min(smallest, MOST_THREADS))


def node_name() -> str:
    """The name of the node that this process runs on."""
    number: str = ray.get_runtime_context().get_node_id()
    with contextlib.suppress(StopIteration):
        return next(node.name for node in map(_node, ray.nodes()) if node.number == number)
    return number
