"""A server under many clients for minutes: are answers right, and does it stay as large as it was?

    python benchmarks/soak.py --gguf FILE

Clients ask again and again, whole and in streams; others go away in the middle, send damaged bodies, read a byte a
second, or never. Each answer must be that of the same request alone, none may be missing, and the server's private
memory without that of beginnings which it keeps (within 3%), threads and files must be in the end what they were.
Exits with 1 where something is not so. Linux only.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import socket
import sys
import time
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import httpx
import report
from comparison import say
from serving import ANSWER_S, private_mb, question, started

TEXTS = 40  # different requests
SHORTEST, LONGEST = 8, 60  # tokens of an answer
PARALLEL = 8
DISTURBERS = "leaves", "damaged", "slow", "never reads"
DAMAGED = b"", b"{", b'{"messages": "x"}', b"\xff\xfe", b'{"messages": [{"role": "user"}]}', b'{"a":' * 5000
SLOW_S = 30  # for which one reads a byte a second
OTHER = "other private, MiB"
LASTING = {OTHER: 1.03, "threads": 1, "files": 1}  # what must not grow, and by how much it may
SETTLES_S = 120.0  # in which files and threads of those that do not read must be gone
PATH = "/v1/chat/completions"


def main() -> int:
    """Ask, print, compare. Returns the exit status."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0], allow_abbrev=False)
    parser.add_argument("--gguf", type=Path, required=True, help="the model's file")
    parser.add_argument("--clients", type=int, default=16)
    parser.add_argument("--requests", type=int, default=200, help="that must be answered (default: 200)")
    parser.add_argument("--minutes", type=float, default=5.0, help="over which they are spread (default: 5)")
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    args = parser.parse_args()
    with started(command, args) as (port, process):
        faults, rows = asyncio.run(soak(args, port, process.pid))
    print(report.table(rows))
    for fault in faults:
        print(f"FAULT: {fault}")
    return 1 if faults else 0


def command(args: argparse.Namespace, port: int) -> list[str]:
    """`edge serve`."""
    options = ["--port", str(port), "--parallel", str(PARALLEL), "--context", "2048", "--threads", str(args.threads)]
    return [sys.executable, "-m", "edge.cli.main", "serve", str(args.gguf), *options]


def body(number: int) -> dict[str, Any]:
    """One of the different requests."""
    draw = random.Random(number)
    found = {
        "messages": [{"role": "user", "content": question(number, 5)}],
        "max_tokens": draw.randint(SHORTEST, LONGEST),
    }
    drawn = {"temperature": 0.8, "seed": number, "top_k": 40} if number % 3 == 0 else {"temperature": 0}
    return found | drawn


