"""Tiny Whisper models, and CTranslate2 directories of them, written as its converter writes them."""

from __future__ import annotations

import json
import struct
from pathlib import Path
from typing import Any

import numpy as np
import torch
from tokenizers.pre_tokenizers import ByteLevel
from transformers import WhisperConfig, WhisperForConditionalGeneration

MERGES = ["Ġ t", "h e", "Ġt he", "l l", "he ll", "Ġ w", "o r", "Ġw or"]
LANGUAGES = ["<|en|>", "<|de|>", "<|haw|>"]
OTHERS = ["translate", "transcribe", "startoflm", "startofprev", "nospeech", "notimestamps"]


def vocabulary() -> list[str]:
    """All tokens in the order of OpenAI's: bytes, merges, special tokens, timestamps up to 30 seconds."""
    text = [*sorted(ByteLevel.alphabet()), *(merge.replace(" ", "") for merge in MERGES)]
    special = ["<|endoftext|>", "<|startoftranscript|>", *LANGUAGES, *(f"<|{name}|>" for name in OTHERS)]
    return [*text, *special, *(f"<|{i * 0.02:.2f}|>" for i in range(1501))]


TOKENS = vocabulary()
IDS = {token: i for i, token in enumerate(TOKENS)}


def tiny_whisper(**changes: Any) -> WhisperForConditionalGeneration:
    """A random model, every weight of which matters, for windows of 100 frames."""
    end = IDS["<|endoftext|>"]
    settings: dict[str, Any] = dict(
        vocab_size=len(TOKENS),
        d_model=96,
        encoder_layers=2,
        decoder_layers=3,
        encoder_attention_heads=6,
        decoder_attention_heads=6,
        encoder_ffn_dim=160,
        decoder_ffn_dim=128,
        max_source_positions=50,
        max_target_positions=60,
        decoder_start_token_id=IDS["<|startoftranscript|>"],
        bos_token_id=end,
        eos_token_id=end,
        pad_token_id=end,
        suppress_tokens=[1, 2, IDS["<|startoftranscript|>"]],
        begin_suppress_tokens=[3, end],
    )
    generator = torch.Generator().manual_seed(0)
    model = WhisperForConditionalGeneration(WhisperConfig(**{**settings, **changes})).eval()
    with torch.no_grad():
        for name, p in model.named_parameters():
            noise = torch.randn(p.shape, generator=generator)
            if p.ndim > 1 and "embed_positions" not in name:
                sharpen = 2.0 if "q_proj" in name or "k_proj" in name else 1.0
                p.copy_(noise * sharpen / p[0].numel() ** 0.5)
            elif "layer_norm.weight" in name:
                p.copy_(1 + 0.2 * noise)
            else:
                p.copy_(0.3 * noise)
    return model


def write_ctranslate2(root: Path, model: Any, *, quantization: str = "float16", spec: str = "WhisperSpec") -> Path:
    """Write `model` and its vocabulary. quantization: float32, float16, int8 (norms and biases in float32), int16."""
    variables: dict[str, np.ndarray] = {}
    for name, values in _variables(model).items():
        if values.dtype != np.float32 or quantization == "float32":
            variables[name] = values
        elif quantization == "float16":
            variables[name] = values.astype(np.float16)
        elif values.ndim != 2 or "position" in name:
            variables[name] = values
        elif quantization == "int8":
            scale = 127 / np.abs(values).max(axis=1)
            variables[name] = np.rint(values * scale[:, None]).astype(np.int8)
            variables[f"{name}_scale"] = scale
        else:
            scale = np.float32(2**10 / np.abs(values).max())
            variables[name] = np.rint(values * scale).astype(np.int16)
            variables[f"{name}_scale"] = np.asarray(scale)
    root.mkdir(parents=True, exist_ok=True)
    aliases = {"decoder/projection/weight": "decoder/embeddings/weight"}
    (root / "model.bin").write_bytes(container(variables, aliases, spec))
    config = model.config
    settings = {
        "alignment_heads": [[1, 0]],
        "lang_ids": [IDS[token] for token in LANGUAGES],
        "suppress_ids": config.suppress_tokens,
        "suppress_ids_begin": config.begin_suppress_tokens,
    }
    (root / "config.json").write_text(json.dumps(settings))
    (root / "vocabulary.json").write_text(json.dumps(TOKENS))
    return root


