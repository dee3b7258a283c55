"""Packing that was interrupted or killed goes on from what holds of it."""

from __future__ import annotations

import errno
import json
import os
import random
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gguf import GGMLQuantizationType as Type
from gguf_files import tiny_model, write_gguf

import edge
from edge.bundle import WEIGHTS, Bundle
from edge.gguf_parts import GGUF
from edge.lock import locked
from edge.runtime.engine.variant import DECODER
from edge.runtime.kernels.graph import pack_ahead
from edge.runtime.kernels.library import Kernels
from edge.runtime.kernels.packed import forget_packed, path_of
from edge.runtime.kernels.packed_gguf import gguf_path
from edge.runtime.kernels.packed_writer import JOURNAL, LOCK, UNFINISHED, PackedWriter, begun, has_begun, written
from edge.runtime.load import open_engine

TOKENS = np.array([5, 7, 9])
MATRICES = ("token_embd", "output", "attn_q", "attn_k", "attn_v", "attn_output", "ffn_gate", "ffn_up", "ffn_down")
TYPES = {f"{name}.w": Type.Q8_0 for name in MATRICES}

pytestmark = pytest.mark.usefixtures("library")


@pytest.fixture(scope="module")
def in_place(tmp_path_factory: pytest.TempPathFactory) -> Bundle:
    folder = tmp_path_factory.mktemp("gguf")
    file = write_gguf(folder / "m.gguf", tiny_model("llama"), types=TYPES)
    return edge.export(file, folder / "m.edge", weights=GGUF, effort="quick", max_context=64, in_place=True)


@pytest.fixture(params=["gguf", "int8"])
def bundle(request: pytest.FixtureRequest, in_place: Bundle, tiny_bundle: Bundle) -> Bundle:
    return in_place if request.param == "gguf" else tiny_bundle


def path(bundle: Bundle, library: Kernels) -> Path:
    return (gguf_path if bundle.manifest.weights == GGUF else path_of)(bundle, library)


def logits(bundle: Bundle) -> bytes:
    engine = open_engine(bundle)
    return engine.step(engine.new_cache(), TOKENS).tobytes()


def interrupt(bundle: Bundle, at: int) -> None:
    """Pack until so many bytes are written."""
    put = PackedWriter.put

    def ending(self: PackedWriter, content: Any) -> None:
        if self._file.tell() >= at:
            raise KeyboardInterrupt
        put(self, content)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(PackedWriter, "put", ending)
        with pytest.raises(KeyboardInterrupt):
            open_engine(bundle)


