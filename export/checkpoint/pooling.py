"""sentence-transformers' files in a model directory: what makes one vector of a text's hidden states."""

from __future__ import annotations

from pathlib import Path, PurePosixPath
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edge import typed_json
from edge.embedding_format import CLS, LAST, LONGEST_PROMPT, MAX, MEAN, MOST_PROMPTS
from edge.errors import CheckpointError, brief
from edge.export.checkpoint.stored import stored_tensors
from edge.export.checkpoint.tokenizer_files import read_json, read_text
from edge.export.facts.pooling import Dense, Pooling

MODULES = "modules.json"
# In 1_Pooling/config.json, where the mode has no name of its own.
FLAGS = {
    "pooling_mode_cls_token": CLS,
    "pooling_mode_mean_tokens": MEAN,
    "pooling_mode_max_tokens": MAX,
    "pooling_mode_lasttoken": LAST,
}
MODES = {"cls": CLS, "mean": MEAN, "max": MAX, "lasttoken": LAST}
ACTIVATIONS = {"Identity": "identity", "Tanh": "tanh", "GELU": "gelu", "ReLU": "relu"}
MOST_DENSE = 8


def read_pooling(root: Path) -> Pooling | None:
    """What the files of sentence-transformers in `root` say; None where there are none.

    Raises:
        CheckpointError: they cannot be read, or ask for what no bundle has.
    """
    path = root / MODULES
    if not path.is_file():
        return None
    modules = _modules(path)
    kinds = [kind for kind, _ in modules]
    if kinds[:2] != ["Transformer", "Pooling"]:
        raise CheckpointError(
            f"{path} has the modules {', '.join(kinds)[:200]}; a bundle has a transformer, then pooling."
        )
    after = kinds[2:]
    normalized = after[-1:] == ["Normalize"]
    denses = after[:-1] if normalized else after
    for kind in denses:
        if kind != "Dense":
            raise CheckpointError(f"{path} has the module {kind[:100]!r} after pooling, which no bundle has.")
    if len(denses) > MOST_DENSE:
        raise CheckpointError(f"{path} has {len(denses)} dense layers; a bundle has {MOST_DENSE} at most.")
    settings = _optional(root / "sentence_bert_config.json")
    prompts, prompt = _prompts(root)
    mode = _mode(root / modules[1][1] / "config.json", asks=bool(prompts))
    return Pooling(
        mode=mode,
        normalized=normalized,
        max_length=_length(settings, root),
        prompts=prompts,
        prompt=prompt,
        lowercase=settings.get("do_lower_case") is True,
        dense=[_dense(root / folder) for kind, folder in modules if kind == "Dense"],
    )


def is_bare(root: Path) -> bool:
    """True if no files of sentence-transformers say that anything follows the transformer, as of its cross-encoders."""
    path = root / MODULES
    return not path.is_file() or [kind for kind, _ in _modules(path)] == ["Transformer"]


def _modules(path: Path) -> list[tuple[str, str]]:
    """The kind and the folder of each module."""
    wrong = CheckpointError(f"{path} is not as sentence-transformers writes it; fetch the checkpoint again.")
    raw = typed_json.read_json(f'{{"modules": {read_text(path)}}}', str(path), error=CheckpointError, lenient=True)
    listed = raw["modules"]
    if not isinstance(listed, list) or not 1 <= len(listed) <= MOST_DENSE + 8:
        raise wrong
    found = []
    for module in listed:
        if not isinstance(module, dict):
            raise wrong
        kind, folder = module.get("type"), module.get("path", "")
        if not isinstance(kind, str) or not isinstance(folder, str):
            raise wrong
        pure = PurePosixPath(folder)
        if pure.is_absolute() or ".." in pure.parts or "\\" in folder or "\0" in folder or len(folder) > 200:
            raise CheckpointError(f"{path} names the folder {folder[:100]!r}, which is outside of its own.")
        found.append((kind.rpartition(".")[2], folder))
    return found


def _optional(path: Path) -> dict[str, Any]:
    return read_json(path) if path.is_file() else {}


def _mode(path: Path, *, asks: bool) -> str:
    """The mode of pooling. asks: whether there are prompts."""
    config = read_json(path)
    named = config.get("pooling_mode")
    modes = [mode for flag, mode in FLAGS.items() if config.get(flag) is True]
    others = [name for name, value in config.items() if name.startswith("pooling_mode_") and value is True]
    if isinstance(named, str):
        modes, others = [MODES[named]] if named in MODES else [], [named]
    if len(modes) != 1 or len(others) != 1:
        shown = ", ".join(others)[:200] or "none"
        raise CheckpointError(f"{path} asks for the pooling {shown}; a bundle has one of {', '.join(MODES)}.")
    if config.get("include_prompt") is False and asks:
        raise CheckpointError(f"{path} leaves a prompt's tokens out of pooling, which no bundle does.")
    return modes[0]


def _length(settings: dict[str, Any], root: Path) -> int | None:
    length = settings.get("max_seq_length")
    if length is None:
        return None
    if not isinstance(length, int) or isinstance(length, bool) or length < 1:
        raise CheckpointError(f"{root / 'sentence_bert_config.json'} gives max_seq_length as {brief(length)}.")
    return length


def _prompts(root: Path) -> tuple[dict[str, str], str | None]:
    """The prompts by name, those that are empty too, and the name of the one that is used where none is named."""
    path = root / "config_sentence_transformers.json"
    config = _optional(path)
    prompts, named = config.get("prompts") or {}, config.get("default_prompt_name")
    sound = isinstance(prompts, dict) and len(prompts) <= MOST_PROMPTS
    if not sound or not all(isinstance(each, str) and len(each) <= LONGEST_PROMPT for each in prompts.values()):
        raise CheckpointError(f"{path} has prompts that are no texts; fetch the checkpoint again.")
    if named is not None and named not in prompts:
        raise CheckpointError(f"{path} names the prompt {str(named)[:100]!r}, which it does not have.")
    return dict(prompts), named


def _dense(folder: Path) -> Dense:
    config = read_json(folder / "config.json")
    name = str(config.get("activation_function", "torch.nn.modules.activation.Tanh")).rpartition(".")[2]
    if name not in ACTIVATIONS:
        raise CheckpointError(f"{folder} has the activation {name[:100]!r}; known are {', '.join(ACTIVATIONS)}.")
    tensors = {each.name: each for each in stored_tensors(folder)}

    def read(part: str, rank: int) -> NDArray[np.float32] | None:
        found = tensors.get(f"linear.{part}")
        if found is not None and len(found.shape) != rank:
            raise CheckpointError(f"{folder} holds linear.{part} of shape {list(found.shape)}.")
        return None if found is None else found.read()

    weight, bias = read("weight", 2), read("bias", 1)
    if weight is None or (bias is not None and len(bias) != len(weight)):
        raise CheckpointError(f"{folder} holds no whole linear layer; fetch the checkpoint again.")
    return Dense(weight, bias, ACTIVATIONS[name])
