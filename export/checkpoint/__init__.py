"""Where weights come from: a model directory, a .gguf file, a hub id or a catalog name."""

from __future__ import annotations

from pathlib import Path

from edge.errors import CheckpointError
from edge.export.checkpoint.base import Checkpoint


def open_checkpoint(source: str) -> Checkpoint:
    """Open whatever `source` names.

    Raises:
        CheckpointError: nothing of that name, or it cannot be read.
    """
    path = Path(source).expanduser()
    if path.is_dir():
        from edge.export.checkpoint.directory import DirectoryCheckpoint

        return DirectoryCheckpoint(path)
    if path.is_file():
        from edge.export.checkpoint.gguf import GGUFCheckpoint

        return GGUFCheckpoint(path)
    raise CheckpointError(f"There is no file or directory at {source}.")
