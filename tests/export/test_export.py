"""An export writes a bundle that is whole, answers as Torch does, and says what was done to the model."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gguf import GGMLQuantizationType as Type
from gguf_files import tiny_model, write_gguf
from places import SHARED
from texts import CHAT_TEMPLATE
from tokenizers import Tokenizer

import edge
from edge import catalog
from edge.bundle import Bundle, open_bundle
from edge.cli.main import main
from edge.errors import ExportError, InputError, MissingExtraError
from edge.export import quantize as methods
from edge.export.check.quality import refuse_if_broken
from edge.export.checkpoint import open_checkpoint
from edge.export.facts.checkpoint import Checkpoint
from edge.export.facts.tensors import FloatTensor
from edge.export.reference.in_torch import TorchLogits, load_torch
from edge.export.request import choices
from edge.golden import read_golden
from edge.runtime.check.golden import replay_golden
from edge.runtime.check.perplexity import Agreement, EngineLogits, perplexity, windows
from edge.runtime.load import open_engine

SMOLLM2 = catalog.local(catalog.resolve("smollm2-135m-instruct"))  # in the user's cache, before tests get their own
WIKITEXT = SHARED / "data" / "wikitext2-test.txt"


@pytest.fixture
def tiny_gguf(tmp_path: Path) -> Path:
    """Every type in one file: feed-forward matrices of two types, the rest in floats."""
    types = {"ffn_down": Type.Q4_1, "ffn_gate": Type.Q8_0, "ffn_up": Type.Q8_0}
    return write_gguf(tmp_path / "tiny-gguf.gguf", tiny_model("llama"), types=types)


def test_a_bundle_is_whole_and_holds_the_tokenizer(pristine_tiny_bundle: Bundle, tiny_checkpoint: Path) -> None:
    bundle = open_bundle(pristine_tiny_bundle.root)
    bundle.check_files()
    assert bundle == pristine_tiny_bundle
    manifest = bundle.manifest
    assert (manifest.name, manifest.family, manifest.weights, manifest.context) == ("tiny-llama", "llama", "int8", 512)
    assert manifest.chat_template == CHAT_TEMPLATE
    assert manifest.chat_format is not None and manifest.chat_format.generation == "<|im_end|>\n<|im_start|>assistant\n"
    assert (manifest.tokens.bos, manifest.tokens.eos, manifest.tokens.pad) == (1, [2], 0)
    assert manifest.source.kind == "directory"
    written = json.loads(bundle.path("tokenizer.json").read_text(encoding="utf-8"))
    own = json.loads((tiny_checkpoint / "tokenizer.json").read_text(encoding="utf-8"))
    assert written["model"]["vocab"] == own["model"]["vocab"]
    assert 8 < manifest.bits_per_weight < 10


def test_the_default_takes_at_most_5_9_bits_per_weight(tiny_checkpoint: Path, tmp_path: Path) -> None:
    manifest = edge.export(tiny_checkpoint, tmp_path / "x.edge", check=False, candidates=False).manifest
    assert manifest.weights == "int4"
    assert 4 < manifest.bits_per_weight <= 5.9  # over all weights: embedding, head and norms included


@pytest.mark.parametrize(
    ("asked", "there"),
    [
        ({}, False),
        ({"effort": "best"}, True),
        ({"candidates": True}, True),
        ({"effort": "quick", "candidates": True}, False),
    ],
)
def test_what_recycle_begins_with_is_collected_with_the_best_effort_or_where_it_is_asked_for(
    tiny_checkpoint: Path, tmp_path: Path, asked: dict[str, Any], there: bool
) -> None:
    bundle = edge.export(tiny_checkpoint, tmp_path / "x.edge", weights="int8", check=False, **asked)
    assert (bundle.root / "recycle.bin").exists() is there


def test_golden_answers_are_recorded_in_the_chat_format_and_replay(pristine_tiny_bundle: Bundle) -> None:
    golden = read_golden(pristine_tiny_bundle)
    assert len(golden.cases) == 4
    assert all(len(case.greedy_ids) == 24 for case in golden.cases)
    assert all(case.prompt_ids[0] == 1 for case in golden.cases)  # <|im_start|>
    report = replay_golden(open_engine(pristine_tiny_bundle), golden)
    assert report.ok
    assert report.tokens == 4 * 24


def test_a_float_bundle_answers_as_torch_does(tiny_checkpoint: Path, tmp_path: Path) -> None:
    quality = edge.export(tiny_checkpoint, tmp_path / "f.edge", weights="fp32").manifest.quality
    assert quality["check_tokens"] == 511
    assert quality["top1_agreement"] == 1.0
    assert quality["kl_mean"] < 1e-6
    assert quality["perplexity"] == pytest.approx(quality["perplexity_float32"], rel=1e-4)


def test_the_check_sees_what_quantization_costs(pristine_tiny_bundle: Bundle) -> None:
    quality = pristine_tiny_bundle.manifest.quality
    assert 1e-6 < quality["kl_mean"] < methods.METHODS["int8"].traits["max_kl"]
    assert quality["kl_mean"] < quality["kl_p95"]
    assert open_bundle(pristine_tiny_bundle.root).manifest.quality == quality


def test_weights_in_the_wrong_place_fail_the_check_and_leave_nothing(
    tiny_checkpoint: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def mixed_up(checkpoint: Any, *_: Any) -> dict[str, FloatTensor]:
        matrices = {n: FloatTensor(checkpoint.read(n)) for n in checkpoint.names() if len(checkpoint.shape(n)) == 2}
        a, b = "model.layers.0.mlp.gate_proj.weight", "model.layers.0.mlp.up_proj.weight"
        matrices[a], matrices[b] = matrices[b], matrices[a]
        return matrices

    monkeypatch.setattr(methods, "quantize", mixed_up)
    with pytest.raises(ExportError, match="does not answer as the model in float32 does"):
        edge.export(tiny_checkpoint, tmp_path / "f.edge", weights="fp32")
    assert list(tmp_path.iterdir()) == []
    edge.export(tiny_checkpoint, tmp_path / "f.edge", weights="fp32", check=False)


@pytest.mark.parametrize(("kl", "top1"), [(float("nan"), 1.0), (0.5, 1.0), (0.0, 0.98)])
def test_a_float_bundle_that_differs_is_refused(pristine_tiny_bundle: Bundle, kl: float, top1: float) -> None:
    import dataclasses

    manifest = dataclasses.replace(pristine_tiny_bundle.manifest, weights="fp32")
    refuse_if_broken(Agreement(511, 1.0, 1e-7, 1e-7, 20.0, 20.0), manifest)
    with pytest.raises(ExportError):
        refuse_if_broken(Agreement(511, top1, kl, kl, 20.0, 30.0), manifest)


def test_without_the_check_there_are_no_figures(tiny_checkpoint: Path, tmp_path: Path) -> None:
    bundle = edge.export(tiny_checkpoint, tmp_path / "x.edge", weights="int8", check=False)
    assert bundle.manifest.quality == {}


def test_the_package_is_the_function(tiny_checkpoint: Path) -> None:
    script = (
        "import sys, edge\nfirst = edge.export\nimport edge.export.quantize\nfrom edge.export import export\n"
        "assert first is edge.export is sys.modules['edge.export']\n"
        "assert not {'torch', 'transformers', 'onnx', 'onnx_ir'} & set(sys.modules)\n"
        "try:\n    edge.export('no such thing')\nexcept edge.CheckpointError:\n    print('called')"
    )
    result = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=120)
    assert result.stdout == "called\n", result.stderr


def test_the_context_is_the_models_unless_a_smaller_one_is_asked_for(tiny_checkpoint: Path, tmp_path: Path) -> None:
    bundle = edge.export(tiny_checkpoint, tmp_path / "x.edge", weights="fp32", max_context=40)
    assert bundle.manifest.context == 40
    assert bundle.manifest.quality["check_tokens"] == 39
    assert replay_golden(open_engine(bundle), read_golden(bundle)).ok
    for asked in (15, 513):
        with pytest.raises(InputError, match=f"{asked} tokens"):
            edge.export(tiny_checkpoint, tmp_path / "y.edge", weights="fp32", max_context=asked)


def test_a_long_context_is_not_taken_unasked(tiny_checkpoint: Path, tmp_path: Path) -> None:
    far = Path(shutil.copytree(tiny_checkpoint, tmp_path / "far"))
    config = json.loads((far / "config.json").read_text())
    (far / "config.json").write_text(json.dumps({**config, "max_position_embeddings": 20_000}))
    assert edge.export(far, tmp_path / "a.edge", weights="fp32", check=False).manifest.context == 8192
    asked = edge.export(far, tmp_path / "b.edge", weights="fp32", check=False, max_context=20_000)
    assert asked.manifest.context == 20_000


def test_what_is_quantized_anew_is_said(tiny_gguf: Path, tmp_path: Path) -> None:
    def said(weights: str, block_size: int | None = None) -> list[str]:
        lines: list[str] = []
        target = tmp_path / "x.edge"
        edge.export(
            tiny_gguf, target, weights=weights, block_size=block_size, check=False, force=True, say=lines.append
        )
        assert lines[0].startswith("tiny-gguf (gguf, mit): family llama, ")
        return lines[1:]

    q4_1 = "4 tensors of type Q4_1 are dequantized and quantized anew, in 8 bits."
    q8_0 = "8 tensors of type Q8_0 are dequantized and quantized anew, in 8 bits."
    assert said("fp32") == []
    assert said("keep") == [q4_1]
    assert said("int8", 64) == [q4_1, q8_0]


def test_kept_blocks_are_in_the_bundle_bit_for_bit(tiny_gguf: Path, tmp_path: Path) -> None:
    bundle = edge.export(tiny_gguf, tmp_path / "x.edge", weights="keep")
    checkpoint = open_checkpoint(str(tiny_gguf))
    content = bundle.path("weights.bin").read_bytes()
    for name in ("model.layers.1.mlp.gate_proj.weight", "model.layers.2.mlp.up_proj.weight"):
        blocks = checkpoint.blocks(name)
        assert blocks is not None
        assert np.array_equal(blocks.dequantize(), checkpoint.read(name))
        assert blocks.q.tobytes() in content
    kept = "model.layers.0.self_attn.o_proj.weight"
    assert checkpoint.read(kept).tobytes() in content or checkpoint.read(kept).T.tobytes() in content


def test_the_command_prints_the_comparison_and_its_peak_memory(
    tiny_gguf: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["export", str(tiny_gguf), "--weights", "int8", "--name", "own"]) == 0
    out, err = capsys.readouterr()
    assert "Q4_1 are dequantized and quantized anew" in err
    quality = open_bundle("own.edge").manifest.quality
    for figure in (f"{quality['perplexity']:.3f}", f"{quality['perplexity_float32']:.3f}", f"{quality['kl_mean']:.4f}"):
        assert figure in out
    assert re.search(r"own\.edge: .* MB, .* bits per weight, .* peak memory \d+", out)


def test_a_bundle_is_replaced_only_when_asked(tiny_checkpoint: Path, tmp_path: Path) -> None:
    target = tmp_path / "x.edge"
    edge.export(tiny_checkpoint, target, weights="fp32", check=False)
    with pytest.raises(ExportError, match="exists already"):
        edge.export(tiny_checkpoint, target, weights="int8", check=False)
    assert open_bundle(target).manifest.weights == "fp32"
    edge.export(tiny_checkpoint, target, weights="int8", check=False, force=True)
    assert open_bundle(target).manifest.weights == "int8"
    assert [p.name for p in tmp_path.iterdir()] == ["x.edge"]


@pytest.mark.slow
@pytest.mark.skipif(SMOLLM2 is None or SMOLLM2.suffix != ".gguf", reason="the GGUF of SmolLM2 is not in the cache")
@pytest.mark.skipif(not WIKITEXT.is_file(), reason=f"there is no {WIKITEXT}")
def test_smollm2_predicts_a_text_as_well_as_torch_does(tmp_path: Path) -> None:
    """Quantized weights predict so few tokens a little better or worse by chance; only worse is held to tenths."""
    checkpoint = open_checkpoint(str(SMOLLM2))
    tokenizer, text = Tokenizer.from_str(checkpoint.tokenizer.json), WIKITEXT.read_text(encoding="utf-8")
    ids = tokenizer.encode(text, add_special_tokens=False).ids
    texts = windows(ids, checkpoint.tokenizer.tokens, window=512, limit=2048)
    torch = perplexity(TorchLogits(load_torch(checkpoint)), texts).perplexity

    def more_than_torch(weights: str) -> float:
        quick = {"check": False, "candidates": False, "draft_text": 0}
        bundle = edge.export(str(SMOLLM2), tmp_path / f"{weights}.edge", weights=weights, **quick)
        return perplexity(EngineLogits(open_engine(bundle, context=512), 512), texts).perplexity / torch - 1

    assert -0.01 < more_than_torch("keep") <= 0.001
    assert -0.01 < more_than_torch("int8") <= 0.005


@pytest.mark.parametrize("below", ["x.edge", "y/x.edge"])
def test_a_target_below_a_file_is_refused(
    tiny_checkpoint: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], below: str
) -> None:
    file = tmp_path / "p.txt"
    file.write_text("mine")
    target = file / below
    assert main(["export", str(tiny_checkpoint), "-o", str(target)]) == 2
    assert capsys.readouterr().err.splitlines()[-1] == f"edge: {target} cannot be written: {file} is not a folder."
    assert file.read_text() == "mine"


@pytest.mark.parametrize(
    ("error", "status"), [(KeyboardInterrupt(), 130), (ExportError("It broke."), 2)], ids=["interrupted", "failed"]
)
def test_an_export_that_ends_early_removes_the_folders_it_made(
    tiny_checkpoint: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: BaseException, status: int
) -> None:
    made = []

    def fail(*args: Any, **options: Any) -> None:
        made.append((tmp_path / "new" / "dir").is_dir())
        raise error

    monkeypatch.setattr("edge.export.pipeline.decoder.stage_decoder", fail)
    (tmp_path / "old").mkdir()
    for folder in ("new/dir", "old"):
        assert main(["export", str(tiny_checkpoint), "-o", str(tmp_path / folder / "x.edge"), "--no-check"]) == status
    assert made == [True, False]
    assert [path.name for path in tmp_path.iterdir()] == ["old"]
    assert list((tmp_path / "old").iterdir()) == []


def test_a_new_folder_in_which_something_else_appears_stays(
    tiny_checkpoint: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*args: Any, **options: Any) -> None:
        (tmp_path / "new" / "other.txt").write_text("another program's")
        raise ExportError("It broke.")

    monkeypatch.setattr("edge.export.pipeline.decoder.stage_decoder", fail)
    with pytest.raises(ExportError, match="It broke"):
        edge.export(tiny_checkpoint, tmp_path / "new" / "dir" / "x.edge", check=False)
    assert [path.name for path in (tmp_path / "new").iterdir()] == ["other.txt"]


def test_the_catalogs_defaults_are_taken_unless_others_are_given(
    tiny_checkpoint: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    entry = catalog.parse(
        'title = "T"\nfamily = "llama"\nparameters = 1\nlicence = "MIT"\nmeasured = false\n'
        '[[sources]]\nkind = "hub"\nid = "org/tiny"\n[export]\nweights = "int8"\nblock_size = 32\nmax_context = 64\n',
        "tiny.toml",
    )
    monkeypatch.setattr(catalog, "find", {"tiny": entry}.get)
    monkeypatch.setattr("edge.fetch.pull", lambda *args, **kwargs: tiny_checkpoint)
    manifest = edge.export("tiny", tmp_path / "x.edge", check=False).manifest
    assert (manifest.name, manifest.weights, manifest.context) == ("tiny", "int8", 64)
    assert {group.block_size for group in manifest.groups if group.bits == 8} == {32}
    manifest = edge.export("tiny", tmp_path / "y.edge", weights="fp32", max_context=128, check=False).manifest
    assert (manifest.weights, manifest.context) == ("fp32", 128)


K_TYPES = {"ffn": Type.Q4_K, "attn": Type.Q6_K, "token_embd.w": Type.Q6_K, "output.w": Type.Q6_K}
Q4_0 = dict.fromkeys(K_TYPES, Type.Q4_0)
WIDE = {"hidden_size": 256, "intermediate_size": 256, "num_attention_heads": 4, "num_hidden_layers": 1}


def default_of(path: Path, monkeypatch: pytest.MonkeyPatch, *, large: bool, **options: Any) -> tuple[str, list[str]]:
    """The weights of an export that names none, and what it says. large: as of a model of a billion weights."""
    if large:
        monkeypatch.setattr(choices, "LARGE", 100_000)
    said: list[str] = []
    asked = {"effort": "quick", "check": False, "max_context": 64} | options
    bundle = edge.export(path, path.with_suffix(".edge"), say=said.append, **asked)
    return bundle.manifest.weights, said


@pytest.mark.usefixtures("library")
@pytest.mark.parametrize("effort", ["quick", "normal"])
@pytest.mark.parametrize(
    ("types", "large", "weights", "sentence"),
    [
        (K_TYPES, True, "gguf", r"has the file's own blocks, as 8-bit .*, and not on Android; --weights keep makes"),
        (K_TYPES, False, "keep", r"every host computes, Android too; --weights gguf keeps .*kernels \(not Android\)"),
        (Q4_0, True, "keep", r"every host computes, Android too; --weights gguf keeps .*kernels \(not Android\)"),
    ],
)
def test_the_default_of_a_gguf_file_follows_from_its_size_and_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, types: dict[str, Type], large: bool, weights: str, sentence: str,
    effort: str,
) -> None:  # fmt: skip
    path = write_gguf(tmp_path / "m.gguf", tiny_model("llama", **WIDE), types=types)
    found, said = default_of(path, monkeypatch, large=large, effort=effort)
    assert found == weights and [line for line in said if re.search(sentence, line)], said


def test_a_gguf_file_gets_the_default_of_every_host_where_kernels_are_absent(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, onnxruntimes_kernels: None
) -> None:
    monkeypatch.setattr(choices, "our_kernels_run", lambda **_: False)
    path = write_gguf(tmp_path / "m.gguf", tiny_model("llama", **WIDE), types=K_TYPES)
    found, said = default_of(path, monkeypatch, large=True)
    assert found == "keep" and any("; where edge-lm-kernels are installed, --weights gguf" in line for line in said)


@pytest.mark.usefixtures("library")
def test_nothing_is_said_of_weights_that_were_asked_for_and_new_ones_are_calibrated(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write_gguf(tmp_path / "m.gguf", tiny_model("llama", **WIDE), types=K_TYPES)
    for options, weights in (({"weights": "keep"}, "keep"), ({"symmetric": True, "effort": "normal"}, "int4")):
        found, said = default_of(path, monkeypatch, large=True, force=True, **options)
        assert found == weights and not [line for line in said if line.startswith("The bundle has")]
    assert default_of(path, monkeypatch, large=True, force=True, target="cuda")[0] == "keep"


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        (["--weights", "int3"], "int3"),
        (["--block-size", "48"], "--block-size 48"),
        (["--max-context", "0"], "--max-context"),
        (["--max-context", "many"], "--max-context"),
        (["--calibration", "missing.txt"], "missing.txt"),
        (["--weights", "keep"], "keep"),
    ],
)
def test_options_that_cannot_be_used_get_a_sentence(
    tiny_checkpoint: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    options: list[str],
    expected: str,
) -> None:
    assert main(["export", str(tiny_checkpoint), "-o", str(tmp_path / "x.edge"), *options]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    sentence = err.splitlines()[-1]
    assert sentence.startswith("edge: ")
    assert expected in sentence
    assert list(tmp_path.iterdir()) == []


def test_a_missing_extra_is_named(tiny_checkpoint: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch", None)
    with pytest.raises(MissingExtraError, match=r"torch.*\[export\]"):
        edge.export(tiny_checkpoint, tmp_path / "x.edge")


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_peak_memory_stays_under_three_times_the_float_checkpoint(tiny_checkpoint: Path, tmp_path: Path) -> None:
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(
        vocab_size=320, hidden_size=768, intermediate_size=3072, num_hidden_layers=4, num_attention_heads=12,
        num_key_value_heads=4, max_position_embeddings=512, tie_word_embeddings=True,
    )  # fmt: skip
    torch.manual_seed(0)
    model = LlamaForCausalLM(config)
    folder = tmp_path / "prefill"
    model.save_pretrained(folder)
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(tiny_checkpoint / name, folder)
    size = sum(p.numel() for p in model.parameters()) * 4
    assert size > 130e6
    script = (
        "import torch, transformers.models.llama.modeling_llama, onnxscript\n"
        "import edge.export.targets.cpu.decoder, edge.export.check.of_decoder\n"
        "from edge.runtime.memory.process import held\nbefore = held().peak_rss\n"
        f"edge.export({str(folder)!r}, {str(tmp_path / 'x.edge')!r}, weights='fp32', draft_text=200)\n"
        "print(held().peak_rss - before)"
    )
    command = [sys.executable, "-c", script]
    result = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert result.returncode == 0, result.stderr
    assert size < float(result.stdout) < 3 * size


@pytest.mark.parametrize("more", [{}, {"prefill_weights": "int8"}])
def test_a_bundle_takes_no_more_than_the_size_that_is_named(
    tiny_checkpoint: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, more: Any
) -> None:
    options = {"weights": "int4", "effort": "quick", "check": False, **more}
    small = edge.export(tiny_checkpoint, tmp_path / "small.edge", bits=5.5, **options)
    files = {path: path.stat().st_size for path in small.root.rglob("*") if path.is_file()}
    others = sum(size for path, size in files.items() if path.name not in ("weights.bin", "tokenizer.json"))
    # They are most of so small a bundle; graphs of other formats differ by some bytes.
    monkeypatch.setattr(choices, "OTHER_FILES", others + 1000)
    checkpoint = open_checkpoint(tiny_checkpoint)
    context, prefill = small.manifest.context, bool(more)
    size = next(s for s in range(0, 10**7, 1000) if _bits(s, checkpoint, context, prefill) > 5.5)
    bundle = edge.export(tiny_checkpoint, tmp_path / "sized.edge", size=size, **options)
    taken = sum(path.stat().st_size for path in bundle.root.rglob("*") if path.is_file())
    assert 0.5 * size < taken <= size


@pytest.mark.parametrize("bits", [0.0, -1.0, float("nan"), float("inf")])
def test_bits_are_a_number_above_0(tiny_checkpoint: Path, tmp_path: Path, bits: float) -> None:
    with pytest.raises(InputError, match="is no number of bits a weight; name one like 4.8"):
        edge.export(tiny_checkpoint, tmp_path / "x.edge", weights="int4", bits=bits)


def _bits(size: int, checkpoint: Checkpoint, context: int, prefill: bool) -> float:
    try:
        return choices.bits_within(size, checkpoint, context, prefill=prefill)
    except InputError:
        return 0.0