async def soak(args: argparse.Namespace, port: int, pid: int) -> tuple[list[str], list[list[str]]]:
    """What is wrong, and the table of figures."""
    limits = httpx.Limits(max_connections=200, max_keepalive_connections=0)  # which would be among the open files
    async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}", timeout=ANSWER_S, limits=limits) as client:
        alone = [await whole(client, body(i)) for i in range(TEXTS)]
        say(f"{TEXTS} requests were answered alone")
        counts, faults = Counter[str](), list[str]()
        pause = 60 * args.minutes * args.clients / args.requests  # of a client between the beginnings of two requests

        async def one(number: int) -> None:
            draw = random.Random(1000 * args.requests + number)
            which = draw.randrange(TEXTS)
            if draw.random() < 0.4:
                kind = draw.choices(DISTURBERS, (4, 4, 1, 1))[0]
                counts[kind] += 1
                fault = await DISTURB[kind](client, port, body(which), alone[which])
                if fault is not None:
                    faults.append(f"request {number}, {kind}: {fault}")
            ask = streamed if draw.random() < 0.5 else whole
            counts[ask.__name__] += 1
            if (found := await ask(client, body(which))) != alone[which]:
                faults.append(f"request {number}, {ask.__name__}: {found[:60]!r} instead of {alone[which][:60]!r}")

        async def client_of(number: int, requests: Iterator[int]) -> None:
            await asyncio.sleep(pause * number / args.clients)
            for request in requests:
                began = time.monotonic()
                try:
                    await one(request)
                except Exception as e:  # it is lost
                    faults.append(f"request {request}: {type(e).__name__}: {e}")
                await asyncio.sleep(max(0.0, began + pause - time.monotonic()))

        async def crowd(requests: Iterable[int]) -> None:
            left = iter(requests)
            await asyncio.gather(*(client_of(i, left) for i in range(args.clients)))

        await crowd(range(-args.requests // 2, 0))  # after which the memory of all kinds of answers is there
        before = await settled(client, pid, None)
        counts.clear()
        began = time.monotonic()
        await crowd(range(args.requests))
        took = time.monotonic() - began
        after = await settled(client, pid, before)
        text = (await client.get("/metrics")).text
        for line in text.splitlines():
            if line.startswith(("edge_growing", "edge_waiting")) and not line.endswith(" 0.0"):
                faults.append(f"something goes on: {line}")
    rows = [["", "before", "after"]]
    for name, value in before.items():
        rows.append([name, f"{value:.1f}", f"{after[name]:.1f}"])
        if name in LASTING and after[name] > value * LASTING[name]:
            faults.append(f"{name}: {value:.1f} before, {after[name]:.1f} after")
    for kind, count in counts.items():
        rows.append([kind, "", str(count)])
    rows.append(["seconds", "", f"{took:.0f}"])
    return faults, rows


async def whole(client: httpx.AsyncClient, request: dict[str, Any]) -> str:
    """An answer that comes whole. One that is sent away asks again."""
    while (response := await client.post(PATH, json=request)).status_code == 429:
        await asyncio.sleep(float(response.headers["retry-after"]))
    response.raise_for_status()
    text: str = response.json()["choices"][0]["message"]["content"]
    return text


async def streamed(client: httpx.AsyncClient, request: dict[str, Any]) -> str:
    """An answer in a stream."""
    async with client.stream("POST", PATH, json=request | {"stream": True}) as response:
        response.raise_for_status()
        return said([line async for line in response.aiter_lines()])


def said(lines: list[str]) -> str:
    """The text of a stream's lines; ValueError where it did not end."""
    if "data: [DONE]" not in lines:
        raise ValueError("the stream did not end")
    events = [json.loads(line[6:]) for line in lines if line.startswith("data: {")]
    return "".join(each["choices"][0]["delta"].get("content") or "" for each in events if each["choices"])


async def leaves(client: httpx.AsyncClient, port: int, request: dict[str, Any], alone: str) -> str | None:
    """Go away after the first line."""
    async with client.stream("POST", PATH, json=request | {"stream": True, "max_tokens": 1000}) as response:
        async for _ in response.aiter_lines():
            break
    return None


async def damaged(client: httpx.AsyncClient, port: int, request: dict[str, Any], alone: str) -> str | None:
    """Send what is no request."""
    for content in DAMAGED:
        status = (await client.post(PATH, content=content)).status_code
        if status != 400:
            return f"the status is {status}"
    return None


async def slow(client: httpx.AsyncClient, port: int, request: dict[str, Any], alone: str) -> str | None:
    """Read a byte a second for a while, then the rest."""
    reader, writer = await opened(port, request)
    read = bytearray()
    try:
        for _ in range(SLOW_S):
            read += await reader.readexactly(1)
            await asyncio.sleep(1)
        while piece := await reader.read(1 << 16):
            read += piece
    finally:
        writer.close()
    body_of = bytes(read).partition(b"\r\n\r\n")[2]
    found = said(unchunked(body_of).decode().split("\n"))
    return None if found == alone else f"{found[:60]!r} instead of {alone[:60]!r}"


async def never_reads(client: httpx.AsyncClient, port: int, request: dict[str, Any], alone: str) -> str | None:
    """Ask for many long answers and read nothing, for longer than others wait."""
    unread.append(await opened(port, request | {"n": 4, "max_tokens": 400}, small=True))
    return None


unread: list[tuple[asyncio.StreamReader, asyncio.StreamWriter]] = []  # connections that nobody reads
DISTURB = {"leaves": leaves, "damaged": damaged, "slow": slow, "never reads": never_reads}


async def opened(
    port: int, request: dict[str, Any], *, small: bool = False
) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """A connection on which a stream was asked for. small: with as little room for what nobody reads as can be."""
    connection = socket.socket()
    if small:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    connection.setblocking(False)
    await asyncio.get_running_loop().sock_connect(connection, ("127.0.0.1", port))
    reader, writer = await asyncio.open_connection(sock=connection, limit=1)
    content = json.dumps(request | {"stream": True}).encode()
    head = f"POST {PATH} HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\nContent-Length: {len(content)}\r\n\r\n"
    writer.write(head.encode() + content)
    await writer.drain()
    return reader, writer


def unchunked(content: bytes) -> bytes:
    """The body of a response that came in chunks."""
    found = bytearray()
    while content:
        size, _, content = content.partition(b"\r\n")
        found += content[: int(size, 16)]
        content = content[int(size, 16) + 2 :]
    return bytes(found)


async def figures(client: httpx.AsyncClient, pid: int) -> dict[str, float]:
    """Private memory, what beginnings take of it, threads and open files of a process."""
    text = (await client.get("/metrics")).text
    kept = sum(float(line.split()[-1]) for line in text.splitlines() if line.startswith("edge_beginnings_bytes{"))
    status = Path(f"/proc/{pid}/status").read_text(encoding="ascii")
    threads = next(int(line.split()[1]) for line in status.splitlines() if line.startswith("Threads:"))
    files = len([*Path(f"/proc/{pid}/fd").iterdir()])
    private = private_mb(pid)
    return {OTHER: private - kept / 2**20, "beginnings, MiB": kept / 2**20, "threads": threads, "files": files}


async def settled(client: httpx.AsyncClient, pid: int, before: dict[str, float] | None) -> dict[str, float]:
    """The figures once they are as before, or have had their time."""
    until = time.monotonic() + (SETTLES_S if before is not None else 5)
    while True:
        found = await figures(client, pid)
        if before is not None and all(found[each] <= before[each] for each in ("threads", "files")):
            break
        if time.monotonic() > until:
            break
        await asyncio.sleep(1)
    for _, writer in unread:
        writer.close()
    unread.clear()
    return found


if __name__ == "__main__":
    sys.exit(main())
