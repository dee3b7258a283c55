"""What an interrupted calibration leaves in the cache folder, and for whom."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors.numpy
import torch
from decoder_configs import checkpoint_of
from safetensors import SafetensorError

from edge.export.facts.tensors import QTensor
from edge.export.quantize.calibration_cache import EXPORTS, CalibrationCache, open_cache
from edge.export.quantize.rtn import round_to_nearest
from edge.home import cache_dir
from edge.runtime.memory.process import private_bytes


def checkpoint(path: Path | None = None, **changes: Any) -> Any:
    found: Any = checkpoint_of(**changes)
    found.name, found.path, found.stored_type = "tiny", path, lambda name: "F32"
    return found


def left(options: dict[str, object], **changes: Any) -> Path:
    """The folder that an interrupted export leaves."""
    before = set((cache_dir() / "exports").glob("*"))
    with pytest.raises(KeyboardInterrupt), open_cache(checkpoint(**changes), options) as cache:
        cache.tensor("text", lambda: torch.arange(3))
        raise KeyboardInterrupt
    (folder,) = set((cache_dir() / "exports").glob("*")) - before
    return folder


def test_what_is_kept_is_made_once_and_comes_back_as_it_was(tmp_path: Path) -> None:
    weight = round_to_nearest(np.random.default_rng(0).standard_normal((6, 40)).astype("f4"), 4, 16, symmetric=False)
    first = CalibrationCache(tmp_path).weights("layer.0", lambda: {"a.weight": weight, "b.weight": weight})
    again = CalibrationCache(tmp_path).weights("layer.0", lambda: pytest.fail("it was made again"))
    for found in (first, again):
        assert list(found) == ["a.weight", "b.weight"]
        assert (found["a.weight"].bits, found["a.weight"].block_size, found["b.weight"].method) == (4, 16, "rtn")
        assert np.array_equal(found["b.weight"].dequantize(), weight.dequantize())


def test_a_full_disk_stops_the_keeping_and_not_the_export(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(arrays: Any, path: Path, *_: Any) -> None:
        path.write_bytes(b"as much as went")
        raise SafetensorError("I/O error: No space left on device (os error 28)")

    monkeypatch.setattr(safetensors.numpy, "save_file", full)
    assert CalibrationCache(tmp_path).tensor("text", lambda: torch.arange(3)).tolist() == [0, 1, 2]
    assert list(tmp_path.iterdir()) == []


def test_what_is_kept_is_mapped_and_takes_no_private_memory(tmp_path: Path) -> None:
    q = np.ones((2**12, 2**14), np.uint8)  # 64 MiB
    weight = QTensor(4, 64, q, np.ones((2**12, 2**8), np.float32), None, "gptq")
    cache, before = CalibrationCache(tmp_path), private_bytes()
    made = cache.weights("layer.0", lambda: {"a.weight": weight})
    assert made["a.weight"].q is not q and int(made["a.weight"].q.sum()) == q.size
    if before:  # the system tells
        assert private_bytes() - before < q.nbytes / 4


def test_another_model_or_other_options_have_a_folder_of_their_own() -> None:
    folders = {left({"effort": "normal"}), left({"effort": "best"}), left({"effort": "normal"}, vocab_size=332)}
    assert len(folders) == EXPORTS
    with open_cache(checkpoint(), {"effort": "best"}) as cache:
        assert "text" in cache


@pytest.mark.parametrize("what", ["matrix", "configuration", "code"])
def test_a_model_of_the_same_shape_has_a_folder_of_its_own(what: str, monkeypatch: pytest.MonkeyPatch) -> None:
    left({})
    other = checkpoint()
    if what == "matrix":
        name = next(name for name in other.names() if len(other.shape(name)) == 2)
        read = other.read
        other.read = lambda each, rows=None: read(each, rows) + (each == name)
    elif what == "configuration":
        other.config = other.config | {"rope_theta": 1234.0}
    with monkeypatch.context() as patched:
        if what == "code":
            read_bytes = Path.read_bytes
            patched.setattr(Path, "read_bytes", lambda path: read_bytes(path) + b"# changed")
        with open_cache(other, {}) as cache:
            assert "text" not in cache
    with open_cache(checkpoint(), {}) as cache:
        assert "text" in cache


def test_a_file_that_differs_where_nobody_looks_has_a_folder_of_its_own(tmp_path: Path) -> None:
    """A stranger's may have the same vectors and the same rows that are looked at."""
    paths = [tmp_path / name / "model.gguf" for name in ("own", "strangers")]
    for path in paths:
        path.parent.mkdir()
        path.write_bytes(b"weights")
    os.utime(paths[1], ns=(paths[0].stat().st_atime_ns, paths[0].stat().st_mtime_ns))
    left({}, path=paths[1])
    for path in paths:
        with open_cache(checkpoint(path=path), {}) as cache:
            assert ("text" in cache) == (path == paths[1])


def test_a_file_that_was_cut_short_is_made_again(tmp_path: Path) -> None:
    CalibrationCache(tmp_path).tensor("text", lambda: torch.arange(300))
    (file,) = tmp_path.iterdir()
    file.write_bytes(file.read_bytes()[:-100])
    assert CalibrationCache(tmp_path).tensor("text", lambda: torch.arange(3)).tolist() == [0, 1, 2]


@pytest.mark.parametrize("seed", range(20))
def test_a_file_that_was_damaged_anywhere_is_made_again(seed: int, tmp_path: Path) -> None:
    rng = np.random.default_rng(seed)
    weight = round_to_nearest(rng.standard_normal((6, 40)).astype("f4"), 4, 16, symmetric=False)
    CalibrationCache(tmp_path).weights("layer.0", lambda: {"a.weight": weight})
    (file,) = tmp_path.iterdir()
    content = bytearray(file.read_bytes())
    content[rng.integers(len(content))] ^= 1 << rng.integers(8)
    file.write_bytes(content)
    made: list[int] = []
    again = CalibrationCache(tmp_path).weights("layer.0", lambda: made.append(1) or {"a.weight": weight})
    assert np.array_equal(again["a.weight"].dequantize(), weight.dequantize()) and list(again) == ["a.weight"]


def test_the_oldest_of_many_interrupted_exports_goes() -> None:
    for number in range(EXPORTS + 2):
        left({"number": number})
    assert len(list((cache_dir() / "exports").iterdir())) == EXPORTS


def test_a_second_export_at_a_time_keeps_nothing_for_a_third() -> None:
    with open_cache(checkpoint(), {}) as first:
        with open_cache(checkpoint(), {}) as second:
            assert second.tensor("text", lambda: torch.arange(3)).tolist() == [0, 1, 2]
            assert "text" not in first
        assert len(list((cache_dir() / "exports").iterdir())) == 1


def test_a_cache_that_cannot_be_written_is_no_fault(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EDGE_HOME", str(tmp_path / "file"))
    (tmp_path / "file").write_text("")
    with open_cache(checkpoint(), {}) as cache:
        assert cache.tensor("text", lambda: torch.arange(3)).tolist() == [0, 1, 2]
