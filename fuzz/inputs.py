"""Whole inputs, made once for a run: tiny models, their bundles, sounds.

`python -m fuzz.inputs FOLDER NAME...` makes those of these names, and what they are made of, in FOLDER.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
FIXTURES = ROOT / "tests" / "fixtures"

ROTATION = {"rope_type": "default", "rope_theta": 10000.0}
KINDS = {"layer_types": ["sliding_attention", "full_attention"] * 2, "sliding_window": 4}
SHARED = {**KINDS, "num_hidden_layers": 4, "num_kv_shared_layers": 2, "head_dim": 16, "hidden_size_per_layer_input": 8}
PER_LAYER = {**SHARED, "vocab_size_per_layer_input": 100}
SCAN = {"mamba_n_heads": 4, "mamba_d_state": 16}
DELTA_EXPERTS = {
    "head_dim": 16,
    **{"linear_num_key_heads": 2, "linear_num_value_heads": 4},
    **{"linear_key_head_dim": 16, "linear_value_head_dim": 16},
    **{"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 16},
    "shared_expert_intermediate_size": 16,
    "layer_types": ["linear_attention", "full_attention"],
    "rope_parameters": {**ROTATION, "partial_rotary_factor": 0.25},
}
DECODERS: dict[str, dict[str, Any]] = {
    **{name: {} for name in ("llama", "mistral", "ministral3", "qwen2", "qwen3", "gemma3_text", "phi3", "smollm3")},
    **{name: {} for name in ("olmo2", "olmo3", "granite", "exaone4", "ernie4_5", "cohere2", "starcoder2", "stablelm")},
    "bitnet": {},
    "hunyuan_v1_dense": {"head_dim": 16},
    "gemma2": {"head_dim": 16},
    "gemma4_text": {**PER_LAYER, "global_head_dim": 16},
    "gemma3n_text": {**PER_LAYER, "laurel_rank": 8, "activation_sparsity_pattern": [0.9, 0.0, 0.0, 0.0]},
    "qwen3_5_text": {
        "head_dim": 16,
        "linear_num_key_heads": 2,
        "linear_num_value_heads": 4,
        "linear_key_head_dim": 16,
        "linear_value_head_dim": 16,
        "layer_types": ["linear_attention", "full_attention"],
        "rope_parameters": {**ROTATION, "partial_rotary_factor": 0.25},
    },
    "qwen3_next": DELTA_EXPERTS,
    "qwen3_5_moe_text": DELTA_EXPERTS,
    "olmoe": {"num_experts": 4, "num_experts_per_tok": 2},
    "qwen3_moe": {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 16, "mlp_only_layers": [1]},
    "gpt_oss": {"num_local_experts": 4, "num_experts_per_tok": 2, "head_dim": 16, "intermediate_size": 16},
    "lfm2": {"block_multiple_of": 32, "layer_types": ["conv", "full_attention"], "rope_parameters": ROTATION},
    "lfm2_moe": {
        **{"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 16, "num_dense_layers": 1},
        **{"layer_types": ["conv", "full_attention"], "rope_parameters": ROTATION},
    },
    "granitemoe": {"num_local_experts": 4, "num_experts_per_tok": 2},
    "granitemoeshared": {"num_local_experts": 4, "num_experts_per_tok": 2, "shared_intermediate_size": 32},
    "granitemoehybrid": {
        **{**SCAN, "num_local_experts": 4, "shared_intermediate_size": 64},
        **{"layer_types": ["linear_attention", "full_attention"]},
    },
    "falcon_h1": {**SCAN, "mamba_d_ssm": 64, "mamba_rms_norm": True},
}
SENTENCEPIECE = {"t5": "spiece.model", "marian": "source.spm"} | dict.fromkeys(
    ("m2m100", "nllb"), "sentencepiece.bpe.model"
)

MAKERS: dict[str, Callable[[Path], object]] = {}


def variables(**more: str) -> dict[str, str]:
    """The environment of a process of ours, which imports nothing from the folder that it is started in."""
    return os.environ | {"PYTHONPATH": str(ROOT), "PYTHONSAFEPATH": "1", "PYTHONUNBUFFERED": "1"} | more


def make_inputs(folder: Path, names: Iterable[str]) -> None:
    """Make the inputs of these names, in a process of their own: they need Torch, which whoever tries them does not.

    Raises:
        RuntimeError: they could not be made.
    """
    home = folder / "home"
    command = [sys.executable, "-m", "fuzz.inputs", str(folder), *sorted(set(names))]
    done = subprocess.run(command, env=variables(EDGE_HOME=str(home)), capture_output=True, text=True, cwd=folder)
    if done.returncode:
        raise RuntimeError(f"The inputs could not be made:\n{done.stderr[-3000:]}")


def _input(make: Callable[[Path], object]) -> Callable[[Path], object]:
    MAKERS[make.__name__] = make
    return make


def _need(folder: Path, name: str) -> Path:
    """Another input, made where it is not there yet."""
    target = folder / name
    if not target.exists():
        part = folder / f"{name}.new"
        shutil.rmtree(part, ignore_errors=True)
        part.mkdir()
        MAKERS[name](part)
        part.rename(target)
    return target


@_input
def directory(out: Path) -> None:
    """A tiny Llama in safetensors, with a byte-level tokenizer."""
    from tiny_decoders import tiny_llama

    tiny_llama(out)


@_input
def pickled(out: Path) -> None:
    """The same in a pytorch_model.bin."""
    import torch
    from safetensors.torch import load_file

    source = _need(out.parent, "directory")
    shutil.copytree(source, out, ignore=shutil.ignore_patterns("*.safetensors"), dirs_exist_ok=True)
    torch.save(load_file(source / "model.safetensors"), out / "pytorch_model.bin")


@_input
def decoder(out: Path) -> None:
    """The tiny Llama's bundle in 8 bits, with what it drafts from."""
    import edge

    source = _need(out.parent, "directory")
    edge.export(source, out / "model.edge", weights="int8", check=False, draft_text=300)


