"""A GGUF file that lies, or is not whole: each command says so in one sentence, at once, and leaves nothing."""

from __future__ import annotations

import os
import struct
import tracemalloc
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from gguf import GGMLQuantizationType as Type
from gguf_files import tiny_model, write_gguf

from edge.cli.main import main
from edge.errors import CheckpointError
from edge.export.checkpoint import open_checkpoint
from edge.export.facts import gguf_header
from edge.export.facts.gguf_header import GGUFHeader
from fuzz.kinds.gguf_files import ARRAY, STRING, Header

WIDE = {"hidden_size": 256, "intermediate_size": 256, "num_attention_heads": 4, "num_hidden_layers": 1}
K_TYPES = {"ffn": Type.Q4_K, "attn": Type.Q6_K, "token_embd.w": Type.Q6_K, "output.w": Type.Q6_K}
HUGE = 1 << 60
MB = 1 << 20


@pytest.fixture(scope="module")
def content(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    """A file whose matrices are in blocks of 256."""
    path = tmp_path_factory.mktemp("whole") / "m.gguf"
    return write_gguf(path, tiny_model("llama", **WIDE), types=K_TYPES).read_bytes()


def tensor(header: Header, name: bytes) -> list[object]:
    return next(each for each in header.tensors if each[0] == name)


def counts(place: int, value: int) -> Callable[[Header], None]:
    return lambda header: header.counts.__setitem__(place, value)


def more(kind: int, value: object) -> Callable[[Header], None]:
    """One more key."""

    def change(header: Header) -> None:
        header.pairs.append([b"general.alignment" if kind == 4 else b"more", kind, value])
        header.counts[1] += 1

    return change


def change(name: bytes, place: int, value: Callable[[Header], object]) -> Callable[[Header], None]:
    """Another shape (1), type (2) or offset (3) of a tensor."""
    return lambda header: tensor(header, name).__setitem__(place, value(header))


def twice(header: Header) -> None:
    header.tensors[1][0] = header.tensors[0][0]


UP, GATE = b"blk.0.ffn_up.weight", b"blk.0.ffn_gate.weight"
LIES: dict[str, tuple[Callable[[Header], None], str]] = {
    "tensors": (counts(0, HUGE), "names 1,152,921,504,606,846,976 tensors, and no model has more than 65,536"),
    "keys": (counts(1, HUGE), "names 1,152,921,504,606,846,976 keys, and no model has more than 65,536"),
    "more keys than there are": (counts(1, 60_000), "its header breaks off at byte"),
    "an alignment of 0": (more(4, 0), "general.alignment is 0 and no power of two"),
    "an alignment of 24": (more(4, 24), "general.alignment is 24 and no power of two"),
    "an offset outside of the file": (change(UP, 3, lambda _: HUGE), f"'{UP.decode()}' begins at byte 11529"),
    "two tensors in one place": (change(UP, 3, lambda h: tensor(h, GATE)[3]), f"'{UP.decode()}' begins at byte"),
    "two tensors of one name": (twice, "is damaged: it has two tensors"),
    "a matrix of 2**60 rows": (change(UP, 1, lambda _: [256, HUGE]), f"'{UP.decode()}' ends at byte"),
    "rows that are no whole blocks": (change(UP, 1, lambda _: [200, 256]), "are no whole Q4_K blocks"),
    "a type that nobody has": (change(UP, 2, lambda _: 99), f"'{UP.decode()}' has the type number 99, which"),
}


@pytest.mark.parametrize("name", LIES)
def test_a_header_that_lies_is_refused(
    content: bytes, tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str
) -> None:
    lie, said = LIES[name]
    header = Header(content)
    lie(header)
    (tmp_path / "m.gguf").write_bytes(header.bytes())
    refused(tmp_path, capsys, said)


def refused(folder: Path, capsys: pytest.CaptureFixture[str], said: str) -> None:
    """`m.gguf` in the folder is refused with this sentence alone, whatever it is wanted for, and nothing is left."""
    path = folder / "m.gguf"
    for command in (
        ["export", str(path), "-o", str(folder / "m.edge"), "--effort", "quick", "--weights", "gguf"],
        ["inspect", str(path)],
    ):
        assert main(command) == 2
        out, err = capsys.readouterr()
        assert out == "" and err.startswith("edge: ") and err.count("\n") == 1 and said in err, err
    assert [each.name for each in folder.iterdir()] == ["m.gguf"]


LENGTHS: dict[str, bytes] = {
    "a key": struct.pack("<Q", HUGE) + b"key",
    "a text": struct.pack("<Q", 1) + b"k" + struct.pack("<IQ", STRING, HUGE) + b"text",
    "a list of texts": struct.pack("<Q", 1) + b"k" + struct.pack("<IIQ", ARRAY, STRING, HUGE) + bytes(800),
    "a text in a list": struct.pack("<Q", 1) + b"k" + struct.pack("<IIQQ", ARRAY, STRING, 1, HUGE),
    "a list of numbers": struct.pack("<Q", 1) + b"k" + struct.pack("<IIQ", ARRAY, 4, HUGE) + bytes(800),
    "a list of lists": struct.pack("<Q", 1) + b"k" + struct.pack("<IIQ", ARRAY, ARRAY, HUGE) + bytes(800),
    "a kind that nobody has": struct.pack("<Q", 1) + b"k" + struct.pack("<I", 77),
}


@pytest.mark.parametrize("name", LENGTHS)
def test_a_length_beyond_the_file_is_refused_before_it_is_read(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str
) -> None:
    (tmp_path / "m.gguf").write_bytes(b"GGUF" + struct.pack("<IQQ", 3, 0, 1) + LENGTHS[name])
    refused(tmp_path, capsys, "m.gguf is damaged or cut short: its header breaks off at byte")


@pytest.mark.parametrize("kind", [0, STRING])
def test_a_list_as_long_as_the_file_takes_no_gigabytes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: int
) -> None:
    monkeypatch.setattr(gguf_header, "MAX_HEADER", MB)
    path, size = tmp_path / "m.gguf", 1 << 32
    count = size // 8 if kind == STRING else size
    with path.open("wb") as file:
        file.write(b"GGUF" + struct.pack("<IQQQ", 3, 0, 1, 1) + b"k" + struct.pack("<IIQ", ARRAY, kind, count))
        file.truncate(size + 100)  # zeros, which take no room on the disk
    tracemalloc.start()
    try:
        with pytest.raises(CheckpointError, match="or goes on after 1,048,576"):
            GGUFHeader(path)
        assert tracemalloc.get_traced_memory()[1] < 16 * MB
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("cut", [1, 143, 144, 145])
def test_a_file_that_is_cut_in_its_last_block_is_refused(
    content: bytes, tmp_path: Path, capsys: pytest.CaptureFixture[str], cut: int
) -> None:
    (tmp_path / "m.gguf").write_bytes(content[:-cut])
    refused(tmp_path, capsys, "is cut short: the tensor")


