"""Exporting an encoder-decoder: both halves' weights, the check against Torch, and a bundle that proves itself."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from encoder_decoder_configs import t5gemma2
from unigram_tokenizers import SENTENCES, save_tokenizer

import edge
from edge.bundle import Bundle, open_bundle
from edge.cli.main import main
from edge.errors import ExportError, InputError
from edge.export.check import of_encoder_decoder as check
from edge.export.quantize import voice
from edge.golden import noise, read_golden
from edge.runtime.check.golden import replay_golden
from edge.runtime.load import open_engine


@pytest.fixture(scope="module")
def tiny_t5(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model directory as transformers writes it: a random T5 v1.1, and a Unigram tokenizer that ends texts."""
    import torch
    from transformers import T5Config, T5ForConditionalGeneration

    folder = tmp_path_factory.mktemp("tiny") / "tiny-t5"
    fast = save_tokenizer(folder, ["<pad>", "</s>", "<unk>"], "$A </s>")
    torch.manual_seed(3)
    config = T5Config(
        vocab_size=len(fast),
        d_model=64,
        d_kv=16,
        d_ff=128,
        num_layers=2,
        num_heads=4,
        feed_forward_proj="gated-gelu",
        decoder_start_token_id=0,
    )
    model = T5ForConditionalGeneration(config)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim == 2:
                parameter.normal_(0, parameter.shape[1] ** -0.5)
    model.save_pretrained(folder)
    return folder


@pytest.fixture(scope="module")
def bundle(tiny_t5: Path, tmp_path_factory: pytest.TempPathFactory) -> Bundle:
    return edge.export(tiny_t5, tmp_path_factory.mktemp("t5") / "t5.edge")


def test_the_manifest_says_what_it_is(bundle: Bundle) -> None:
    manifest = open_bundle(bundle.root).manifest
    assert (manifest.kind, manifest.family, manifest.weights) == ("encoder-decoder", "t5", "int8")
    assert {graph.role for graph in manifest.graphs} == {"encoder", "decoder"}
    assert manifest.encoder is not None and manifest.encoder.input == "text"
    assert manifest.text is not None and manifest.text.suffix == [1] and manifest.text.decoder_start == [0]
    methods = {group.name: group.method for group in manifest.groups}
    assert methods["encoder.attention"] == "rows, no overflow" and methods["feed_forward"] == "rtn"


def test_inspect_says_nothing_of_chats(bundle: Bundle, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["inspect", str(bundle.root)]) == 0
    assert "feed-forward" in (said := capsys.readouterr().out) and "chat" not in said


def test_what_either_half_rounds_is_in_the_tolerance_of_golden_answers(tiny_t5: Path, tmp_path: Path) -> None:
    tolerances = {
        (encoder, decoder): read_golden(
            edge.export(
                tiny_t5, tmp_path / f"{encoder}-{decoder}.edge",
                encoder_weights=encoder, decoder_weights=decoder, check=False,
            )
        ).tolerance
        for encoder, decoder in (("fp32", "fp32"), ("int8", "fp32"), ("fp32", "int8"))
    }  # fmt: skip
    floats = tolerances.pop(("fp32", "fp32"))
    assert all(tolerance > 2 * floats for tolerance in tolerances.values())


def test_the_check_sees_what_quantization_costs(bundle: Bundle, tiny_t5: Path, tmp_path: Path) -> None:
    exact = edge.export(tiny_t5, tmp_path / "f.edge", weights="fp32").manifest.quality
    assert exact["top1_agreement"] == 1.0 and exact["kl_mean"] < 1e-6
    assert 1e-6 < bundle.manifest.quality["kl_mean"] < 0.1


def test_a_umt5_whose_head_is_its_own_is_not_scaled(tiny_t5: Path, tmp_path: Path) -> None:
    """Neither in the bundle nor in the reference: transformers would, because its class calls every umT5 tied."""
    import torch
    from transformers import UMT5Config, UMT5ForConditionalGeneration

    from edge.export.checkpoint import open_checkpoint
    from edge.export.reference.in_torch import load_torch

    root = tmp_path / "umt5"
    shutil.copytree(tiny_t5, root)
    sizes = dict(vocab_size=90, d_model=32, d_kv=8, d_ff=48, num_layers=2, num_heads=4)
    torch.manual_seed(0)
    model = UMT5ForConditionalGeneration(UMT5Config(**sizes)).eval()
    model.lm_head.weight = torch.nn.Parameter(torch.randn_like(model.lm_head.weight))
    model.save_pretrained(root)
    given = dict(input_ids=torch.tensor([[5, 6, 1]]), decoder_input_ids=torch.tensor([[0, 7]]))
    with torch.no_grad():
        scaled = model(**given).logits
        torch.testing.assert_close(load_torch(open_checkpoint(str(root)))(**given).logits, scaled * 32**0.5)
    manifest = edge.export(root, tmp_path / "umt5.edge", weights="fp32").manifest
    assert manifest.family == "umt5" and manifest.quality["kl_mean"] < 1e-6


