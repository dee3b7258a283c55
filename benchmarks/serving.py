"""Servers under the same requests, one after another in each round: `edge serve` next to llama.cpp's server, and to one
over OpenVINO GenAI's continuous batching.

    python benchmarks/serving.py --gguf FILE --llama-server PATH --openvino-python peers/bin/python --clients 1,4,16

Each client asks again as soon as it has its answer, each time something else. Half of the measurements begin all
prompts with the same long system message. docs/lab/benchmarks.md says more.

    python benchmarks/serving.py --gguf FILE --patience

measures what a client waits for instead: the first token of a long prompt that was read before, and the next token of
an answer while others' long prompts are read.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from pydoc_data.topics import topics

import convert
import httpx
import machine
import report
from comparison import say, write
from engines import Models, ov_genai

START_S, ANSWER_S = 600.0, 600.0
SLOTS = 16  # answers side by side, at most
CONTEXT = 2048  # tokens of prompt and answer
LONG, ARRIVING = 2000, 800  # tokens of a prompt, about: of the one that is repeated, and of those that arrive
GROWING, GROWN = 3, 120  # answers that grow while prompts arrive, and their tokens
WORDS_OF_TOKENS = 0.6


@dataclass
class Load:
    """What clients saw: tokens per second of all together, and milliseconds to the first token and between two."""

    tokens_per_s: float
    first_ms: float
    first_p95_ms: float
    gap_p99_ms: float


def main() -> int:
    """Measure, print, write. Returns the exit status."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0], allow_abbrev=False)
    parser.add_argument("--gguf", type=Path, required=True, help="the model's file, which both servers are given")
    parser.add_argument("--llama-server", type=Path, help="the program of llama.cpp; without it edge serves alone")
    what = "the interpreter of an environment with openvino-genai; without it that is left out"
    parser.add_argument("--openvino-python", help=what)
    parser.add_argument("--clients", default="1,4,16", help="numbers of clients (default: 1,4,16)")
    parser.add_argument("--requests", type=int, default=4, help="requests of each client (default: 4)")
    parser.add_argument("--tokens", type=int, default=48, help="tokens of an answer (default: 48)")
    parser.add_argument("--prefix", type=int, default=1000, help="tokens of the shared message, about (default: 1000)")
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--patience", action="store_true", help="measure what a client waits for")
    parser.add_argument("--out", type=Path, default=Path("build/serving"))
    args = parser.parse_args()
    clients = [int(each) for each in args.clients.split(",")]
    servers: dict[str, Command] = {"edge": edge_command}
    if args.llama_server:
        servers["llama.cpp"] = llama_command
    if args.openvino_python:
        models = Models(Path(), args.gguf.resolve(), args.out / convert.key(args.gguf), (args.openvino_python,))
        args.openvino = ov_genai.prepare(models, "", args.threads)
        servers["OpenVINO GenAI"] = openvino_command
    args.context = CONTEXT * (1 + args.patience)
    found: dict[str, dict[str, list[float]]] = {}
    args.out.mkdir(parents=True, exist_ok=True)
    for number in range(args.rounds):
        for name in [*servers] if number % 2 == 0 else [*reversed(servers)]:
            with started(servers[name], args) as (port, process):
                if args.patience:
                    for label, value in asyncio.run(patience(port, number)).items():
                        found.setdefault(label, {}).setdefault(name, []).append(value)
                        say(f"  {name}, {label}: {value:.1f}")
                    continue
                for count in clients:
                    for prefix in (0, args.prefix):
                        label = f"{count} clients" + (f", {prefix} tokens shared" if prefix else "")
                        made = asyncio.run(load(port, count, args.requests, args.tokens, prefix, number))
                        for what, value in vars(made).items():
                            found.setdefault(f"{label}: {what}", {}).setdefault(name, []).append(value)
                        say(f"  {name}, {label}: {made.tokens_per_s:.1f} tokens/s, first {made.first_ms:.0f} ms")
                found.setdefault("private, MiB", {}).setdefault(name, []).append(private_mb(process.pid))
        say(f"round {number + 1} of {args.rounds}")
    peers = [name for name in servers if name != "edge"]
    rows = [["", *servers, *(f"edge / {name}" for name in peers)]]
    for label, by_name in found.items():
        middle = {name: statistics.median(values) for name, values in by_name.items()}
        ratios = (f"{middle['edge'] / middle[name]:.2f}" for name in peers)
        rows.append([label, *(f"{middle[name]:.1f}" for name in servers), *ratios])
    print(report.table(rows))
    print(machine.cpu_name())
    write(args.out / "serving.json", args.threads, {"gguf": args.gguf.name, "figures": found})
    return 0


def edge_command(args: argparse.Namespace, port: int) -> Sequence[str]:
    """`edge serve`."""
    options = [
        "--port",
        str(port),
        "--parallel",
        str(SLOTS),
        "--context",
        str(args.context),
        "--threads",
        str(args.threads),
    ]
    return [sys.executable, "-m", "edge.cli.main", "serve", str(args.gguf), *options]


def llama_command(args: argparse.Namespace, port: int) -> Sequence[str]:
    """llama.cpp's server: as many slots, each with as long a context."""
    options = ["--port", str(port), "-np", str(SLOTS), "-c", str(SLOTS * args.context), "-t", str(args.threads)]
    return [str(args.llama_server), "-m", str(args.gguf), *options]


def openvino_command(args: argparse.Namespace, port: int) -> Sequence[str]:
    """A server of our own over OpenVINO GenAI."""
    file = Path(__file__).with_name("openvino_server.py")
    return [args.openvino_python, str(file), str(args.openvino), str(port), str(SLOTS), str(args.threads)]


