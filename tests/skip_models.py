"""What Torch makes of a Llama whose tokens skip layers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np


def torch_model(folder: Path) -> Any:
    from transformers import AutoModelForCausalLM

    return AutoModelForCausalLM.from_pretrained(folder, dtype="float32", attn_implementation="eager").eval()


def skipping_logits(model: Any, ids: np.ndarray, ran: np.ndarray) -> np.ndarray:
    """Torch's logits [S, V] of `ids` [S] where token t goes through layer l only if `ran` [layers, S] says so.

    A layer sees the tokens that run through it, at their own positions, as if there were no others.
    """
    import torch

    with torch.no_grad():
        x = model.model.embed_tokens(torch.from_numpy(ids)[None])
        for layer, mask in zip(model.model.layers, ran, strict=True):
            taken = np.flatnonzero(mask)
            if not len(taken):
                continue
            places = torch.from_numpy(taken)[None]
            rotations = model.model.rotary_emb(x, places)
            blocked = torch.full((len(taken), len(taken)), -1e9).triu(1)[None, None]
            out = layer(x[:, taken], attention_mask=blocked, position_ids=places, position_embeddings=rotations)
            x[:, taken] = out[0] if isinstance(out, tuple) else out
        return model.lm_head(model.model.norm(x))[0].numpy()
