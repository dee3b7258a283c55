"""Text that calibrated methods run the model on, cut into windows of tokens."""

from __future__ import annotations

import re
from importlib.resources import files
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray
from tokenizers import Tokenizer

from edge.errors import ExportError

if TYPE_CHECKING:
    from edge.export.facts.checkpoint import Checkpoint

WINDOW = 512
MAX_WINDOWS = 24  # windows: bounds the time of an export
MIN_TOKENS = 128  # tokens: with fewer the second moments say nothing


def calibration_windows(checkpoint: Checkpoint, text: str | None) -> NDArray[np.int64]:
    """Windows [W, S] of the calibration text, default the built-in one (prose, dialogue, code, chats).

    Raises:
        ExportError: the text holds fewer than MIN_TOKENS tokens.
    """
    tokenizer = Tokenizer.from_str(checkpoint.tokenizer.json)
    if text is None:
        text = (files(__package__) / "calibration.txt").read_text(encoding="utf-8")
        if tokenizer.token_to_id("<|im_start|>") is None:  # the built-in chats are in ChatML
            text = re.sub(r"<\|im_(start|end)\|>", "", text)
    ids = tokenizer.encode(text, add_special_tokens=False).ids
    if len(ids) < MIN_TOKENS:
        raise ExportError(
            f"The calibration text holds {len(ids)} tokens, fewer than the {MIN_TOKENS} that are needed; give a longer "
            "one."
        )
    begin = checkpoint.tokenizer.tokens.lead
    size = min(WINDOW, len(ids) + len(begin), int(checkpoint.config.get("max_position_embeddings") or WINDOW))
    body = size - len(begin)
    count = max(1, min(MAX_WINDOWS, len(ids) // body))
    return np.array([begin + ids[i * body : (i + 1) * body] for i in range(count)], dtype=np.int64)
