"""Fixtures that several test files share."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pytest

from edge.bundle import Bundle, BundleWriter
from edge.manifest import Dims, Graph, KVLayer, KVLayout, Manifest, Source, TensorGroup, Tokens


@pytest.fixture(autouse=True)
def own_cache(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A cache folder of its own for every test, so that none reads or leaves anything in the user's."""
    home = tmp_path_factory.mktemp("edge-home")
    monkeypatch.setenv("EDGE_HOME", str(home))
    return home


@pytest.fixture(scope="session")
def manifest() -> Manifest:
    """A manifest of a model that does not exist."""
    return Manifest(
        format_version=1,
        producer="edge test",
        name="paper",
        family="llama",
        kind="decoder",
        weights="int4",
        dims=Dims(2, 64, 96, 4, 2, 16, 100),
        context=256,
        graphs=[Graph("decoder", "graphs/decoder.onnx")],
        kv=KVLayout("float32", [KVLayer(2, 16), KVLayer(2, 16, 32)]),
        groups=[TensorGroup("attention", 1000, 625, 4.0, 32, "rtn"), TensorGroup("norm", 100, 400, 32.0, 0, "float32")],
        tokens=Tokens(1, [2], None, True),
        chat_template=None,
        source=Source("paper", "directory", "Apache-2.0"),
        quality={"top1_agreement": 0.97},
    )


@pytest.fixture(scope="session")
def pristine_paper_bundle(tmp_path_factory: pytest.TempPathFactory, manifest: Manifest) -> Bundle:
    with BundleWriter(tmp_path_factory.mktemp("paper") / "paper.edge") as writer:
        writer.add_tensor("a", np.arange(3000, dtype=np.float32))
        writer.add_tensor("b", np.ones((2, 3), np.uint8))
        writer.write_file("graphs/decoder.onnx", b"no graph")
        writer.write_file("tokenizer.json", "{}")
        writer.write_file("golden.json", "{}")
        return writer.commit(manifest)


@pytest.fixture
def paper_bundle(tmp_path: Path, pristine_paper_bundle: Bundle) -> Bundle:
    """A whole bundle on disk, with files that no engine can run; the test may harm it."""
    return Bundle(
        Path(shutil.copytree(pristine_paper_bundle.root, tmp_path / "paper.edge")), pristine_paper_bundle.manifest
    )
