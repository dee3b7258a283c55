"""The seam between sources of weights and everything that consumes them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
from numpy.typing import NDArray

from edge.errors import CheckpointError
from edge.export.facts.pooling import Pooling
from edge.export.facts.tensors import Format, GgufTensor, QTensor
from edge.manifest import Tokens
from edge.runtime.mapped_file import MappedFile, mapped_file

if TYPE_CHECKING:
    from tokenizers import Tokenizer


@dataclass(frozen=True)
class TokenizerFiles:
    """The tokenizer data that a bundle needs: `json` is the text of a tokenizer.json as `tokenizers` reads it."""

    json: str
    chat_template: str | None
    tokens: Tokens
    built: Tokenizer | None = field(default=None, compare=False, repr=False)  # that `json` is the text of, if at hand

    @cached_property
    def parsed(self) -> Tokenizer:
        """The tokenizer, to read; nobody changes it."""
        from tokenizers import Tokenizer

        return self.built or Tokenizer.from_str(self.json)


class Checkpoint(Protocol):
    """A Torch checkpoint, whatever it is stored in. Tensors are read one at a time and not kept.

    A format is a file of `edge.export.checkpoint`, whose `open_path` makes one of these and whose TRAITS say what it
    `reads`, a "folder", a "file" or "onnx" (see `edge.onnx_model`), and by which file in a folder it is known, its
    `mark`.

    Tensor names, shapes and row order are those of the transformers model that `config` describes, and `config`
    holds that model's whole configuration, defaults filled in (rope settings under ``rope_parameters``). Where
    ``config["tie_word_embeddings"]`` is true there is no ``lm_head.weight``.
    """

    name: str
    path: Path | None = None  # of its file or folder, where it was opened from one
    kind: str  # directory, hub, gguf or catalog
    licence: str | None
    files: Sequence[Path] = ()  # of a GGUF, in the order in which its tensors count them
    onnx: Mapping[str, Path] | None = None  # of one that is a graph already: its files, by what their names end with
    pooling: Pooling | None = None  # of one that makes vectors of texts, or scores pairs
    notes: Sequence[str] = ()  # what a person should know of how it was read, in sentences
    config: dict[str, Any]
    generation: dict[str, Any]  # generation_config.json's content, or what else says the same; empty where nothing does

    @property
    def embeds(self) -> bool:
        """True if it makes vectors of texts, or scores pairs."""
        return self.pooling is not None

    @property
    def tokenizer(self) -> TokenizerFiles: ...

    def names(self) -> list[str]:
        """Names of all tensors of the model."""
        ...

    def shape(self, name: str) -> tuple[int, ...]: ...

    def read(self, name: str, rows: slice | None = None) -> NDArray[np.float32]:
        """One tensor as float32, dequantized where the source holds integers; of a large matrix perhaps only `rows`.

        Raises:
            CheckpointError: it holds NaN or infinity (`finite`).
        """
        ...

    def form(self, name: str) -> Format | None:
        """Return the format of `blocks` without reading them; its `symmetric` is not known."""
        return None

    def blocks(self, name: str) -> QTensor | None:
        """Return the source's integers and scales if they are in blocks that graphs support, else None."""
        return None

    def gguf_tensor(self, name: str, *, in_place: bool) -> GgufTensor | None:
        """Return a matrix in blocks of GGUF files, or those of all experts as one, by their `stack_name`; None where
        the source has none that our kernels compute. in_place: graphs read it in the file."""
        return None

    def gguf_type(self, name: str) -> str | None:
        """Return the type of `gguf_tensor` without reading it."""
        found = self.gguf_tensor(name, in_place=False)
        return None if found is None else found.method

    def stored_type(self, name: str) -> str:
        """The type in the source: F32, F16, BF16, Q8_0, Q4_1, GPTQ-4, ..."""
        ...


def mapped(path: Path) -> MappedFile:
    """A file of weights that is about to be mapped into memory. OSError where it cannot be read."""
    return mapped_file(path, "run the export again", error=CheckpointError)


def finite(values: NDArray[np.float32], name: str, where: Path) -> NDArray[np.float32]:
    """`values` themselves, the tensor `name` as it was read from `where`.

    Raises:
        CheckpointError: they hold NaN or infinity.
    """
    # The extremes tell both, and unlike np.isfinite take no memory.
    if not (np.isfinite(values.min(initial=0)) and np.isfinite(values.max(initial=0))):
        raise CheckpointError(
            f"{where}: the tensor {name!r} holds NaN or infinity, of which no answer can be computed; fetch the "
            "checkpoint again, or use another."
        )
    return values
