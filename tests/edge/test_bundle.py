"""The bundle on disk: written whole or not at all, and read with suspicion."""

from __future__ import annotations

import json
import os
import pickle
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import pytest

from edge import bundle as bundles
from edge import swap
from edge.bundle import PAGE, WEIGHTS, Bundle, BundleWriter, open_bundle, sha256_of
from edge.errors import BundleError, ExportError
from edge.manifest import Manifest, sealed
from edge.runtime.engine.engine import Engine
from edge.runtime.load import open_engine


def write(target: Path, manifest: Manifest, *, force: bool = False, golden: str = "{}") -> Bundle:
    with BundleWriter(target, force=force) as writer:
        writer.add_tensor("a", np.arange(10, dtype=np.float32))
        for name in ("graphs/decoder.onnx", "tokenizer.json"):
            writer.write_file(name, "x")
        writer.write_file("golden.json", golden)
        return writer.commit(manifest)


def test_another_process_can_write_in_place_of_the_one_that_commits(tmp_path: Path, manifest: Manifest) -> None:
    with BundleWriter(tmp_path / "x.edge") as writer:
        other = pickle.loads(pickle.dumps(writer))
        span = other.add_tensor("a", np.arange(10, dtype=np.float32))
        other.write_file("golden.json", "{}")
        other.flush()
        bundle = writer.commit(manifest)
    assert {file.path: file.size for file in bundle.manifest.files} == {"golden.json": 2, WEIGHTS: span.length}
    assert names(tmp_path) == ["x.edge"]


def names(folder: Path) -> list[str]:
    return sorted(p.name for p in folder.iterdir())


def test_what_is_written_is_read_back(paper_bundle: Bundle) -> None:
    read = open_bundle(paper_bundle.root)
    assert read.manifest == paper_bundle.manifest
    read.check_files()
    assert [f.path for f in read.manifest.files] == [
        "golden.json",
        "graphs/decoder.onnx",
        "tokenizer.json",
        "weights.bin",
    ]


def test_tensors_start_on_pages_and_keep_their_bytes(tmp_path: Path, manifest: Manifest) -> None:
    arrays = {
        "a": np.arange(5, dtype=np.float32),
        "empty": np.zeros((0, 3), np.float32),
        "scalar": np.float32(7.0).reshape(()),
        "columns": np.arange(12, dtype=np.int64).reshape(3, 4).T,
        "last": np.arange(PAGE, dtype=np.uint8),
    }
    with BundleWriter(tmp_path / "x.edge") as writer:
        spans = {name: writer.add_tensor(name, array) for name, array in arrays.items()}
        assert writer.add_tensor("a", arrays["a"]) == spans["a"]
        writer.flush()
        stored = (writer.staging / WEIGHTS).read_bytes()
    for name, array in arrays.items():
        span = spans[name]
        assert span.offset % PAGE == 0
        assert stored[span.offset : span.offset + span.length] == np.ascontiguousarray(array).tobytes()


def test_leaving_without_commit_leaves_nothing(tmp_path: Path) -> None:
    for error in (ValueError, KeyboardInterrupt):
        with pytest.raises(error), BundleWriter(tmp_path / "x.edge") as writer:
            writer.add_tensor("a", np.ones(10))
            raise error
    assert names(tmp_path) == []


def test_an_existing_bundle_is_replaced_only_by_force(tmp_path: Path, manifest: Manifest) -> None:
    target = tmp_path / "x.edge"
    write(target, manifest, golden='{"old": 1}')
    with pytest.raises(ExportError, match="exists already.*--force"):
        write(target, manifest)
    write(target, manifest, force=True, golden='{"new": 1}')
    assert (target / "golden.json").read_text() == '{"new": 1}'
    assert names(tmp_path) == ["x.edge"]


def test_force_does_not_replace_what_is_no_bundle(tmp_path: Path, manifest: Manifest) -> None:
    (tmp_path / "photos").mkdir()
    (tmp_path / "photos" / "cat.jpg").write_text("meow")
    with pytest.raises(ExportError, match="is not a bundle"):
        write(tmp_path / "photos", manifest, force=True)
    assert names(tmp_path / "photos") == ["cat.jpg"]


