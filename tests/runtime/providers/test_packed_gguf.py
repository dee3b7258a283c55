"""The packed weights of GGUF files: whole, of the right file, or made anew."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest
from gguf import GGMLQuantizationType as Type
from gguf_files import tiny_model, write_gguf

import edge
from edge.bundle import Bundle
from edge.cli.main import main
from edge.errors import BundleError
from edge.gguf_parts import GGUF
from edge.home import cache_dir
from edge.runtime.kernels import packed_gguf
from edge.runtime.kernels.library import Kernels
from edge.runtime.kernels.packed_gguf import gguf_path
from edge.runtime.kernels.packed_writer import PackedWriter
from edge.runtime.load import open_engine

TOKENS = np.array([5, 7, 9])
TYPES = {"token_embd.w": Type.Q8_0, "ffn_up.w": Type.Q5_1, "attn_q.w": Type.Q4_0, "attn_k.w": Type.Q4_1}

pytestmark = pytest.mark.usefixtures("library")


def logits(bundle: Bundle) -> bytes:
    engine = open_engine(bundle)
    return engine.step(engine.new_cache(), TOKENS).tobytes()


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return write_gguf(tmp_path / "m.gguf", tiny_model("llama"), types=TYPES)


@pytest.fixture
def bundle(file: Path, tmp_path: Path) -> Bundle:
    return edge.export(file, tmp_path / "m.edge", weights=GGUF, effort="quick", max_context=64, in_place=True)


@pytest.mark.parametrize("harm", ["gone", "cut", "other bytes", "empty", "another file's"])
def test_a_damaged_file_is_made_anew(bundle: Bundle, library: Kernels, tmp_path: Path, harm: str) -> None:
    wanted, path = logits(bundle), gguf_path(bundle, library)
    whole = path.read_bytes()
    if harm == "another file's":
        other = write_gguf(tmp_path / "other.gguf", tiny_model("llama", rms_norm_eps=1e-4), types=TYPES)
        os.utime(other, ns=(5, 5))
        second = edge.export(other, tmp_path / "o.edge", weights=GGUF, effort="quick", max_context=64, in_place=True)
        path.write_bytes(gguf_path(second, library).read_bytes())
    else:
        harmed = {"cut": whole[:-100], "other bytes": b"\xff" * 999 + whole[999:], "empty": b""}.get(harm)
        path.unlink()
        if harmed is not None:
            path.write_bytes(harmed)
    assert logits(bundle) == wanted
    assert path.read_bytes() == whole


@pytest.mark.parametrize("piece", [1, 5000, 1 << 30])
def test_pieces_make_no_difference(
    bundle: Bundle, library: Kernels, monkeypatch: pytest.MonkeyPatch, piece: int
) -> None:
    path = gguf_path(bundle, library)
    whole = path.read_bytes()
    path.unlink()
    monkeypatch.setattr(packed_gguf, "PIECE", piece)
    logits(bundle)
    assert path.read_bytes() == whole


def test_models_of_the_same_sizes_are_told_apart_while_they_are_written(tmp_path: Path) -> None:
    """Before a bundle is whole nothing but its weights says which these are."""
    for number in (1, 2):
        model = tiny_model("llama")
        for parameter in model.parameters():
            parameter.data *= number
        path = write_gguf(tmp_path / f"{number}.gguf", model, types=TYPES)
        edge.export(path, tmp_path / f"{number}.edge", weights=GGUF, effort="quick", max_context=64)
        assert main(["verify", str(tmp_path / f"{number}.edge")]) == 0


def test_a_full_disk_is_said_and_leaves_nothing(
    bundle: Bundle, library: Kernels, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = gguf_path(bundle, library)
    path.unlink()

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(PackedWriter, "put", full)
    with pytest.raises(BundleError, match="No space left on device"):
        open_engine(bundle)
    assert list(path.parent.iterdir()) == []


def test_a_file_that_is_cut_while_it_is_packed_is_said(
    file: Path, bundle: Bundle, library: Kernels, monkeypatch: pytest.MonkeyPatch
) -> None:
    gguf_path(bundle, library).unlink()
    monkeypatch.setattr(Bundle, "check_external", lambda self: None)  # it happens later
    os.truncate(file, file.stat().st_size // 2)
    with pytest.raises(BundleError, match=r"m\.gguf ends before the weights"):
        open_engine(bundle)


def test_where_nothing_can_be_kept_it_answers_all_the_same(
    bundle: Bundle, library: Kernels, monkeypatch: pytest.MonkeyPatch
) -> None:
    wanted, path = logits(bundle), gguf_path(bundle, library)
    path.unlink()

    def refused(*_: object) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr("edge.runtime.kernels.packed_writer.replacing", refused)
    assert logits(bundle) == wanted and not path.exists()


def test_rm_and_verify_know_of_it(bundle: Bundle, library: Kernels, capsys: pytest.CaptureFixture[str]) -> None:
    path = gguf_path(bundle, library)
    before = path.stat().st_mtime_ns
    assert main(["verify", str(bundle.root)]) == 0
    assert path.stat().st_mtime_ns > before, "what answers is made of the file"
    assert str(cache_dir()) in str(path)
