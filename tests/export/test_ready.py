"""Ready ONNX models become bundles that answer as onnxruntime does with the graph alone, and as Torch does."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx_ir as ir
import onnxruntime as ort
import pytest
import ready_models as ready

import edge
from edge.bundle import Bundle, Tensors
from edge.cli.main import main
from edge.errors import CheckpointError, EdgeError, ExportError, InputError
from edge.export.check.of_decoder import check_text
from edge.export.checkpoint import open_checkpoint
from edge.export.graph.imported.stored import store_tensors
from edge.export.pipeline import imported
from edge.manifest import TensorGroup
from edge.onnx_model import chosen, decoders, wanted
from edge.runtime.engine.engine import Engine
from edge.runtime.load import open_engine

LAYOUTS: dict[str, Callable[[Path, Path], Path]] = {
    "optimum": ready.optimum,
    "merged": ready.merged,
    "transformers.js": lambda checkpoint, folder: ready.optimum(checkpoint, folder, bits=4, file="onnx/model_q4.onnx"),
    "genai": ready.genai,
}
PROMPT, TOKENS = "What is a river?", 16
TEXT = [1, *range(40, 60), 7, 8, 9]
OPTIMUM = os.environ.get("OPTIMUM_PYTHON")  # of an environment with optimum-onnx, which wants an older transformers


@pytest.fixture(scope="module", params=LAYOUTS)
def folder(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, tiny_checkpoint: Path) -> Path:
    return LAYOUTS[request.param](tiny_checkpoint, tmp_path_factory.mktemp("ready") / request.param)


@pytest.fixture(scope="module")
def bundle(folder: Path) -> Bundle:
    return edge.export(folder, folder.parent / "ready.edge", effort="quick")


@pytest.fixture
def plain(tmp_path: Path, tiny_checkpoint: Path) -> Path:
    return ready.optimum(tiny_checkpoint, tmp_path / "plain")


def logits(engine: Engine, tokens: np.ndarray, ends: list[int]) -> np.ndarray:
    """The logits of all tokens, in steps that end there."""
    cache, made, start = engine.new_cache(), [], 0
    for end in ends:
        made.append(engine.step(cache, tokens[start:end], rows=np.arange(end - start)).copy())
        start = end
    return np.concatenate(made)


def by_hand(folder: Path, tokens: list[int], count: int) -> list[int]:
    """The tokens that follow by onnxruntime alone, which keeps what the graph gives."""
    (path,) = folder.rglob("*.onnx")
    options = ort.SessionOptions()
    options.use_per_session_threads = False  # the engine's pool is the process's
    session = ort.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    names = [value.name for value in session.get_outputs()]
    inputs = {value.name: value for value in session.get_inputs()}
    past = {
        name: np.zeros((1, value.shape[1], 0, value.shape[3]), np.float32)
        for name, value in inputs.items()
        if name.startswith("past")
    }
    found, new = list[int](), list(tokens)
    for _ in range(count):
        total = len(tokens) + len(found)
        fed = {
            "input_ids": np.array([new]),
            "attention_mask": np.ones((1, total), np.int64),
            "position_ids": np.arange(total - len(new), total)[None],
            "use_cache_branch": np.array([bool(found)]),
            "num_logits_to_keep": np.array(1),
        }
        given = {name: value for name, value in fed.items() if name in inputs}
        made = dict(zip(names, session.run(None, given | past), strict=True))
        new = [int(made["logits"][0, -1].argmax())]
        found += new
        past = {name: made[name.replace("past_key_values", "present")] for name in past}
    return found


def by_engine(bundle: Bundle, tokens: list[int], count: int) -> list[int]:
    """The tokens that follow by a bundle's engine."""
    engine = open_engine(bundle)
    cache, found, new = engine.new_cache(), list[int](), list(tokens)
    for _ in range(count):
        new = [int(engine.step(cache, np.array(new))[0].argmax())]
        found += new
    return found


