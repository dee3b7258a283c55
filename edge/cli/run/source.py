"""What `edge run` is given: a bundle, or a model of which a bundle is made first and kept in the cache."""

from __future__ import annotations

import os
import sys
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

from edge import __version__
from edge.bundle import MANIFEST, Bundle, BundleWriter, open_bundle
from edge.errors import BundleError, ExportError
from edge.gguf_parts import parts_of
from edge.home import cache_dir
from edge.manifest import Manifest

T = TypeVar("T")


def open_source(given: Path) -> Bundle:
    """Open the bundle at a path; or of a .gguf file, a model's folder, a catalog name or a hub id, the bundle that was
    made of it before, or is made now with little effort.

    Raises:
        EdgeError: it is neither, or no bundle can be made of it.
    """
    if not _is_model(given):
        if os.path.lexists(given) or given.suffix == ".edge" or len(given.parts) > 1:
            return open_bundle(given)
        raise BundleError(
            f"There is no bundle at {given}, and no model of that name in the catalog (see edge models); edge export "
            "makes a bundle."
        )
    target = cache_dir() / "bundles" / f"{_name(given)}.edge"
    if (bundle := _made(target)) is not None:
        return bundle
    from edge.lock import locked

    with locked(target.with_suffix(".lock"), lambda: _say(f"Another run makes a bundle of {given}; waiting for it.")):
        return _made(target) or _make(given, target)


def _is_model(given: Path) -> bool:
    """Whether something must be made of it: everything else is opened as a bundle, or refused as none."""
    if given.exists():
        return given.suffix == ".gguf" or (given / "config.json").is_file()
    from edge import catalog, fetch

    return catalog.find(str(given)) is not None or (given.suffix != ".edge" and fetch.is_hub_id(str(given)))


def _name(given: Path) -> str:
    """The cached bundle's: a changed file is another model."""
    identity = str(given)
    if given.exists():
        files = sorted(given.iterdir()) if given.is_dir() else [file for file in parts_of(given) if file.exists()]
        stats = [(file.name, file.stat().st_size, file.stat().st_mtime_ns) for file in files]
        identity = f"{given.resolve()} {stats}"
    return f"{given.name}-{zlib.crc32(identity.encode()):08x}"


def _made(target: Path) -> Bundle | None:
    """The bundle, where this version of edge has made it before."""
    if not (target / MANIFEST).exists():
        return None
    try:
        bundle = open_bundle(target)
    except BundleError:
        return None
    return bundle if bundle.manifest.producer == f"edge {__version__}" else None


def _make(given: Path, target: Path) -> Bundle:
    again = ", because the one that is there is another version's or damaged" if target.exists() else ""
    _say(f"Making a bundle of {given}, once{again}; edge export makes a smaller and faster one in more time.")
    _export_apart(given, target)
    _say(f"The bundle is kept as {target}.")
    return open_bundle(target)


def _export_apart(given: Path, target: Path) -> None:
    """Export in processes of their own, one after the other: what an export leaves in memory would count against
    --memory."""
    with BundleWriter(target, force=True) as writer:
        _apart(given, _stage, given, writer)
        writer.commit(_apart(given, _finish, writer))


def _apart(given: Path, work: Callable[..., T], *arguments: Any) -> T:
    """What `work` returns in another process."""
    from concurrent.futures import ProcessPoolExecutor
    from concurrent.futures.process import BrokenProcessPool
    from multiprocessing import active_children, get_context

    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as other:
        try:
            return other.submit(work, *arguments).result()
        except KeyboardInterrupt:
            for child in active_children():  # of its own accord it would go on to the end where it was not asked too
                child.terminate()
            raise ExportError(f"The making of a bundle of {given} was interrupted; nothing was left.") from None
        except BrokenProcessPool:
            raise ExportError(
                f"The system ended the export of {given}, as it does where memory runs out; close other programs, or "
                "choose a smaller model."
            ) from None


def _stage(given: Path, writer: BundleWriter) -> None:
    from edge.cli.export import stages
    from edge.export.quick import stage

    with stages() as (progress, say):
        stage(writer, str(given), progress, say)


def _finish(writer: BundleWriter) -> Manifest:
    from edge.cli.export import stages
    from edge.export.quick import finish

    with stages() as (progress, say):
        return finish(writer, progress, say)


def _say(sentence: str) -> None:
    print(sentence, file=sys.stderr, flush=True)
