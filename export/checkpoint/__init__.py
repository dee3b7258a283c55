"""Where weights come from: a model directory, a .gguf file, a catalog name or a hub id."""

from __future__ import annotations

from pathlib import Path

from edge import catalog, fetch
from edge.catalog import Progress, Say
from edge.errors import CatalogError, CheckpointError
from edge.export.checkpoint.base import Checkpoint


def open_checkpoint(source: str, *, progress: Progress | None = None, say: Say | None = None) -> Checkpoint:
    """Open what `source` names: a path that exists, else a catalog name, else a hub id; fetched where needed.

    progress and say: told of fetching.

    Raises:
        CheckpointError: nothing of that name, or it cannot be read.
        CatalogError: it cannot be fetched, or its terms were not accepted.
    """
    path = Path(source).expanduser()
    if path.exists():
        return _open_path(path)
    if entry := catalog.find(source):
        local = fetch.pull(entry, progress, say=say)
        return _open_path(local, name=entry.name, kind="catalog", licence=entry.licence)
    from edge.export.checkpoint import hub

    if path.suffix != ".gguf" and not source.startswith((".", "/", "~")) and hub.ID.fullmatch(source):
        try:
            return open_directory(hub.fetch_hub(source), name=source, kind="hub")
        except CatalogError as e:
            raise CatalogError(f"There is no directory {source}, and {e}") from None
    raise CheckpointError(
        f"There is no model {source!r}: no such directory or .gguf file, no such name in the catalog (see edge "
        "models), and it is no hub id of the form org/name."
    )


def open_directory(root: Path, *, name: str | None, kind: str, licence: str | None = None) -> Checkpoint:
    """Open a directory, which transformers wrote or CTranslate2's converter.

    Raises:
        CheckpointError: it cannot be read.
    """
    from edge.export.checkpoint import ctranslate2, directory

    if (root / ctranslate2.MODEL).is_file():
        return ctranslate2.CTranslate2Checkpoint(root, name=name, kind=kind, licence=licence)
    return directory.DirectoryCheckpoint(root, name=name, kind=kind, licence=licence)


def _open_path(
    path: Path, *, name: str | None = None, kind: str | None = None, licence: str | None = None
) -> Checkpoint:
    if path.is_dir():
        return open_directory(path, name=name, kind=kind or "directory", licence=licence)
    from edge.export.checkpoint.gguf import GGUFCheckpoint

    return GGUFCheckpoint(path, name=name, kind=kind or "gguf", licence=licence)