def test_a_bundle_says_the_tokens_of_onnxruntime_alone(bundle: Bundle, folder: Path) -> None:
    assert by_engine(bundle, TEXT, TOKENS) == by_hand(folder, TEXT, TOKENS)


def test_a_text_has_the_same_logits_however_it_is_cut(bundle: Bundle, folder: Path) -> None:
    engine = open_engine(bundle)
    tokens = np.random.default_rng(1).integers(3, 300, 75)
    whole = logits(engine, tokens, [75])
    most = np.abs(whole).max()
    for ends in ([*range(1, 76)], [7, 64, 75]):
        off = np.abs(logits(engine, tokens, ends) - whole).max(-1)
        if folder.name != "transformers.js":
            assert off.max() < 1e-4 * most
        else:  # activations in 8 bits, of which another last bit rounds one differently now and then
            assert np.percentile(off, 90) < 1e-4 * most and off.max() < 1e-2 * most


def test_dropped_rows_leave_nothing_behind(bundle: Bundle) -> None:
    engine, tokens = open_engine(bundle), np.random.default_rng(2).integers(3, 300, 40)
    cache = engine.new_cache()
    engine.step(cache, tokens[:20])
    engine.step(cache, tokens[30:40])  # a draft of which nothing is accepted
    cache.truncate(20)
    found = engine.step(cache, tokens[20:30]).copy()
    assert np.allclose(found, logits(engine, tokens, [20, 30])[-1], atol=1e-4 * np.abs(found).max())


def test_floats_are_those_of_torch(plain: Path, tiny_checkpoint: Path, tmp_path: Path) -> None:
    from edge.export.reference.in_torch import TorchLogits, load_torch

    checkpoint = open_checkpoint(str(tiny_checkpoint))
    (tokens,) = check_text(checkpoint, 64)
    expected = np.concatenate(list(TorchLogits(load_torch(checkpoint)).logits(tokens)))
    engine = open_engine(edge.export(plain, tmp_path / "x.edge", effort="quick"))
    assert np.abs(logits(engine, tokens, [len(tokens)]) - expected).max() < 1e-3


def test_answers_with_drafts_and_of_several_prompts_are_those_alone(bundle: Bundle) -> None:
    prompts = [PROMPT, "Hello there"]
    with edge.load(bundle.root, speculate="off") as model:
        alone = [model.generate(prompt, max_tokens=TOKENS).token_ids for prompt in prompts]
        assert [each.token_ids for each in model.generate_all(prompts, max_tokens=TOKENS)] == alone
        chat = model.chat()
        chat.generate("Hello there", max_tokens=8)
        assert chat.generate("And then?", max_tokens=8).text is not None and chat.cached_tokens > 0
    with edge.load(bundle.root, speculate="lookup") as model:
        assert [model.generate(prompt, max_tokens=TOKENS).token_ids for prompt in prompts] == alone


def test_a_bundle_replays_its_golden_answers(bundle: Bundle, capsys: pytest.CaptureFixture[str]) -> None:
    main(["verify", str(bundle.root)])
    assert "answers are as recorded" in capsys.readouterr().out


