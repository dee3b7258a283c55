"""FP8 weights with a scale in all, for each row, or for each block, as DeepSeek's and Qwen3's have them.

The tensor of scales is called weight_scale_inv where they come in blocks, and is multiplied with all the same.
"""

from __future__ import annotations

import torch

from edge.export.checkpoint.quantized.compressed_tensors import pair, scaled
from edge.export.checkpoint.quantized.packing import Parts, Scaled, Settings, part_of

NAMES = ("fp8", "fbgemm_fp8", "modelopt")
HELP = "FP8 with scales"
TRAITS = {"called": "FP8", "parts": ("weight_scale_inv", "weight_scale")}

SCALES = (torch.float16, torch.bfloat16, torch.float32, torch.float8_e8m0fnu)


def check(settings: Settings) -> None:
    form = settings.text("fmt", "e4m3")
    if form != "e4m3":
        raise settings.refused("fmt", form, "e4m3 is known")
    if settings.values.get("quant_method") == "modelopt" and (kind := settings.text("quant_algo", "FP8")) != "FP8":
        raise settings.refused("quant_algo", kind, "FP8 is known")


def matrix(module: str, parts: Parts, settings: Settings) -> Scaled:
    weight = part_of(module, parts, "weight", (torch.float8_e4m3fn,), 2)
    name = "weight_scale_inv" if "weight_scale_inv" in parts else "weight_scale"
    block = pair(settings.values.get("weight_block_size")) or (128, 128)
    return scaled(weight, part_of(module, parts, name, SCALES), [block], "FP8")