def container(variables: dict[str, np.ndarray], aliases: dict[str, str], spec: str, version: int = 6) -> bytes:
    """CTranslate2's model.bin."""
    types = {"float32": 0, "int8": 1, "int16": 2, "int32": 3, "float16": 4}

    def string(text: str) -> bytes:
        return struct.pack("<H", len(text) + 1) + text.encode() + b"\0"

    parts = [struct.pack("<I", version), string(spec), struct.pack("<II", 3, len(variables))]
    for name, values in sorted(variables.items()):
        parts.append(string(name) + struct.pack(f"<B{values.ndim}I", values.ndim, *values.shape))
        parts.append(struct.pack("<BI", types[str(values.dtype)], values.nbytes) + values.tobytes())
    parts.append(struct.pack("<I", len(aliases)) + b"".join(string(a) + string(b) for a, b in aliases.items()))
    return b"".join(parts)


def _variables(model: Any) -> dict[str, np.ndarray]:
    """The model's tensors under CTranslate2's names, projections fused."""
    tensors = {n.removeprefix("model."): p.detach().numpy() for n, p in model.named_parameters()}
    variables: dict[str, np.ndarray] = {
        "decoder/embeddings/weight": tensors["decoder.embed_tokens.weight"],
        "decoder/activation": np.array(3, np.int8),
    }

    def module(target: str, source: str, weight: str = "weight", bias: str = "bias") -> None:
        variables[f"{target}/{weight}"] = tensors[f"{source}.weight"]
        variables[f"{target}/{bias}"] = tensors[f"{source}.bias"]

    def fused(target: str, sources: list[str]) -> None:
        variables[f"{target}/weight"] = np.concatenate([tensors[f"{s}.weight"] for s in sources])
        width = len(tensors[f"{sources[0]}.weight"])
        biases = [tensors.get(f"{s}.bias", np.zeros(width, np.float32)) for s in sources]
        variables[f"{target}/bias"] = np.concatenate(biases)

    def norm(target: str, source: str) -> None:
        module(target, source, "gamma", "beta")

    config = model.config
    for conv in ("conv1", "conv2"):
        module(f"encoder/{conv}", f"encoder.{conv}")
    for part, layers in (("encoder", config.encoder_layers), ("decoder", config.decoder_layers)):
        variables[f"{part}/position_encodings/encodings"] = tensors[f"{part}.embed_positions.weight"]
        variables[f"{part}/num_heads"] = np.array(config.encoder_attention_heads, np.int16)
        norm(f"{part}/layer_norm", f"{part}.layer_norm")
        for i in range(layers):
            target, source = f"{part}/layer_{i}", f"{part}.layers.{i}"
            own = f"{source}.self_attn"
            fused(f"{target}/self_attention/linear_0", [f"{own}.{p}_proj" for p in "qkv"])
            module(f"{target}/self_attention/linear_1", f"{own}.out_proj")
            norm(f"{target}/self_attention/layer_norm", f"{source}.self_attn_layer_norm")
            module(f"{target}/ffn/linear_0", f"{source}.fc1")
            module(f"{target}/ffn/linear_1", f"{source}.fc2")
            norm(f"{target}/ffn/layer_norm", f"{source}.final_layer_norm")
            if part == "decoder":
                cross = f"{source}.encoder_attn"
                module(f"{target}/attention/linear_0", f"{cross}.q_proj")
                fused(f"{target}/attention/linear_1", [f"{cross}.{p}_proj" for p in "kv"])
                module(f"{target}/attention/linear_2", f"{cross}.out_proj")
                norm(f"{target}/attention/layer_norm", f"{source}.encoder_attn_layer_norm")
    return variables
