"""What an export is predicted to take, and what it leaves out or refuses under a limit."""

from __future__ import annotations

import dataclasses
import json
import re
import shutil
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from export_peak import peak_of
from gguf_files import GPT_OSS, tiny_model
from mxfp4_folders import write_mxfp4
from safetensors.torch import save_file
from texts import SENTENCES
from transformers import AutoConfig, AutoModelForCausalLM

import edge
from edge.children import call
from edge.cli.main import main
from edge.errors import InputError
from edge.export.checkpoint import open_checkpoint
from edge.export.graph.families import find_family
from edge.export.quantize import quantize
from edge.export.quantize.method import FORMATS, OWN_TEXT, TUNING, Options
from edge.export.request.memory import DRAFTS, Request, leave_out, stages_of
from edge.manifest import Tokens
from edge.runtime.memory import process
from edge.runtime.sizes import parse_size

GB = 10**9
NORMAL = Options(effort="normal")


class Shapes:
    """A checkpoint of which there are only the shapes: whoever reads it fails."""

    name, kind, licence = "shapes", "directory", None
    pooling, embeds = None, False

    def __init__(self, **sizes: Any) -> None:
        config = AutoConfig.for_model("llama", **sizes, tie_word_embeddings=True)
        _, family = find_family("llama")
        assert family.layers is not None and family.norms is not None
        self.shapes = family.layers(config).shapes(config, family.norms)
        self.config = config.to_dict()
        self.tokenizer = SimpleNamespace(tokens=Tokens(1, [2], None, False))

    def names(self) -> list[str]:
        return list(self.shapes)

    def shape(self, name: str) -> tuple[int, ...]:
        return self.shapes[name]

    def stored_type(self, name: str) -> str:
        return "BF16"


def smollm2(layers: int = 24) -> Any:
    """The shapes of SmolLM2-1.7B, or of such a model with more layers."""
    sizes = {"hidden_size": 2048, "intermediate_size": 8192, "num_attention_heads": 32, "num_key_value_heads": 32}
    return Shapes(**sizes, num_hidden_layers=layers, vocab_size=49152)


def kept_under(limit: float, request: Request) -> tuple[frozenset[str], list[str]]:
    """What is left out under a limit in GB, and what was said."""
    said = list[str]()
    return leave_out(smollm2(), request, int(limit * GB), said.append), said


def test_without_a_limit_nothing_is_left_out() -> None:
    assert leave_out(smollm2(), Request("int4", NORMAL, 2048, drafts=1000), None, pytest.fail) == frozenset()


def test_a_large_model_is_calibrated_in_8_gb_without_text_of_its_own() -> None:
    left, said = kept_under(8, Request("int4", NORMAL, 2048, drafts=1000))
    assert left == {OWN_TEXT}
    (sentence,) = said
    pattern = rf"Left out, because it does not fit into 8\.00 GB: {OWN_TEXT} \((.+) would include it\)\."
    found = re.fullmatch(pattern, sentence)
    assert found is not None
    enough = parse_size(found[1]) / GB
    assert kept_under(enough, Request("int4", NORMAL, 2048, drafts=1000)) == (frozenset(), [])


def test_less_and_less_is_done_until_the_smallest_limit_and_that_one_is_named() -> None:
    request = Request("int4", NORMAL, 2048, drafts=1000)
    with pytest.raises(InputError, match="does not fit into 1.00 GB, because .* takes more; the smallest") as refused:
        kept_under(1, request)
    smallest = parse_size(str(refused.value).rpartition(" is ")[2].rstrip("."))
    before = frozenset[str]()
    for limit in (16 * GB, 8 * GB, smallest):
        left, _ = kept_under(limit / GB, request)
        assert before <= left
        before = left
    with pytest.raises(InputError):
        kept_under((smallest - 20_000_000) / GB, request)


def test_what_was_asked_for_is_refused_and_not_left_out() -> None:
    optional = {stage.name: stage for stage in stages_of(smollm2(), Request("int4", NORMAL, 2048, drafts=1000))}
    assert optional[DRAFTS].optional and optional[FORMATS].optional
    asked = Request("int4", dataclasses.replace(NORMAL, bits=5.2), 2048, drafts=1000, required=True)
    found = {stage.name: stage for stage in stages_of(smollm2(), asked)}
    assert not found[DRAFTS].optional and not found[FORMATS].optional
    deep, asked = smollm2(layers=40), Request("int4", dataclasses.replace(NORMAL, bits=5.2), 2048)
    needed = {stage.name: stage.takes for stage in stages_of(deep, asked) if stage.name != OWN_TEXT}
    assert max(needed, key=lambda name: needed[name]) == FORMATS
    with pytest.raises(InputError, match=f"because {FORMATS} takes more"):
        leave_out(deep, asked, needed[FORMATS], pytest.fail)


