"""A model directory as transformers writes it: config.json, weights in safetensors or torch files, a tokenizer."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from functools import cached_property
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from huggingface_hub import metadata_load
from numpy.typing import NDArray

from edge.errors import CheckpointError
from edge.export.checkpoint import model_config, nomic_names, quantized
from edge.export.checkpoint.expert_tensors import expert_shapes, one_by_one, refuse_more
from edge.export.checkpoint.fused_tensors import taken_apart
from edge.export.checkpoint.generation_settings import check_settings
from edge.export.checkpoint.pooling import MODULES, read_pooling
from edge.export.checkpoint.quantized.mxfp4 import Member
from edge.export.checkpoint.score_head import read_score_head
from edge.export.checkpoint.stored import Stored, Tensor, stored_tensors
from edge.export.checkpoint.tensor_names import places, text_name, without_prefix
from edge.export.checkpoint.tokenizer_files import read_json, read_tokenizer
from edge.export.facts.checkpoint import Checkpoint, TokenizerFiles
from edge.export.facts.experts import STACK, WHOLE, first_of
from edge.export.facts.pooling import Pooling
from edge.export.facts.tensors import Format, GgufTensor, QTensor
from edge.export.graph.families import experts_of, find_family, fused_rows

NAME = "directory"
HELP = "config.json, weights in safetensors or torch files, and a tokenizer"
TRAITS = {"reads": "folder"}

MAX_CARD = 1 << 20  # bytes of a model card that is read
ROWS = 4096  # of heads and embeddings that are compared at a time
ROUNDING = 2.0**-8  # of a value: what bfloat16 leaves of another rounding of it, at most
SMALLEST = 2.0**-24  # of float16
_Found = dict[str, Tensor]  # by the model's name


class FolderCheckpoint(Checkpoint):
    """The facts of a checkpoint in a folder that are known before its files are read."""

    def __init__(
        self, root: Path, *, name: str | None = None, kind: str = "directory", licence: str | None = None
    ) -> None:
        self.root = root
        self.name = name or root.resolve().name
        self.kind = kind
        self.licence = licence or licence_of(root)
        self.notes: list[str] = []


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
        raw = nomic_names.config_of(read_json(path), str(path))
        method = quantized.method_of(root, raw)
        kind = raw.get("model_type")
        stored = {name: each for each in stored_tensors(root) if (name := text_name(each.name, kind))}
        found: _Found = nomic_names.tensors_of(raw, quantized.matrices_of(stored, method, root))
        self.config: dict[str, Any] = model_config.complete(raw, str(path), found)
        self.pooling = read_score_head(root, raw, self.config, found) or read_pooling(root)
        if self.pooling is None and model_config.embeds(self.config):
            self.pooling = Pooling()
            self.notes.append(f"{root.name} has no {MODULES}, so that a text's vector is the mean of its tokens'.")
        if self.pooling is not None and not self.pooling.prompts and not self.pooling.pairs:
            prompts = model_config.usual_prompts(self.config)
            self.pooling = dataclasses.replace(self.pooling, prompts=prompts)
        if self.pooling is not None:  # which does without a head for tokens
            self.config["tie_word_embeddings"] = True
        text_config, encoder = raw.get("text_config"), raw.get("encoder")
        part = isinstance(text_config, dict) and self.config.get("model_type") != kind
        if part or (isinstance(encoder, dict) and encoder.get("vision_config")):
            self.notes.append(f"{self.name} also reads images, sound or video; its text part alone is exported.")
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
            buffers = model_config.buffer_shapes(model)
            experts, sizes = expert_shapes(self.config), experts_of(self.config)
            if sizes is not None:
                parameters = {n: shape for n, shape in parameters.items() if not WHOLE.fullmatch(n)} | experts
                found = one_by_one(found, sizes)
            tied = model_config.tied_names(model)
            if fused := fused_rows(self.config):
                whole = {name for name in parameters if name.endswith(tuple(f".{end}" for end in fused))}
                shapes = find_family(str(self.config["model_type"]))[1].tensors(SimpleNamespace(**self.config))
                parameters = {n: shape for n, shape in (parameters | shapes).items() if n not in whole}
                found = taken_apart(found, fused)
            stored_as = places([*parameters, *buffers], model.base_model_prefix, tied)
            found = without_prefix(found, stored_as, root)
            if experts:
                refuse_more(model_config.not_ignored(model, found), experts, str(root))
            for name, others in stored_as.items():
                if name not in found and (other := next((o for o in others if o in found), None)) is not None:
                    found[name] = found[other]
            found = {name: each for name, each in found.items() if name in parameters or not _left_bias(name, found)}
            own_heads = self._untie(found, parameters, tied)
            self._names = [*parameters, *own_heads, *buffers]
            self._made = {name: made for name, made in optional.items() if name not in found}
            held = sum(math.prod(each.shape) for each in found.values())
            for name, made in self._made.items():
                if math.prod(made.shape) > held:
                    raise CheckpointError(
                        f"{path} calls for the tensor {name!r} of shape {list(made.shape)}, which is larger than all "
                        "weights together; fetch it again."
                    )
            wanted = {**parameters, **buffers, **{name: made.shape for name, made in optional.items()}}
            wanted = {name: shape for name, shape in wanted.items() if name not in self._made}
            shapes = {name: found[name].shape for name in wanted if name in found}
            model_config.check_tensors(wanted, shapes, str(root))
            model_config.check_leftovers(model, found, str(root))
        self._found = found

    def _untie(self, found: _Found, parameters: Mapping[str, tuple[int, ...]], tied: Mapping[str, str]) -> list[str]:
        """Output heads that the configuration calls tied while the files hold them with values of their own, as those
        of T5 v1.1 and Flan-T5 do; transformers does not tie them either. A head that is another rounding of the
        embedding stays tied, and the notes say so."""
        heads = [name for name in tied if name in found and name.startswith(("lm_head.", "proj_out."))]
        own = []
        for head in heads:
            if tied[head] not in found or {found[head].shape, found[tied[head]].shape} != {parameters[tied[head]]}:
                continue
            difference = _difference(found[head], found[tied[head]])
            if difference > ROUNDING:
                own.append(head)
                self.config["tie_word_embeddings"] = False
            elif difference:
                self.notes.append(
                    f"The head {head} differs from the embedding {tied[head]} by a rounding alone; config.json calls "
                    "them tied, and the embedding is taken for both."
                )
        return own

    @cached_property
    def tokenizer(self) -> TokenizerFiles:
        return read_tokenizer(self.root, self._raw_config)

    def names(self) -> list[str]:
        return self._names

    def shape(self, name: str) -> tuple[int, ...]:
        return self._made[name].shape if name in self._made else self._found[name].shape

    def stored_type(self, name: str) -> str:
        return "F32" if name in self._made else self._found[first_of(name)].type

    def read(self, name: str, rows: slice | None = None) -> NDArray[np.float32]:
        return self._made[name].make().numpy() if name in self._made else self._found[name].read(rows)

    def form(self, name: str) -> Format | None:
        return None if name in self._made else self._found[name].form

    def blocks(self, name: str) -> QTensor | None:
        return None if name in self._made else self._found[name].blocks()

    def gguf_tensor(self, name: str, *, in_place: bool) -> GgufTensor | None:
        """Return the matrices of all experts in MXFP4, by their `stack_name`; None of all else. They never stay in
        place, as the folder has their values in another order."""
        return None if (member := self._in_mxfp4(name)) is None else member.of_all_experts()

    def gguf_type(self, name: str) -> str | None:
        return None if (member := self._in_mxfp4(name)) is None else member.type

    def _in_mxfp4(self, name: str) -> Member | None:
        """The first of the experts' matrices that a name is of."""
        found = self._found.get(first_of(name)) if STACK.fullmatch(name) else None
        return found if isinstance(found, Member) else None


