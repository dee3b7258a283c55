"""A Whisper model converted to CTranslate2 (as faster-whisper uses them), under the names of transformers' Whisper."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edge.errors import CheckpointError
from edge.export.checkpoint import model_config
from edge.export.checkpoint.ctranslate2_file import CTranslate2File
from edge.export.checkpoint.directory import FolderCheckpoint
from edge.export.checkpoint.tokenizer_files import read_json
from edge.export.checkpoint.whisper_vocabulary import END, ENGLISH_ALONE, START, read_vocabulary
from edge.export.facts.checkpoint import TokenizerFiles, finite
from edge.manifest import Tokens
from edge.typed_json import typed

NAME = "ctranslate2"
HELP = "a Whisper model converted to CTranslate2"
TRAITS = {"reads": "folder", "mark": "model.bin"}

MODEL = TRAITS["mark"]

# The variables of one layer, by the name of the part in transformers: the variable, and which of how many equal parts
# of its rows. The key's part of a fused bias is left out: it is zero, and softmax would not notice if it were not.
_SELF_ATTENTION = {
    "self_attn.k_proj": ("self_attention/linear_0", 1, 3),
    "self_attn.v_proj": ("self_attention/linear_0", 2, 3),
    "self_attn.q_proj": ("self_attention/linear_0", 0, 3),
    "self_attn.out_proj": ("self_attention/linear_1", 0, 1),
    "self_attn_layer_norm": ("self_attention/layer_norm", 0, 1),
}
_CROSS_ATTENTION = {
    "encoder_attn.k_proj": ("attention/linear_1", 0, 2),
    "encoder_attn.v_proj": ("attention/linear_1", 1, 2),
    "encoder_attn.q_proj": ("attention/linear_0", 0, 1),
    "encoder_attn.out_proj": ("attention/linear_2", 0, 1),
    "encoder_attn_layer_norm": ("attention/layer_norm", 0, 1),
}
_FEED_FORWARD = {
    "fc1": ("ffn/linear_0", 0, 1),
    "fc2": ("ffn/linear_1", 0, 1),
    "final_layer_norm": ("ffn/layer_norm", 0, 1),
}


@dataclass(frozen=True)
class _Source:
    """The place of a tensor in the file: the variable, and one of several equal parts of its rows."""

    variable: str
    part: int = 0
    parts: int = 1


@dataclass(frozen=True)
class _Settings:
    """The fields of `config.json` that are read."""

    suppress_ids: list[int] | None = None
    suppress_ids_begin: list[int] | None = None
    alignment_heads: list[list[int]] | None = None


class CTranslate2Checkpoint(FolderCheckpoint):
    """Reads one directory: `model.bin`, its `config.json`, and `vocabulary.json` or `.txt`, else `tokenizer.json`.

    Raises:
        CheckpointError: a file is missing, cut short or unreadable, or the model is no Whisper.
    """

    def __init__(self, root: Path, **about: Any) -> None:
        super().__init__(root, **about)
        self._file = CTranslate2File(root / MODEL)
        if self._file.spec != "WhisperSpec":
            raise CheckpointError(
                f"{root / MODEL} holds a {self._file.spec or 'model without a name'}; of CTranslate2's models only "
                "Whisper is read. Export the model that it was converted from."
            )
        stated = root / "config.json"
        settings = typed(
            read_json(stated) if stated.is_file() else {}, _Settings, str(stated),
            advice="fetch the checkpoint again", error=CheckpointError,
        )  # fmt: skip
        self._vocabulary = read_vocabulary(root, self._shape("decoder/embeddings/weight", 2)[0])
        config = self._config(settings)
        self._sources = _sources(config)
        for source in self._sources.values():
            if self._shape(source.variable)[0] % source.parts:
                raise CheckpointError(
                    f"{self._file.path} is damaged: the variable {source.variable!r} of shape "
                    f"{list(self._shape(source.variable))} is not made of {source.parts} equal parts; fetch it again."
                )
        self.config: dict[str, Any] = model_config.complete(config, str(root / MODEL), self._sources)
        self.generation = self._generation(settings)
        if (model := model_config.skeleton(self.config, str(root / MODEL))) is not None:
            expected = model_config.parameter_shapes(model)
            model_config.check_tensors(expected, {n: self.shape(n) for n in self._sources}, str(root / MODEL))

    @cached_property
    def tokenizer(self) -> TokenizerFiles:
        end = self.config["eos_token_id"]
        tokens = Tokens(bos=end, eos=[end], pad=end, add_bos=False)
        return TokenizerFiles(json=self._vocabulary.to_str(), chat_template=None, tokens=tokens)

    def names(self) -> list[str]:
        return list(self._sources)

    def shape(self, name: str) -> tuple[int, ...]:
        source = self._sources[name]
        rows, *rest = self._shape(source.variable)
        return rows // source.parts, *rest

    def stored_type(self, name: str) -> str:
        return self._file.variables[self._sources[name].variable].type

    def read(self, name: str, rows: slice | None = None) -> NDArray[np.float32]:
        source = self._sources[name]
        values = self._file.values(source.variable)
        length = values.shape[0] // source.parts
        own = values[source.part * length : (source.part + 1) * length]
        return finite(own if rows is None else own[rows], source.variable, self._file.path)

    def _shape(self, variable: str, rank: int | None = None) -> tuple[int, ...]:
        """A variable's shape, of `rank` dimensions, or at least one."""
        if variable not in self._file.variables:
            raise CheckpointError(f"{self._file.path} lacks the variable {variable!r}, which a Whisper model has.")
        shape = self._file.variables[variable].shape
        if not shape or (rank is not None and len(shape) != rank):
            raise CheckpointError(
                f"{self._file.path} is damaged: the variable {variable!r} has the shape {list(shape)}, which no "
                "Whisper model has; fetch it again."
            )
        return shape

    def _layers(self, part: str) -> int:
        return len({m[1] for name in self._file.variables if (m := re.match(rf"{part}/layer_(\d+)/", name))})

    def _config(self, settings: _Settings) -> dict[str, Any]:
        """Return transformers' config.json of this model: sizes from the tensors, the rest as in OpenAI's models."""
        vocab_size, width = self._shape("decoder/embeddings/weight", 2)
        _, mel_bins, _ = self._shape("encoder/conv1/weight", 3)
        start, end = map(self._vocabulary.token_to_id, (START, END))
        config: dict[str, Any] = dict(
            model_type="whisper",
            vocab_size=vocab_size,
            d_model=width,
            num_mel_bins=mel_bins,
            max_source_positions=self._shape("encoder/position_encodings/encodings")[0],
            max_target_positions=self._shape("decoder/position_encodings/encodings")[0],
            activation_function="gelu",
            **dict.fromkeys(("bos_token_id", "eos_token_id", "pad_token_id"), end),
            decoder_start_token_id=start,
            suppress_tokens=settings.suppress_ids,
            begin_suppress_tokens=settings.suppress_ids_begin,
        )
        for part in ("encoder", "decoder"):
            heads = self._file.number(f"{part}/num_heads") or width // 64  # older files do not say
            config[f"{part}_layers"] = self._layers(part)
            config[f"{part}_attention_heads"] = heads
            config[f"{part}_ffn_dim"] = self._shape(f"{part}/layer_0/ffn/linear_0/weight")[0]
        return config

    def _generation(self, settings: _Settings) -> dict[str, Any]:
        """Return transformers' generation_config.json of this model, without the ids that its vocabulary gives."""
        generation: dict[str, Any] = {
            "is_multilingual": self._vocabulary.get_vocab_size(with_added_tokens=True) != ENGLISH_ALONE,
            "max_length": self.config["max_target_positions"],
            "max_initial_timestamp_index": 50,  # one second: of every Whisper
            "suppress_tokens": settings.suppress_ids,
            "begin_suppress_tokens": settings.suppress_ids_begin,
            "alignment_heads": settings.alignment_heads,
        }
        return {key: value for key, value in generation.items() if value is not None}