def test_only_what_runs_is_counted() -> None:
    quick = stages_of(smollm2(), Request("int8", Options(effort="quick"), 2048))
    assert [stage.name for stage in quick] == ["the reference", "writing the weights", "the written graph"]
    unchecked = stages_of(smollm2(), Request("int8", NORMAL, 2048, compare=False))
    assert [stage.name for stage in unchecked] == ["writing the weights", "the written graph"]
    normal, best = (
        stages_of(smollm2(), Request("int4", options, 2048)) for options in (NORMAL, Options(effort="best"))
    )
    assert {stage.name for stage in best} - {stage.name for stage in normal} == {TUNING}
    assert {OWN_TEXT, FORMATS} <= {stage.name for stage in normal}


def test_what_is_left_out_is_not_done(tiny_checkpoint: Path) -> None:
    checkpoint, told = open_checkpoint(str(tiny_checkpoint)), set[str]()
    text = " ".join(SENTENCES)
    quantize(
        checkpoint,
        "int4",
        Options(
            calibration=text,
            effort="best",
            left_out=frozenset({OWN_TEXT, TUNING, FORMATS}),
            progress=lambda *done: told.add(done[2]),
        ),
    )
    assert "quantizing to 4 bits" in told
    assert told.isdisjoint({"writing text to calibrate on", "tuning scales", "measuring what bits bring"})


@pytest.fixture(scope="module")
def wide(tmp_path_factory: pytest.TempPathFactory, tiny_checkpoint: Path) -> Path:
    """A random model of two layers whose stages take much more than programs differ by, with the tiny one's tokenizer
    in a larger vocabulary."""
    folder = tmp_path_factory.mktemp("wide") / "wide"
    shutil.copytree(tiny_checkpoint, folder, ignore=shutil.ignore_patterns("*.safetensors"))
    path = folder / "config.json"
    sizes = {"hidden_size": 768, "intermediate_size": 1536, "num_attention_heads": 12, "num_key_value_heads": 12}
    config = json.loads(path.read_text()) | sizes | {"vocab_size": 40_000, "head_dim": 64}
    path.write_text(json.dumps(config))
    generator = torch.Generator().manual_seed(0)
    tensors = {}
    for name, shape in Shapes(
        **{key: config[key] for key in (*sizes, "vocab_size", "num_hidden_layers")}
    ).shapes.items():
        random = torch.randn(shape, generator=generator) / shape[-1] ** 0.5
        tensors[name] = (random if len(shape) == 2 else torch.ones(shape)).bfloat16()
    save_file(tensors, folder / "model.safetensors")
    return folder


@pytest.mark.skipif(not process.private_bytes(), reason="the system does not tell")
@pytest.mark.parametrize(("weights", "effort"), [("int8", "quick"), ("int8", "normal"), ("int4", "quick")])
def test_an_export_takes_no_more_than_was_predicted(wide: Path, tmp_path: Path, weights: str, effort: str) -> None:
    """In a process of its own: one that ran other tests has memory to spare, and asks the system for less."""
    peak = call(peak_of, wide, tmp_path / "x.edge", weights, effort)
    assert peak.measured < peak.predicted
    assert peak.measured - peak.program > peak.largest / 3


@pytest.fixture(scope="module")
def mixture(tmp_path_factory: pytest.TempPathFactory, tiny_checkpoint: Path) -> Path:
    """A random model whose experts, in MXFP4, are most of its weights."""
    folder = tmp_path_factory.mktemp("mixture") / "mixture"
    shutil.copytree(tiny_checkpoint, folder, ignore=shutil.ignore_patterns("*.safetensors"))
    sizes = {"hidden_size": 768, "intermediate_size": 768, "num_local_experts": 32, "num_hidden_layers": 2}
    config = json.loads((folder / "config.json").read_text())
    tokens = {name: config[name] for name in ("vocab_size", "bos_token_id", "eos_token_id", "pad_token_id")}
    return write_mxfp4(folder, tiny_model("gpt_oss", **GPT_OSS | sizes | tokens | {"max_position_embeddings": 512}))


