"""Fixtures that several test files share."""

from __future__ import annotations

import os
import shutil
import signal
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pytest
from texts import SENTENCES
from tiny_decoders import six_layer_llama, tiny_llama

from edge.bundle import Bundle, BundleWriter
from edge.manifest import FORMAT_VERSION, Dims, Graph, KVLayer, KVLayout, Manifest, Source, TensorGroup, Tokens
from edge.runtime.kernels.library import Kernels, find_kernels

if TYPE_CHECKING:
    from edge.export.tune.network import Network


def pytest_configure() -> None:
    """Torch with one thread, here and in what tests start: more cost tiny models more than they bring, and wait for
    each other on a busy machine. Tests that run beside others (pytest-xdist) have a core of their own: the threads of
    onnxruntime spin, and those of two sessions on the same cores wait for each other."""
    threads = os.environ.setdefault("OMP_NUM_THREADS", "1")
    if "torch" in sys.modules:  # which has read the variable when it was imported
        sys.modules["torch"].set_num_threads(int(threads))
    worker = os.environ.get("PYTEST_XDIST_WORKER", "")  # gw0, gw1, ...
    if worker and hasattr(os, "sched_setaffinity"):
        cores = sorted(os.sched_getaffinity(0))
        os.sched_setaffinity(0, {cores[int(worker.removeprefix("gw")) % len(cores)]})
    if worker:
        os.environ.pop("COLUMNS", None)  # which xdist sets: no terminal is as wide as anything


@pytest.fixture(autouse=True)
def own_cache(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A cache folder of its own for every test, so that none reads or leaves anything in the user's."""
    home = tmp_path_factory.mktemp("edge-home")
    monkeypatch.setenv("EDGE_HOME", str(home))
    return home


@pytest.fixture(scope="session")
def library() -> Kernels:
    """The library of kernels, where it is installed and this processor can run it."""
    found = find_kernels()
    if found is None:
        assert "EDGE_TEST_KERNELS_REQUIRED" not in os.environ, "they must be built, and run here"
        pytest.skip("edge-lm-kernels is not installed, or this processor cannot run it")
    return found


@pytest.fixture
def onnxruntimes_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    """As where edge-lm-kernels is not installed: what export records, and what a lone row differs in."""
    monkeypatch.setattr("edge.runtime.providers.cpu.find_kernels", lambda: None)
    monkeypatch.setattr("edge.runtime.kernels.graph.find_kernels", lambda: None)
    monkeypatch.setattr("edge.runtime.memory.footprint.map_weights", lambda: False)


if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:  # as a shell starts what runs behind it, and commands inherit
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(scope="session")
def manifest() -> Manifest:
    """A manifest of a model that does not exist."""
    return Manifest(
        format_version=FORMAT_VERSION,
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


@pytest.fixture(scope="session")
def tiny_checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model directory as transformers writes it: a random Llama of two layers, and a byte-level tokenizer."""
    return tiny_llama(tmp_path_factory.mktemp("tiny") / "tiny-llama")


@pytest.fixture(scope="session")
def pristine_tiny_bundle(tmp_path_factory: pytest.TempPathFactory, tiny_checkpoint: Path) -> Bundle:
    import edge

    return edge.export(
        tiny_checkpoint, tmp_path_factory.mktemp("bundle") / "tiny.edge", weights="int8", candidates=True
    )


@pytest.fixture(scope="session")
def int4_bundle(tmp_path_factory: pytest.TempPathFactory, tiny_checkpoint: Path) -> Bundle:
    """The tiny model in 4 bits, calibrated, without segments."""
    import edge

    out = tmp_path_factory.mktemp("int4") / "tiny.edge"
    return edge.export(tiny_checkpoint, out, weights="int4", calibration=" ".join(SENTENCES), check=False)


@pytest.fixture
def tiny_bundle(tmp_path: Path, pristine_tiny_bundle: Bundle) -> Bundle:
    """The tiny checkpoint's bundle, which every engine can run; the test may harm it."""
    return Bundle(
        Path(shutil.copytree(pristine_tiny_bundle.root, tmp_path / "tiny.edge")), pristine_tiny_bundle.manifest
    )


@pytest.fixture(scope="session")
def six_layers(tmp_path_factory: pytest.TempPathFactory, tiny_checkpoint: Path) -> Path:
    """The tiny checkpoint's like with six layers, every one of which matters to the answer."""
    return six_layer_llama(tmp_path_factory.mktemp("six") / "six-layers", tiny_checkpoint)


@pytest.fixture(scope="module")
def network(six_layers: Path) -> Network:
    """The model of six layers with adapters, as `edge tune` trains it."""
    from edge.export.checkpoint import open_checkpoint
    from edge.export.tune.network import Network

    return Network(open_checkpoint(str(six_layers)), rank=4, seed=1, device="cpu", bf16=False)


@pytest.fixture(scope="session")
def by_layer(tmp_path_factory: pytest.TempPathFactory, six_layers: Path) -> Bundle:
    """Its bundle in float32, in segments of one layer."""
    import edge

    return edge.export(six_layers, tmp_path_factory.mktemp("bundle") / "six.edge", weights="fp32", segments=1)


@pytest.fixture(scope="session")
def by_half(tmp_path_factory: pytest.TempPathFactory, six_layers: Path) -> Bundle:
    """Its bundle in float32, in segments of half a layer."""
    import edge

    return edge.export(six_layers, tmp_path_factory.mktemp("bundle") / "halves.edge", weights="fp32", segments="ffn")