def scale_of(path: Path, name: str, kind: Type) -> int:
    """The byte at which the first block of a matrix has its scale."""
    info = GGUFHeader(path).tensors[name]
    assert info.type == kind
    return info.offset + {Type.Q4_K: 0, Type.Q6_K: 208}[kind]


@pytest.mark.usefixtures("library")
@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize(("name", "kind"), [("blk.0.ffn_down.weight", Type.Q4_K), ("blk.0.attn_v.weight", Type.Q6_K)])
@pytest.mark.parametrize("weights", ["gguf", "keep"])
def test_a_block_whose_scale_is_no_number_is_refused(
    content: bytes,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    name: str,
    kind: Type,
    value: float,
    weights: str,
) -> None:
    path = tmp_path / "m.gguf"
    path.write_bytes(content)
    at = scale_of(path, name, kind)
    path.write_bytes(content[:at] + np.float16(value).tobytes() + content[at + 2 :])
    assert main(["export", str(path), "-o", str(tmp_path / "m.edge"), "--effort", "quick", "--weights", weights]) == 2
    last = capsys.readouterr().err.splitlines()[-1]
    assert last.startswith("edge: ") and ("no numbers" in last or "NaN or infinity" in last), last
    assert [each.name for each in tmp_path.iterdir()] == ["m.gguf"]


@pytest.mark.parametrize("harm", ["cut", "other bytes"])
def test_a_file_that_changes_while_it_is_open_is_an_error_and_no_signal(
    content: bytes, tmp_path: Path, harm: str
) -> None:
    path = tmp_path / "m.gguf"
    path.write_bytes(content)
    checkpoint = open_checkpoint(str(path))
    if harm == "cut":
        os.truncate(path, len(content) // 2)
    else:
        path.write_bytes(bytes(reversed(content)))
    for read in (checkpoint.read, lambda name: checkpoint.gguf_tensor(name, in_place=False)):
        with pytest.raises(CheckpointError, match=r"m\.gguf was changed or cut short while it was open"):
            read("model.layers.0.mlp.down_proj.weight")


@pytest.mark.usefixtures("library")
def test_a_first_run_of_a_damaged_file_leaves_nothing_in_the_cache(
    content: bytes, tmp_path: Path, own_cache: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "m.gguf"
    path.write_bytes(content[:-1])
    assert main(["run", str(path), "hello"]) == 2
    last = capfd.readouterr().err.splitlines()[-1]
    assert last.startswith("edge: ") and "is cut short: the tensor" in last
    assert [each.name for each in own_cache.rglob("*") if each.suffix in (".edge", ".bin", ".part")] == []


@pytest.mark.usefixtures("library")
def test_a_disk_that_is_full_while_an_export_packs_leaves_nothing(
    content: bytes, tmp_path: Path, own_cache: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    path = tmp_path / "m.gguf"
    path.write_bytes(content)
    monkeypatch.setattr("edge.runtime.kernels.packed_writer.PackedWriter.put", full)
    assert main(["export", str(path), "-o", str(tmp_path / "m.edge"), "--effort", "quick", "--weights", "gguf"]) == 2
    last = capsys.readouterr().err.splitlines()[-1]
    assert "The weights of m cannot be packed: No space left on device in" in last and "set EDGE_HOME" in last
    assert [each.name for each in tmp_path.iterdir()] == ["m.gguf"]
    assert not list((own_cache / "packed").glob("*"))