Command = Callable[[argparse.Namespace, int], Sequence[str]]


@contextmanager
def started(command: Command, args: argparse.Namespace) -> Iterator[tuple[int, subprocess.Popen[bytes]]]:
    """A server that answers, at a port of its own."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        port = listening.getsockname()[1]
    with tempfile.TemporaryFile() as log:
        process = subprocess.Popen(command(args, port), stdout=log, stderr=log)
        try:
            until = time.monotonic() + START_S
            while True:
                try:
                    if httpx.get(f"http://127.0.0.1:{port}/health").status_code == 200:
                        break
                except httpx.HTTPError:
                    pass
                if process.poll() is not None or time.monotonic() > until:
                    log.seek(0)
                    sys.exit(f"serving: the server did not start:\n{log.read().decode(errors='replace')[-2000:]}")
                time.sleep(0.2)
            asyncio.run(load(port, 1, 1, 4, 0, 0))  # so that what is made once is made
            yield port, process
        finally:
            process.terminate()
            process.wait()


async def load(port: int, clients: int, requests: int, tokens: int, prefix: int, salt: int) -> Load:
    """Let so many clients ask at a time, each one after another."""
    firsts: list[float] = []
    gaps: list[float] = []
    made = 0
    limits = httpx.Limits(max_connections=clients)
    async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}", timeout=ANSWER_S, limits=limits) as client:

        async def one(number: int) -> int:
            system = text(0, int(prefix * WORDS_OF_TOKENS)) if prefix else None
            count, first, between = await ask(client, question(number, salt), tokens, system)
            firsts.append(first)
            gaps.extend(between)
            return count

        async def client_of(number: int) -> int:
            return sum([await one(number * requests + i + 1000 * clients) for i in range(requests)])

        began = time.perf_counter()
        made = sum(await asyncio.gather(*(client_of(i) for i in range(clients))))
        took = time.perf_counter() - began
    return Load(made / took, statistics.median(firsts), percentile(firsts, 0.95), percentile(gaps, 0.99))


async def ask(
    client: httpx.AsyncClient, said: str, tokens: int, system: str | None = None
) -> tuple[int, float, list[float]]:
    """Ask once; the number of tokens, and milliseconds to the first one and between two."""
    talk = [{"role": "user", "content": said}]
    if system is not None:
        talk.insert(0, {"role": "system", "content": system})
    body = {"messages": talk, "max_tokens": tokens, "temperature": 0, "stream": True}
    body["stream_options"] = {"include_usage": True}
    times = [time.perf_counter()]
    count = 0
    async with client.stream("POST", "/v1/chat/completions", json=body) as response:
        response.raise_for_status()
        async for line in response.aiter_lines():
            if not line.startswith("data: {"):
                continue
            event = json.loads(line[6:])
            if usage := event.get("usage"):
                count = usage["completion_tokens"]
            if event["choices"] and event["choices"][0]["delta"].get("content"):
                times.append(time.perf_counter())
    first, *gaps = [(b - a) * 1e3 for a, b in pairwise(times)]
    return count, first, gaps


async def patience(port: int, salt: int) -> dict[str, float]:
    """What a client waits for, in milliseconds."""
    async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}", timeout=ANSWER_S) as client:
        long = text(100 + salt, int(LONG * WORDS_OF_TOKENS))
        firsts = [(await ask(client, "Say something.", 4, long))[1] for _ in range(4)]
        other = (await ask(client, "Name a river.", 4, long))[1]

        async def grow(number: int) -> list[float]:
            return (await ask(client, question(number, salt), GROWN))[2]

        async def arrive() -> None:
            for i in range(1000):
                await ask(client, text(300 + 1000 * salt + i, int(ARRIVING * WORDS_OF_TOKENS)), 2)

        alone = await asyncio.gather(*(grow(500 + i) for i in range(GROWING)))
        arriving = asyncio.create_task(arrive())
        beside = await asyncio.gather(*(grow(600 + i) for i in range(GROWING)))
        arriving.cancel()
    gaps = [percentile([gap for own in found for gap in own], 0.99) for found in (alone, beside)]
    return {
        f"first token of {LONG} tokens": firsts[0],
        "the same again": statistics.median(firsts[1:]),
        "again, in % of the first time": 100 * statistics.median(firsts[1:]) / firsts[0],
        "another question after them": other,
        f"between tokens of {GROWING} answers, p99": gaps[0],
        f"while prompts of {ARRIVING} tokens arrive": gaps[1],
        "while they arrive, in % of before": 100 * gaps[1] / gaps[0],
    }


def text(number: int, words: int) -> str:
    """Some words of Python's reference, which every Python brings along."""
    every = " ".join(topics.values()).split()
    start = number * 997 % (len(every) - words)
    return " ".join(every[start : start + words])


def question(number: int, salt: int) -> str:
    """A question of some 50 tokens, another each time."""
    return f"{text(number + 10_000 * salt + 17, 30)}\nExplain that in a few sentences."


def percentile(values: Sequence[float], part: float) -> float:
    """The value that so large a part of all is at most."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(part * len(ordered)))] if ordered else float("nan")


def private_mb(pid: int) -> float:
    """Private memory of a process in MiB."""
    rows = Path(f"/proc/{pid}/smaps_rollup").read_text(encoding="ascii").splitlines()
    return sum(int(row.split()[1]) for row in rows if row.startswith("Private_")) / 1024


if __name__ == "__main__":
    sys.exit(main())
