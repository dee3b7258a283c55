"""Sizes in a vocabulary that libraries take on trust: checked before they are given it."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from edge.errors import CheckpointError

MAX_WORK = 10**9  # squares of tokens' lengths; the largest vocabularies, of 262,144 tokens, have 2 * 10**7


def check_character_map(characters: bytes, path: Path) -> None:
    """Raise CheckpointError if SentencePiece's map of characters states a larger size than it has. `tokenizers` would
    allocate the stated size, or end the process."""
    if not characters:
        return
    size = int.from_bytes(characters[:4], "little")
    if len(characters) < 4 or size > len(characters) - 4:
        raise CheckpointError(
            f"{path} is damaged: its character map says that it has {size:,} bytes and has {len(characters):,}; fetch "
            "it again."
        )


def check_lengths(tokens: Iterable[str], path: Path) -> None:
    """Raise CheckpointError if tokens are so long that finding the pairs that they are merged of would need minutes."""
    if sum(len(token) ** 2 for token in tokens) > MAX_WORK:
        raise CheckpointError(f"{path} is damaged: it has tokens as long as books; fetch it again.")