def _left_bias(name: str, found: Mapping[str, Tensor]) -> bool:
    """True if it is a bias of zeros that a quantizer gave a module without a bias."""
    weight = found.get(f"{name.removesuffix('.bias')}.weight")
    quantized_module = name.endswith(".bias") and weight is not None and not isinstance(weight, Stored)
    return quantized_module and not found[name].read().any()


def _difference(a: Tensor, b: Tensor) -> float:
    """The largest difference of two matrices' values, relative to these; 0 where all are equal."""
    if isinstance(a, Stored) and isinstance(b, Stored) and torch.equal(a.raw(), b.raw()):
        return 0.0
    found = 0.0
    for start in range(0, a.shape[0], ROWS):
        x, y = (each.read(slice(start, start + ROWS)) for each in (a, b))
        apart = np.abs(x - y)
        size = np.maximum(np.abs(x), np.abs(y))
        np.divide(apart, size, out=apart, where=apart > SMALLEST)
        found = max(found, float(apart.max(initial=0)))
        if found > ROUNDING:
            break
    return found


def licence_of(root: Path) -> str | None:
    """The ``license`` that the model card states; its YAML takes a second for each 100 kB."""
    card = root / "README.md"
    try:
        if card.stat().st_size > MAX_CARD:
            return None
        licence = (metadata_load(card) or {}).get("license")
    except Exception:  # there is no card, or its header is no YAML
        return None
    return licence if isinstance(licence, str) else None


open_path = DirectoryCheckpoint
