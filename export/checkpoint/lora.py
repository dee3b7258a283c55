"""A LoRA adapter, as peft writes it, merged into the model that it was trained on.

    W + s B A, where s = lora_alpha / r, or lora_alpha / sqrt(r) with rslora (Hu et al., arXiv:2106.09685)
    m (W + s B A) / |W + s B A|, row by row, with DoRA (Liu et al., arXiv:2402.09353, equation 5)

Whatever else an adapter may be has another meaning and is refused by name.
"""

from __future__ import annotations

import math
import re
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from edge.adapter import BASE, CONFIG, WEIGHTS, is_adapter, place_of_base
from edge.errors import CatalogError, CheckpointError, brief
from edge.export.checkpoint.directory import DirectoryCheckpoint, FolderCheckpoint
from edge.export.checkpoint.stored import Stored, tensors_in
from edge.export.checkpoint.tensor_names import text_name
from edge.export.checkpoint.tokenizer_files import read_json, read_tokenizer
from edge.export.facts.checkpoint import Checkpoint, TokenizerFiles, finite
from edge.export.facts.tensors import EMBEDDING, HEAD, Format, QTensor

NAME = "lora"
HELP = "a LoRA adapter, which is merged into its base"
TRAITS = {"reads": "folder", "mark": "adapter_config.json"}

# Fields that say how an adapter was trained, and nothing of what its tensors mean.
_OF_TRAINING = {
    *("auto_mapping", "bias", "corda_config", "eva_config", "exclude_modules", "fan_in_fan_out", "inference_mode"),
    *("layers_pattern", "layers_to_transform", "loftq_config", "lora_dropout", "lora_ga_config", "megatron_config"),
    *("megatron_core", "modules_to_save", "peft_version", "qalora_group_size", "runtime_config", "target_modules"),
    *("task_type", "ensure_weight_tying"),
}
_READ = {BASE, "peft_type", "revision", "r", "lora_alpha", "rank_pattern", "alpha_pattern", "use_rslora", "use_dora"}
_STARTS = (True, False, "gaussian", "eva", "orthogonal")  # of its tensors, which leave the base as it is

_PART = re.compile(r"(.+)\.(lora_(?:embedding_)?[AB]|lora_magnitude_vector)(?:\.(?!bias$)\w+)??(?:\.weight)?")
_WHOLE = re.compile(r"(.+?)(?:\.base_layer|\.modules_to_save(?:\.\w+)??)?\.(weight|bias)")
MERGE = "merge the adapter into its base (merge_and_unload), and export that"
_SHARED = re.compile(r"(?:.+\.)?(?:shared|embed_tokens)")


@dataclass(frozen=True)
class _Change:
    """The change of a matrix: ``scale * b @ a`` is added to it. a: [r, K], b: [N, r]; of an embedding both transposed.

    magnitude: the length of each row of the sum, with DoRA.
    """

    a: Stored
    b: Stored
    scale: float
    embedding: bool
    magnitude: Stored | None

    @property
    def shape(self) -> tuple[int, int]:
        n, k = self.b.shape[0], self.a.shape[1]
        return (k, n) if self.embedding else (n, k)

    def added_to(self, w: NDArray[np.float32], rows: slice) -> NDArray[np.float32]:
        a, b = self.a.read(), self.b.read()
        delta = a[:, rows].T @ b.T if self.embedding else b[rows] @ a
        w = w + np.float32(self.scale) * delta
        if self.magnitude is None:
            return w
        lengths = np.linalg.norm(w, axis=1)
        wanted = self.magnitude.read().reshape(-1)[rows]
        return w * np.divide(wanted, lengths, out=np.zeros_like(lengths), where=lengths > 0)[:, None]