FAIRSEQ = ["<s>", "<pad>", "</s>", "<unk>"]
BART = dict(
    d_model=32,
    encoder_layers=2,
    decoder_layers=2,
    encoder_attention_heads=2,
    decoder_attention_heads=2,
    encoder_ffn_dim=48,
    decoder_ffn_dim=48,
    max_position_embeddings=64,
)


def tiny_config(family: str, vocab_size: int) -> Any:
    from transformers import (
        BartConfig,
        LongT5Config,
        MBartConfig,
        PegasusConfig,
        PLBartConfig,
        T5GemmaConfig,
        T5GemmaModuleConfig,
    )

    if family == "bart":
        return BartConfig(**BART, vocab_size=vocab_size)
    if family == "mbart":
        return MBartConfig(**BART, vocab_size=vocab_size, scale_embedding=True, decoder_start_token_id=5)
    if family == "longt5":
        sizes = dict(d_model=32, d_kv=16, d_ff=48, num_layers=2, num_heads=2, local_radius=7, global_block_size=4)
        form = dict(encoder_attention_type="transient-global", feed_forward_proj="gated-gelu")
        return LongT5Config(**sizes, **form, vocab_size=vocab_size, decoder_start_token_id=0)
    if family == "plbart":
        return PLBartConfig(**BART, vocab_size=vocab_size, tie_word_embeddings=False, decoder_start_token_id=5)
    if family == "pegasus":
        return PegasusConfig(**BART, vocab_size=vocab_size, scale_embedding=True)
    sizes = dict(hidden_size=32, intermediate_size=48, head_dim=16, max_position_embeddings=64, sliding_window=5)
    heads = dict(num_hidden_layers=2, num_attention_heads=2, num_key_value_heads=1)
    if family == "t5gemma2":
        one: dict[str, Any] = dict(**sizes, **heads, vocab_size=vocab_size, query_pre_attn_scalar=16)
        return t5gemma2(one, one)
    half = T5GemmaModuleConfig(**sizes, **heads, vocab_size=vocab_size)
    ids = dict(pad_token_id=0, eos_token_id=1, bos_token_id=2, decoder_start_token_id=2)
    return T5GemmaConfig(encoder=half, decoder=half, vocab_size=vocab_size, **ids)


@pytest.mark.parametrize("family", ["bart", "t5gemma", "t5gemma2"])
def test_the_check_counts_tokens_that_have_the_paddings_id(family: str, tmp_path: Path) -> None:
    """A model may say that one; T5Gemma hides it from later tokens where nobody tells it which count."""
    import torch
    from encoder_decoder_harness import Exported, tiny_model
    from graph_harness import TinyCheckpoint, float_matrices

    model = tiny_model(tiny_config(family, 40))
    exported = Exported(tmp_path / "whole", model, float_matrices(TinyCheckpoint(model)))
    source, pad = np.arange(5, 14), int(model.config.pad_token_id)
    answer = np.array([2, 7, pad, 9, pad, 11, 3])
    sources = {answer.tobytes(): source}
    reference = check._TorchLogits(model, sources, lambda ids: {"input_ids": torch.from_numpy(ids)[None]})
    wanted = np.concatenate(list(reference.logits(answer)))
    found = np.concatenate(list(check._EngineLogits(exported.engine, sources, exported.encode).logits(answer)))
    np.testing.assert_allclose(found, wanted, atol=2e-4)