def test_edge_run_takes_a_folder_and_a_file_and_keeps_the_bundle(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (file,) = folder.rglob("*.onnx")
    said = []
    for source in (folder, folder, file):
        main(["run", str(source), PROMPT, "--max-tokens", "4"])
        said.append(capsys.readouterr())
    assert "Making a bundle" in said[0].err and "Making a bundle" not in said[1].err
    assert len({each.out for each in said}) == 1


def test_of_several_files_the_kind_of_weights_is_taken(plain: Path, tiny_checkpoint: Path, tmp_path: Path) -> None:
    shutil.copytree(LAYOUTS["transformers.js"](tiny_checkpoint, tmp_path / "js") / "onnx", plain / "onnx")
    (plain / "onnx" / "model_fp16.onnx").write_bytes(b"")
    checkpoint = open_checkpoint(str(plain))
    assert checkpoint.file_for(None).name == checkpoint.file_for("int4").name == "model_q4.onnx"  # type: ignore[attr-defined]
    assert checkpoint.file_for("fp32").name == "model.onnx"  # type: ignore[attr-defined]
    with pytest.raises(InputError, match=r"no file for --weights int8; there are .*model_q4\.onnx"):
        edge.export(plain, tmp_path / "x.edge", weights="int8")


def test_files_of_a_repository_are_those_of_one_graph() -> None:
    names = [*(f"onnx/model{end}.onnx" for end in ("", "_q4", "_fp16", "_quantized")), "config.json"]
    names += ["onnx/model_q4.onnx_data", "onnx/model.onnx_data", "onnx/decoder_model.onnx"]
    assert decoders(names) == {
        "": "onnx/model.onnx",
        "q4": "onnx/model_q4.onnx",
        "fp16": "onnx/model_fp16.onnx",
        "quantized": "onnx/model_quantized.onnx",
    }
    assert wanted(names) == ["onnx/model_q4.onnx", "onnx/model_q4.onnx_data"]
    assert chosen(decoders(names), "int8") == "onnx/model_quantized.onnx"
    assert chosen({"fp16": "model_fp16.onnx"}) is None


def changed(folder: Path, change: Callable[[ir.Model], None], *, data: str | None = None) -> Path:
    """The folder with another graph."""
    (path,) = folder.rglob("*.onnx")
    model = ir.load(path)
    change(model)
    ir.save(model, path, external_data=data)
    return folder


def refused(folder: Path, match: str, kind: type[EdgeError] = ExportError) -> None:
    out = folder.parent / "x.edge"
    with pytest.raises(kind, match=match):
        edge.export(folder, out, effort="quick")
    assert not out.exists() and not list(folder.parent.glob(".x.edge*"))


def rename(model: ir.Model, before: str, after: str) -> None:
    next(value for value in (*model.graph.inputs, *model.graph.outputs) if value.name == before).name = after


def reshaped(model: ir.Model, shape: list[int | str]) -> None:
    value = next(value for value in model.graph.inputs if value.name == "past_key_values.0.key")
    value.shape = ir.Shape(shape)


@pytest.mark.parametrize(
    ("change", "match"),
    [
        (lambda m: rename(m, "position_ids", "speaker"), "wants the input 'speaker', which nobody feeds"),
        (lambda m: rename(m, "position_ids", "past_conv.0"), "'past_conv.0', which is a state of a layer"),
        (lambda m: rename(m, "present.1.value", "output"), "no past and present value of the layer 1"),
        (lambda m: rename(m, "logits", "scores"), "no output logits"),
        (lambda m: rename(m, "input_ids", "inputs_embeds"), "reads embeddings instead of tokens"),
        (lambda m: rename(m, "position_ids", "encoder_hidden_states"), "half of an encoder-decoder"),
        (lambda m: reshaped(m, ["b", 16, "p"]), r"the shape \[b,16,p\]"),
        (lambda m: reshaped(m, ["b", "heads", "p", 16]), r"the shape \[b,heads,p,16\]"),
        (lambda m: reshaped(m, ["b", 3, "p", 16]), "the key and the value of its layer 0 have other sizes"),
    ],
)
def test_a_graph_of_another_kind_is_refused(plain: Path, change: Callable[[ir.Model], None], match: str) -> None:
    refused(changed(plain, change), match)


def test_a_graph_that_keeps_nothing_is_refused(plain: Path) -> None:
    def forget(model: ir.Model) -> None:
        for value in [*model.graph.inputs, *model.graph.outputs]:
            value.name = str(value.name).replace("past_key_values", "skipped").replace("present", "given")

    refused(changed(plain, forget), "keeps nothing of a text; export it with its cache")


def test_wrong_sizes_of_the_cache_are_refused(plain: Path) -> None:
    def widen(model: ir.Model) -> None:
        for value in [*model.graph.inputs, *model.graph.outputs]:
            if str(value.name).startswith(("past", "present")):
                value.shape = ir.Shape(["b", 7, "p", 16])

    refused(changed(plain, widen), r"model\.onnx cannot be run|shape")


def test_operators_of_others_are_refused(plain: Path) -> None:
    def add(model: ir.Model) -> None:
        node = ir.node("Surprise", [model.graph.inputs[0]], domain="someone")
        model.graph.append(node)
        model.graph.opset_imports["someone"] = 1

    refused(changed(plain, add), "operator 'Surprise' of the domain 'someone'", CheckpointError)


@pytest.mark.parametrize("location", ["../secret.data", "/etc/passwd", "sub/../../secret.data", "link.data"])
def test_tensors_outside_of_the_folder_are_refused(plain: Path, location: str) -> None:
    (plain.parent / "secret.data").write_bytes(bytes(1 << 20))
    (plain / "link.data").symlink_to(plain.parent / "secret.data")
    (plain / "sub").mkdir()
    path = plain / "model.onnx"
    from onnx import ModelProto

    model = ModelProto.FromString(path.read_bytes())
    tensor = next(each for each in model.graph.initializer if each.name == "model.embed_tokens.weight")
    size = len(tensor.raw_data)
    tensor.ClearField("raw_data")
    tensor.data_location = 1
    for key, value in {"location": location, "offset": "0", "length": str(size)}.items():
        tensor.external_data.add(key=key, value=value)
    path.write_bytes(model.SerializeToString())
    refused(plain, "outside of its folder", CheckpointError)


def test_tensors_that_are_cut_short_or_gone_are_refused(tiny_checkpoint: Path, tmp_path: Path) -> None:
    folder = ready.genai(tiny_checkpoint, tmp_path / "genai")
    data = folder / "model.onnx.data"
    data.write_bytes(data.read_bytes()[:-64])
    refused(folder, "has no such bytes", CheckpointError)
    data.unlink()
    refused(folder, r"needs the file 'model\.onnx\.data'", CheckpointError)


def test_what_is_no_model_is_refused(plain: Path) -> None:
    (plain / "model.onnx").write_bytes(b"\x08\x07garbage" * 20)
    refused(plain, "cannot be read as an ONNX model", CheckpointError)
    (plain / "model.onnx").unlink()
    for name in ("decoder_model.onnx", "decoder_with_past_model.onnx"):
        (plain / name).write_bytes(b"")
    refused(plain, "has its decoder in two files", CheckpointError)
    (plain / "encoder_model.onnx").write_bytes(b"")
    refused(plain, "is an encoder-decoder, and ready ONNX models are read of decoders alone", CheckpointError)


def test_keys_in_float16_are_refused(plain: Path) -> None:
    def halve(model: ir.Model) -> None:
        for value in model.graph.inputs:
            if str(value.name).startswith("past"):
                value.type = ir.TensorType(ir.DataType.FLOAT16)

    refused(changed(plain, halve), "keys and values are kept in float32 on a CPU")
    (plain / "model.onnx").rename(plain / "model_fp16.onnx")
    refused(plain, "has its weights in float16 alone", InputError)


def test_a_graph_that_reads_its_past_in_another_way_is_refused_with_the_measure(plain: Path) -> None:
    def forget(model: ir.Model) -> None:
        """The keys that it gives are none of those that it attends to."""
        for value in model.graph.outputs:
            if str(value.name).endswith("key"):
                node = value.producer()
                assert node is not None
                noise = ir.node("Neg", [value])
                noise.outputs[0].type, noise.outputs[0].shape = value.type, value.shape
                model.graph.append(noise)
                model.graph.outputs[[*model.graph.outputs].index(value)] = noise.outputs[0]
                noise.outputs[0].name, value.name = value.name, f"{value.name}.before"

    refused(changed(plain, forget), r"in steps as it reads it in one piece \(mean KL divergence [0-9.]+, top-1")


def test_a_bundle_that_answers_in_another_way_is_refused_with_the_measure(
    plain: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def other(graph: ir.Graph, writer: Tensors) -> list[TensorGroup]:
        weight = graph.initializers["model.norm.weight"]
        assert weight.const_value is not None
        weight.const_value = ir.tensor(-weight.const_value.numpy(), name=weight.name)
        return store_tensors(graph, writer)

    monkeypatch.setattr(imported, "store_tensors", other)
    refused(plain, r"does not answer as onnxruntime does with model\.onnx \(mean KL divergence [0-9.]+, top-1")


def test_options_of_families_are_refused(plain: Path, tmp_path: Path) -> None:
    for options in ({"segments": 1}, {"target": "cuda"}, {"block_size": 32}, {"bits": 4.5}, {"draft_text": 10}):
        with pytest.raises(InputError, match="is an ONNX graph already"):
            edge.export(plain, tmp_path / "x.edge", **options)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("change", "match"),
    [
        ({"decoder": None}, "describes no decoder"),
        ({"vision": {}}, r"several graphs \(vision\)"),
        ({"decoder": {"pipeline": []}}, r"several graphs \(pipeline\)"),
        ({"decoder": {"filename": "../model.onnx"}}, "which is not in the folder"),
        ({"context_length": -5}, "is no size of a decoder"),
    ],
)
def test_a_damaged_genai_config_is_refused(
    tiny_checkpoint: Path, tmp_path: Path, change: dict[str, object], match: str
) -> None:
    folder = ready.genai(tiny_checkpoint, tmp_path / "genai")
    path = folder / "genai_config.json"
    found = json.loads(path.read_text())
    for name, value in change.items():
        known = found["model"].get(name)
        found["model"][name] = {**known, **value} if isinstance(known, dict) and isinstance(value, dict) else value
    path.write_text(json.dumps(found))
    refused(folder, match, CheckpointError)


EXPORT = """
import sys
from optimum.exporters.onnx import main_export
main_export(sys.argv[1], sys.argv[2], task="text-generation-with-past", do_validation=False)
"""


@pytest.mark.slow
@pytest.mark.skipif(OPTIMUM is None, reason="OPTIMUM_PYTHON names no Python with optimum-onnx")
@pytest.mark.parametrize("kind", ["llama", "gpt2", "opt", "bloom", "gpt_neox"])
def test_optimum_s_own_exports(tmp_path: Path, tiny_checkpoint: Path, kind: str) -> None:
    assert OPTIMUM is not None
    source = tmp_path / "torch"
    shutil.copytree(tiny_checkpoint, source, ignore=shutil.ignore_patterns("*.safetensors"))
    settings = json.loads((source / "tokenizer_config.json").read_text())  # whose class is transformers 5's
    settings["tokenizer_class"] = "PreTrainedTokenizerFast"
    (source / "tokenizer_config.json").write_text(json.dumps(settings))
    script = (
        "import sys, torch; from transformers import AutoConfig, AutoModelForCausalLM as A; torch.manual_seed(0); "
        "A.from_config(AutoConfig.for_model(sys.argv[1], vocab_size=320, hidden_size=64, num_hidden_layers=2, "
        "num_attention_heads=4, max_position_embeddings=512, bos_token_id=1, eos_token_id=2, pad_token_id=0))"
        ".save_pretrained(sys.argv[2])"
    )
    subprocess.run([OPTIMUM, "-c", script, kind, str(source)], check=True)
    subprocess.run([OPTIMUM, "-c", EXPORT, str(source), str(tmp_path / "onnx")], check=True)
    bundle = edge.export(tmp_path / "onnx", tmp_path / "x.edge")
    assert by_engine(bundle, TEXT, TOKENS) == by_hand(tmp_path / "onnx", TEXT, TOKENS)