class LoRACheckpoint(FolderCheckpoint):
    """Reads the adapter in one folder, and its base from where it is: a model directory, a GGUF file, a catalog name or
    a hub id.

    Raises:
        CheckpointError: one of the two cannot be read, they do not fit, or the adapter is of a kind that is not known.
        CatalogError: the base cannot be fetched.
    """

    def __init__(self, root: Path, **about: Any) -> None:
        super().__init__(root, **about)
        self._path = root / CONFIG
        self._said = read_json(self._path)
        self._check()
        file = next((root / name for name in WEIGHTS if (root / name).is_file()), None)
        if file is None:
            raise CheckpointError(f"{root} holds no weights of its adapter: neither {' nor '.join(WEIGHTS)}.")
        stored = tensors_in(file)
        self.base = self._open_base()
        self.licence = self.licence or self.base.licence
        self.config = dict(self.base.config)
        self.generation = self.base.generation
        self._names = list(self.base.names())
        self._sources: dict[str, str] = {}  # of tensors that the base has under another name
        self._whole: dict[str, Stored] = {}
        self._changes: dict[str, _Change] = {}
        self._place(stored)
        self._untie()
        for name, change in self._changes.items():
            if change.shape != self.shape(name):
                raise CheckpointError(
                    f"{file}: the tensors {change.a.name!r} and {change.b.name!r} change a matrix of shape "
                    f"{list(change.shape)}, and that of the base has {list(self.shape(name))}; get the adapter of "
                    "another base, or its own base."
                )
        if not self._changes and not self._whole:
            raise CheckpointError(f"{file} holds no tensors of an adapter; fetch it again.")
        ranks = sorted({change.a.shape[0] for change in self._changes.values()})
        of_rank = f" of rank {', '.join(map(str, ranks))}" if ranks else ""
        more = f", {len(self._whole)} tensors replaced" if self._whole else ""
        self.notes = [
            *self.base.notes,
            f"The adapter {self.name} (LoRA{of_rank}: {len(self._changes)} matrices changed{more}) is merged into its "
            f"base {self.base.name}.",
        ]

    @cached_property
    def tokenizer(self) -> TokenizerFiles:
        if (self.root / "tokenizer.json").is_file():
            return read_tokenizer(self.root, self.config)
        return self.base.tokenizer

    def names(self) -> list[str]:
        return self._names

    def shape(self, name: str) -> tuple[int, ...]:
        return self._whole[name].shape if name in self._whole else self.base.shape(self._sources.get(name, name))

    def stored_type(self, name: str) -> str:
        if name in self._changes:
            return "F32"
        return self._whole[name].type if name in self._whole else self.base.stored_type(self._sources.get(name, name))

    def read(self, name: str, rows: slice | None = None) -> NDArray[np.float32]:
        if name in self._whole:
            values = self._whole[name].read(rows)
        else:
            values = self.base.read(self._sources.get(name, name), rows)
        if name not in self._changes:
            return values
        return finite(self._changes[name].added_to(values, rows or slice(None)), name, self.root)

    def form(self, name: str) -> Format | None:
        return self.base.form(self._sources.get(name, name)) if self._is_bases(name) else None

    def blocks(self, name: str) -> QTensor | None:
        return self.base.blocks(self._sources.get(name, name)) if self._is_bases(name) else None

    def _is_bases(self, name: str) -> bool:
        return name not in self._changes and name not in self._whole

    def _check(self) -> None:
        """Raise CheckpointError if the configuration asks for more than `_Change` supports."""
        kind = self._said.get("peft_type")
        if kind != "LORA":
            called = kind if isinstance(kind, str) else "an unnamed kind"
            raise CheckpointError(f"{self._path} describes an adapter of {brief(called)}, and LORA is read; {MERGE}.")
        start = self._said.get("init_lora_weights", True)
        asked = {key: value for key, value in self._said.items() if key not in _OF_TRAINING | _READ and value}
        asked.pop("init_lora_weights", None)
        if start is not None and start not in _STARTS:
            asked["init_lora_weights"] = start
        if asked:
            key, value = next(iter(asked.items()))
            raise CheckpointError(
                f"{self._path} says {brief(key)}: {brief(value)}, and how that is merged is not known; {MERGE}."
            )

    def _open_base(self) -> Checkpoint:
        from edge.export.checkpoint import open_checkpoint

        base, revision = self._said.get(BASE), self._said.get("revision")
        if not isinstance(base, str) or not base:
            raise CheckpointError(f"{self._path} names no base ({BASE}); write there which model it was trained on.")
        place = place_of_base(self.root, base)
        if place is not None and place.is_dir() and is_adapter(place):
            raise CheckpointError(
                f"{self._path} names {base[:200]!r} as its base, which is an adapter, too; merge that one first."
            )
        if place is None and "://" in base:  # a stranger's folder says where to go
            raise CheckpointError(
                f"{self._path} names the address {base[:200]!r} as its base; fetch it, and write its path there."
            )
        source = base if place is None else str(place)
        if place is None and isinstance(revision, str) and revision:
            source = f"{base}@{revision}"
        try:
            return open_checkpoint(source, without=NAME, floats=True)
        except (CheckpointError, CatalogError) as e:
            raise type(e)(
                f"{self.root} is an adapter of {base[:200]!r} ({BASE} in {CONFIG}), which is needed, too: {e}"
            ) from None

    def _place(self, stored: list[Stored]) -> None:
        """Map each tensor of the adapter to the tensor of the base that it changes."""
        pairs = defaultdict[str, dict[str, Stored]](dict)
        for tensor in stored:
            if not text_name(tensor.name) or ".original_module." in tensor.name:  # of another modality; of the base
                continue
            if match := _PART.fullmatch(tensor.name):
                place, key = pairs[self._own(text_name(match[1]), "weight", tensor)], match[2]
            elif match := _WHOLE.fullmatch(tensor.name):
                place, key = self._whole, self._own(text_name(match[1]), match[2], tensor)
            else:
                raise self._unknown(tensor)
            if key in place:  # as two adapters in one file have it
                raise self._unknown(tensor)
            place[key] = tensor
        for name, parts in pairs.items():
            kind = "lora_embedding_" if "lora_embedding_A" in parts or "lora_embedding_B" in parts else "lora_"
            a, b, magnitude = (parts.pop(part, None) for part in (f"{kind}A", f"{kind}B", "lora_magnitude_vector"))
            if a is None or b is None or parts:
                raise self._unknown(next(each for each in (*parts.values(), a, b, magnitude) if each))
            self._changes[name] = self._change(name, a, b, kind != "lora_", magnitude)
        for name, tensor in self._whole.items():
            wanted = self.base.shape(name if name in self.base.names() else EMBEDDING)  # of a tied head
            rows = slice(1, None) if name in (EMBEDDING, HEAD) else slice(None)  # a vocabulary may be larger
            if tensor.tensor.ndim != len(wanted) or tensor.shape[rows] != wanted[rows]:
                raise CheckpointError(
                    f"{tensor.file}: the tensor {tensor.name!r} has shape {list(tensor.shape)}, and that of the base "
                    f"{list(wanted)}; get the adapter of another base, or its own base."
                )

    def _change(self, name: str, a: Stored, b: Stored, embedding: bool, magnitude: Stored | None) -> _Change:
        rank = a.shape[0] if a.tensor.ndim == 2 else 0
        module = name.removesuffix(".weight")
        wanted = self._number("rank_pattern", module, "r", rank)
        if rank < 1 or b.tensor.ndim != 2 or b.shape[1] != rank or wanted != rank:
            raise CheckpointError(
                f"{a.file}: the tensors {a.name!r} of shape {list(a.shape)} and {b.name!r} of shape {list(b.shape)} "
                f"are no pair of the rank {wanted:g} that {CONFIG} says; fetch the adapter again."
            )
        dora = bool(self._said.get("use_dora"))
        rows = b.shape[0]
        if dora is (magnitude is None) or (magnitude and (embedding or magnitude.tensor.numel() != rows)):
            raise CheckpointError(
                f"{a.file}: the matrix of {a.name!r} {'has' if magnitude else 'lacks'} a magnitude of DoRA, which does "
                f"not fit its shape or use_dora in {CONFIG}; fetch the adapter again."
            )
        alpha = self._number("alpha_pattern", module, "lora_alpha", 8)
        scale = alpha / (math.sqrt(rank) if self._said.get("use_rslora") else rank)
        return _Change(a, b, scale, embedding, magnitude)

    def _number(self, patterns: str, module: str, key: str, default: float) -> float:
        """Return the number that the configuration gives for one module, else the one for all modules."""
        given = self._said.get(patterns) or {}
        if not isinstance(given, Mapping) or not all(re.fullmatch(r"\^?[\w.]+", str(name)) for name in given):
            raise CheckpointError(
                f"{self._path} gives {patterns} as {brief(given)}, which says no numbers by modules' names; {MERGE}."
            )
        value = self._said.get(key, default)
        for name, own in given.items():
            if module == name.removeprefix("^") or module.endswith(f".{name}"):
                value = own
                break
        if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < 1e9:
            raise CheckpointError(
                f"{self._path} gives {key} as {str(value)[:60]!r}, which is no number above 0; fetch it again."
            )
        return value

    def _own(self, module: str, kind: str, tensor: Stored) -> str:
        """The base's name of a module's tensor, whatever stands before it."""
        while f"{module}.{kind}" not in self._known:
            _, dot, module = module.partition(".")
            if not dot:
                raise self._unknown(tensor)
        if self.config.get("is_encoder_decoder") and _SHARED.fullmatch(module):  # by several parts of the model
            raise self._unknown(tensor)
        return f"{module}.{kind}"

    @cached_property
    def _known(self) -> set[str]:
        names = set(self.base.names())
        return names | {HEAD} if EMBEDDING in names else names

    def _unknown(self, tensor: Stored) -> CheckpointError:
        return CheckpointError(
            f"{tensor.file} holds the tensor {tensor.name!r}, for which LoRA has no place in {self.base.name}; {MERGE}."
        )

    def _untie(self) -> None:
        """Give a model a head of its own where the adapter changes only one of a head and an embedding that are tied,
        or each in another way; and count a vocabulary that it made larger."""
        tied = EMBEDDING in self._names and HEAD not in self._names
        changed = {name for name in (EMBEDDING, HEAD) if name in self._changes or name in self._whole}
        if tied and changed and not self._stays_tied(changed):
            self._names.append(HEAD)
            self.config["tie_word_embeddings"] = False
            if HEAD not in self._whole:
                self._sources[HEAD] = EMBEDDING
        elif tied:
            self._whole.pop(HEAD, None)
        if EMBEDDING in self._names:
            rows = {self.shape(name)[0] for name in (EMBEDDING, HEAD) if name in self._names}
            if len(rows) > 1:
                raise CheckpointError(
                    f"{self.root} gives embedding and head {' and '.join(map(str, sorted(rows)))} rows; fetch the "
                    "adapter again."
                )
            self.config["vocab_size"] = rows.pop()

    def _stays_tied(self, changed: set[str]) -> bool:
        if self._changes.keys() & changed:
            return False
        embedding, head = self._whole.get(EMBEDDING), self._whole.get(HEAD)
        if embedding is not None and head is not None:
            return embedding.shape == head.shape and torch.equal(embedding.raw(), head.raw())
        resized = embedding is not None and embedding.shape != self.base.shape(EMBEDDING)
        return embedding is not None and (resized or bool(self._said.get("ensure_weight_tying")))


def open_path(root: Path, **about: Any) -> Checkpoint:
    """The adapter in a folder; a whole model's folder where only an adapter's configuration is left."""
    return LoRACheckpoint(root, **about) if is_adapter(root) else DirectoryCheckpoint(root, **about)
