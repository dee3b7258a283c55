"""Numbers that a stranger writes into a bundle: each is refused in a sentence, or changes nothing."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from npu_models import NPU
from skip_models import in_units
from tiny_encoder_decoders import nllb_bundle, whisper_bundle

import edge
from edge.bundle import Bundle, BundleWriter

SCRIPT = Path(__file__).parents[1] / "fixtures" / "manifest_changes.py"
CASES = os.environ.get("EDGE_MANIFEST_CASES", "50")  # of each; `all` of the decoder's are 876


def check(root: Path, tmp_path: Path, kind: str, file: str = "edge.json") -> None:
    copy = shutil.copytree(root, tmp_path / "hostile.edge")
    paths = os.pathsep.join([str(Path(edge.__file__).parents[1]), os.environ.get("PYTHONPATH", "")])
    done = subprocess.run(
        [sys.executable, str(SCRIPT), str(copy), kind, CASES, file],
        capture_output=True, text=True, timeout=600, env={**os.environ, "PYTHONPATH": paths},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-2000:]
    found = json.loads(done.stdout)
    assert not found["wrong"], "\n".join(found["wrong"])
    assert found["refused"] > found["cases"] // 3


@pytest.mark.parametrize(("kind", "file"), [("decoder", "edge.json"), ("verify", "golden.json")])
def test_a_decoders_hostile_numbers_are_refused_before_anything_is_built(
    pristine_tiny_bundle: Bundle, tmp_path: Path, kind: str, file: str
) -> None:
    check(pristine_tiny_bundle.root, tmp_path, kind, file)


def test_a_translators_hostile_numbers_are_refused_before_anything_is_built(tmp_path: Path) -> None:
    check(nllb_bundle(tmp_path).root, tmp_path, "text")


def test_a_transcribers_hostile_numbers_are_refused_before_anything_is_built(tmp_path: Path) -> None:
    check(whisper_bundle(tmp_path).root, tmp_path, "speech")


def test_hostile_numbers_of_segments_are_refused_before_anything_is_built(by_layer: Bundle, tmp_path: Path) -> None:
    units, hidden = len(by_layer.manifest.segments) - 2, by_layer.manifest.dims.hidden_size
    routers = np.zeros((units, hidden + 1), np.float32)
    with BundleWriter(tmp_path / "routed.edge") as writer:
        shutil.copytree(by_layer.root, writer.staging, dirs_exist_ok=True)
        routed = writer.commit(in_units(Bundle(writer.staging, by_layer.manifest), 1, routers).manifest)
    check(routed.root, tmp_path, "first")


@pytest.mark.parametrize("file", ["edge.json", f"targets/{NPU.name}/target.json"])
def test_hostile_numbers_of_a_target_are_refused_before_anything_is_built(
    tiny_checkpoint: Path, tmp_path: Path, file: str
) -> None:
    made = edge.export(
        tiny_checkpoint, tmp_path / "npu.edge", weights="int8", target=NPU.name, target_context=96, check=False
    )
    check(made.root, tmp_path, "npu", file)