def _sources(config: dict[str, Any]) -> dict[str, _Source]:
    """Map each tensor of transformers' model to its place in the file, in transformers' order."""
    sources = {
        **_both("model.encoder.conv1", _Source("encoder/conv1")),
        **_both("model.encoder.conv2", _Source("encoder/conv2")),
        "model.encoder.embed_positions.weight": _Source("encoder/position_encodings/encodings"),
    }
    sources |= _layers("encoder", config["encoder_layers"], _SELF_ATTENTION | _FEED_FORWARD)
    sources["model.decoder.embed_tokens.weight"] = _Source("decoder/embeddings/weight")
    sources["model.decoder.embed_positions.weight"] = _Source("decoder/position_encodings/encodings")
    parts = _SELF_ATTENTION | _CROSS_ATTENTION | _FEED_FORWARD
    return sources | _layers("decoder", config["decoder_layers"], parts)


def _layers(stack: str, count: int, parts: dict[str, tuple[str, int, int]]) -> dict[str, _Source]:
    sources: dict[str, _Source] = {}
    for i in range(count):
        for name, (variable, part, of) in parts.items():
            source = _Source(f"{stack}/layer_{i}/{variable}", part, of)
            norm = name.endswith("layer_norm")
            sources |= _both(f"model.{stack}.layers.{i}.{name}", source, *(("gamma", "beta") if norm else ()))
    return sources | _both(f"model.{stack}.layer_norm", _Source(f"{stack}/layer_norm"), "gamma", "beta")


def _both(name: str, source: _Source, weight: str = "weight", bias: str = "bias") -> dict[str, _Source]:
    """The weight and the bias of one module; Whisper's keys have no bias."""
    sources = {f"{name}.weight": _Source(f"{source.variable}/{weight}", source.part, source.parts)}
    if not name.endswith(".k_proj"):
        sources[f"{name}.bias"] = _Source(f"{source.variable}/{bias}", source.part, source.parts)
    return sources


open_path = CTranslate2Checkpoint
