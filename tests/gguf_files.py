"""GGUF files of tiny transformers models, written as llama.cpp's converter writes them, with gguf's own tables."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gguf
import numpy as np
import torch
from gguf import GGMLQuantizationType as Type
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedModel

ARCHITECTURES = {
    "llama": gguf.MODEL_ARCH.LLAMA,
    "mistral": gguf.MODEL_ARCH.LLAMA,
    "qwen2": gguf.MODEL_ARCH.QWEN2,
    "qwen3": gguf.MODEL_ARCH.QWEN3,
    "smollm3": gguf.MODEL_ARCH.SMOLLM3,
    "phi3": gguf.MODEL_ARCH.PHI3,
    "gemma3_text": gguf.MODEL_ARCH.GEMMA3,
}
PERMUTED = {"llama", "mistral", "smollm3"}
VOCABULARY = 272  # 256 bytes, a few merges and special tokens


def tiny_model(model_type: str, **changes: Any) -> PreTrainedModel:
    """A random model with three heads, grouped KV and weights that make every part of it matter."""
    settings: dict[str, Any] = dict(
        model_type=model_type,
        vocab_size=VOCABULARY,
        hidden_size=96,
        intermediate_size=160,
        num_hidden_layers=4,
        num_attention_heads=3,
        num_key_value_heads=1,
        max_position_embeddings=256,
        tie_word_embeddings=False,
        rms_norm_eps=1e-5,
        bos_token_id=None,
        eos_token_id=1,
        pad_token_id=None,
    )
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(AutoConfig.for_model(**{**settings, **changes})).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(torch.randn_like(parameter) * (0.3 if parameter.dim() == 1 else 0.08))
    return model


def interleave(rows: np.ndarray, heads: int) -> np.ndarray:
    """What llama.cpp's converter does to q and k: the halves of each head are interleaved."""
    return rows.reshape(heads, 2, rows.shape[0] // heads // 2, *rows.shape[1:]).swapaxes(1, 2).reshape(rows.shape)


def byte_vocabulary() -> tuple[list[str], list[int], list[str]]:
    """Tokens, token types and merges of a byte-level vocabulary of VOCABULARY tokens."""
    special = ["<|endoftext|>", "<|im_end|>", "<tool>"]
    from tokenizers.pre_tokenizers import ByteLevel

    merges = ["h e", "l l", "Ġ w", "o r", "he ll", "Ġw or"]
    tokens = [*special, *sorted(ByteLevel.alphabet()), *(m.replace(" ", "") for m in merges)]
    types = [3, 3, 4] + [1] * (len(tokens) - 3)
    while len(tokens) < VOCABULARY:
        tokens.append(f"[PAD{len(tokens)}]")
        types.append(5)
    return tokens, types, merges


def write_gguf(
    path: Path,
    model: PreTrainedModel,
    *,
    types: dict[str, Type] | None = None,
    metadata: dict[str, Any] | None = None,
    extra: dict[str, np.ndarray] | None = None,
    leave_out: str = "",
) -> Path:
    """Write `model`. types: the stored type by a part of the GGUF tensor's name, default F32. metadata: strings,
    floats and ints beyond the usual. extra: more tensors. leave_out: one tensor's name."""
    c = model.config
    architecture = ARCHITECTURES[c.model_type]
    writer = gguf.GGUFWriter(path, gguf.MODEL_ARCH_NAMES[architecture])
    writer.add_license("mit")
    writer.add_context_length(c.max_position_embeddings)
    writer.add_embedding_length(c.hidden_size)
    writer.add_block_count(c.num_hidden_layers)
    writer.add_feed_forward_length(c.intermediate_size)
    writer.add_head_count(c.num_attention_heads)
    writer.add_head_count_kv(c.num_key_value_heads)
    writer.add_layer_norm_rms_eps(c.rms_norm_eps)
    rope = c.rope_parameters
    writer.add_rope_freq_base(rope.get("full_attention", rope)["rope_theta"])
    head_dim = getattr(c, "head_dim", None) or c.hidden_size // c.num_attention_heads
    writer.add_rope_dimension_count(int(head_dim * rope.get("partial_rotary_factor", 1.0)))
    if c.model_type in ("llama", "mistral", "qwen3", "gemma3_text"):
        writer.add_key_length(head_dim)
        writer.add_value_length(head_dim)
    if getattr(c, "sliding_window", None) and c.model_type in ("gemma3_text", "phi3"):
        writer.add_sliding_window(c.sliding_window)
    _add_tokenizer(writer, c.vocab_size)
    for key, value in (metadata or {}).items():
        add = {str: writer.add_string, float: writer.add_float32, int: writer.add_uint32, bool: writer.add_bool}
        add[type(value)](key, value)
    for name, values in [*_tensors(model).items(), *(extra or {}).items()]:
        if name == leave_out:
            continue
        kind = next((t for part, t in (types or {}).items() if part in name), Type.F32)
        if kind == Type.F16:
            writer.add_tensor(name, values.astype(np.float16))
        elif kind == Type.F32:
            writer.add_tensor(name, values.astype(np.float32))
        else:
            writer.add_tensor(name, quantized(values, kind), raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def quantized(values: np.ndarray, kind: Type) -> np.ndarray:
    """Blocks of `values`; for the K types, which gguf cannot make, random blocks with finite scales."""
    try:
        return gguf.quants.quantize(values, kind)
    except NotImplementedError:
        per_block, size = gguf.GGML_QUANT_SIZES[kind]
        blocks = np.random.default_rng(0).integers(0, 256, (*values.shape[:-1], values.shape[-1] // per_block, size))
        blocks = blocks.astype(np.uint8)
        scales = {Type.Q4_K: [0, 2], Type.Q5_K: [0, 2], Type.Q6_K: [208]}[kind]
        for at in scales:
            blocks[..., at : at + 2] = np.frombuffer(np.float16(0.01).tobytes(), np.uint8)
        return blocks.reshape(*values.shape[:-1], -1)


def _tensors(model: PreTrainedModel) -> dict[str, np.ndarray]:
    """Under llama.cpp's names and conventions."""
    c = model.config
    names = gguf.get_tensor_name_map(ARCHITECTURES[c.model_type], c.num_hidden_layers)
    tensors = {}
    for name, parameter in model.named_parameters():
        values = parameter.detach().numpy()
        if c.model_type in PERMUTED and ".q_proj." in name:
            values = interleave(values, c.num_attention_heads)
        if c.model_type in PERMUTED and ".k_proj." in name:
            values = interleave(values, c.num_key_value_heads)
        if c.model_type == "gemma3_text" and name.endswith("norm.weight"):
            values = values + 1
        target = names.get_name(name, try_suffixes=(".weight", ".bias"))
        assert target is not None, name
        tensors[target] = values
    return tensors


def _add_tokenizer(writer: gguf.GGUFWriter, size: int) -> None:
    tokens, types, merges = byte_vocabulary()
    assert size == len(tokens)
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("smollm")
    writer.add_token_list(tokens)
    writer.add_token_types(types)
    writer.add_token_merges(merges)
    writer.add_eos_token_id(1)
    writer.add_chat_template("{{ messages }}")