def test_experts_in_their_own_blocks_are_written_as_one_array_and_mapped(mixture: Path) -> None:
    """32 of them in each of 2 layers, of 3 matrices with 590,000 weights."""
    checkpoint, takes = open_checkpoint(str(mixture)), dict[str, dict[str, int]]()
    for weights in ("gguf", "keep"):
        stages = stages_of(checkpoint, Request(weights, Options(effort="quick"), 512, compare=False))
        takes[weights] = {stage.name: stage.takes for stage in stages}
    eight, own = (takes[weights]["writing the weights"] for weights in ("keep", "gguf"))
    assert eight > 2 * 2 * 3 * 32 * 768**2 and 32 * 768**2 * 17 / 32 < own < eight / 10
    assert takes["keep"]["the written graph"] - takes["gguf"]["the written graph"] > 2 * 3 * 32 * 768**2


@pytest.mark.skipif(not process.private_bytes(), reason="the system does not tell")
@pytest.mark.usefixtures("library")
def test_an_export_of_own_blocks_takes_no_more_than_was_predicted(mixture: Path, tmp_path: Path) -> None:
    peak = call(peak_of, mixture, tmp_path / "x.edge", "gguf", "quick")
    assert peak.measured < peak.predicted < peak.program + 400_000_000


HYBRID = {"layer_types": ["mamba", "attention"], "mamba_n_heads": 16, "mamba_d_head": 64, "mamba_d_state": 64}
DELTA = {"layer_types": ["linear_attention", "full_attention"], "head_dim": 64, "moe_intermediate_size": 256}


@pytest.mark.skipif(not process.private_bytes(), reason="the system does not tell")
@pytest.mark.parametrize(
    ("kind", "more"),
    [
        ("olmoe", {"num_experts": 8}),
        ("granitemoehybrid", HYBRID | {"num_local_experts": 8, "shared_intermediate_size": 512}),
        ("qwen3_next", DELTA | {"num_experts": 8, "shared_expert_intermediate_size": 256}),
    ],
)
def test_measuring_experts_takes_no_more_than_was_predicted(
    tiny_checkpoint: Path, tmp_path: Path, kind: str, more: dict[str, Any]
) -> None:
    sizes = {"hidden_size": 512, "intermediate_size": 512, "num_experts_per_tok": 2, **more}
    sizes |= {"num_hidden_layers": 2, "num_attention_heads": 8, "num_key_value_heads": 8}
    tiny = json.loads((tiny_checkpoint / "config.json").read_text())
    tokens = {name: tiny[name] for name in ("vocab_size", "bos_token_id", "eos_token_id", "pad_token_id")}
    model = AutoModelForCausalLM.from_config(AutoConfig.for_model(kind, **sizes, **tokens))
    model.save_pretrained(tmp_path / "experts")
    for file in tiny_checkpoint.glob("*token*"):
        shutil.copy(file, tmp_path / "experts")
    peak = call(peak_of, tmp_path / "experts", tmp_path / "x.edge", "int4", "normal", 7.5)
    assert peak.measured < peak.predicted
    assert peak.measured - peak.program > peak.largest / 3


def test_the_command_refuses_before_anything_is_loaded(
    tiny_checkpoint: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("edge.export.pipeline.decoder.stage_decoder", lambda *_, **__: pytest.fail("it was loaded"))
    # What a whole test run holds by now is added to what the export takes.
    monkeypatch.setattr("edge.export.request.memory.private_bytes", lambda: 100_000_000)
    for weights in ("int4", "int8"):
        command = ["export", str(tiny_checkpoint), "--weights", weights, "-o", str(tmp_path / "x.edge"), "--memory"]
        assert main([*command, "20MB"]) == 2
        error = capsys.readouterr().err
        assert re.search(
            rf"The export of tiny-llama to {weights} does not fit into 20 MB, because .* takes more; the smallest "
            r"--memory that would do is \d+ MB\.",
            error,
        )
    assert main([*command, "much"]) == 2
    assert "'much' is not an amount of memory" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


def test_an_export_under_a_limit_is_the_one_without(tiny_checkpoint: Path, tmp_path: Path) -> None:
    said = list[str]()
    for limit in (None, "100GB"):
        edge.export(tiny_checkpoint, tmp_path / f"{limit}.edge", weights="int8", memory=limit, say=said.append)
    assert not any("Left out" in sentence for sentence in said)
    files = [sorted(p for p in (tmp_path / f"{limit}.edge").rglob("*") if p.is_file()) for limit in (None, "100GB")]
    assert len(files[0]) == len(files[1]) > 4
    assert all(a.read_bytes() == b.read_bytes() for a, b in zip(*files, strict=True) if a.name != "edge.json")