@_input
def segments(out: Path) -> None:
    """A bundle of six layers in float32, in segments, with routers."""
    import dataclasses

    import numpy as np
    from skip_models import in_units
    from tiny_decoders import six_layer_llama

    import edge
    from edge.bundle import MANIFEST
    from edge.manifest import File
    from fuzz.bundles import seal

    source = six_layer_llama(out.parent / "six", _need(out.parent, "directory"))
    bundle = edge.export(source, out / "model.edge", weights="fp32", segments=1, check=False, candidates=False)
    routers = np.random.default_rng(1).standard_normal((len(bundle.manifest.segments) - 2, 65))
    manifest = in_units(bundle, 1, routers).manifest
    listed = dataclasses.replace(manifest, files=[*manifest.files, File("routers.npy", 0, "")])
    (bundle.root / MANIFEST).write_text(listed.to_json(), encoding="utf-8")
    seal(bundle.root)


@_input
def translator(out: Path) -> None:
    """A T5's bundle in 8 bits, with a Unigram tokenizer, and the checkpoint."""
    from tiny_encoder_decoders import t5_bundle

    t5_bundle(out).root.rename(out / "model.edge")


@_input
def whisper(out: Path) -> None:
    """A Whisper's bundle."""
    from tiny_encoder_decoders import whisper_bundle

    whisper_bundle(out).root.rename(out / "model.edge")


@_input
def translator_directory(out: Path) -> None:
    """A T5 in safetensors."""
    shutil.copytree(_need(out.parent, "translator") / "tiny-t5", out, dirs_exist_ok=True)


@_input
def whisper_directory(out: Path) -> None:
    """A Whisper in safetensors."""
    from whisper_files import tiny_whisper

    from edge.export.checkpoint import open_checkpoint

    tiny_whisper(encoder_layers=1, decoder_layers=1).save_pretrained(out)
    tokenizer = open_checkpoint(str(_need(out.parent, "ctranslate2"))).tokenizer.json
    (out / "tokenizer.json").write_text(tokenizer, encoding="utf-8")


@_input
def ctranslate2(out: Path) -> None:
    """A Whisper in CTranslate2's form."""
    from whisper_files import tiny_whisper, write_ctranslate2

    write_ctranslate2(out, tiny_whisper(encoder_layers=1, decoder_layers=1))


@_input
def quantized(out: Path) -> None:
    """The tiny Llama as quantizers write it, and an adapter next to its base."""
    from functools import partial

    import quantized_folders as forms
    import torch
    from safetensors.torch import save_file

    base = Path(shutil.copytree(_need(out.parent, "directory"), out / "base"))
    packed = {"group_0": {"targets": ["Linear"], "weights": {"num_bits": 4, "group_size": 32}}}
    made = {
        "gptq": (partial(forms.gptq, act_order=True), {"bits": 4, "group_size": 32, "desc_act": True}),
        "awq": (forms.awq, {"bits": 4, "group_size": 32, "version": "gemm"}),
        "compressed-tensors": (
            partial(forms.packed_integers, symmetric=False), {"format": "pack-quantized", "config_groups": packed}
        ),
        "fp8": (partial(forms.fp8, block=(32, 32)), {"weight_block_size": [32, 32]}),
        "bitsandbytes": (partial(forms.nf4, nested=True), {"load_in_4bit": True}),
    }  # fmt: skip
    for name, (make, config) in made.items():
        forms.write_quantized(out / name, base, make, {**config, "quant_method": name})
    adapter = out / "adapter"
    adapter.mkdir()
    start = "base_model.model.model.layers.{}.self_attn.q_proj.lora_{}.weight"
    factors = {"A": torch.ones(4, 64), "B": torch.ones(64, 4)}
    save_file(
        {start.format(layer, part): each.clone() for layer in range(2) for part, each in factors.items()},
        adapter / "adapter_model.safetensors",
    )
    about = {"peft_type": "LORA", "r": 4, "lora_alpha": 8, "base_model_name_or_path": "../base"}
    (adapter / "adapter_config.json").write_text(json.dumps(about), encoding="utf-8")