@pytest.fixture
def kept(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Grows by the size of each matrix that is kept, or 0."""
    found, holds = list[int](), PackedWriter.kept
    monkeypatch.setattr(PackedWriter, "kept", lambda self, of: found.append(size := holds(self, of)) or size)
    return found


@pytest.mark.parametrize("part", [0.1, 0.5, 0.98])
def test_it_goes_on_where_it_ended_and_makes_the_same_file(
    bundle: Bundle, library: Kernels, kept: list[int], part: float
) -> None:
    wanted, place = logits(bundle), path(bundle, library)
    whole = place.read_bytes()
    place.unlink()
    for further in (part, min(part + 0.3, 0.99)):
        interrupt(bundle, int(further * len(whole)))
        assert has_begun(place) or part == 0.1
    kept.clear()
    assert logits(bundle) == wanted and place.read_bytes() == whole
    assert part == 0.1 or sum(kept) > part * len(whole) / 2
    assert [*place.parent.iterdir()] == [place]


def cut(left: Path, journal: Path) -> None:
    os.truncate(left, left.stat().st_size // 2)


def other_bytes(left: Path, journal: Path) -> None:
    found = bytearray(left.read_bytes())
    found[len(found) // 3] ^= 1
    left.write_bytes(found)


def longer(left: Path, journal: Path) -> None:
    left.write_bytes(left.read_bytes() + bytes(10_000_000))


def rows_changed(change: Callable[[list[Any]], object]) -> Callable[[Path, Path], object]:
    def harm(left: Path, journal: Path) -> None:
        rows = [json.loads(line) for line in journal.read_text().splitlines()]
        change(rows[1])
        journal.write_text("".join(json.dumps(row) + "\n" for row in rows))

    return harm


HARMS: dict[str, Callable[[Path, Path], object]] = {
    "the file is cut": cut,
    "other bytes": other_bytes,
    "more bytes": longer,
    "an empty file": lambda left, journal: left.write_bytes(b""),
    "no file": lambda left, journal: left.unlink(),
    "no journal": lambda left, journal: journal.unlink(),
    "an empty journal": lambda left, journal: journal.write_text(""),
    "a journal that is cut": lambda left, journal: os.truncate(journal, journal.stat().st_size - 5),
    "a journal of nonsense": lambda left, journal: journal.write_text("[" * 100_000),
    "a journal of short rows": lambda left, journal: journal.write_text("[]\n[1]\n"),
    "a journal of other rows": lambda left, journal: journal.write_text('[1, "x", null, {}, [], 3, 4]\n' * 9),
    "no text": lambda left, journal: journal.write_bytes(b"\xff\xfe"),
    "a link": lambda left, journal: left.symlink_to(left.rename(left.with_name("other"))),
    "a folder": lambda left, journal: (left.unlink(), (left / "x" / "y").mkdir(parents=True)),
    "a folder for a journal": lambda left, journal: (journal.unlink(), (journal / "x").mkdir(parents=True)),
    "a pipe": lambda left, journal: (left.unlink(), os.mkfifo(left)),
    "a link for a journal": lambda left, journal: journal.symlink_to(journal.rename(journal.with_name("other"))),
    "deep": lambda left, journal: journal.write_text(journal.read_text() + "[" * 990 + "]" * 990 + "\n"),
    "another source": lambda left, journal: journal.write_text("[[1,2,3,4]]\n" + journal.read_text().split("\n", 1)[1]),
    "another matrix": rows_changed(lambda row: row.__setitem__(0, "other.bin")),
    "another start": rows_changed(lambda row: row.__setitem__(-4, row[-4] + 64)),
    "no start": rows_changed(lambda row: row.__setitem__(-4, None)),
    "another size": rows_changed(lambda row: row.__setitem__(-3, row[-3] - 1)),
    "a size of nonsense": rows_changed(lambda row: row.__setitem__(-3, 1.5)),
    "a start with a point": rows_changed(lambda row: row.__setitem__(-4, float(row[-4]))),
    "no truth": rows_changed(lambda row: row.__setitem__(-2, 0)),
    "a size below 0": rows_changed(lambda row: row.__setitem__(-3, -1)),
    "a huge size": rows_changed(lambda row: row.__setitem__(-3, 10**30)),
    "another checksum": rows_changed(lambda row: row.__setitem__(-1, 5)),
}


@pytest.mark.parametrize("harm", HARMS)
def test_what_is_damaged_is_packed_again(in_place: Bundle, library: Kernels, harm: str) -> None:
    wanted, place = logits(in_place), path(in_place, library)
    whole = place.read_bytes()
    place.unlink()
    interrupt(in_place, len(whole) * 9 // 10)
    left, journal = place.with_suffix(UNFINISHED), place.with_suffix(JOURNAL)
    before = left.read_bytes() if harm == "a link" else journal.read_bytes()
    HARMS[harm](left, journal)
    interrupt(in_place, len(whole) * 95 // 100)  # which begins with what was left
    assert logits(in_place) == wanted and place.read_bytes() == whole
    assert {each.name for each in place.parent.iterdir()} <= {place.name, "other"}
    assert not (other := place.with_name("other")).exists() or other.read_bytes() == before


@pytest.mark.skipif(not hasattr(signal, "SIGKILL"), reason="needs signals")
def test_a_killed_process_leaves_it_to_the_next(in_place: Bundle, library: Kernels, kept: list[int]) -> None:
    """Killed at any moment, several times in turn."""
    wanted, place = logits(in_place), path(in_place, library)
    whole = place.read_bytes()
    place.unlink()
    program = (
        "import itertools, sys, time\n"
        "from edge.bundle import open_bundle\n"
        "from edge.runtime.kernels.packed_writer import PackedWriter\n"
        "from edge.runtime.load import open_engine\n"
        "put, numbers = PackedWriter.put, itertools.count(1)\n"
        "def put_or_wait(self, content):\n"
        "    put(self, content)\n"
        "    if next(numbers) == int(sys.argv[2]):\n"
        "        print('waits', flush=True)\n"
        "        time.sleep(600)\n"
        "PackedWriter.put = put_or_wait\n"
        "open_engine(open_bundle(sys.argv[1]))\n"
    )
    draw = random.Random(4)
    for _ in range(3):
        command = [sys.executable, "-c", program, str(in_place.root), str(draw.randrange(8, 16))]
        with subprocess.Popen(command, stdout=subprocess.PIPE) as running:
            assert running.stdout is not None
            said = running.stdout.readline()
            running.kill()
        assert said == b"waits\n"
    assert has_begun(place)
    kept.clear()
    assert logits(in_place) == wanted and place.read_bytes() == whole
    assert kept[0] and [*place.parent.iterdir()] == [place]


def test_it_goes_on_after_days(bundle: Bundle, library: Kernels, kept: list[int]) -> None:
    wanted, place = logits(bundle), path(bundle, library)
    size = place.stat().st_size
    place.unlink()
    interrupt(bundle, size * 3 // 4)
    for left in place.parent.iterdir():
        os.utime(left, (1, 1))
    kept.clear()
    assert logits(bundle) == wanted and kept[0]


def test_nothing_is_kept_that_was_made_of_other_bytes(tiny_bundle: Bundle, library: Kernels) -> None:
    """They were others while it was packed, and are the right ones again."""
    wanted, place = logits(tiny_bundle), path(tiny_bundle, library)
    whole, weights = place.read_bytes(), tiny_bundle.path(WEIGHTS)
    right = weights.read_bytes()
    place.unlink()
    weights.write_bytes(bytes(each ^ 1 for each in right))
    interrupt(tiny_bundle, len(whole) // 2)
    assert has_begun(place)
    weights.write_bytes(right)
    assert logits(tiny_bundle) == wanted and place.read_bytes() == whole


def test_two_at_a_time_do_not_touch_each_other_s(in_place: Bundle, library: Kernels, kept: list[int]) -> None:
    wanted, place = logits(in_place), path(in_place, library)
    whole = place.read_bytes()
    place.unlink()
    interrupt(in_place, len(whole) // 2)
    left = place.with_suffix(UNFINISHED).read_bytes()
    with locked(place.with_suffix(LOCK)) as held:  # as a process that goes on with it
        assert held
        kept.clear()
        assert logits(in_place) == wanted and place.read_bytes() == whole
        assert not any(kept) and place.with_suffix(UNFINISHED).read_bytes() == left
        place.unlink()
        open_other(place)
        forget_packed(in_place)
        assert has_begun(place)
    assert logits(in_place) == wanted and kept[-1] == 0 and any(kept)


def test_where_files_cannot_be_locked_it_begins_anew(
    in_place: Bundle, library: Kernels, kept: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    fcntl = pytest.importorskip("fcntl", reason="Windows has other locks")
    wanted, place = logits(in_place), path(in_place, library)
    size = place.stat().st_size
    place.unlink()
    interrupt(in_place, size // 2)

    def none(*_: object) -> None:
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

    kept.clear()
    monkeypatch.setattr(fcntl, "flock", none)
    assert logits(in_place) == wanted and not any(kept)


def test_removing_a_bundle_removes_what_was_begun_of_it(bundle: Bundle, library: Kernels) -> None:
    place = path(bundle, library)
    logits(bundle)
    size = place.stat().st_size
    place.unlink()
    interrupt(bundle, size * 3 // 4)
    assert begun(place.parent) == {place.stem: place.with_suffix(UNFINISHED).stat().st_size}
    forget_packed(bundle)
    assert not [*place.parent.iterdir()]


def open_other(place: Path) -> None:
    """Write another file of the folder."""
    with written(place.with_name("1" * 32 + "-1.bin"), []) as writer:
        writer.put(b"whole")
        writer.end("", again=False)


def test_what_was_begun_of_others_makes_room(in_place: Bundle, library: Kernels) -> None:
    place = path(in_place, library)
    logits(in_place)
    size = place.stat().st_size
    place.unlink()
    interrupt(in_place, size // 2)
    place.with_name("2" * 32 + "-1.lock").touch()  # as a killed process leaves it
    open_other(place)
    assert {each.name for each in place.parent.iterdir()} == {"1" * 32 + "-1.bin"}


def test_an_interruption_in_the_first_matrix_leaves_nothing(in_place: Bundle, library: Kernels) -> None:
    place = path(in_place, library)
    logits(in_place)
    place.unlink()
    interrupt(in_place, 1)
    assert not has_begun(place) and not [*place.parent.iterdir()]


def test_progress_counts_what_is_kept(in_place: Bundle, library: Kernels) -> None:
    place, seen = path(in_place, library), list[tuple[int, int]]()
    logits(in_place)
    size = place.stat().st_size
    place.unlink()
    interrupt(in_place, size * 9 // 10)
    graph = in_place.path(in_place.manifest.graph(DECODER).path)
    pack_ahead(in_place, library, graph, lambda done, total: seen.append((done, total)))
    assert seen == sorted(seen) and len({total for _, total in seen}) == 1 and seen[-1][0] == seen[-1][1]
    assert [*place.parent.iterdir()] == [place]
