"""Result of tuning: a model directory that `edge export` reads, with routers and the settings that they were tuned
for."""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edge.bundle import sha256_of
from edge.errors import InputError
from edge.export.facts.checkpoint import Checkpoint, TokenizerFiles
from edge.export.facts.progress import Progress
from edge.export.pipeline.routers import ABOUT, KEY, OF, ROUTERS, WEIGHTS


def write_result(
    folder: Path,
    checkpoint: Checkpoint,
    deltas: Mapping[str, NDArray[np.float32]],
    routers: NDArray[np.float32] | None,
    about: Mapping[str, Any],
    progress: Progress,
) -> None:
    """Write the checkpoint with `deltas` added to its weights, float32, its tokenizer, the routers and `about`.

    The folder appears when it is whole.

    Raises:
        InputError: it cannot be written.
    """
    import torch
    from safetensors import SafetensorError
    from safetensors.torch import save_file

    part = folder.with_name(f"{folder.name}.part")
    shutil.rmtree(part, ignore_errors=True)
    try:
        part.mkdir(parents=True)
        tensors = {}
        for done, name in enumerate(checkpoint.names()):
            progress(done, len(checkpoint.names()), "merging the adapters")
            values = checkpoint.read(name)
            tensors[name] = torch.from_numpy(values + deltas[name] if name in deltas else values.copy())
        save_file(tensors, part / WEIGHTS, metadata={"format": "pt"})
        del tensors
        if routers is not None:
            fitted_to = {OF: sha256_of(part / WEIGHTS)}
            save_file({KEY: torch.from_numpy(routers)}, part / ROUTERS, metadata=fitted_to)
        files: dict[str, Any] = {"config.json": {**checkpoint.config, "dtype": "float32"}, ABOUT: about}
        if checkpoint.generation:
            files["generation_config.json"] = checkpoint.generation
        files["tokenizer_config.json"] = _tokenizer_config(checkpoint.tokenizer)
        for name, content in files.items():
            (part / name).write_text(json.dumps(content, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
        (part / "tokenizer.json").write_text(checkpoint.tokenizer.json, encoding="utf-8")
        if checkpoint.licence:
            (part / "README.md").write_text(f"---\nlicense: {checkpoint.licence}\n---\n", encoding="utf-8")
        part.rename(folder)
    except (OSError, SafetensorError) as e:
        reason = getattr(e, "strerror", None) or e
        raise InputError(f"The tuned model {folder} cannot be written: {reason}.") from None
    finally:
        shutil.rmtree(part, ignore_errors=True)


def _tokenizer_config(tokenizer: TokenizerFiles) -> dict[str, Any]:
    """The special tokens by their texts, as transformers writes them."""
    from tokenizers import Tokenizer

    vocabulary, tokens = Tokenizer.from_str(tokenizer.json), tokenizer.tokens
    settings: dict[str, Any] = {
        name: None if i is None else vocabulary.id_to_token(i) for name, i in tokens.named.items()
    }
    settings["add_bos_token"] = tokens.add_bos
    if tokenizer.chat_template is not None:
        settings["chat_template"] = tokenizer.chat_template
    return settings