@_input
def gguf(out: Path) -> None:
    """A Llama, a T5, gpt-oss and Qwen3-Next in GGUF files."""
    from gguf_files import GPT_OSS, Type, tiny_model, write_gguf
    from gguf_t5 import tiny_t5, write_t5

    model = tiny_model("llama", hidden_size=96, num_hidden_layers=2, intermediate_size=64)
    write_gguf(out / "llama.gguf", model, types={"ffn_up": Type.Q8_0, "ffn_down": Type.F16})
    write_t5(out / "t5.gguf", tiny_t5(num_layers=1, num_decoder_layers=1))
    model = tiny_model("gpt_oss", **GPT_OSS | {"num_hidden_layers": 2, "intermediate_size": 32})
    write_gguf(out / "experts.gguf", model, types={"exps.weight": Type.MXFP4, "attn_q.w": Type.Q8_0})
    model = tiny_model("qwen3_next", num_hidden_layers=2, **DELTA_EXPERTS)
    write_gguf(out / "states.gguf", model, types={"attn_qkv": Type.Q8_0, "ssm_ba": Type.Q8_0})


@_input
def families(out: Path) -> None:
    """A model directory of every family, without a tokenizer of its own."""
    from encoder_decoder_configs import CONFIGS, model_of
    from gguf_files import tiny_model

    for name in CONFIGS:
        model_of(name).save_pretrained(out / name)
    small = {"hidden_size": 48, "num_hidden_layers": 2, "intermediate_size": 64}
    for name, settings in DECODERS.items():
        tiny_model(name, **small | settings).save_pretrained(out / name)
    for folder in out.iterdir():
        shutil.copy(_need(out.parent, "directory") / "tokenizer.json", folder)


@_input
def sentencepiece(out: Path) -> None:
    """Directories with a SentencePiece model: a T5's, a Marian's and an NLLB's."""
    from unigram_tokenizers import trained_model, trained_pieces

    pieces = [piece for piece, _ in trained_pieces()[0]]
    settings = {"t5": "T5Tokenizer", "marian": "MarianTokenizer", "m2m100": "M2M100Tokenizer", "nllb": "NllbTokenizer"}
    for name, tokenizer in settings.items():
        folder = out / name
        folder.mkdir()
        (folder / SENTENCEPIECE[name]).write_bytes(trained_model())
        about = {"tokenizer_class": tokenizer, "extra_ids": 10, "eos_token": "</s>", "unk_token": "<unk>"}
        (folder / "tokenizer_config.json").write_text(json.dumps(about), encoding="utf-8")
        if name in ("marian", "m2m100"):
            (folder / "vocab.json").write_text(json.dumps({p: i for i, p in enumerate(pieces)}), encoding="utf-8")


@_input
def vocabularies(out: Path) -> None:
    """A byte-level tokenizer, and a Unigram one with a character map."""
    from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, pre_tokenizers
    from unigram_tokenizers import trained_pieces

    shutil.copy(_need(out.parent, "directory") / "tokenizer.json", out / "bytes.json")
    pieces, characters = trained_pieces()
    tokenizer = Tokenizer(models.Unigram(pieces, 2, False))
    tokenizer.normalizer = normalizers.Precompiled(characters)
    tokenizer.pre_tokenizer, tokenizer.decoder = pre_tokenizers.Metaspace(), decoders.Metaspace()
    tokenizer.add_special_tokens([AddedToken(token, normalized=False) for token in ("<pad>", "</s>", "<last>")])
    tokenizer.save(str(out / "unigram.json"))


@_input
def sounds(out: Path) -> None:
    """A tone in every format that is read in another way."""
    import numpy as np
    import soundfile
    from sounds import tone, write_wave

    write_wave(out / "stereo.wav", np.stack([tone(1, 8_000)] * 2, axis=1), 8_000)
    write_wave(out / "plain.wav", np.stack([tone(1)] * 2, axis=1))
    for kind in ("flac", "ogg", "mp3"):
        soundfile.write(out / f"tone.{kind}", tone(1, 8_000), 8_000, format=kind.upper())
    for form, subtype in (
        ("AIFF", "FLOAT"),
        ("AU", "ULAW"),
        ("CAF", "PCM_24"),
        ("RF64", "DOUBLE"),
        ("WAV", "IMA_ADPCM"),
    ):
        soundfile.write(out / f"tone.{form.lower()}.sound", tone(1, 8_000), 8_000, format=form, subtype=subtype)


def main(arguments: list[str]) -> int:
    folder, *names = arguments
    sys.path.insert(0, str(FIXTURES))
    for name in names:
        _need(Path(folder).resolve(), name)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
