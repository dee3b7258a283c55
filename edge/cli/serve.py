"""`edge serve`: models at an address of this machine."""

from __future__ import annotations

import argparse
import os
import re
import socket
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from edge.cli.arguments import Parser, add_fields, taken
from edge.errors import InputError
from edge.extras import needing

if TYPE_CHECKING:
    from types import FrameType

    from starlette.types import ASGIApp

    from edge.bundle import Bundle
    from edge.runtime.load_options import LoadOptions
    from edge.serve.server import Address

NAME = "serve"
HELP = "Serve models at an address, for editors, agents and apps."
HOST, PORT, PARALLEL, QUEUE = "127.0.0.1", 8080, 4, 64
MOST_PARALLEL = 64
CONNECTIONS = 512
GRACE_S, SHUTDOWN_S = 3, 6  # in which answers may still end, and in which all must have
LOADING = "speed", "machine", "prompt"  # headings of LoadOptions


def add_arguments(parser: Parser) -> None:
    from edge.runtime.load_options import LoadOptions

    models = "bundles, .gguf files, folders or names, as edge run takes them (default: all that edge list shows)"
    parser.add_argument("models", metavar="MODEL", nargs="*", help=models)
    add = parser.options("address")
    add("--host HOST", f"where to listen (default: {HOST}: this machine alone)", default=HOST)
    add("--port N", f"the port (default: {PORT})", int, default=PORT)
    key = "what requests must give as a bearer token (default: the variable EDGE_API_KEY); needed for other hosts"
    add("--api-key KEY", key)
    add("--cors ORIGIN", "let web pages of this origin ask, such as http://localhost:3000; repeatable", action="append")
    add = parser.options("cluster")
    add("--cluster ADDRESS", "models on the nodes of a Ray cluster: auto, local or HOST:PORT (docs/guide/cluster.md)")
    most = "processes with the models: at least MIN, and up to MAX where more is asked (default: 1-N, as many as fit)"
    add("--replicas MIN-MAX", most, _replicas)
    add = parser.options("answers")
    add("--parallel N", f"answers that grow at a time (default: {PARALLEL})", int, default=PARALLEL)
    add(
        "--queue N", f"answers that may wait; more are sent away with status 429 (default: {QUEUE})", int, default=QUEUE
    )
    add("--log", "print a line about each answer: tokens and times, nothing that was said")
    for heading in LOADING:
        add_fields(parser.options(heading), heading, LoadOptions)


def command(args: argparse.Namespace) -> None:
    """Serve models in the protocols of OpenAI and Ollama, with a page to chat at. Models are loaded when they are first
    asked. An answer is the same whoever else is being served. Ctrl-C ends the server."""
    _check(args)
    with needing("edge serve", "serve"):
        import python_multipart  # noqa: F401 - by which forms are read
        import uvicorn

        from edge.serve.connection import config
        from edge.serve.server import Address

    address = Address(args.host, args.port, args.api_key or os.environ.get("EDGE_API_KEY") or None, args.cors or ())
    listening = _listen(address)  # before models are opened, so that nobody waits for nothing
    with listening:
        bundles = _bundles(args.models)
        with _app(args, bundles, address) as (app, close):
            at = f"[{address.host}]" if ":" in address.host else address.host
            port = listening.getsockname()[1]
            _say(f"Serving {', '.join(bundles)} at http://{at}:{port} (OpenAI: /v1, Ollama: /api). Ctrl-C ends it.")

            class Ending(uvicorn.Server):
                """A server that ends answers with a sentence, where they do not end by themselves in time."""

                def handle_exit(self, sig: int, frame: FrameType | None) -> None:
                    threading.Timer(GRACE_S, close).start()
                    super().handle_exit(sig, frame)

            Ending(config(app, timeout_graceful_shutdown=SHUTDOWN_S)).run(sockets=[listening])


