"""What `edge run` is given: a bundle, or a model of which a bundle is made first and kept in the cache."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from edge.adapter import is_adapter
from edge.bundle import Bundle, BundleWriter, open_bundle
from edge.errors import BundleError, ExportError
from edge.manifest import Manifest

if TYPE_CHECKING:
    from edge.cli.run.contents import Contents

T = TypeVar("T")


def open_source(given: Path) -> Bundle:
    """Open the bundle at a path; or of a .gguf file, a model's folder, a catalog name or a hub id, the bundle that was
    made of it before, or is made now with little effort.

    Raises:
        EdgeError: it is neither, or no bundle can be made of it.
    """
    try:
        is_model = _is_model(given)
    except OSError as e:
        raise BundleError(f"{given} cannot be read: {e.strerror}.") from None
    if not is_model:
        if os.path.lexists(given) or given.suffix == ".edge" or len(given.parts) > 1:
            return open_bundle(given)
        raise BundleError(
            f"There is no bundle at {given}, and no model of that name in the catalog (see edge models); edge export "
            "makes a bundle."
        )
    from edge.cli.run.contents import contents_of  # 2 ms that a bundle does without
    from edge.cli.run.made import made, target_of

    contents = contents_of(given) if given.exists() else None
    target = target_of(given, contents)
    if (bundle := made(target)) is not None:
        return bundle
    from edge.lock import locked

    with locked(target.with_suffix(".lock"), lambda: _say(f"Another run makes a bundle of {given}; waiting for it.")):
        return made(target) or _make(given, contents, target)


def _is_model(given: Path) -> bool:
    """Whether something must be made of it: everything else is opened as a bundle, or refused as none."""
    if os.path.exists(given):  # noqa: PTH110 - of any name: Path's raises where one is too long
        return given.suffix == ".gguf" or (given / "config.json").is_file() or is_adapter(given)
    from edge import catalog, fetch

    return catalog.find(str(given)) is not None or (given.suffix != ".edge" and fetch.is_hub_id(str(given)))


def _make(given: Path, contents: Contents | None, target: Path) -> Bundle:
    from edge.cli.run.made import made, make_room, trim

    again = ", because the one that is there is another version's or damaged" if os.path.lexists(target) else ""
    _say(f"Making a bundle of {given}, once{again}; edge export makes a smaller and faster one in more time.")
    make_room(target)
    _export_apart(given, contents, target)
    _say(f"The bundle is kept as {target}.")
    bundle = made(target) or open_bundle(target)
    trim(target, _say)
    return bundle


def _export_apart(given: Path, contents: Contents | None, target: Path) -> None:
    """Export in processes of their own, one after the other: what an export leaves in memory would count against
    --memory."""
    from edge.cli.run.contents import contents_of

    with BundleWriter(target, force=True) as writer:
        _apart(given, _stage, given, writer)
        manifest = _apart(given, _finish, writer)
        if contents is not None and contents_of(given, contents).sha256 != contents.sha256:
            raise ExportError(f"{given} changed while a bundle was made of it, and nothing was left; run it again.")
        writer.commit(manifest)


def _apart(given: Path, work: Callable[..., T], *arguments: object) -> T:
    """What `work` returns in another process."""
    from edge.children import ChildEnded, call

    try:
        return call(work, *arguments)
    except KeyboardInterrupt:
        raise ExportError(f"The making of a bundle of {given} was interrupted; nothing was left.") from None
    except ChildEnded as e:
        raise ExportError(
            f"The export of {given} ended too early ({e}), as it does where memory runs out; close other programs, or "
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
