"""A `.gguf` file as a checkpoint: tensors under transformers' names, in its row order and norm convention."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Mapping
from functools import cached_property
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
from gguf import quants
from gguf.constants import GGML_QUANT_SIZES, GGMLQuantizationType
from numpy.typing import NDArray

from edge.errors import CheckpointError
from edge.export.checkpoint import gguf_config, gguf_t5, gguf_tokenizer, model_config
from edge.export.checkpoint.generation_settings import gguf_settings
from edge.export.facts import mxfp4
from edge.export.facts.checkpoint import Checkpoint, TokenizerFiles, finite
from edge.export.facts.experts import OF_EXPERT, STACK, expert_name, first_of
from edge.export.facts.gguf_changes import AS_IT_IS, Change
from edge.export.facts.gguf_header import open_gguf
from edge.export.facts.mixers import Places
from edge.export.facts.tensors import GGUF_TYPES, PANEL, Format, GgufTensor, QTensor, stack_rows
from edge.gguf_parts import name_of

NAME = "gguf"
HELP = "a .gguf file, as llama.cpp reads it"
TRAITS = {"reads": "file"}

# All that gguf's library dequantizes, but for NVFP4, whose scales are in part in other tensors.
_READABLE = {
    *("F32", "F16", "BF16", "Q8_0", "Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q2_K", "Q3_K", "Q4_K", "Q5_K", "Q6_K"),
    *("IQ1_S", "IQ1_M", "IQ2_XXS", "IQ2_XS", "IQ2_S", "IQ3_XXS", "IQ3_S", "IQ4_NL", "IQ4_XS"),
    *("TQ1_0", "TQ2_0", "MXFP4"),
}
_FLOATS: dict[GGMLQuantizationType, type[np.floating[Any]]] = {
    GGMLQuantizationType.F32: np.float32,
    GGMLQuantizationType.F16: np.float16,
}
_BLOCK = 32  # weights that share a scale in Q4_0 and Q8_0
FORMS = {"Q4_0": Format(4, _BLOCK, True), "Q8_0": Format(8, _BLOCK, True), "MXFP4": mxfp4.FORM}
_CONVERTED = 2048  # bytes of a row that convert fastest


class GGUFCheckpoint(Checkpoint):
    """Reads one file, or all files that a model is split into.

    Raises:
        CheckpointError: not a whole GGUF file, or a model, tokenizer or tensor type that is not known here.
    """

    def __init__(self, path: Path, *, name: str | None = None, kind: str = "gguf", licence: str | None = None) -> None:
        self.header = open_gguf(path)
        _, family, self._gguf = gguf_config.family_of(self.header)
        self._norm_offset = 0.0 if family.norms is None else family.norms.offset
        self.notes = gguf_tokenizer.guesses(self.header)
        self.name = name or name_of(path)
        self.kind = kind
        self.licence = licence or self.header.value("general.license", str)
        self.config: dict[str, Any] = gguf_config.config_of(self.header, self._vector)
        self.generation: dict[str, Any] = gguf_settings(self.header)
        self._paired = False  # graphs put the rows of queries and keys into another order
        config = SimpleNamespace(**self.config)
        self._changes = dict(self._gguf.changes(config))
        self._parts: dict[str, int] = {}  # of tensors that are several matrices, which of them each is
        self._members: dict[str, list[str]] = {}  # of matrices that are several tensors, those in their order
        if family.layers is None and family.shapes is None:
            self._sources = self._named_tensors(lambda name: gguf_t5.transformers_name(name, self.config))
            gguf_t5.check_layers(self.header.tensors, self.config, path)
            expected = gguf_t5.shapes(self.config)
        else:
            self._sources = self._named_tensors(lambda name: gguf_config.transformers_name(name, self._gguf))
            self._take_apart()
            if family.layers is not None:
                self._take_rows_apart(family.layers(config).fused_rows(config))
            self._join(int(self.config["num_hidden_layers"]))
            for name in self._gguf.unread(config):
                self._sources.pop(name, None)
            expected = family.tensors(config)
            if family.layers is not None:
                self._paired = family.layers(config).interleaved
                gguf_config.refuse_unknown(self.header, self._gguf)
        model_config.check_tensors(expected, {n: self.shape(n) for n in self.names()}, str(path))
        model_config.refuse_leftovers([name for name in self.names() if name not in expected], str(path))

    @cached_property
    def tokenizer(self) -> TokenizerFiles:
        return gguf_tokenizer.tokenizer_of(self.header)

    def names(self) -> list[str]:
        members = {member for each in self._members.values() for member in each}
        return [*(name for name in self._sources if name not in members), *self._members]

    def shape(self, name: str) -> tuple[int, ...]:
        if members := self._members.get(name):
            return sum(self.shape(member)[0] for member in members), *self.shape(members[0])[1:]
        sizes = self.header.tensors[self._sources[name]].shape
        if name in self._parts:
            return sizes[1:]
        moved = self._moved(name)
        if moved.part and moved.rows is not None:
            return len(moved.rows), *sizes[1:]
        shape = moved.shape
        return sizes if shape is None or math.prod(shape) != math.prod(sizes) else shape

    def stored_type(self, name: str) -> str:
        name = self._members.get(name, [first_of(name)])[0]
        return self.header.tensors[self._sources[name]].type.name

    def read(self, name: str, rows: slice | None = None) -> NDArray[np.float32]:
        if members := self._members.get(name):
            values = np.concatenate([self.read(member) for member in members])
            return values if rows is None else values[rows]
        source = self._sources[name]
        values = self._dequantized(self._raw(name), source, self._places(name, rows))
        if (change := self._changes.get(name)) is not None:
            return finite(change.undone(values), source, self.header.path)
        values = finite(values, source, self.header.path)
        if self._norm_offset and name.endswith("norm.weight"):  # which the converter adds
            values = values - np.float32(self._norm_offset)
        return values

    def form(self, name: str) -> Format | None:
        if members := self._members.get(name):
            forms = {self.form(member) for member in members}
            return forms.pop() if len(forms) == 1 else None
        moved, form = self._moved(name), FORMS.get(self.stored_type(name))
        return None if form and moved.columns is not None and moved.blocks(form.block_size) is None else form

    def blocks(self, name: str) -> QTensor | None:
        if self.form(name) is None:
            return None
        if members := self._members.get(name):
            return cast(QTensor, stack_rows([b for member in members if (b := self.blocks(member)) is not None]))
        source, kind, raw = self._sources[name], self.stored_type(name), self._in_order(name)
        assert raw is not None  # as `form` says
        blocks = {"Q4_0": _q4_0, "Q8_0": _q8_0, "MXFP4": _mxfp4}[kind](raw)
        finite(blocks.scales, source, self.header.path)
        return blocks

    @property
    def files(self) -> list[Path]:
        """The files that the model is in, in their order."""
        return self.header.files

    def gguf_tensor(self, name: str, *, in_place: bool) -> GgufTensor | None:
        """A matrix as the file has it, or those of all experts as one, by their `stack_name`; None where our kernels do
        not compute its type, or it is an expert's alone. in_place: it stays there."""
        if STACK.fullmatch(name):
            return self._stack(first_of(name), in_place=in_place)
        if members := self._members.get(name):
            return _below_each_other([self.gguf_tensor(member, in_place=in_place) for member in members])
        source = self._sources[name]
        info = self.header.tensors[source]
        moved = self._moved(name)
        if info.type.name not in GGUF_TYPES or len(self.shape(name)) != 2 or OF_EXPERT.fullmatch(name):
            return None
        if moved.rows is not None:  # the matrix is not in the file as it is here
            found = self._as_it_is(source, self._raw(name)[moved.rows], self.shape(name)[1], 0, None)
            return dataclasses.replace(found, inputs=moved.columns)
        heads = self._heads(name)
        turned = heads or self._heads_of(name) * self._paired
        if turned and info.shape[0] // turned % PANEL:
            return None
        raw = self._raw(name)
        before = self._parts.get(name, 0) * raw.nbytes
        found = self._as_it_is(source, raw, self.shape(name)[1], heads, before if in_place else None)
        return dataclasses.replace(found, inputs=moved.columns)

    def _in_order(self, name: str) -> NDArray[np.uint8] | None:
        """The bytes of a matrix, in transformers' order; None where no blocks of the file have its columns."""
        raw, moved = self._raw(name), self._moved(name)
        if (places := self._places(name)) is not None:
            raw = raw[places]
        if moved.columns is None:
            return raw
        weights, size = GGML_QUANT_SIZES[self.header.tensors[self._sources[name]].type]
        blocks = moved.blocks(weights)
        return None if blocks is None else raw.reshape(len(raw), -1, size)[:, blocks].reshape(len(raw), -1)

    def _stack(self, name: str, *, in_place: bool) -> GgufTensor | None:
        """The matrices of all experts. name: of the first of them."""
        source = self._sources[name]
        info, (rows, columns) = self.header.tensors[source], self.shape(name)
        if info.type.name not in GGUF_TYPES or rows % PANEL or name in self._changes:
            return None
        raw = self.header.raw(source)
        return self._as_it_is(source, raw.reshape(-1, raw.shape[-1]), columns, 0, 0 if in_place else None)

    def _as_it_is(
        self, source: str, raw: NDArray[np.uint8], columns: int, heads: int, before: int | None
    ) -> GgufTensor:
        """Rows of a tensor of the file. before: bytes of it before them, where they stay in the file."""
        info = self.header.tensors[source]
        place = None if before is None else (self.header.part_of(source), info.offset + before)
        kind = info.type
        return GgufTensor(raw, columns, int(kind), kind.name, GGUF_TYPES[kind.name], heads, place)

    def _take_apart(self) -> None:
        """Name the matrices of tensors that are several."""
        for name, source in [*self._sources.items()]:
            shape = self.header.tensors[source].shape
            if len(shape) != (2 if name.endswith(".bias") else 3):
                continue
            parts: dict[str, int] = {}
            if name.removesuffix(".weight") in self._gguf.stacked.values():
                parts = {name.replace(".weight", f".{i}.weight"): i for i in range(shape[0])}
            elif match := STACK.fullmatch(name):
                parts = {expert_name(match[1], i, match[2], match[3]): i for i in range(shape[0])}
            if parts:
                del self._sources[name]
                self._sources |= dict.fromkeys(parts, source)
                self._parts |= parts

    def _take_rows_apart(self, fused: Mapping[str, Mapping[str, Places]]) -> None:
        """Name the matrices that are rows of a tensor. fused: as `LlamaLike.fused_rows` has them."""
        for name, source in [*self._sources.items()]:
            end = next((end for end in fused if name.endswith(f".{end}")), None)
            if end is None:
                continue
            rows, expected = self.header.tensors[source].shape[0], sum(map(len, fused[end].values()))
            if rows != expected:
                raise CheckpointError(
                    f"{self.header.path}: the tensor {source!r} has {rows} rows where the model's sizes call for "
                    f"{expected}; fetch it again."
                )
            del self._sources[name]
            for member, places in fused[end].items():
                part = name.removesuffix(end) + member
                if part in self._sources:
                    raise self._both(self._sources[part], source)
                self._sources[part], self._changes[part] = source, Change(rows=places, part=True)

    def _both(self, first: str, second: str) -> CheckpointError:
        return CheckpointError(
            f"{self.header.path} holds both {first!r} and {second!r}, and models of its architecture have one of them; "
            "it is of a newer variant."
        )

    def _join(self, layers: int) -> None:
        """Name the matrices that are several tensors."""
        for i in range(layers):
            for module, parts in self._gguf.joined.items():
                members = [f"model.layers.{i}.{part}.weight" for part in parts]
                sources = [self._sources[member] for member in members if member in self._sources]
                if len(sources) < len(members):
                    continue
                shapes = [list(self.header.tensors[source].shape) for source in sources]
                if any(shape != shapes[0] for shape in shapes):
                    raise CheckpointError(
                        f"{self.header.path}: the tensors {' and '.join(map(repr, sources))} have the shapes "
                        f"{' and '.join(map(str, shapes))} where a model's are equal; fetch it again."
                    )
                self._members[f"model.layers.{i}.{module}.weight"] = members

    def _named_tensors(self, named: Callable[[str], str | None]) -> dict[str, str]:
        """transformers' name -> the name in the file. named: from that to the other."""
        sources = dict[str, str]()
        for source, info in self.header.tensors.items():
            name = named(source)
            if name is None:
                continue
            if info.type.name not in _READABLE:
                raise CheckpointError(
                    f"{self.header.path}: the tensor {source!r} is stored as {info.type.name}; read are "
                    f"{', '.join(sorted(_READABLE))}."
                )
            if name in sources:
                raise self._both(sources[name], source)
            sources[name] = source
        return sources

    def _raw(self, name: str) -> NDArray[np.uint8]:
        """The bytes of a tensor by its name in transformers: [..., bytes of one row]."""
        raw = self.header.raw(self._sources[name])
        return raw[self._parts[name]] if name in self._parts else raw

    def _dequantized(
        self, raw: NDArray[np.uint8], source: str, places: NDArray[np.int64] | slice | None = None
    ) -> NDArray[np.float32]:
        """The values of bytes of a tensor, or of their rows at `places`."""
        kind = self.header.tensors[source].type
        if kind in _FLOATS:
            values = raw.view(_FLOATS[kind])
            return (values if places is None else values[places]).astype(np.float32)
        rows = raw if places is None or raw.ndim == 1 else raw[places]
        with np.errstate(all="ignore"):  # scales that are no numbers are told by `finite`
            values = np.asarray(quants.dequantize(_joined(rows), kind), np.float32)
        values = values.reshape(*rows.shape[:-1], -1)
        return values if places is None or raw.ndim > 1 else values[places]

    def _vector(self, source: str) -> NDArray[np.float32]:
        info = self.header.tensors.get(source)
        if info is None:
            return np.empty(0, np.float32)
        if info.type != GGMLQuantizationType.F32 or len(info.shape) != 1:
            raise CheckpointError(
                f"{self.header.path} is damaged: {source} is {info.type.name} of shape {list(info.shape)} and no "
                "row of F32; fetch it again."
            )
        return finite(self._dequantized(self.header.raw(source), source), source, self.header.path)

    def _places(self, name: str, rows: slice | None = None) -> NDArray[np.int64] | slice | None:
        """Return the row numbers in the file of `rows` of transformers' tensor. None means all rows in the file's
        order.

        llama.cpp's converter interleaves the two halves of every head of q and k, because its rope rotates neighbouring
        pairs and transformers' rotates halves.
        """
        heads, order = self._heads(name), self._moved(name).rows
        if heads:
            order = np.arange(self.shape(name)[0]).reshape(heads, -1, 2).swapaxes(1, 2).reshape(-1)
        return rows if order is None else order if rows is None else order[rows]

    def _moved(self, name: str) -> Change:
        """What the converter has changed in a tensor besides."""
        return self._changes.get(name, AS_IT_IS)

    def _heads(self, name: str) -> int:
        """Number of heads whose rows the converter has interleaved; 0 where it has not."""
        return self._heads_of(name) * self._gguf.permuted

    def _heads_of(self, name: str) -> int:
        """Number of heads whose rows queries or keys are; 0 of other tensors."""
        if ".q_proj." in name:
            return int(self.config["num_attention_heads"])
        return int(self.config["num_key_value_heads"]) if ".k_proj." in name else 0


