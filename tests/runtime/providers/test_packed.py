"""The cache of packed weights: of the right bundle, whole, or made anew."""

from __future__ import annotations

import dataclasses
import json
import logging
import os
import random
import shutil
import time
import zlib
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import pytest

from edge import home
from edge.bundle import Bundle, sha256_of
from edge.cli.main import main
from edge.errors import InputError
from edge.home import KEPT, cache_dir
from edge.manifest import File
from edge.runtime.kernels import library as kernels
from edge.runtime.kernels import packed, packed_file
from edge.runtime.kernels.library import Kernels
from edge.runtime.kernels.packed import Matrix, path_of
from edge.runtime.kernels.packed_file import CACHE_SIZE, END, MARK, PackedFile
from edge.runtime.load import open_engine

TOKENS = np.array([5, 7, 9])


pytestmark = pytest.mark.usefixtures("library")


@pytest.fixture(autouse=True)
def nothing_said_yet() -> None:
    kernels.without_kernels.cache_clear()
    home._warn_of.cache_clear()


@pytest.fixture
def packings(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Grows by one for each matrix that is packed."""
    done, pack = list[int](), Kernels.pack
    monkeypatch.setattr(Kernels, "pack", lambda self, *given: (done.append(1), pack(self, *given)))
    return done


def logits(bundle: Bundle) -> bytes:
    engine = open_engine(bundle)
    assert engine.session.independent, "onnxruntime's own kernels ran"
    return engine.step(engine.new_cache(), TOKENS).tobytes()


def sealed(bundle: Bundle, root: Path, change: Callable[[onnx.ModelProto], object]) -> Bundle:
    """Another bundle, with the same weights and changed graphs, whose manifest says so."""
    shutil.copytree(bundle.root, root)
    for graph in bundle.manifest.graphs:
        model = onnx.load(root / graph.path, load_external_data=False)
        change(model)
        (root / graph.path).write_bytes(model.SerializeToString())
    files = [
        File(each.path, (root / each.path).stat().st_size, sha256_of(root / each.path))
        for each in bundle.manifest.files
    ]
    return Bundle(root, dataclasses.replace(bundle.manifest, files=files))


def products(model: onnx.ModelProto) -> list[onnx.NodeProto]:
    return [node for node in model.graph.node if node.op_type == "MatMulNBits"]


def exchanged(model: onnx.ModelProto, place: int) -> None:
    """Products of one size read each other's weights (1) or scales (2)."""
    sizes = dict[tuple[int, ...], onnx.NodeProto]()
    for node in products(model):
        size = tuple(attribute.i for attribute in node.attribute)
        if (other := sizes.setdefault(size, node)) is not node:
            node.input[place], other.input[place] = other.input[place], node.input[place]


def moved(model: onnx.ModelProto, name: str) -> None:
    """Tensors lie elsewhere in the file of weights."""
    for node in products(model):
        for tensor in model.graph.initializer:
            if tensor.name in node.input and tensor.name.endswith(name):
                (offset,) = (entry for entry in tensor.external_data if entry.key == "offset")
                offset.value = str(int(offset.value) + 4 if int(offset.value) else 4)


@pytest.mark.parametrize(
    "change",
    [
        lambda m: exchanged(m, 1),
        lambda m: exchanged(m, 2),
        lambda m: moved(m, ".scales"),
        lambda m: setattr(m, "doc_string", "another graph"),
    ],
)
def test_a_bundle_with_the_same_weights_changes_nothing_for_another(
    tiny_bundle: Bundle, tmp_path: Path, packings: list[int], change: Callable[[onnx.ModelProto], object]
) -> None:
    other = sealed(tiny_bundle, tmp_path / "other.edge", change)
    wanted = logits(other), logits(tiny_bundle)
    shutil.rmtree(cache_dir() / "packed")
    assert (logits(tiny_bundle), logits(other)) == wanted[::-1]
    made = len(packings)
    assert [logits(bundle) for bundle in (other, tiny_bundle, other)] == [wanted[0], wanted[1], wanted[0]]
    assert len(packings) == made, "they took the place of each other"


def test_a_file_under_the_name_of_another_bundle_is_made_anew(
    tiny_bundle: Bundle, tmp_path: Path, library: Kernels
) -> None:
    """Whatever the name: what a matrix was made of stands in the file."""
    other = sealed(tiny_bundle, tmp_path / "other.edge", lambda m: exchanged(m, 2))
    wanted = logits(tiny_bundle)
    assert logits(other) != wanted
    shutil.copy(path_of(other, library), path_of(tiny_bundle, library))
    assert logits(tiny_bundle) == wanted


@pytest.mark.parametrize("field", ["bits", "inputs", "columns", "block", "weights", "scales", "zero_points", "by_rows"])
def test_a_matrix_is_found_by_all_it_was_made_of(tiny_bundle: Bundle, library: Kernels, field: str) -> None:
    logits(tiny_bundle)
    path = path_of(tiny_bundle, library)
    (weights,) = (file.sha256 for file in tiny_bundle.manifest.files if file.path == "weights.bin")
    file = PackedFile(path, Matrix)
    assert file.of == weights
    for matrix in list(file._index):
        assert file.place(matrix) is not None
        now = getattr(matrix, field)
        other = not now if isinstance(now, bool) else (now or 0) + 64
        assert file.place(dataclasses.replace(matrix, **{field: other})) is None


def with_index(whole: bytes, change: Callable[[dict], object] | bytes) -> bytes:
    """The file with another index, and a checksum that is right."""
    length, _, _ = END.unpack(whole[-END.size :])
    body, index = whole[: -END.size - length], whole[-END.size - length : -END.size]
    if isinstance(change, bytes):
        index = change
    else:
        read = json.loads(index)
        change(read)
        index = json.dumps(read).encode()
    return body + index + END.pack(len(index), zlib.crc32(body + index), MARK)


def rows(column: int, value: object) -> Callable[[dict], object]:
    return lambda index: [row.__setitem__(column, value) for row in index["matrices"]]


INDICES: dict[str, Callable[[dict], object] | bytes] = {
    "a list": b'["1"]',
    "a number": b"1",
    "no JSON": b"\xff{",
    "deep": b"[" * 100_000,
    "long digits": b'{"weights": "", "matrices": [[' + b"9" * 10_000 + b"]]}",
    "no matrices": lambda index: index.pop("matrices"),
    "matrices of text": lambda index: index.__setitem__("matrices", "abcdefghijk"),
    "rows of text": lambda index: index.__setitem__("matrices", ["abcdefghijk"]),
    "rows of lists": rows(0, [1]),
    "short rows": lambda index: [row.pop() for row in index["matrices"]],
    "of other weights": lambda index: index.__setitem__("weights", "0" * 64),
    "of no weights": lambda index: index.__setitem__("weights", None),
    "fewer matrices": lambda index: index["matrices"].pop(),
    **{
        f"{name} {value!r}": rows(column, value)
        for column, name in ((-3, "start"), (-2, "size"))
        for value in (-64, 2**40, 64, 1, "0", None, 1.5, True, 2**70)
    },
    "the other half": lambda index: [row.__setitem__(-1, not row[-1]) for row in index["matrices"]],
    "half a number": rows(-1, 1),
    "half nothing": rows(-1, None),
}


@pytest.mark.parametrize("case", INDICES)
def test_an_index_that_is_not_right_is_made_anew(tiny_bundle: Bundle, library: Kernels, case: str) -> None:
    wanted, path = logits(tiny_bundle), path_of(tiny_bundle, library)
    whole = path.read_bytes()
    path.write_bytes(with_index(whole, INDICES[case]))
    assert logits(tiny_bundle) == wanted
    assert path.read_bytes() == whole


def test_damage_anywhere_is_made_anew(tiny_bundle: Bundle, library: Kernels) -> None:
    wanted, path = logits(tiny_bundle), path_of(tiny_bundle, library)
    whole = path.read_bytes()
    choose = random.Random(51)
    for _ in range(25):
        damaged, at = bytearray(whole), choose.randrange(len(whole))
        how = choose.choice(["bit", "noise", "zeros", "cut", "gap", "longer"])
        if how == "bit":
            damaged[at] ^= 1 << choose.randrange(8)
        elif how == "noise":
            damaged[at : at + 300] = choose.randbytes(300)
        elif how == "zeros":
            damaged[at : at + 4096] = bytes(len(damaged[at : at + 4096]))
        elif how == "cut":
            del damaged[at:]
        elif how == "gap":
            del damaged[at : at + 64]
        else:
            damaged += choose.randbytes(64)
        path.write_bytes(damaged)
        assert logits(tiny_bundle) == wanted, (how, at)
        assert path.read_bytes() == whole, (how, at)


def fifo(path: Path) -> None:
    os.mkfifo(path)


THINGS: dict[str, Callable[[Path], object]] = {
    "a folder": lambda path: path.mkdir(),
    "a folder with files": lambda path: ((path / "x" / "y").mkdir(parents=True), (path / "z").write_text("z")),
    "a link to nothing": lambda path: path.symlink_to(path.parent / "nothing"),
    "a link to itself": lambda path: path.symlink_to(path),
    "a link to another file": lambda path: (
        (path.parent / "foreign").write_bytes(b"foreign"),
        path.symlink_to(path.parent / "foreign"),
    ),
    "an empty file": lambda path: path.touch(),
    "a pipe": fifo,
}


@pytest.mark.parametrize("thing", THINGS)
@pytest.mark.parametrize("place", ["file", "stamp"])
def test_what_stands_where_a_file_belongs_makes_room(
    tiny_bundle: Bundle, library: Kernels, packings: list[int], thing: str, place: str
) -> None:
    wanted, path = logits(tiny_bundle), path_of(tiny_bundle, library)
    taken = path if place == "file" else packed_file._stamp_of(path)
    taken.unlink()
    THINGS[thing](taken)
    assert logits(tiny_bundle) == wanted
    assert path.is_file() and not path.is_symlink()
    assert taken.is_file() and not taken.is_symlink()
    foreign = taken.parent / "foreign"
    assert not foreign.exists() or foreign.read_bytes() == b"foreign"
    made = len(packings)
    assert logits(tiny_bundle) == wanted and len(packings) == made


def test_a_file_is_read_through_only_where_it_changed(
    tiny_bundle: Bundle, library: Kernels, monkeypatch: pytest.MonkeyPatch
) -> None:
    wanted, path = logits(tiny_bundle), path_of(tiny_bundle, library)
    compared, crc32 = list[int](), zlib.crc32
    monkeypatch.setattr(packed_file.zlib, "crc32", lambda *given: (compared.append(1), crc32(*given))[1])
    assert logits(tiny_bundle) == wanted and not compared
    changes = [
        lambda: os.utime(path),
        lambda: os.utime(path, (0, 0)),
        lambda: path.chmod(0o400),
        packed_file._stamp_of(path).unlink,
        lambda: (shutil.copy2(path, path.with_suffix(".copy")), path.with_suffix(".copy").replace(path)),
    ]
    for time_it_is, change in enumerate(changes, 1):
        change()
        for _ in range(2):
            assert logits(tiny_bundle) == wanted and len(compared) == time_it_is


@pytest.mark.parametrize("thing", ["{}", "[]", "[1, 2, 3, 4, 5]", "null", "[" * 100_000, "\xff", ""])
def test_a_stamp_that_is_none_is_written_again(tiny_bundle: Bundle, library: Kernels, thing: str) -> None:
    wanted, path = logits(tiny_bundle), path_of(tiny_bundle, library)
    stamp = packed_file._stamp_of(path)
    right = stamp.read_text()
    stamp.write_text(thing, encoding="latin-1")
    assert logits(tiny_bundle) == wanted
    assert stamp.read_text() == right


def test_verify_looks_past_the_file_and_repairs_it(
    tiny_bundle: Bundle, library: Kernels, capsys: pytest.CaptureFixture[str]
) -> None:
    """Even where the damage shows in nothing but the bits: the stamp says that the file is whole."""
    logits(tiny_bundle)
    path = path_of(tiny_bundle, library)
    whole = path.read_bytes()
    path.write_bytes(with_index(bytes(len(whole) // 2) + whole[len(whole) // 2 :], lambda index: None))
    assert PackedFile(path, Matrix)._index  # whole, as far as it can tell
    assert main(["verify", str(tiny_bundle.root)]) == 0
    assert path.read_bytes() == whole


def test_verify_says_where_the_file_cannot_be_made_anew(
    tiny_bundle: Bundle, library: Kernels, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    logits(tiny_bundle)
    path, unlink = path_of(tiny_bundle, library), Path.unlink

    def refused(self: Path, missing_ok: bool = False) -> None:
        if self == path:
            raise OSError(30, "Read-only file system")
        unlink(self, missing_ok)

    monkeypatch.setattr(Path, "unlink", refused)
    assert main(["verify", str(tiny_bundle.root)]) == 2
    assert "cannot be made anew (Read-only file system)" in capsys.readouterr().err


def test_where_a_damaged_file_cannot_be_made_anew_the_stock_kernels_run(
    tiny_bundle: Bundle, library: Kernels, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    wanted, path = logits(tiny_bundle), path_of(tiny_bundle, library)
    whole = path.read_bytes()
    path.write_bytes(whole[:-1000] + bytes(1000))

    write = packed._write

    def full(*given: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(packed, "_write", full)
    with caplog.at_level(logging.WARNING):
        engine = open_engine(tiny_bundle)
    assert not engine.session.independent
    assert "No space left on device" in caplog.text and len(caplog.records) == 1
    monkeypatch.setattr(packed, "_write", write)
    assert logits(tiny_bundle) == wanted


def test_what_killed_packings_left_goes_and_a_running_ones_stays(
    tiny_bundle: Bundle, library: Kernels, packings: list[int]
) -> None:
    folder = cache_dir() / "packed"
    folder.mkdir(parents=True)
    dead = [folder / f"{i:032x}-1.bin.{2**22 + i}-7.part" for i in range(KEPT + 2)]
    old = folder / f"{'a' * 32}-1.bin.{os.getppid()}-7.part"
    running = folder / f"{'b' * 32}-1.bin.{os.getppid()}-7.part"
    earlier = folder / "0123456789abcdef-1.bin"
    strange = folder / "notes.txt"
    for part in (*dead, old, running, earlier, strange):
        part.write_bytes(b"part")
    os.utime(old, (0, 0))
    logits(tiny_bundle)
    assert {*folder.iterdir()} == {path_of(tiny_bundle, library), running, strange}


def test_what_was_not_used_for_the_longest_time_goes_where_the_cache_is_full(
    tiny_bundle: Bundle, library: Kernels, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = cache_dir() / "packed"
    folder.mkdir(parents=True)
    others = [folder / f"{i:032x}-1.bin" for i in range(4)]
    for i, other in enumerate(others):
        other.write_bytes(bytes(1000))
        os.utime(other, (1000 + i, 1000 + i))
    monkeypatch.setenv(CACHE_SIZE, "1MB")
    wanted = logits(tiny_bundle)
    assert {*folder.iterdir()} == {path_of(tiny_bundle, library), *others}
    path_of(tiny_bundle, library).unlink()
    monkeypatch.setenv(CACHE_SIZE, "1kB")
    assert logits(tiny_bundle) == wanted
    assert {*folder.iterdir()} == {path_of(tiny_bundle, library)}, "the latest stays, whatever it has"
    path_of(tiny_bundle, library).unlink()
    monkeypatch.setenv(CACHE_SIZE, "much")
    with pytest.raises(InputError, match="EDGE_CACHE_SIZE is 'much', which is no amount of bytes"):
        logits(tiny_bundle)


@pytest.mark.parametrize("apart", [3600, 10**8, -10])
def test_a_new_file_stays_whatever_the_times_of_the_others(
    tiny_bundle: Bundle, library: Kernels, packings: list[int], apart: int
) -> None:
    folder = cache_dir() / "packed"
    folder.mkdir(parents=True)
    others = [folder / f"{i:032x}-1.bin" for i in range(KEPT + 2)]
    strangers = [folder / f"newer{i}.bin" for i in range(KEPT + 2)]
    for other in (*others, *strangers):
        other.write_bytes(b"other")
        os.utime(other, (time.time() + apart, time.time() + apart))
    wanted = logits(tiny_bundle)
    made = len(packings)
    assert logits(tiny_bundle) == wanted and len(packings) == made
    left = {*folder.iterdir()}
    assert left.issuperset(strangers) and len(left) == len(strangers) + KEPT
    assert path_of(tiny_bundle, library) in left
    assert all(path.stat().st_mtime <= time.time() + 1 for path in left.intersection(others))


def test_the_cache_is_for_its_owner_alone(
    tiny_bundle: Bundle, library: Kernels, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("EDGE_HOME", str(tmp_path / "new" / "home"))
    mask = os.umask(0)
    try:
        logits(tiny_bundle)
    finally:
        os.umask(mask)
    found = [*(tmp_path / "new" / "home").rglob("*")]
    assert len(found) >= 4
    for path in (tmp_path / "new" / "home", *found):
        assert path.stat().st_mode & 0o077 == 0, path


@pytest.mark.skipif(not hasattr(os, "geteuid"), reason="files have no such owners")
@pytest.mark.parametrize("of", ["file", "stamp"])
def test_a_file_of_another_user_is_not_used(
    tiny_bundle: Bundle,
    library: Kernels,
    packings: list[int],
    monkeypatch: pytest.MonkeyPatch,
    of: str,
    caplog: pytest.LogCaptureFixture,
) -> None:
    wanted, path = logits(tiny_bundle), path_of(tiny_bundle, library)
    foreign = path if of == "file" else packed_file._stamp_of(path)
    inode, fstat, made = foreign.stat().st_ino, os.fstat, len(packings)

    def owned(descriptor: int) -> os.stat_result:
        found = fstat(descriptor)
        return os.stat_result((*found[:4], 4242, *found[5:10])) if found.st_ino == inode else found

    monkeypatch.setattr(home.os, "fstat", owned)
    with caplog.at_level(logging.WARNING):
        assert logits(tiny_bundle) == wanted
    assert foreign.stat().st_ino != inode, "it was not replaced"
    assert (len(packings) > made) == (of == "file")
    assert f"{foreign} belongs to another user and is not used" in caplog.text


def test_graphs_that_ask_for_more_than_the_weights_fill_no_disk(
    tiny_bundle: Bundle, library: Kernels, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(packed, "PADDED", 0)
    monkeypatch.setattr(packed, "WIDENED", 0)
    with caplog.at_level(logging.WARNING):
        assert not open_engine(tiny_bundle).session.independent
    assert "ask for more than its weights" in caplog.text
    assert not [*(cache_dir() / "packed").iterdir()]
