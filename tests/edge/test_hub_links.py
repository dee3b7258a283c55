"""Bundles whose files are links: those of a hub's cache open, and no other link that leaves its folder."""

from __future__ import annotations

import hashlib
import os
import shutil
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from edge.bundle import Bundle, open_bundle
from edge.cli.main import main
from edge.errors import BundleError
from edge.hub_links import is_within

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="links need a privilege there")

REPOSITORY, REVISION = "models--org--toy", "0123456789abcdef0123456789abcdef01234567"


def as_in_a_hubs_cache(source: Path, cache: Path, inside: str = "") -> Path:
    """The folder with the content of another, laid out as the hub's library does."""
    repository = cache / REPOSITORY
    snapshot = repository / "snapshots" / REVISION / inside
    (repository / "blobs").mkdir(parents=True, exist_ok=True)
    for file in source.rglob("*"):
        if file.is_file():
            blob = repository / "blobs" / hashlib.sha256(file.read_bytes()).hexdigest()
            shutil.copy(file, blob)
            link = snapshot / file.relative_to(source)
            link.parent.mkdir(parents=True, exist_ok=True)
            link.symlink_to(os.path.relpath(blob, link.parent))
    return snapshot


@pytest.mark.parametrize("kernels", ["", "off"])
@pytest.mark.parametrize("inside", ["", "tiny.edge", "deep/er/tiny.edge"])
def test_a_bundle_in_a_hubs_cache_gives_the_answers_of_the_bundle(
    tiny_bundle: Bundle, tmp_path: Path, inside: str, kernels: str, request: pytest.FixtureRequest,
    capfd: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    if kernels:
        request.getfixturevalue("onnxruntimes_kernels")
    asked = ["the moon", "--raw", "--max-tokens", "9"]
    assert main(["run", str(tiny_bundle.root), *asked]) == 0
    wanted = capfd.readouterr().out
    root = as_in_a_hubs_cache(tiny_bundle.root, tmp_path / "hub", inside)
    assert main(["run", str(root), *asked]) == 0
    out, err = capfd.readouterr()
    assert out == wanted and err.count("\n") == 1, "the figures, and no warning of a library"
    assert main(["verify", str(root)]) == 0
    linked = tmp_path / "linked.edge"
    linked.symlink_to(root)
    assert main(["run", str(linked), *asked]) == 0


def test_a_models_folder_in_a_hubs_cache_can_be_exported(tiny_checkpoint: Path, tmp_path: Path) -> None:
    from edge.export.checkpoint import open_checkpoint

    root = as_in_a_hubs_cache(tiny_checkpoint, tmp_path / "hub")
    assert set(open_checkpoint(str(root)).names()) == set(open_checkpoint(str(tiny_checkpoint)).names())


def blob(root: Path) -> Path:
    return next((root / "weights.bin").resolve().parent.iterdir())


ELSEWHERE: dict[str, Callable[[Path, Path, Path], object]] = {
    "straight to a secret": lambda root, link, secret: link.symlink_to(secret),
    "through a blob": lambda root, link, secret: (
        (blob(root).parent / ("a" * 64)).symlink_to(secret),
        link.symlink_to(blob(root).parent / ("a" * 64)),
    ),
    "to a blob of another repository": lambda root, link, secret: (
        (root.parents[2] / "models--org--other" / "blobs").mkdir(parents=True),
        shutil.copy(secret, root.parents[2] / "models--org--other" / "blobs" / ("a" * 64)),
        link.symlink_to(root.parents[2] / "models--org--other" / "blobs" / ("a" * 64)),
    ),
    "to what is no blob by its name": lambda root, link, secret: (
        shutil.copy(secret, blob(root).parent / "token"),
        link.symlink_to(blob(root).parent / "token"),
    ),
    "to a revision's other file": lambda root, link, secret: (
        (root.parent / "other").mkdir(),
        shutil.copy(secret, root.parent / "other" / ("a" * 64)),
        link.symlink_to(root.parent / "other" / ("a" * 64)),
    ),
    "into blobs that are elsewhere": lambda root, link, secret: (
        secret.rename(secret.with_name("b" * 64)),
        shutil.rmtree(root.parents[1] / "blobs"),
        (root.parents[1] / "blobs").symlink_to(secret.parent),
        link.symlink_to(root.parents[1] / "blobs" / ("b" * 64)),
    ),
    "by an absolute circle": lambda root, link, secret: link.symlink_to(link),
}


@pytest.mark.parametrize("how", ELSEWHERE)
def test_a_link_that_leads_elsewhere_is_refused(tiny_bundle: Bundle, tmp_path: Path, how: str) -> None:
    root = as_in_a_hubs_cache(tiny_bundle.root, tmp_path / "hub")
    secret = tmp_path / "secrets" / "secret"
    secret.parent.mkdir()
    shutil.copy(root / "golden.json", secret)
    (root / "golden.json").unlink()
    ELSEWHERE[how](root, root / "golden.json", secret)
    with pytest.raises(BundleError, match=r"leads out of the bundle|cannot be read|is not a bundle"):
        open_bundle(root)


@pytest.mark.parametrize("layout", ["{}/snapshots/x", "models--a--b/{}/x", "models--a--b", "a/models--a--b/snapshots"])
def test_only_the_layout_of_a_hubs_cache_counts(tmp_path: Path, layout: str) -> None:
    folder = tmp_path / layout.format("other")
    folder.mkdir(parents=True)
    for blobs in (folder / "blobs", folder.parent / "blobs", folder.parents[1] / "blobs"):
        if blobs.is_relative_to(folder):
            continue
        blobs.mkdir(exist_ok=True)
        (blobs / ("a" * 64)).write_text("")
        (folder / "file").unlink(missing_ok=True)
        (folder / "file").symlink_to(blobs / ("a" * 64))
        assert not is_within(folder, "file")