@pytest.mark.parametrize(
    ("family", "special", "around"),
    [
        ("bart", FAIRSEQ, "<s> $A </s>"),
        ("mbart", [*FAIRSEQ, "en_XX", "de_DE"], "$A </s> en_XX"),
        ("plbart", [*FAIRSEQ, "__java__", "__en_XX__"], "$A </s> __java__"),
        ("pegasus", ["<pad>", "</s>", "<unk>"], "$A </s>"),
        ("longt5", ["<pad>", "</s>", "<unk>"], "$A </s>"),
        ("t5gemma", ["<pad>", "</s>", "<s>", "<unk>"], "<s> $A"),
        ("t5gemma2", ["<pad>", "</s>", "<s>", "<unk>"], "<s> $A"),
    ],
)
def test_a_directory_of_every_family_answers_as_in_transformers(
    tmp_path: Path, family: str, special: list[str], around: str
) -> None:
    """From text to tokens: tokenizer, format, settings, weights and graphs together."""
    import torch
    from encoder_decoder_harness import tiny_model

    root = tmp_path / family
    tokenizer = save_tokenizer(root, special, around)
    model = tiny_model(tiny_config(family, len(tokenizer)))
    model.generation_config.update(max_length=16, no_repeat_ngram_size=2)  # else random weights say one thing
    model.save_pretrained(root)
    bundle = edge.export(root, tmp_path / "x.edge", weights="fp32")
    assert bundle.manifest.quality["top1_agreement"] == 1.0
    ours, theirs = edge.load(bundle.root), list[list[int]]()
    for text in SENTENCES:
        given = tokenizer(text, return_tensors="pt").input_ids
        with torch.no_grad():
            theirs.append(model.generate(given, do_sample=False)[0].tolist())
    start = [model.generation_config.decoder_start_token_id]
    assert [[*start, *ours.generate(text).token_ids] for text in SENTENCES] == theirs
    assert len(set(map(tuple, theirs))) > 1, "what is said depends on what is read"
    rounded = edge.export(root, tmp_path / "rounded.edge")  # which is compared with PyTorch, too
    assert rounded.manifest.weights == "int8" and edge.load(rounded.root).generate(SENTENCES[0]).token_ids


