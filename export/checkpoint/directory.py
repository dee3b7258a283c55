"""A model directory as transformers writes it: config.json, weights in safetensors or torch files, a tokenizer."""

from __future__ import annotations

import math
import re
import warnings
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch
from huggingface_hub import metadata_load
from numpy.typing import NDArray
from safetensors import SafetensorError
from safetensors.torch import load_file

from edge.errors import CheckpointError, on_one_line
from edge.export.checkpoint import model_config
from edge.export.checkpoint.base import Checkpoint, TokenizerFiles, finite, mapped
from edge.export.checkpoint.generation_settings import check_settings
from edge.export.checkpoint.tokenizer_files import read_json, read_tokenizer
from edge.runtime.mapped_file import MappedFile

NAME = "directory"
HELP = "config.json, weights in safetensors or torch files, and a tokenizer"
TRAITS = {"reads": "folder"}

MOST_CARD = 1 << 20  # bytes of a model card that is read
_TYPES = {torch.float32: "F32", torch.float16: "F16", torch.bfloat16: "BF16", torch.float64: "F64"}


class FolderCheckpoint(Checkpoint):
    """What is known of a checkpoint in a folder before its files are read."""

    def __init__(
        self, root: Path, *, name: str | None = None, kind: str = "directory", licence: str | None = None
    ) -> None:
        self.root = root
        self.name = name or root.resolve().name
        self.kind = kind
        self.licence = licence or licence_of(root)


class DirectoryCheckpoint(FolderCheckpoint):
    """Reads one directory.

    Raises:
        CheckpointError: a file is missing, cut short or unreadable, or the tensors do not match config.json.
    """

    def __init__(self, root: Path, **about: Any) -> None:
        super().__init__(root, **about)
        path = root / "config.json"
        if not path.is_file():
            raise CheckpointError(f"{root} holds no config.json, so it is not a model directory.")
        raw = read_json(path)
        files = [(file, _mapped(file)) for file in _weight_files(root)]
        stored = (_Stored(file, own, tensor, on) for file, on in files for own, tensor in _load(file).items())
        found = {name: each for each in stored if (name := _text_name(each.name))}
        self.config: dict[str, Any] = model_config.complete(raw, str(path), found)
        text_config = raw.get("text_config")
        self._raw_config = {**raw, **(text_config if isinstance(text_config, dict) else {})}
        generation = root / "generation_config.json"
        self.generation: dict[str, Any] = (
            read_json(generation) if generation.is_file() else model_config.generation_settings(raw)
        )
        check_settings(self.generation, str(generation))
        check_settings(self.config, str(path))
        self._names = list(found)
        self._made: dict[str, model_config.Made] = {}
        model = model_config.skeleton(self.config, str(path))
        if model is not None:
            parameters, optional = model_config.parameter_shapes(model), model_config.optional_tensors(model)
            tied = model_config.tied_names(model)
            _rename(found, parameters, model.base_model_prefix, tied)
            own_heads = self._untie(found, parameters, tied)
            self._names = [*parameters, *own_heads]
            self._made = {name: made for name, made in optional.items() if name not in found}
            held = sum(each.tensor.numel() for each in found.values())
            for name, made in self._made.items():
                if math.prod(made.shape) > held:
                    raise CheckpointError(
                        f"{path} calls for the tensor {name!r} of shape {list(made.shape)}, which is larger than all "
                        "weights together; fetch it again."
                    )
            wanted = {**parameters, **{name: made.shape for name, made in optional.items()}}
            wanted = {name: shape for name, shape in wanted.items() if name not in self._made}
            shapes = {name: tuple(found[name].tensor.shape) for name in wanted if name in found}
            model_config.check_tensors(wanted, shapes, str(root))
            model_config.check_leftovers(model, found, str(root))
        self._found = found

    def _untie(self, found: _Found, parameters: Mapping[str, tuple[int, ...]], tied: Mapping[str, str]) -> list[str]:
        """Output heads that the configuration calls tied while the files hold them with values of their own, as those
        of T5 v1.1 and Flan-T5 do; transformers does not tie them either."""
        heads = [name for name in tied if name in found and name.startswith(("lm_head.", "proj_out."))]
        own = []
        for head in heads:
            if tuple(found[head].tensor.shape) != parameters[tied[head]] or tied[head] not in found:
                continue
            if not torch.equal(found[head].tensor, found[tied[head]].tensor):
                own.append(head)
                self.config["tie_word_embeddings"] = False
        return own

    @cached_property
    def tokenizer(self) -> TokenizerFiles:
        return read_tokenizer(self.root, self._raw_config)

    def names(self) -> list[str]:
        return self._names

    def shape(self, name: str) -> tuple[int, ...]:
        return self._made[name].shape if name in self._made else tuple(self._found[name].tensor.shape)

    def stored_type(self, name: str) -> str:
        dtype = torch.float32 if name in self._made else self._found[name].tensor.dtype
        return _TYPES.get(dtype, str(dtype).removeprefix("torch."))

    def read(self, name: str, rows: slice | None = None) -> NDArray[np.float32]:
        if name in self._made:
            return self._made[name].make().numpy()
        stored = self._found[name]
        stored.mapped.check()
        tensor = stored.tensor if rows is None else stored.tensor[rows]
        if tensor.dtype not in _TYPES:
            raise CheckpointError(
                f"{stored.file}: the tensor {stored.name!r} is stored as {tensor.dtype}; floating-point weights are "
                "read."
            )
        values: NDArray[np.float32] = tensor.to(torch.float32).contiguous().numpy()
        return finite(values, stored.name, stored.file)


