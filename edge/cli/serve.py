"""`edge serve`: models at an address of this machine."""

from __future__ import annotations

import argparse
import os
import socket
import sys
import threading
from typing import TYPE_CHECKING

from edge.cli.arguments import Parser, add_fields, taken
from edge.errors import InputError
from edge.extras import needing

if TYPE_CHECKING:
    from types import FrameType

    from edge.bundle import Bundle
    from edge.serve.models import Models
    from edge.serve.server import Address, Server

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
        server = _server(args, bundles, address)
        at = f"[{address.host}]" if ":" in address.host else address.host
        names = ", ".join(server.models.bundles)
        _say(
            f"Serving {names} at http://{at}:{listening.getsockname()[1]} (OpenAI: /v1, Ollama: /api). Ctrl-C ends it."
        )

        class Ending(uvicorn.Server):
            """A server that ends answers with a sentence, where they do not end by themselves in time."""

            def handle_exit(self, sig: int, frame: FrameType | None) -> None:
                threading.Timer(GRACE_S, server.models.close).start()
                super().handle_exit(sig, frame)

        Ending(config(server.app, timeout_graceful_shutdown=SHUTDOWN_S)).run(sockets=[listening])


def _check(args: argparse.Namespace) -> None:
    for name, value, least, most in (
        ("port", args.port, 0, 65535),
        ("parallel", args.parallel, 1, MOST_PARALLEL),
        ("queue", args.queue, 0, 10_000),
    ):
        if not least <= value <= most:
            raise InputError(f"--{name} must be from {least} to {most}, not {value}.")


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


def _server(args: argparse.Namespace, bundles: dict[str, Bundle], address: Address) -> Server:
    from edge.runtime.load_options import LoadOptions
    from edge.serve.models import Models
    from edge.serve.server import Server

    given = taken(args, LoadOptions)
    if "memory" in given:  # of the answers side by side, and of one whose prompt is being read
        given["beams"] = args.parallel + 1
    models: Models = Models(bundles, LoadOptions(**given), parallel=args.parallel, queue=args.queue)
    models.check()
    return Server(models, address, _say if args.log else None)


def _say(sentence: str) -> None:
    print(sentence, file=sys.stderr, flush=True)
