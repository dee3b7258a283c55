"""Replicas of a server on the nodes of a cluster, as a deployment of Ray Serve: more of them when more is asked."""

from __future__ import annotations

import asyncio
import logging
import secrets
import threading
import time
from collections.abc import AsyncGenerator, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from typing import Any

import ray
from prometheus_client import Metric
from ray import serve
from ray.serve.config import AutoscalingConfig, RequestRouterConfig

from edge.bundle import Bundle
from edge.cluster.address import Cluster
from edge.cluster.front import Asked
from edge.cluster.parcel import Parcel, named, packed
from edge.cluster.router import BeginningRouter
from edge.errors import DeviceError, InputError, on_one_line
from edge.runtime.load_options import LoadOptions
from edge.serve.answering import BEGUN
from edge.serve.models import Models
from edge.serve.server import Address, Server

HOST = "127.0.0.1"  # as which requests reach a replica: who may ask was checked before
FREED_S = 10.0  # in which processors are free again that another command had
STARTS = 3  # times that the first replica is started, where it fails
RESTED_S = 15.0  # in which a handle has stopped what it does by itself
ENDING_S = 3600.0  # in which a replica that is not needed any more still ends its answers


@dataclass(frozen=True)
class Wanted:
    """What a deployment is made of. options: how models are loaded. parallel, queue: of each replica, see
    `edge.serve.worker`. least, most: how many replicas there are."""

    options: LoadOptions
    parallel: int
    queue: int
    least: int
    most: int


class Replica:
    """A server without an address. A lone model is loaded at once, several when they are first asked."""

    def __init__(self, parcels: Mapping[str, Parcel], wanted: Wanted) -> None:
        with named():
            bundles = {name: parcel.opened() for name, parcel in parcels.items()}
            models: Models = Models(bundles, wanted.options, parallel=wanted.parallel, queue=wanted.queue)
            if len(bundles) == 1:
                models.opened(next(iter(bundles)))
        self._server = Server(models, Address(HOST, 0))
        self._running = set[asyncio.Task[None]]()

    async def answer(self, asked: Asked) -> AsyncGenerator[Any, None]:
        """None, as soon as it is here, and then the messages of ASGI that answer a request."""
        yield None
        messages, gone, given = asyncio.Queue[Any](), asyncio.Event(), False

        async def receive() -> dict[str, Any]:
            nonlocal given
            if not given:
                given = True
                return {"type": "http.request", "body": asked.body, "more_body": False}
            await gone.wait()
            return {"type": "http.disconnect"}

        async def run() -> None:
            try:
                await self._server.app(_scope(asked), receive, messages.put)
            finally:
                messages.put_nowait(None)

        running = asyncio.create_task(run())
        self._running.add(running)
        running.add_done_callback(self._running.discard)
        try:
            while (message := await messages.get()) is not None:
                yield message
            await running  # whose error is raised here
        finally:
            gone.set()

    async def figures(self) -> tuple[str, list[Metric]]:
        """The name of the replica, and its figures."""
        return serve.get_replica_context().replica_id.unique_id, self._server.metrics.families()


def _scope(asked: Asked) -> dict[str, Any]:
    return {
        "type": "http",
        "asgi": {"version": "3.0"},
        "http_version": "1.1",
        "method": asked.method,
        "scheme": "http",
        "path": asked.path,
        "raw_path": asked.path.encode(),
        "root_path": "",
        "query_string": asked.query,
        "headers": [(b"host", HOST.encode()), *asked.headers],
        "client": None,
        "server": (HOST, 0),
        "extensions": {BEGUN: {}},  # until when another replica may answer instead
    }


@contextmanager
def serving(cluster: Cluster, bundles: Mapping[str, Bundle], wanted: Wanted) -> Iterator[Any]:
    """A handle of a deployment of models, once its first replicas are there; in the end it is taken down.

    Raises:
        InputError: see `packed`; or the cluster has no room for the first replicas.
        DeviceError: no replica can be started.
    """
    _check_room(cluster, wanted)
    parcels = {name: packed(bundle, cluster) for name, bundle in bundles.items()}
    wanted = replace(wanted, options=replace(wanted.options, threads=cluster.threads))
    logging.getLogger("ray.serve").setLevel(logging.ERROR)
    serve.start(proxy_location="Disabled")
    name = f"edge-{secrets.token_hex(4)}"
    deployment = serve.deployment(Replica).options(
        name="models",
        ray_actor_options={"num_cpus": cluster.threads},
        max_ongoing_requests=2 * (wanted.parallel + wanted.queue),  # a replica itself says who is too many
        max_constructor_retry_count=STARTS,
        graceful_shutdown_timeout_s=ENDING_S,
        autoscaling_config=AutoscalingConfig(
            min_replicas=wanted.least,
            initial_replicas=wanted.least,
            max_replicas=wanted.most,
            target_ongoing_requests=wanted.parallel,
        ),
        request_router_config=RequestRouterConfig(
            request_router_class=BeginningRouter, request_router_kwargs={"parallel": wanted.parallel}
        ),
    )
    try:
        try:
            handle = serve.run(deployment.bind(parcels, wanted), name=name, route_prefix=None)
        except RuntimeError as e:
            raise DeviceError(f"The models cannot be started on the cluster: {_why(name) or on_one_line(e)}.") from None
        try:
            yield handle
        finally:
            _rest(handle)
    finally:
        with suppress(TimeoutError):  # Ray goes on with it
            serve.delete(name)


def _rest(handle: Any) -> None:
    """Let the handle no longer ask for more replicas, which it would go on with once the cluster was left."""

    def rest() -> None:
        with suppress(Exception):  # its controller may be gone
            handle.shutdown()

    thread = threading.Thread(target=rest, daemon=True)
    thread.start()
    thread.join(RESTED_S)


def _check_room(cluster: Cluster, wanted: Wanted) -> None:
    if wanted.least > cluster.models:
        raise InputError(f"The cluster has room for {cluster.models} replicas, not for {wanted.least}.")
    needed, until = cluster.threads * wanted.least, time.monotonic() + FREED_S
    while (free := int(ray.available_resources().get("CPU", 0))) < needed and time.monotonic() < until:
        time.sleep(0.5)
    if free < needed:
        raise InputError(
            f"{needed} processors are needed, and the cluster has {free} that are free; see ray status. What an edge "
            "serve that was killed has left there, serve shutdown ends."
        )


def _why(name: str) -> str:
    """What the deployment says of its failure: the last line of an error's traceback."""
    found = serve.status().applications.get(name)
    said = [] if found is None else [each.message for each in found.deployments.values()]
    lines = [line.strip() for each in said for line in each.splitlines() if line.strip()]
    ours = [line for line in lines if line.startswith("edge.errors.")]
    return on_one_line(Exception((ours or lines or [""])[-1].partition(": ")[2]))
