"""Kernels of our own on the provider `cpu`: when they run, when they do not, and what is said then."""

from __future__ import annotations

import dataclasses
import logging
import mmap
from importlib import import_module
from pathlib import Path

import numpy as np
import onnxruntime as ort
import pytest

from edge.bundle import Bundle
from edge.home import cache_dir
from edge.runtime.kernels import library as kernels
from edge.runtime.kernels.library import VARIABLE, Kernels, find_kernels
from edge.runtime.kernels.packed import Matrix
from edge.runtime.kernels.packed_file import PackedFile
from edge.runtime.load import open_engine
from edge.runtime.providers import cpu

TOKENS = np.array([5, 7, 9])


@pytest.fixture(autouse=True)
def nothing_said_yet() -> None:
    kernels.without_kernels.cache_clear()


def logits(bundle: Bundle) -> bytes:
    engine = open_engine(bundle)
    return engine.step(engine.new_cache(), TOKENS).tobytes()


def runs_ours(bundle: Bundle) -> bool:
    return open_engine(bundle).session.independent


def packed_file() -> Path:
    (found,) = (cache_dir() / "packed").iterdir()
    return found


def test_weights_are_packed_once_and_mapped(
    tiny_bundle: Bundle, library: Kernels, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = logits(tiny_bundle)
    written = packed_file().stat().st_mtime_ns
    monkeypatch.setattr(Kernels, "pack", lambda *given: pytest.fail("packed again"))
    assert logits(tiny_bundle) == first
    assert packed_file().stat().st_mtime_ns >= written
    engine = open_engine(tiny_bundle)
    (matrix, *_) = engine.session.inference.edge_matrices
    lies: object = matrix
    while isinstance(lies, np.ndarray | memoryview):
        lies = lies.base if isinstance(lies, np.ndarray) else lies.obj
    assert isinstance(lies, mmap.mmap)


@pytest.mark.parametrize("harm", ["cut short", "its end is missing", "empty", "other bytes"])
def test_a_damaged_file_of_packed_weights_is_made_anew(tiny_bundle: Bundle, library: Kernels, harm: str) -> None:
    first = logits(tiny_bundle)
    whole = packed_file().read_bytes()
    harmed = {"cut short": whole[: len(whole) // 2], "its end is missing": whole[:-1], "empty": b""}
    packed_file().write_bytes(harmed.get(harm, b"\xff" * len(whole)))
    assert logits(tiny_bundle) == first
    assert packed_file().read_bytes() == whole


def test_a_file_of_another_version_is_left_alone(tiny_bundle: Bundle, library: Kernels) -> None:
    logits(tiny_bundle)
    other = packed_file().rename(packed_file().with_name("0123-0.bin"))
    logits(tiny_bundle)
    assert len(list(other.parent.iterdir())) == 2


def test_where_nothing_can_be_written_the_stock_kernels_run_and_it_is_said_once(
    tiny_bundle: Bundle, library: Kernels, caplog: pytest.LogCaptureFixture
) -> None:
    cache_dir().mkdir(parents=True, exist_ok=True)
    (cache_dir() / "packed").write_text("a file where the folder would be")
    with caplog.at_level(logging.WARNING):
        assert not runs_ours(tiny_bundle)
        assert not runs_ours(tiny_bundle)
    assert len(caplog.records) == 1
    assert "onnxruntime's own kernels run, more slowly: the weights cannot be kept" in caplog.text


def test_an_onnxruntime_that_does_not_take_them_runs_its_own(
    tiny_bundle: Bundle,
    library: Kernels,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    stranger = tmp_path / "library.so"
    stranger.write_bytes(b"no library")
    monkeypatch.setattr(cpu, "find_kernels", lambda: dataclasses.replace(library, path=stranger))
    with caplog.at_level(logging.WARNING):
        assert not runs_ours(tiny_bundle)
        assert not runs_ours(tiny_bundle)
    assert len(caplog.records) == 1
    assert f"onnxruntime {ort.__version__} does not take edge_kernels" in caplog.text


@pytest.mark.parametrize("found", ["nothing for this processor", "wrong results", "no library", "another version"])
def test_a_library_that_cannot_be_used_is_said(
    library: Kernels, found: str, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    find_kernels.cache_clear()
    try:
        if found == "nothing for this processor":
            monkeypatch.setenv(VARIABLE, "amx")
            told = "this processor cannot run amx"
        elif found == "another version":
            monkeypatch.setattr(kernels, "INTERFACE", 99)
            told = "is of another version of edge; build it again"
        elif found == "wrong results":
            monkeypatch.setattr(kernels, "_computes", lambda library: False)
            told = "computes wrong results here"
        else:
            monkeypatch.setattr(import_module(kernels.PACKAGE), "LIBRARY", tmp_path / "none.so")
            told = "cannot be loaded"
        with caplog.at_level(logging.WARNING):
            assert find_kernels() is None and find_kernels() is None
        assert len(caplog.records) == 1 and told in caplog.text
    finally:
        find_kernels.cache_clear()


def test_the_library_sees_that_its_products_are_right(library: Kernels) -> None:
    assert library.calls.edge_check() == 1


def test_weights_are_mapped_where_their_folder_can_be_written(
    library: Kernels, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert kernels.map_weights()
    monkeypatch.setattr(kernels.os, "access", lambda *given: False)
    assert not kernels.map_weights()
    monkeypatch.undo()
    monkeypatch.setattr(kernels, "find_kernels", lambda: None)
    assert not kernels.map_weights()


def test_a_file_of_packed_weights_says_what_is_wrong_with_it(tmp_path: Path) -> None:
    path = tmp_path / "packed.bin"
    path.write_bytes(b"123")
    with pytest.raises(ValueError, match="cut short"):
        PackedFile(path, Matrix)
