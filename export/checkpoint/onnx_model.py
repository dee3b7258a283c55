"""A model that is an ONNX graph already, with its tokenizer: Optimum's folders, those of transformers.js, and those of
onnxruntime-genai's builder."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
from numpy.typing import NDArray

from edge.errors import CheckpointError, InputError
from edge.export.checkpoint.directory import FolderCheckpoint
from edge.export.checkpoint.generation_settings import check_settings
from edge.export.checkpoint.model_config import common_fields, generation_settings
from edge.export.checkpoint.tokenizer_files import read_json, read_tokenizer
from edge.export.facts.checkpoint import TokenizerFiles
from edge.onnx_model import GENAI, INSIDE, SUFFIX, chosen, onnx_files, root_of

NAME = "onnx"
HELP = "a ready ONNX model: of Optimum, transformers.js or onnxruntime-genai's builder"
TRAITS = {"reads": "onnx"}

CONFIG = "config.json"
HALF = ("fp16", "q4f16", "q8f16")  # ends of files whose floats are in 16 bits, with which a CPU computes slowly
# genai_config.json's fields of a model, and their names in config.json.
_GENAI = {"vocab_size": "vocab_size", "context_length": "max_position_embeddings", "type": "model_type"}
_GENAI_TOKENS = ("bos_token_id", "eos_token_id", "pad_token_id")
_GENAI_DECODER = {
    **{name: name for name in ("hidden_size", "num_attention_heads", "num_hidden_layers")},
    "num_key_value_heads": "num_key_value_heads",
    "head_size": "head_dim",
}


class OnnxCheckpoint(FolderCheckpoint):
    """Reads one folder, or an .onnx file of one.

    Raises:
        CheckpointError: a file is missing or unreadable, or the folder holds no decoder with a cache in one file.
    """

    def __init__(self, path: Path, **about: Any) -> None:
        file = path if path.suffix == SUFFIX and path.is_file() else None
        super().__init__(root_of(path) if file is not None else path, **about)
        self._alone = file is not None or self._genai_file is not None
        self.onnx = self._found = {"": file} if file is not None else self._files()
        self._raw_config = self._read_config()
        self.config: dict[str, Any] = common_fields(self._raw_config)
        generation = self.root / "generation_config.json"
        self.generation: dict[str, Any] = (
            read_json(generation) if generation.is_file() else self._search() or generation_settings(self._raw_config)
        )
        check_settings(self.generation, str(generation))

    def file_for(self, weights: str | None) -> Path:
        """The file with weights of this kind; default: the smallest that a CPU computes well.

        Raises:
            InputError: there is none.
        """
        if self._alone:
            return self._found[""]
        names = {end: str(file) for end, file in self._found.items()}
        if (name := chosen(names, weights)) is not None:
            return Path(name)
        there = ", ".join(file.name for file in self._found.values())
        if weights is None and not set(self._found) - {*HALF}:
            raise InputError(
                f"{self.name} has its weights in float16 alone ({there}), with which a CPU computes slowly or not at "
                "all; take a model with a file q4, quantized or of float32."
            )
        asked = f"for --weights {weights}" if weights else "of a kind that is known"
        raise InputError(f"{self.name} has no file {asked}; there are {there}: name one instead of the folder.")

    @cached_property
    def tokenizer(self) -> TokenizerFiles:
        return read_tokenizer(self.root, self._raw_config)

    def names(self) -> list[str]:
        return []

    def shape(self, name: str) -> tuple[int, ...]:
        self._refuse(name)

    def read(self, name: str, rows: slice | None = None) -> NDArray[np.float32]:
        self._refuse(name)

    def stored_type(self, name: str) -> str:
        self._refuse(name)

    def _refuse(self, name: str) -> NoReturn:
        raise CheckpointError(f"{self.name} is an ONNX graph, of which no tensor {name!r} is read.")

    def _files(self) -> Mapping[str, Path]:
        if self._genai_file is not None:
            return {"": self._genai_file}
        found, parts = onnx_files(self.root)
        if any("encoder" in file.name for file in parts):
            raise CheckpointError(
                f"{self.name} is an encoder-decoder, and ready ONNX models are read of decoders alone; export its "
                "Torch checkpoint."
            )
        if found:
            return found
        if parts:
            raise CheckpointError(
                f"{self.name} has its decoder in two files ({', '.join(file.name for file in parts)}); export it "
                "again with a newer Optimum, which writes one."
            )
        raise CheckpointError(
            f"{self.name} holds no decoder: neither model{SUFFIX} nor decoder_model_merged{SUFFIX}, here or in "
            f"{INSIDE}/."
        )

    @cached_property
    def _genai_file(self) -> Path | None:
        """The file that genai_config.json names."""
        named = self._genai.get("decoder", {}).get("filename")
        if not isinstance(named, str):
            return None
        file = self.root / named
        if Path(named).name != named or not file.is_file():
            raise CheckpointError(f"{self.root / GENAI} names the file {named[:80]!r}, which is not in the folder.")
        return file

    @cached_property
    def _genai(self) -> Mapping[str, Any]:
        """What genai_config.json says of the model."""
        path = self.root / GENAI
        model = read_json(path).get("model") if path.is_file() else None
        if model is None:
            return {}
        decoder = model.get("decoder") if isinstance(model, dict) else None
        if not isinstance(decoder, dict):
            raise CheckpointError(f"{path} describes no decoder.")
        others = [name for name in ("encoder", "vision", "speech", "embedding") if name in model]
        if "pipeline" in decoder or others:
            raise CheckpointError(
                f"{path} describes a model of several graphs ({', '.join(others) or 'pipeline'}), and those of one "
                "decoder are read."
            )
        return model

    def _read_config(self) -> dict[str, Any]:
        path = self.root / CONFIG
        raw: dict[str, Any] = {}
        if path.is_file():
            raw = read_json(path)
        elif not self._genai:
            raise CheckpointError(f"{self.root} holds no {CONFIG}, which says what the model of the graph is.")
        text = raw.get("text_config")
        raw = {**raw, **(text if isinstance(text, dict) else {})}
        stated = {ours: self._genai.get(theirs) for theirs, ours in _GENAI.items()}
        stated |= {name: self._genai.get(name) for name in _GENAI_TOKENS}
        decoder = self._genai.get("decoder", {})
        stated |= {ours: decoder.get(theirs) for theirs, ours in _GENAI_DECODER.items()}
        return {**{name: value for name, value in stated.items() if value is not None}, **raw}

    def _search(self) -> dict[str, Any]:
        path = self.root / GENAI
        found = read_json(path).get("search") if path.is_file() else None
        if not isinstance(found, dict):
            return {}
        names = ("do_sample", "temperature", "top_k", "top_p", "repetition_penalty")
        return {name: found[name] for name in names if name in found}


open_path = OnnxCheckpoint
