"""Weights that others have quantized: what the tensors that stand in a weight's place mean. One file per method."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from edge.errors import CheckpointError, brief
from edge.export.checkpoint.quantized.packing import Method, Settings
from edge.export.checkpoint.stored import Stored, Tensor
from edge.export.checkpoint.tokenizer_files import read_json
from edge.registry import Registry

METHODS = Registry(__name__, "method of quantizing")  # see `packing.Method`

# Where a folder describes its weights: a field of config.json, or a file of its own, whose method may go unsaid.
FIELDS = ("quantization_config", "compression_config")
FILES = {"quantize_config.json": "gptq", "quant_config.json": "awq"}

# Names of tensors by which methods are known, the more telling ones first.
_LEFT = {
    r"\.SCB$": "bitsandbytes (8 bits)",
    r"\.(nested_)?(absmax|quant_map)$|\.quant_state\.bitsandbytes__": "bitsandbytes (4 bits)",
    r"\.weight_scale_2$": "NVFP4",
    r"\.weight_(packed|shape|zero_point|g_idx|global_scale)$": "compressed-tensors",
    r"\.weight_scale_inv$": "FP8 in blocks",
    r"\.weight_scales?$": "FP8 or compressed-tensors",
    r"\.g_idx$": "GPTQ",
    r"\.(qweight|qzeros|scales)$": "GPTQ or AWQ",
    r"\.q_(weight|scale|invperm|group_map)$": "EXL2",
    r"\.trellis$": "EXL3",
    r"\.W_q$": "HQQ",
    r"\.(codes|codebooks)$": "AQLM",
    r"\.Qidxs": "QuIP#",
    r"\.weight[._:]_?(data|scale|qdata)$": "quanto or torchao",
    r"_proj_(blocks|scales)$": "MXFP4",
}
_ADAPTER = re.compile(r"\.(lora_[AB]|lora_embedding_[AB]|base_layer)\.")
_FP8 = (torch.float8_e4m3fn, torch.float8_e5m2)


@dataclass(frozen=True)
class Described:
    """A method that is known here, and what the folder says of it."""

    method: Method
    parts: tuple[str, ...]
    joint: str  # between a module's name and a part's: where that is no dot, the module is a parameter, not its weight
    settings: Settings


def method_of(root: Path, config: Mapping[str, Any]) -> Described | None:
    """Return the quantization method that a folder states, in config.json (`config`) or next to it; None if it states
    none.

    Raises:
        CheckpointError: the method is not known here, or is described in an unknown form.
    """
    path, said, default = root / "config.json", _field(config), None
    if said is None:
        path = next((root / file for file in FILES if (root / file).is_file()), path)
        if path.name not in FILES:
            return None
        said, default = read_json(path), FILES[path.name]
    name = said.get("quant_method", default) if isinstance(said, Mapping) else None
    if not isinstance(said, Mapping) or not isinstance(name, str) or name not in METHODS:
        called = name if isinstance(name, str) else "an unnamed method"
        raise CheckpointError(
            f"{path} describes weights already quantized by {brief(called)}, and read are {', '.join(METHODS)}; export "
            "the unquantized model."
        )
    entry = METHODS[name]
    settings = Settings(said, path, entry.traits["called"])
    method: Any = entry.load()
    method.check(settings)
    return Described(method, entry.traits["parts"], entry.traits.get("joint", "."), settings)


def _field(config: Mapping[str, Any]) -> object:
    text = config.get("text_config")
    for part in (config, text if isinstance(text, Mapping) else {}):
        for field in FIELDS:
            if part.get(field) is not None:
                return part[field]
    return None


def matrices_of(stored: Mapping[str, Stored], described: Described | None, root: Path) -> dict[str, Tensor]:
    """The model's tensors, by name, with a quantized weight in the place of its parts.

    Raises:
        CheckpointError: parts do not fit each other, or a quantizer left tensors and the folder does not describe them.
    """
    found: dict[str, Tensor] = dict(stored)
    if described is not None:
        modules = defaultdict[str, dict[str, Stored]](dict)
        for name, tensor in stored.items():
            for part in described.parts:
                suffix = f"{described.joint}{part}"
                if name.endswith(suffix):
                    modules[name.removesuffix(suffix)][part] = tensor
                    del found[name]
        for module, parts in modules.items():
            weight = f"{module}.weight" if described.joint == "." else module
            if weight in stored:
                parts["weight"] = stored[weight]
            found[weight] = described.method.matrix(module, parts, described.settings)
    _refuse_left(found, described, root)
    return found


def _refuse_left(found: Mapping[str, Tensor], described: Described | None, root: Path) -> None:
    """Raise CheckpointError if tensors of a quantizer, or of an adapter that was not merged, are left."""
    for name, tensor in found.items():
        if not isinstance(tensor, Stored):
            continue
        if _ADAPTER.search(name):
            raise CheckpointError(
                f"{tensor.file} holds the tensor {tensor.name!r} of a LoRA adapter next to its base; merge the two "
                "(merge_and_unload), or save the adapter alone."
            )
        if described and tensor.tensor.dtype in _FP8:
            raise CheckpointError(
                f"{tensor.file} holds the tensor {tensor.name!r} in FP8 without its scales; fetch the checkpoint again."
            )
        if "." not in name:
            continue
        if method := next((method for pattern, method in _LEFT.items() if re.search(pattern, name)), None):
            raise CheckpointError(
                f"{tensor.file} holds the tensor {tensor.name!r}, which {method} leaves in the place of a weight, and "
                f"{described.settings.path.name if described else 'config.json'} does not describe it "
                f"(quantization_config); get a folder that does, or export the unquantized model."
            )