def test_a_line_that_memory_has_no_room_for_is_named_before_anything_is_done(
    bundle: Bundle, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The encoder takes what was planned for, which is less than what the model takes."""
    source, out = tmp_path / "in.txt", tmp_path / "out.txt"
    source.write_text("A man.\n" + "A man rides a bicycle. " * 8)
    command = ["run", str(bundle.root), "--lines", str(source), "--output", str(out), "--max-tokens", "4"]
    assert main([*command, "--memory", "8GB", "--context", "16"]) == 2
    said = capsys.readouterr().err
    assert said.startswith(f"edge: Line 2 of {source}: The text has ") and "up to 16 in the memory" in said
    assert list(tmp_path.glob("out*")) == []
    assert main(command) == 0


def test_the_bundle_proves_itself_and_another_model_does_not(bundle: Bundle) -> None:
    engine, golden = open_engine(bundle), read_golden(bundle)
    report = replay_golden(engine, golden)
    assert report.ok and report.prompts == 3
    assert all(case.source_ids[-1] == 1 for case in golden.cases)
    golden.cases[0].source_ids[:] = golden.cases[1].source_ids  # another input than was recorded
    assert not replay_golden(engine, golden).ok


@pytest.mark.parametrize("options", [(), ("--beams", "3"), ("--temperature", "1.5", "--seed", "5")])
def test_lines_side_by_side_have_the_answers_of_lines_one_by_one(
    bundle: Bundle, tmp_path: Path, capsys: pytest.CaptureFixture[str], options: tuple[str, ...]
) -> None:
    source = tmp_path / "in.txt"
    source.write_text("\n".join(f"{sentence} {sentence[:n]}" for n in range(8) for sentence in SENTENCES))
    command = ["run", str(bundle.root), "--lines", str(source), "--max-tokens", "12", *options]
    assert main([*command, "--threads", "1"]) == 0
    wanted = capsys.readouterr().out
    assert main([*command, "--threads", "4"]) == 0
    assert capsys.readouterr().out == wanted and len(set(wanted.split("\n"))) > 8
    assert main([*command, "--threads", "4", "--output", str(tmp_path / "out.txt")]) == 0
    assert (tmp_path / "out.txt").read_text() == wanted


def test_halves_are_chosen_one_by_one(tiny_t5: Path, tmp_path: Path) -> None:
    halves = {"encoder_weights": "fp32", "decoder_weights": "int4"}
    made = edge.export(tiny_t5, tmp_path / "x.edge", calibration="\n".join(SENTENCES * 4), check=False, **halves)
    bits = {group.name: group.bits for group in made.manifest.groups}
    assert made.manifest.weights == "fp32+int4"
    assert (bits["encoder.feed_forward"], bits["embedding"]) == (32, 8)
    assert 4 <= min(bits["attention"], bits["cross_attention"], bits["feed_forward"]) < 5


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"weights": "keep"}, "not for encoder-decoders"),
        ({"encoder_weights": "int4"}, "--encoder-weights int4 is unknown"),
        ({"decoder_weights": "int2"}, "--decoder-weights int2 is unknown"),
        ({"weights": "fp32", "block_size": 32}, "--block-size 32 does not apply to fp32 weights"),
        ({"weights": "int8", "block_size": 33}, "--block-size 33 must be a power of two"),
    ],
)
def test_weights_that_do_not_exist_are_refused(
    tiny_t5: Path, tmp_path: Path, options: dict[str, Any], message: str
) -> None:
    with pytest.raises(ExportError, match=message):
        edge.export(tiny_t5, tmp_path / "x.edge", check=False, **options)
    assert list(tmp_path.iterdir()) == []


def test_an_encoder_decoder_has_no_prefill_graph(tiny_t5: Path, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="is an encoder-decoder, whose encoder takes int8 with --encoder-weights"):
        edge.export(tiny_t5, tmp_path / "x.edge", prefill_weights="int8", check=False)
    assert list(tmp_path.iterdir()) == []


def test_an_encoder_decoder_that_the_memory_has_no_room_for_is_refused(tiny_t5: Path, tmp_path: Path) -> None:
    message = r"The export of tiny-t5 to int8 does not fit into 10 MB, because .*; the smallest --memory that would do"
    with pytest.raises(InputError, match=message):
        edge.export(tiny_t5, tmp_path / "x.edge", memory="10MB")
    assert list(tmp_path.iterdir()) == []
    assert edge.export(tiny_t5, tmp_path / "x.edge", check=False, memory="100GB").manifest.weights == "int8"


@pytest.mark.parametrize("options", [{}, {"decoder_weights": "fp32"}])
def test_only_a_decoder_in_int4_is_calibrated(tiny_t5: Path, tmp_path: Path, options: dict[str, Any]) -> None:
    kind = options.get("decoder_weights", "int8")
    with pytest.raises(ExportError, match=f"decoder in {kind} is not calibrated; leave out --calibration, or choose"):
        edge.export(tiny_t5, tmp_path / "x.edge", calibration=" ".join(SENTENCES), check=False, **options)
    assert list(tmp_path.iterdir()) == []


def test_a_decoder_in_int4_is_calibrated_on_the_lines_of_a_file(tiny_t5: Path, tmp_path: Path) -> None:
    """The same file gives the same weights, another one others; the manifest says by which method."""
    text, other = tmp_path / "lines.txt", tmp_path / "other.txt"
    text.write_text("\n".join(SENTENCES * 4))
    other.write_text("\n".join(sentence[::-1] for sentence in SENTENCES * 4))
    stages: set[str] = set()
    made = [
        edge.export(tiny_t5, tmp_path / f"{i}.edge", weights="int4", calibration=file, check=False, progress=progress)
        for i, file in enumerate((text, text, other))
        for progress in [lambda done, total, stage: stages.add(stage)]
    ]
    stored = [(bundle.root / "weights.bin").read_bytes() for bundle in made]
    assert stored[0] == stored[1] != stored[2]
    layers = [g for g in made[0].manifest.groups if g.name in ("attention", "cross_attention", "feed_forward")]
    assert "gptq" in {group.method for group in layers}
    assert sum(g.bits * g.parameters for g in layers) < 5 * sum(g.parameters for g in layers)
    embedding = next(group for group in made[0].manifest.groups if group.name == "embedding")
    assert (embedding.method, embedding.bits) == ("rtn", 8)
    assert {"writing answers to calibrate on", "quantizing to 4 bits"} <= stages
    assert replay_golden(open_engine(made[0]), read_golden(made[0])).ok


def test_a_speech_model_is_calibrated_on_a_recording_and_not_on_a_text(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from sounds import tone, write_wave
    from whisper_files import tiny_whisper, write_ctranslate2

    checkpoint = write_ctranslate2(tmp_path / "whisper", tiny_whisper(max_source_positions=1500))
    wave = write_wave(tmp_path / "a.wav", tone(2.0))
    monkeypatch.setattr(voice, "SPEAKERS", voice.SPEAKERS[:2])  # of the built-in recording, which others test whole
    made = edge.export(checkpoint, tmp_path / "a.edge", weights="int4", calibration=wave, check=False)
    default = edge.export(checkpoint, tmp_path / "b.edge", weights="int4", check=False)
    methods = {group.name: group.method for group in made.manifest.groups}
    assert "gptq" in (methods["feed_forward"], methods["attention"])
    assert (made.root / "weights.bin").read_bytes() != (default.root / "weights.bin").read_bytes()
    with pytest.raises(ExportError, match="hears sound, and a text cannot calibrate it; give the path of a recording"):
        edge.export(checkpoint, tmp_path / "c.edge", weights="int4", calibration="some text", check=False)
    assert not (tmp_path / "c.edge").exists()


def test_a_decoder_has_no_halves(tiny_checkpoint: Path, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="is a decoder alone"):
        edge.export(tiny_checkpoint, tmp_path / "x.edge", encoder_weights="int8")
    assert list(tmp_path.iterdir()) == []


def test_audio_for_golden_answers_is_the_same_on_every_host() -> None:
    samples = noise(1, 4)
    states = [1664525 + 1013904223]
    for _ in range(3):
        states.append((1664525 * states[-1] + 1013904223) % 2**32)
    assert samples == pytest.approx([(s // 2**16 - 32768) * (0.1 / 32768) for s in states], rel=1e-6)