def _below_each_other(tensors: list[GgufTensor | None]) -> GgufTensor | None:
    """Tensors as one, the rows of the first before those of the others; None where graphs do not take it."""
    *first, joined = tensors
    for tensor in reversed(first):
        if joined is None or tensor is None or len(tensor.raw) % PANEL:
            return None
        joined = dataclasses.replace(tensor, below=joined)
    return joined


def _joined(rows: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """Rows of blocks, of which those that are short stand side by side: gguf converts 16 at a time."""
    if rows.ndim == 1:
        return rows
    length = rows.shape[-1]
    together = math.gcd(len(rows), 1 << max(0, (_CONVERTED // length).bit_length() - 1))
    return rows.reshape(-1, together * length)


def _q4_0(raw: NDArray[np.uint8]) -> QTensor:
    """Blocks of a float16 scale and 16 bytes: the low halves are weights 0..15, the high halves 16..31."""
    blocks = raw.reshape(raw.shape[0], -1, 2 + _BLOCK // 2)
    q = _nibbles(blocks[:, :, 2:])
    return QTensor(bits=4, block_size=_BLOCK, q=q, scales=_scales(blocks), zero_points=None, method="Q4_0")


def _mxfp4(raw: NDArray[np.uint8]) -> QTensor:
    """Blocks of an exponent and 16 bytes, as those of Q4_0: floats of 4 bits, twice which are whole numbers of 5."""
    blocks = raw.reshape(raw.shape[0], -1, 1 + _BLOCK // 2)
    return mxfp4.exact(_nibbles(blocks[:, :, 1:]), blocks[:, :, 0])


def _nibbles(packed: NDArray[np.uint8]) -> NDArray[np.uint8]:
    halves = [packed & np.uint8(0x0F), packed >> np.uint8(4)]
    return np.concatenate(halves, axis=-1).reshape(packed.shape[0], -1)


def _q8_0(raw: NDArray[np.uint8]) -> QTensor:
    """Blocks of a float16 scale and 32 signed bytes; the sign bit turns them into bytes around 128."""
    n = raw.shape[0]
    blocks = raw.reshape(n, -1, 2 + _BLOCK)
    q = (blocks[:, :, 2:] ^ np.uint8(0x80)).reshape(n, -1)
    return QTensor(bits=8, block_size=_BLOCK, q=q, scales=_scales(blocks), zero_points=None, method="Q8_0")


def _scales(blocks: NDArray[np.uint8]) -> NDArray[np.float32]:
    return np.ascontiguousarray(blocks[:, :, :2]).view(np.float16)[:, :, 0].astype(np.float32)


open_path = GGUFCheckpoint
