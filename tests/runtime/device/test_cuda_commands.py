"""A bundle with graphs for CUDA, by the commands that a user types, over a GPU of paper."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from fake_cuda import FakeCuda

import edge
from edge.bundle import Bundle, open_bundle
from edge.cli.main import main
from edge.errors import BundleError, ExportError
from edge.golden import read_golden
from edge.runtime.providers import cuda
from edge.runtime.providers.provider import GPU, Device, Support
from edge.targets import CUDA, path_of, read_device_target

PROMPTS = ["the moon", "one two three", "a", "the sea and the sky", "words"]


@pytest.fixture(scope="module")
def bundle(tiny_checkpoint: Path, tmp_path_factory: pytest.TempPathFactory) -> Bundle:
    out = tmp_path_factory.mktemp("cuda") / "cuda.edge"
    options = ["--weights", "int8", "--target", CUDA, "--target-weights", "int8"]
    assert main(["export", str(tiny_checkpoint), "-o", str(out), *options]) == 0
    return open_bundle(out)


@pytest.fixture(autouse=True)
def gpu(monkeypatch: pytest.MonkeyPatch) -> FakeCuda:
    """The only GPU of this machine."""
    fake = FakeCuda()
    monkeypatch.setattr(cuda, "find", lambda: Support("onnxruntime-gpu 1.31.1", [Device("cuda", GPU, "paper")]))
    monkeypatch.setattr(cuda, "make", lambda *_, **__: fake)
    return fake


def test_the_target_is_in_the_bundle_and_nothing_else_is(bundle: Bundle) -> None:
    target = read_device_target(bundle, CUDA)
    assert (target.activations, target.weights, target.encoder) == ("float16", "int8", None)
    named = {path_of(CUDA), target.decoder, f"targets/{CUDA}/weights.bin"}
    assert {file.path for file in bundle.manifest.files if file.path.startswith("targets/")} == named
    assert target.quality["top1_agreement"] > 0.8 and target.quality["kl_mean"] < 0.05
    assert [form.role for form in read_golden(bundle).forms][-1] == CUDA


def test_a_text_a_chat_and_drafts(bundle: Bundle, gpu: FakeCuda) -> None:
    model = edge.load(bundle.root, provider="cuda", speculate="off", kind=edge.Model)
    assert model.engine.remote and model.prefill_chunk == model.engine.chunk
    plain = model.generate("the moon", max_tokens=12)
    drafted = edge.load(bundle.root, provider="cuda", speculate="lookup", kind=edge.Model)
    assert drafted.generate("the moon", max_tokens=12).token_ids == plain.token_ids
    drawn = [model.generate("the moon", max_tokens=12, temperature=0.9, top_k=20, seed=1) for _ in range(2)]
    assert drawn[0].token_ids == drawn[1].token_ids
    chat = model.chat()
    for line in ("one", "two"):
        assert chat.generate(line, max_tokens=4).generated_tokens
    assert max(gpu.seen.runs) > 0, "steps were recorded"


@pytest.mark.parametrize("drawn", [{}, {"temperature": 0.9, "top_k": 20, "seed": 3}, {"temperature": 0.9, "seed": 3}])
def test_prompts_side_by_side_are_answered_as_alone(bundle: Bundle, drawn: dict[str, float]) -> None:
    model = edge.load(bundle.root, provider="cuda", speculate="off", kind=edge.Model)
    alone = [model.generate(prompt, max_tokens=10, **drawn).token_ids for prompt in PROMPTS]  # type: ignore[arg-type]
    for width in (2, 5):
        together = model.generate_all(PROMPTS, max_tokens=10, width=width, **drawn)  # type: ignore[arg-type]
        assert [result.token_ids for result in together] == alone


def test_as_many_prompts_as_have_room(
    bundle: Bundle, gpu: FakeCuda, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    allocate = FakeCuda.allocate

    def some(self: FakeCuda, shape: tuple[int, ...], dtype: object) -> object:
        if len(shape) == 4 and shape[0] > 2:
            raise MemoryError
        return allocate(self, shape, dtype)  # type: ignore[arg-type]

    monkeypatch.setattr(FakeCuda, "allocate", some)
    model = edge.load(bundle.root, provider="cuda", speculate="off", kind=edge.Model)
    assert len(model.generate_all(PROMPTS, max_tokens=4)) == len(PROMPTS)
    assert "There is memory for 2 prompts at a time." in caplog.text


def test_verify_inspect_plan_and_profile(bundle: Bundle, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    root = str(bundle.root)
    assert main(["verify", root, "--provider", "cuda"]) == 0
    assert f"Graph    {CUDA}, for the provider cuda" in capsys.readouterr().out
    assert main(["inspect", root]) == 0
    assert "Graphs for cuda, int8, float16: KL divergence " in " ".join(capsys.readouterr().out.split())
    assert main(["inspect", root, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["targets"][0]["decoder"] == f"targets/{CUDA}/decoder.onnx"
    assert main(["plan", root, "--provider", "cuda", "--memory", "1GB", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["total"] == found["weights"] + found["kv"] + found["workspace"]
    assert main(["plan", root, "--provider", "cuda", "--memory", "1MB"]) == 2
    assert "have no room for that" in capsys.readouterr().err


def test_a_target_that_is_damaged_or_missing_is_a_sentence(
    bundle: Bundle, tiny_bundle: Bundle, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    copy = Bundle(Path(shutil.copytree(bundle.root, tmp_path / "cuda.edge")), bundle.manifest)
    path = copy.path(path_of(CUDA))
    path.write_text(json.dumps(json.loads(path.read_text()) | {"version": 2}))
    with pytest.raises(BundleError, match="is of version 2, and this edge reads version 1"):
        read_device_target(copy, CUDA)
    path.write_text(json.dumps(json.loads(path.read_text()) | {"version": 1, "decoder": "../x.onnx"}))
    with pytest.raises(BundleError, match=r"does not list '\.\./x\.onnx' among its files"):
        read_device_target(copy, CUDA)
    for command in (["run", "hi"], ["plan"]):
        assert main([command[0], str(tiny_bundle.root), *command[1:], "--provider", "cuda"]) == 2
        assert "has no graphs for CUDA" in capsys.readouterr().err


def test_graphs_that_say_something_else_are_not_written(
    tiny_checkpoint: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("edge.export.targets.cuda.lowering.CUDA.silu", lambda op, x: x)
    with pytest.raises(ExportError, match="do not answer as the model in float32 does .* export it without --target"):
        edge.export(tiny_checkpoint, tmp_path / "x.edge", weights="fp32", target=CUDA, target_weights="float16")
    assert list(tmp_path.iterdir()) == []


def test_inspect_shows_what_runs_where(bundle: Bundle, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["inspect", str(bundle.root), "--provider", "cuda", "--json"]) == 0
    (row,) = json.loads(capsys.readouterr().out)["placement"]
    assert (row["graph"], row["node_share"], row["weight_share"]) == (CUDA, 1, 1)