def _check(args: argparse.Namespace) -> None:
    for name, value, least, most in (
        ("port", args.port, 0, 65535),
        ("parallel", args.parallel, 1, MOST_PARALLEL),
        ("queue", args.queue, 0, 10_000),
    ):
        if not least <= value <= most:
            raise InputError(f"--{name} must be from {least} to {most}, not {value}.")
    if args.replicas is not None and args.cluster is None:
        raise InputError("--replicas are processes on a cluster's nodes; name it with --cluster ADDRESS.")
    if args.cluster is not None and args.log:
        raise InputError("--log tells of answers of this machine, and with --cluster others answer; leave it out.")


def _listen(address: Address) -> socket.socket:
    """A socket that listens; InputError where the address is not to be had."""
    try:
        found = socket.getaddrinfo(address.host, address.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        family, kind, protocol, _, place = found[0]
        listening = socket.socket(family, kind, protocol)
        try:
            if sys.platform != "win32":
                listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listening.bind(place)
            listening.listen(CONNECTIONS)
        except OSError:
            listening.close()
            raise
    except (OSError, UnicodeError) as e:
        why = getattr(e, "strerror", None) or str(e)
        raise InputError(
            f"The server cannot listen at {address.host}, port {address.port}: {why}; name another --port or --host."
        ) from None
    return listening


def _bundles(models: list[str]) -> dict[str, Bundle]:
    """The bundles to serve, by the names of their models."""
    from edge.cli.run.made import kept
    from edge.cli.run.source import open_source

    opened = [open_source(each) for each in models] if models else kept()
    if not opened:
        raise InputError("There is no bundle here yet; name a model, such as edge serve smollm2.")
    found: dict[str, Bundle] = {}
    for bundle in opened:
        name = bundle.manifest.name if bundle.manifest.name not in found else bundle.root.stem
        if name in found:
            raise InputError(f"Two models would be called {name}; leave out one.")
        found[name] = bundle
    return found


@contextmanager
def _app(
    args: argparse.Namespace, bundles: dict[str, Bundle], address: Address
) -> Iterator[tuple[ASGIApp, Callable[[], None]]]:
    """The ASGI application, and what ends its answers."""
    from edge.runtime.load_options import LoadOptions
    from edge.serve.models import Models
    from edge.serve.server import Server

    given = taken(args, LoadOptions)
    if "memory" in given:  # of the answers side by side, and of one whose prompt is being read
        given["beams"] = args.parallel + 1
    options = LoadOptions(**given)
    models: Models = Models(bundles, options, parallel=args.parallel, queue=args.queue)
    models.check()
    if args.cluster is None:
        yield Server(models, address, _say if args.log else None).app, models.close
        return
    with _on_cluster(args, bundles, options, address) as there:
        yield there


@contextmanager
def _on_cluster(
    args: argparse.Namespace, bundles: dict[str, Bundle], options: LoadOptions, address: Address
) -> Iterator[tuple[ASGIApp, Callable[[], None]]]:
    with needing("--cluster", "cluster"):
        from edge.cluster.address import joined
        from edge.cluster.front import Front
        from edge.cluster.serving import Wanted, serving
    with joined(args.cluster, options.threads) as cluster:
        least, most = args.replicas or (1, cluster.models)
        with serving(cluster, bundles, Wanted(options, args.parallel, args.queue, least, most)) as handle:
            front = Front(handle, address)
            yield front.app, front.close


def _replicas(given: str) -> tuple[int, int]:
    """The minimum and the maximum of replicas: `2-8`, or `4` alone."""
    found = re.fullmatch(r"([1-9][0-9]{0,3})(?:-([1-9][0-9]{0,3}))?", given)
    least, most = (0, 0) if found is None else (int(found[1]), int(found[2] or found[1]))
    if not 0 < least <= most:
        raise argparse.ArgumentTypeError(f"replicas are a number such as 4, or MIN-MAX such as 1-4, and not {given!r}")
    return least, most


def _say(sentence: str) -> None:
    print(sentence, file=sys.stderr, flush=True)