def test_a_replacement_that_fails_at_the_last_step_leaves_the_old_bundle(
    tmp_path: Path, manifest: Manifest, monkeypatch: pytest.MonkeyPatch
) -> None:
    target = tmp_path / "x.edge"
    write(target, manifest, golden='{"old": 1}')

    def fail(made: Path, place: Path) -> bool:
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(swap, "exchange", fail)
    with pytest.raises(ExportError, match="Input/output error"):
        write(target, manifest, force=True)
    monkeypatch.undo()
    open_bundle(target).check_files()
    assert (target / "golden.json").read_text() == '{"old": 1}'
    assert names(tmp_path) == ["x.edge"]


def test_a_folder_that_cannot_be_written_is_one_sentence(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(ExportError, match=r"could not be written: (Not a directory|File exists)"):
        BundleWriter(tmp_path / "file" / "x.edge")


def test_what_a_killed_export_left_is_swept_by_the_next(tmp_path: Path, manifest: Manifest) -> None:
    gone = subprocess.Popen([sys.executable, "-c", ""])
    gone.wait()
    dead = tmp_path / f".x.edge.{gone.pid}.part"
    alive = tmp_path / f".x.edge.{os.getppid()}.part"
    other = tmp_path / f".y.edge.{gone.pid}.part"
    for folder in (dead, alive, other):
        folder.mkdir()
    write(tmp_path / "x.edge", manifest)
    assert not dead.exists()
    assert alive.exists()
    assert other.exists()


@pytest.mark.parametrize(
    ("harm", "message"),
    [
        (lambda p: p.unlink(), "is missing"),
        (lambda p: p.write_bytes(p.read_bytes()[:-1]), "bytes long where the manifest says"),
        (lambda p: p.write_bytes(p.read_bytes() + b"x"), "bytes long where the manifest says"),
        (lambda p: p.write_bytes(bytes([p.read_bytes()[0] ^ 1]) + p.read_bytes()[1:]), "is damaged"),
    ],
)
@pytest.mark.parametrize("name", ["weights.bin", "graphs/decoder.onnx", "tokenizer.json", "golden.json"])
def test_a_harmed_file_is_named(paper_bundle: Bundle, name: str, harm: Callable[[Path], object], message: str) -> None:
    path = paper_bundle.path(name)
    harm(path)
    for check in (paper_bundle.check_files, paper_bundle.check_files_once):
        with pytest.raises(BundleError, match=message) as caught:
            check()
        assert str(path) in str(caught.value)


@pytest.mark.parametrize(
    "name",
    ["../secret", "/etc/passwd", "graphs/../../secret", "a\\..\\b", "C:secret", "", "nul\0l", "link/secret"],
)
def test_a_path_out_of_the_bundle_is_refused(paper_bundle: Bundle, tmp_path: Path, name: str) -> None:
    (paper_bundle.root / "link").symlink_to(tmp_path)
    file = paper_bundle.root / "edge.json"
    for place in ("files", "graphs"):
        raw = json.loads(paper_bundle.manifest.to_json())
        raw[place][0]["path"] = name
        file.write_text(sealed(raw))
        with pytest.raises(BundleError, match="leads out of the bundle"):
            open_bundle(paper_bundle.root)


@pytest.mark.parametrize("skip", ["off", "skipdecode:3-6"])  # whose graph has branches
@pytest.mark.parametrize("location", ["../outside.bin", "{outside}", "link.bin", "folder/outside.bin"])
def test_a_graph_whose_weights_lie_out_of_the_bundle_is_refused(
    by_layer: Bundle, tmp_path: Path, location: str, skip: str
) -> None:
    root = Path(shutil.copytree(by_layer.root, tmp_path / "six.edge"))
    outside = Path(shutil.copy(root / "weights.bin", tmp_path / "outside.bin"))
    (root / "link.bin").symlink_to(outside)
    (root / "folder").symlink_to(tmp_path)
    bundle = Bundle(root, by_layer.manifest)
    graph = bundle.path(bundle.manifest.graph("decoder" if skip == "off" else "skip").path)
    model = onnx.load(graph, load_external_data=False)
    stored = next(tensor for tensor in model.graph.initializer if tensor.external_data)
    (place,) = (entry for entry in stored.external_data if entry.key == "location")

    def opened(location: str) -> Engine:
        place.value = location
        graph.write_bytes(model.SerializeToString())
        return open_engine(bundle, skip=skip, context=32)

    assert opened("./weights.bin").context == 32
    with pytest.raises(BundleError, match=r"External data path"):
        opened(location.format(outside=outside))


@pytest.mark.parametrize("files", [{}, {"files": []}])
def test_a_manifest_that_lists_nothing_is_refused(paper_bundle: Bundle, files: dict[str, list[str]]) -> None:
    raw = json.loads(paper_bundle.manifest.to_json())
    raw.pop("files")
    (paper_bundle.root / "edge.json").write_text(sealed(raw | files))
    with pytest.raises(BundleError, match="lists no files"):
        open_bundle(paper_bundle.root)


@pytest.mark.parametrize("name", ["weights.bin", "tokenizer.json", "golden.json", "graphs/decoder.onnx"])
def test_a_manifest_must_list_what_the_contract_names(paper_bundle: Bundle, name: str) -> None:
    raw = json.loads(paper_bundle.manifest.to_json())
    raw["files"] = [f for f in raw["files"] if f["path"] != name]
    (paper_bundle.root / "edge.json").write_text(sealed(raw))
    with pytest.raises(BundleError, match=f"does not list '{name}'"):
        open_bundle(paper_bundle.root)


def test_what_is_no_bundle_is_named(tmp_path: Path) -> None:
    with pytest.raises(BundleError, match="There is no bundle at"):
        open_bundle(tmp_path / "nothing.edge")
    with pytest.raises(BundleError, match="is not a bundle"):
        open_bundle(tmp_path)
    (tmp_path / "file.edge").write_text("x")
    with pytest.raises(BundleError, match="is not a bundle"):
        open_bundle(tmp_path / "file.edge")
    (tmp_path / "edge.json").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(BundleError, match="not a text file"):
        open_bundle(tmp_path)


class Hashing:
    """Counts how many files are hashed."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.count = 0

        def counting(path: Path, progress: object = None) -> str:
            self.count += 1
            return sha256_of(path)

        monkeypatch.setattr(bundles, "sha256_of", counting)


@pytest.fixture
def settled(paper_bundle: Bundle, monkeypatch: pytest.MonkeyPatch) -> Bundle:
    """A bundle whose files count as long unchanged."""
    monkeypatch.setattr(bundles, "SETTLED_NS", -1)
    return paper_bundle


def test_unchanged_files_are_hashed_once(settled: Bundle, monkeypatch: pytest.MonkeyPatch) -> None:
    hashing = Hashing(monkeypatch)
    settled.check_files_once()
    assert hashing.count == 4
    open_bundle(settled.root).check_files_once()
    assert hashing.count == 4


def test_any_change_of_a_file_is_seen(settled: Bundle, monkeypatch: pytest.MonkeyPatch) -> None:
    settled.check_files_once()
    path = settled.path("weights.bin")
    times = path.stat().st_atime_ns, path.stat().st_mtime_ns
    data = bytearray(path.read_bytes())
    data[5] ^= 1
    with path.open("r+b") as f:  # the same inode and size, and the times put back
        f.write(data)
    os.utime(path, ns=times)
    with pytest.raises(BundleError, match="is damaged"):
        settled.check_files_once()


def test_a_manifest_of_other_sums_is_seen(settled: Bundle) -> None:
    settled.check_files_once()
    text = settled.manifest.to_json().replace(settled.manifest.files[0].sha256, "0" * 64)
    (settled.root / "edge.json").write_text(text)
    with pytest.raises(BundleError, match="is damaged"):
        open_bundle(settled.root).check_files_once()


def test_files_changed_a_moment_ago_are_hashed_again(paper_bundle: Bundle, monkeypatch: pytest.MonkeyPatch) -> None:
    hashing = Hashing(monkeypatch)
    paper_bundle.check_files_once()
    paper_bundle.check_files_once()
    assert hashing.count == 8


def test_without_a_writable_cache_every_check_reads(
    settled: Bundle, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "no-folder").write_text("")
    monkeypatch.setenv("EDGE_HOME", str(tmp_path / "no-folder"))
    hashing = Hashing(monkeypatch)
    settled.check_files_once()
    settled.check_files_once()
    assert hashing.count == 8


def test_a_broken_stamp_is_written_anew(settled: Bundle, own_cache: Path) -> None:
    settled.check_files_once()
    (stamp,) = (own_cache / "checked").iterdir()
    whole = stamp.read_text()
    stamp.write_text(whole[:40])
    settled.check_files_once()
    assert stamp.read_text() == whole


def test_progress_is_told_of_every_byte(paper_bundle: Bundle) -> None:
    read: list[int] = []
    paper_bundle.check_files(read.append)
    assert sum(read) == sum(file.size for file in paper_bundle.manifest.files)