@dataclass(frozen=True)
class _Stored:
    """A tensor, mapped into memory, and where it is: the file, and the name in it."""

    file: Path
    name: str
    tensor: torch.Tensor
    mapped: MappedFile


_Found = dict[str, _Stored]  # by the model's name


def _rename(found: _Found, parameters: Mapping[str, tuple[int, ...]], prefix: str, tied: Mapping[str, str]) -> None:
    """Give parameters the names that transformers looks for too: a base model's, without the prefix, and those of
    parameters that are the same one."""
    for name in parameters:
        others = [name.removeprefix(f"{prefix}."), *(other for other, own in tied.items() if own == name)]
        others += [other.removeprefix(f"{prefix}.") for other in others]
        if name not in found and (other := next((o for o in others if o in found), None)) is not None:
            found[name] = found[other]


def _mapped(path: Path) -> MappedFile:
    try:
        return mapped(path)
    except OSError as e:
        raise CheckpointError(f"{path} cannot be read: {e.strerror}.") from None


def _load(path: Path) -> dict[str, torch.Tensor]:
    """The tensors in a file, mapped into memory. A pytorch_model.bin may hold tensors only, no other Python objects."""
    if path.suffix == ".safetensors":
        try:
            return load_file(path)
        except (SafetensorError, OSError) as e:
            raise CheckpointError(f"{path} is damaged or cut short ({on_one_line(e)}); fetch it again.") from None
    mapped = zipfile.is_zipfile(path)  # files of torch before 1.6 are no archives and cannot be mapped
    if mapped:
        _check_archive(path)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of the pickle's protocol, in a file that is none
            found = torch.load(path, map_location="cpu", weights_only=True, mmap=mapped)
    except Exception as e:  # unpickling raises many types; Torch's own words advise to run the file's code
        if other := re.search(r"GLOBAL ([\w.]+)", str(e)):
            raise CheckpointError(
                f"{path} holds more than tensors ({other[1]}), and to load that could run code of the file's own; "
                "get the checkpoint as safetensors."
            ) from None
        raise CheckpointError(f"{path} is damaged, cut short or no file of tensors; fetch it again.") from None
    if not isinstance(found, dict):
        raise CheckpointError(
            f"{path} holds a {type(found).__name__} where tensors by name belong; it is no checkpoint."
        )
    tensors = {name: each.detach() for name, each in found.items() if isinstance(name, str) and torch.is_tensor(each)}
    for name, tensor in tensors.items():
        _check_stored(tensor, name, path)
    return tensors


def _check_archive(path: Path) -> None:
    """CheckpointError where an archive's parts are larger than it is: Torch packs nothing, and reads some whole."""
    try:
        with zipfile.ZipFile(path) as archive:
            size = sum(member.file_size for member in archive.infolist())
    except (zipfile.BadZipFile, OSError, ValueError, NotImplementedError, RuntimeError):
        return  # Torch says what is wrong
    if size > path.stat().st_size:
        raise CheckpointError(
            f"{path} is damaged: its parts have {size:,} bytes, and it has {path.stat().st_size:,}; fetch it again."
        )


def _check_stored(tensor: torch.Tensor, name: str, path: Path) -> None:
    """CheckpointError where a tensor is not there number by number: it may be of any size in a file of a few bytes."""
    dense = tensor.layout == torch.strided and tensor.device.type == "cpu" and not tensor.is_quantized
    size = tensor.numel() * tensor.element_size()
    if not dense or size > min(tensor.untyped_storage().nbytes(), path.stat().st_size):
        raise CheckpointError(
            f"{path}: the tensor {name!r} of shape {list(tensor.shape)} does not stand there number by number; get the "
            "checkpoint as safetensors."
        )


def _weight_files(root: Path) -> list[Path]:
    """The files with the weights: the first form that is there, safetensors before torch."""
    for single in ("model.safetensors", "pytorch_model.bin"):
        if (root / single).is_file():
            return [root / single]
        index = root / f"{single}.index.json"
        if index.is_file():
            return _shards(index)
    raise CheckpointError(
        f"{root} holds no weights: neither model.safetensors nor pytorch_model.bin, whole or in shards."
    )


def _shards(index: Path) -> list[Path]:
    weight_map = read_json(index).get("weight_map")
    if not isinstance(weight_map, dict) or not weight_map or not all(isinstance(n, str) for n in weight_map.values()):
        raise CheckpointError(f"{index} has no weight_map; fetch the checkpoint again.")
    paths = [index.parent / name for name in sorted(set(weight_map.values()))]
    for path in paths:
        if path.parent != index.parent:
            raise CheckpointError(f"{index} names the shard {path.name!r} outside its own folder.")
        if not _is_file(path):
            raise CheckpointError(f"{path} is missing, and {index.name} names it; fetch the checkpoint again.")
    return paths


def _is_file(path: Path) -> bool:
    """Whether it is one; False too of a name that no file can have."""
    try:
        return path.is_file()
    except OSError:  # longer than names are
        return False


def _text_name(name: str) -> str:
    """The name in the text model; empty for the vision part of a multimodal checkpoint, whose text tensors carry
    ``language_model.`` before or after ``model.``."""
    if "vision_tower." in name or "multi_modal_projector." in name:
        return ""
    return name.replace("language_model.", "", 1)


def licence_of(root: Path) -> str | None:
    """The ``license`` that the model card states; its YAML takes a second for each 100 kB."""
    card = root / "README.md"
    try:
        if card.stat().st_size > MOST_CARD:
            return None
        licence = (metadata_load(card) or {}).get("license")
    except Exception:  # there is no card, or its header is no YAML
        return None
    return licence if isinstance(licence, str) else None


open_path = DirectoryCheckpoint
