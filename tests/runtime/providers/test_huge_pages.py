"""Memory in pages of 2 MiB for a session's weights."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

import edge
from edge.bundle import Bundle
from edge.cli.main import main
from edge.runtime.providers import huge_pages

ENABLED = Path("/sys/kernel/mm/transparent_hugepage/enabled")
TAKE = """
import ctypes, sys, threading
from edge.runtime.providers.huge_pages import huge_pages

libc = ctypes.CDLL(None)
libc.malloc.restype, libc.malloc.argtypes = ctypes.c_void_p, (ctypes.c_size_t,)
libc.free.argtypes = (ctypes.c_void_p,)

def take(size):  # as a session does: many blocks, each written before the next is taken
    with huge_pages(size):
        blocks = [libc.malloc(400_000) for _ in range(size // 400_000)]
        for block in blocks:
            ctypes.memset(block, 1, 400_000)
    return blocks

def run():
    held = take(int(sys.argv[2]) << 20)
    for field in ("AnonHugePages", "Rss"):
        print(next(line for line in open("/proc/self/smaps_rollup") if line.startswith(field)).strip())

if sys.argv[1] == "thread":
    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
else:
    run()
"""


def held(where: str, mebibytes: int, **environment: str) -> tuple[float, float]:
    """MiB in huge pages, and resident, of a fresh process that took so many."""
    own = (*huge_pages.OWN_SETTINGS, huge_pages.TUNABLES)
    done = subprocess.run(
        [sys.executable, "-c", TAKE, where, str(mebibytes)], capture_output=True, text=True, check=True,
        env={k: v for k, v in os.environ.items() if not k.startswith(own)} | {huge_pages.ASKED: "1"} | environment,
    )  # fmt: skip
    huge, resident = (int(n) / 1024 for n in re.findall(r"(\d+) kB", done.stdout))
    return huge, resident


there = pytest.mark.skipif(
    not huge_pages._can() or not ENABLED.exists() or "[never]" in ENABLED.read_text(),
    reason="needs glibc, no settings of its own, and a kernel that has huge pages",
)


@there
@pytest.mark.parametrize("where", ["main", "thread"])
def test_many_small_blocks_stand_in_huge_pages(where: str) -> None:
    huge, resident = held(where, 150)  # more than two of a thread's heaps
    assert huge >= 130
    assert resident < 150 + 40  # what is only reserved takes no memory


@there
@pytest.mark.skipif("[always]" in (ENABLED.read_text() if ENABLED.exists() else ""), reason="all memory may be in them")
def test_few_weights_and_settings_of_ones_own_are_left_alone() -> None:
    assert held("main", 8)[0] == 0
    assert held("main", 64, MALLOC_TRIM_THRESHOLD_="1000000")[0] == 0
    assert held("main", 64, GLIBC_TUNABLES="glibc.malloc.arena_max=1")[0] == 0
    assert held("main", 64, MALLOC_ARENA_MAX="2")[0] >= 50


@there
@pytest.mark.skipif("[always]" in (ENABLED.read_text() if ENABLED.exists() else ""), reason="all memory may be in them")
def test_a_process_that_did_not_ask_is_left_alone() -> None:
    assert held("main", 64, EDGE_HUGE_PAGES="")[0] == 0


@pytest.mark.usefixtures("onnxruntimes_kernels")  # the weights of our own are mapped from a file
def test_loading_sets_nothing_in_a_process_that_did_not_ask(
    tiny_bundle: Bundle, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv(huge_pages.ASKED, raising=False)
    monkeypatch.setattr(huge_pages, "LEAST", 0)
    monkeypatch.setattr(huge_pages, "_can", lambda: True)
    monkeypatch.setattr(huge_pages, "_libc", lambda: pytest.fail("the C library was asked"))
    edge.load(tiny_bundle.root)
    monkeypatch.setenv(huge_pages.ASKED, "1")
    with pytest.raises(pytest.fail.Exception, match="the C library was asked"):
        edge.load(tiny_bundle.root)


@pytest.mark.parametrize("arguments", [["--version"], None])
@pytest.mark.parametrize("before", [{}, {huge_pages.ASKED: "0"}])
def test_the_command_asks_in_its_own_process_unless_told_otherwise(
    monkeypatch: pytest.MonkeyPatch, arguments: list[str] | None, before: dict[str, str]
) -> None:
    variables = dict(before)
    monkeypatch.setattr(os, "environ", variables)
    monkeypatch.setattr(sys, "argv", ["edge", "--version"])
    assert main(arguments) == 0
    own = arguments is None  # else this is a call in somebody else's process
    assert variables == ({huge_pages.ASKED: "1", "PYTHONSAFEPATH": "1"} | before if own else before)


def test_where_there_is_no_glibc_nothing_happens(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(huge_pages.ASKED, "1")
    monkeypatch.setattr(huge_pages, "_can", lambda: False)
    monkeypatch.setattr(huge_pages, "_libc", lambda: pytest.fail("the C library was asked"))
    with huge_pages.huge_pages(2**30):
        pass


def test_addresses_that_are_limited_end_it(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[int] = []

    class Libc:
        def mallopt(self, setting: int, value: int) -> int:
            return 1

        def malloc(self, size: int) -> int | None:
            asked.append(size)
            return 2**40 + len(asked) * 2**27 if len(asked) <= 4 else None

        def madvise(self, start: int, size: int, advice: int) -> int:
            assert start % huge_pages.PAGE == size % huge_pages.PAGE == 0
            return -1

        def free(self, block: int) -> None:
            freed.append(block)

    freed: list[int] = []
    monkeypatch.setenv(huge_pages.ASKED, "1")
    monkeypatch.setattr(huge_pages, "_can", lambda: True)
    monkeypatch.setattr(huge_pages, "_libc", Libc)
    with huge_pages.huge_pages(2**31):
        assert len(freed) == 3  # the blocks, not the stop between them
    assert len(freed) == 4 == len(set(freed))
