"""A quick export of a GGUF file needs neither PyTorch nor transformers, and answers as their model does."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gguf import GGMLQuantizationType as Type
from gguf_files import tiny_model, write_gguf

import edge
from edge.bundle import open_bundle
from edge.cli.main import main
from edge.export.checkpoint import open_checkpoint
from edge.export.graph.families import FAMILIES
from edge.export.reference import Reference
from edge.export.torch_reference import TorchLogits, load_torch
from edge.extras import EXTRAS
from edge.runtime.check.golden import read_golden, replay_golden
from edge.runtime.check.perplexity import EngineLogits, compare
from edge.runtime.load import open_engine

# A script that exports each file it is given in an interpreter which has the plain install and the extra gguf alone.
ALONE = """
import json, sys
from importlib.abc import MetaPathFinder

ABSENT = {"torch", "transformers", "safetensors", "huggingface_hub", "sentencepiece", "peft", "scipy", "sklearn"}

class Absent(MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in ABSENT:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

sys.meta_path.insert(0, Absent())
import edge
said = []
for source, target in zip(sys.argv[1::2], sys.argv[2::2]):
    edge.export(source, target, effort="quick", max_context=64, say=said.append)
print(json.dumps(said))
"""
SLIDING = {"sliding_window": 16, "query_pre_attn_scalar": 32, "head_dim": 32, "tie_word_embeddings": True}
MODELS: dict[str, dict[str, Any]] = {
    "llama": {"attention_bias": True},
    "mistral": {"sliding_window": None, "head_dim": 32},
    "qwen2": {},
    "qwen3": {"head_dim": 32, "tie_word_embeddings": True},
    "smollm3": {"tie_word_embeddings": True},
    "olmo2": {},
    "granite": {"attention_multiplier": 32**-0.5},
    "phi3": {},
    "gemma3_text": SLIDING,
}


@pytest.fixture(scope="module")
def exports(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with KIND.gguf and the KIND.edge that was made of it, of each architecture."""
    folder = tmp_path_factory.mktemp("quick")
    types = {"ffn_down": Type.Q4_1, "ffn_gate": Type.Q8_0, "ffn_up": Type.Q8_0, "attn": Type.Q4_0}
    paths = list[str]()
    for kind, settings in MODELS.items():
        stored = {} if kind == "phi3" else types  # whose gate and up are one matrix
        path = write_gguf(folder / f"{kind}.gguf", tiny_model(kind, **settings), types=stored)
        paths += [str(path), str(path.with_suffix(".edge"))]
    done = subprocess.run([sys.executable, "-c", ALONE, *paths], capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    assert any("Q4_1 are dequantized" in sentence for sentence in json.loads(done.stdout))
    return folder


def test_every_architecture_that_gguf_files_have_is_tried() -> None:
    assert set(MODELS) == {name for name, entry in FAMILIES.items() if "gguf" in entry.traits} | {"mistral"}


@pytest.mark.parametrize("kind", MODELS)
def test_what_was_made_without_pytorch_answers_as_pytorch_does(exports: Path, kind: str) -> None:
    bundle = open_bundle(exports / f"{kind}.edge")
    bundle.check_files()
    engine = open_engine(bundle)
    assert replay_golden(engine, read_golden(bundle)).ok
    torch_logits = TorchLogits(load_torch(open_checkpoint(str(exports / f"{kind}.gguf"))))
    text = np.random.default_rng(0).integers(0, 250, 60)
    found = compare(torch_logits, EngineLogits(engine, 60), [text])
    assert found.kl_mean < 0.02
    assert bundle.manifest.quality["check_tokens"] == 63 and bundle.manifest.quality["kl_mean"] < 0.02
    assert found.reference == pytest.approx(found.candidate, rel=0.05)


def test_a_broken_graph_is_refused_without_pytorch_too(
    exports: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def another(self: Reference, tokens: np.ndarray) -> Iterator[np.ndarray]:
        yield np.outer(np.ones(len(tokens)), 9.0 * np.arange(272)).astype(np.float32)

    monkeypatch.setattr(Reference, "logits", another)
    with pytest.raises(edge.ExportError, match="does not answer as the model in float32 does"):
        edge.export(exports / "llama.gguf", tmp_path / "x.edge", effort="quick")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("package", ["gguf", "onnxscript"])
def test_what_is_missing_is_named_with_the_small_extra(exports: Path, tmp_path: Path, package: str) -> None:
    script = ALONE.replace('"peft"', f'"peft", "{package}"')
    arguments = str(exports / "llama.gguf"), str(tmp_path / "x.edge")
    done = subprocess.run([sys.executable, "-c", script, *arguments], capture_output=True, text=True, timeout=60)
    assert re.search(rf"MissingExtraError: Exporting needs {package}.*; .*'edge-lm\[gguf\]'$", done.stderr.strip())


def test_normal_effort_says_that_it_needs_pytorch(
    exports: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in EXTRAS["export"]:
        monkeypatch.setitem(sys.modules, name, None)
    assert main(["export", str(exports / "llama.gguf"), "-o", str(tmp_path / "x.edge")]) == 2
    assert "pip install 'edge-lm[export]', or for a .gguf file choose --effort quick" in capsys.readouterr().err
