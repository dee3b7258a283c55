"""What a GGUF file says of itself, and how `edge run` stores it: from its header alone, before anything is made."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from typing import Any

from edge.errors import EdgeError
from edge.export.checkpoint.generation_settings import gguf_settings, unread_gguf_settings
from edge.export.checkpoint.gguf import FORMS, GGUFCheckpoint
from edge.export.facts.gguf_header import GGUFHeader, TensorInfo, open_gguf
from edge.export.facts.tensors import FLOATS, GGUF_TYPES, has_gguf_blocks
from edge.export.quantize.rtn import INT8_BLOCK
from edge.gguf_parts import GGUF
from edge.runtime.kernels.library import computes_gguf, find_kernels

FLOAT_BYTES = {"F32": 4, "F16": 2, "BF16": 4}  # of a weight in a bundle, of types that stay floats
SCALE = 4  # bytes
TEMPLATES = "tokenizer.chat_template."  # before the name of a chat template
MATRIX = 2  # dimensions; the matrices of all experts have one more
OF_EXPERTS = "_exps."  # in the names of what all experts of a layer have, of which a token reads those that it chooses
EMBEDDING, HEAD = "token_embd.weight", "output.weight"


@dataclass(frozen=True)
class TypeShare:
    """The tensors of one type. stored: how a bundle has them, of so many bytes (`bundle_bytes`)."""

    type: str
    tensors: int
    weights: int
    bytes: int
    stored: str
    bundle_bytes: int


@dataclass(frozen=True)
class GgufSummary:
    """A file's facts, None where it does not say.

    named_templates: chat templates besides the one that is used, as `tool_use`. unread_settings: of sampling, that edge
    passes over. token_bytes: what a token reads of the file's weights; bundle_token_bytes: of the bundle that
    `edge run` makes. refusal: why it makes none.
    """

    path: str
    bytes: int
    architecture: str | None
    name: str | None
    licence: str | None
    quantized_by: str | None
    context: int | None
    layers: int | None
    vocabulary: int
    tokenizer: str | None
    chat_template: bool
    named_templates: list[str]
    settings: dict[str, Any]
    unread_settings: dict[str, Any]
    types: list[TypeShare]
    token_bytes: int
    bundle_token_bytes: int
    refusal: str | None


def summarize(path: Path) -> GgufSummary:
    """Summarize a file, or all files that a model is split into.

    Raises:
        CheckpointError: it is no GGUF file, or a damaged one.
    """
    refusal = None
    try:
        header = GGUFCheckpoint(path).header
    except EdgeError as e:
        header, refusal = open_gguf(path), str(e)
    architecture = header.value("general.architecture", str)

    def number(key: str) -> int | None:
        return header.value(f"{architecture}.{key}", int)

    how = _how(info.type.name for info in header.tensors.values() if len(info.shape) >= MATRIX)
    tokenizer = [header.value(f"tokenizer.ggml.{key}", str) for key in ("model", "pre")]
    chosen, experts = number("expert_used_count") or 0, number("expert_count") or 0
    share = Fraction(chosen, experts) if 0 < chosen <= experts else Fraction(1)
    read = [
        (info, share if OF_EXPERTS in name else 1)
        for name, info in header.tensors.items()
        if name != EMBEDDING or HEAD not in header.tensors
    ]
    return GgufSummary(
        str(path),
        sum(info.size for info in header.tensors.values()),
        architecture,
        header.value("general.name", str),
        _licence(header),
        header.value("general.quantized_by", str),
        number("context_length"),
        number("block_count"),
        len(header.values("tokenizer.ggml.tokens", str)),
        " ".join(part for part in tokenizer if part) or None,
        header.value("tokenizer.chat_template", str) is not None,
        sorted(key.removeprefix(TEMPLATES) for key in header.metadata if key.startswith(TEMPLATES)),
        gguf_settings(header),
        unread_gguf_settings(header),
        _types(header.tensors.values(), how),
        int(sum(info.size * part for info, part in read)),
        int(sum(_stored_bytes(info, how) * part for info, part in read)),
        refusal,
    )


def _licence(header: GGUFHeader) -> str | None:
    """The licence by its identifier, name and address, as far as the file has them."""
    parts = [header.value(f"general.license{part}", str) for part in ("", ".name", ".link")]
    return ", ".join(part for part in parts if part) or None


def _how(types: Iterable[str]) -> str:
    """The weights that a run stores a file's matrices as, by their types."""
    kinds = {*types}
    if kinds <= FLOATS:
        return "int8"
    return GGUF if has_gguf_blocks(kinds) and computes_gguf(find_kernels()) else "keep"


def _types(tensors: Iterable[TensorInfo], how: str) -> list[TypeShare]:
    by_type: dict[str, list[TensorInfo]] = {}
    for info in tensors:
        by_type.setdefault(info.type.name, []).append(info)
    shares = [
        TypeShare(
            name,
            len(own),
            sum(math.prod(info.shape) for info in own),
            sum(info.size for info in own),
            _stored(name, how if any(len(info.shape) >= MATRIX for info in own) else "keep"),
            sum(_stored_bytes(info, how) for info in own),
        )
        for name, own in by_type.items()
    ]
    return sorted(shares, key=lambda share: -share.bytes)


def _stored(name: str, how: str) -> str:
    if name in GGUF_TYPES and how == GGUF:
        return f"as it is, {GGUF_TYPES[name]} bits"
    if name in FORMS:
        return f"as it is, {FORMS[name].bits} bits"
    return "floats" if name in FLOAT_BYTES and how != "int8" else f"8 bits, in blocks of {INT8_BLOCK}"


def _stored_bytes(info: TensorInfo, how: str) -> int:
    """Bytes of a tensor as a run reads it."""
    weights, name = math.prod(info.shape), info.type.name
    if name in GGUF_TYPES and len(info.shape) >= MATRIX and how == GGUF:
        return info.size
    if name in FLOAT_BYTES and (how != "int8" or len(info.shape) < MATRIX):
        return weights * FLOAT_BYTES[name]
    bits, block = (FORMS[name].bits, FORMS[name].block_size) if name in FORMS else (8, INT8_BLOCK)
    return weights * bits // 8 + weights // block * SCALE
