"""The argument of `edge run`: a bundle, or a model that is first exported to a bundle in the cache."""

from __future__ import annotations

import dataclasses
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from edge.adapter import is_adapter
from edge.bundle import MANIFEST, Bundle, BundleWriter, open_bundle
from edge.errors import BundleError, ExportError, InterruptedExport
from edge.manifest import Manifest

if TYPE_CHECKING:
    from edge.cli.run.contents import Contents
    from edge.export.request.export_request import ExportRequest
    from edge.names import Named

T = TypeVar("T")
WITHOUT_KERNELS = (
    "Without edge-lm-kernels its weights are stored again, in 8 bits; with them (pip install edge-lm-kernels) the file "
    "is read as it is, answers are faster, and the first one comes within seconds."
)


def open_source(given: str | Path) -> Bundle:
    """Open the bundle at a path; or of a .gguf file, a model's folder, or a name (see `edge.names`), the bundle that
    was made of it before, or is made now with little effort. Weights of a GGUF file are packed then.

    Raises:
        EdgeError: it is neither, or no bundle can be made of it.
    """
    from edge.cli.run.packing import pack_shown

    bundle = _opened(given)
    pack_shown(bundle)
    return bundle


def _opened(given: str | Path) -> Bundle:
    path = Path(given)
    if is_model(path):
        return _of_files(path, path)
    there = os.path.exists(path)  # noqa: PTH110 - of any name: Path's raises where one is too long
    named = None if there or path.suffix == ".edge" else _named(str(given))
    if named is not None:
        return _of_name(named)
    if os.path.lexists(path) or path.suffix == ".edge" or len(path.parts) > 1:
        return open_bundle(path)
    if (bundle := _listed(str(given))) is not None:
        return bundle
    raise BundleError(missing(str(given)))


def is_model(path: Path) -> bool:
    """True if a model that can be exported is at a path. BundleError if the path cannot be read."""
    try:
        if not os.path.exists(path):  # noqa: PTH110 - of any name: Path's raises where one is too long
            return False
        if path.suffix == ".gguf" or (path / "config.json").is_file() or is_adapter(path):
            return True
        if (path / MANIFEST).is_file():  # a bundle
            return False
        from edge.onnx_model import GENAI, SUFFIX

        return path.suffix == SUFFIX or (path / GENAI).is_file()
    except OSError as e:
        raise BundleError(f"{path} cannot be read: {e.strerror}.") from None


def _listed(name: str) -> Bundle | None:
    """The bundle of a name that `edge list` shows."""
    from edge.cli.run.here import named_bundles
    from edge.cli.run.made import made

    found = named_bundles(name)
    if len(found) > 1:
        listed = ", ".join(bundle.root.stem for bundle in found)
        raise BundleError(f"{len(found)} bundles are called {name}; name one of {listed}.")
    if not found:
        return None
    found[0].check_external()  # `made` would not say why
    return made(found[0].root)


def missing(name: str) -> str:
    """A sentence about a name that nothing has."""
    from edge import names

    near = names.similar(name)
    meant = f"; did you mean {near}?" if near else " (see edge models); edge export makes a bundle."
    return f"There is no bundle at {name}, and no model of that name in the catalog{meant}"


def _named(given: str) -> Named | None:
    from edge import names

    return names.find(given)


def _of_name(named: Named) -> Bundle:
    """The bundle of a model that a name means; nothing is looked up where it was made before."""
    from edge.cli.run.made import bundles_dir, made
    from edge.cli.run.recorded import Record, recorded, remember

    known = recorded(named.name)
    if known is not None and known.bundle is not None and (bundle := made(bundles_dir() / known.bundle)) is not None:
        remember(known)
        return bundle
    path = named.local()
    if path is None:
        _need_cache()
        from edge.cli.fetching import fetch_shown

        path = fetch_shown(named)
    bundle = _of_files(path, named.name)
    kept = bundle.root.name if bundle.root.parent == bundles_dir() else None
    remember(Record(named.name, str(path), kept))
    return bundle


def _of_files(path: Path, given: str | Path) -> Bundle:
    """The bundle of the model at a path, which is called as it was given."""
    from edge.cli.run.contents import ALL, NOTHING, contents_of, matrices_in_place  # 2 ms that a bundle does without
    from edge.cli.run.made import made, reads_in_place, target_of
    from edge.external_file import is_nameable

    in_place = path.suffix == ".gguf" and reads_in_place() and is_nameable(path)
    contents = contents_of(path, sampled=in_place)
    if (bundle := made(target_of(path, contents))) is not None:
        return bundle
    if in_place:
        kept = matrices_in_place(path)
        contents = dataclasses.replace(contents if kept == ALL else contents_of(path), in_place=kept != NOTHING)
    target = target_of(path, contents)
    if (bundle := made(target)) is not None:
        return bundle
    if _need_cache():
        target = target_of(path, contents)
    from edge.lock import locked

    with locked(target.with_suffix(".lock"), lambda: _say(f"Another run makes a bundle of {given}; waiting for it.")):
        return made(target) or _make(given, contents, target)


def _need_cache() -> bool:
    """Use a temporary cache folder for this run if the usual one cannot be written; True if so."""
    import atexit
    import shutil
    import tempfile

    from edge.home import cache_dir, is_folder, why_unwritable

    why = why_unwritable()
    if why is None or ("EDGE_HOME" in os.environ and cache_dir().exists() and not is_folder(cache_dir())):
        return False
    _say(f"The cache folder cannot be written ({why}), so what is made now is for this run alone; see EDGE_HOME.")
    folder = tempfile.mkdtemp(prefix="edge-")
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    os.environ["EDGE_HOME"] = folder
    return True


def _make(given: str | Path, contents: Contents, target: Path) -> Bundle:
    from edge.cli.run.made import in_mxfp4, made, make_room, reads_in_place, trim

    again = ""
    if os.path.lexists(target):
        again = ", because the one that is there is another version's or damaged, or its file was moved"
    file, experts = contents.path.suffix == ".gguf", in_mxfp4(contents.path)
    command = "edge export --weights int4" if file or experts else "edge export"
    smallest = experts and reads_in_place(biased_experts=True)
    more = "" if smallest else f"; {command} makes a smaller and faster one in more time"
    _say(f"Making a bundle of {given}, once{again}{more}.")
    if file and not reads_in_place():
        _say(WITHOUT_KERNELS)
    make_room(target)
    _export_apart(given, contents, target)
    bundle = made(target) or open_bundle(target)
    _say(f"The bundle is kept as {target}.")
    if bundle.manifest.external:
        _say(_packed(bundle))
    trim(target, _say)
    return bundle


def _packed(bundle: Bundle) -> str:
    """Say where the packed weights of a GGUF file are kept."""
    from edge.cli.tables import shown_bytes
    from edge.runtime.kernels.library import find_kernels
    from edge.runtime.kernels.packed_gguf import gguf_path

    kernels = find_kernels()
    path = None if kernels is None else gguf_path(bundle, kernels)
    if path is None or not path.is_file():
        return "Its weights are packed anew at each start, because the cache folder cannot be written."
    size = shown_bytes(path.stat().st_size)
    return f"Its weights stay in the file, and are packed in {path} ({size}); edge list shows what the cache takes."


def _export_apart(given: str | Path, contents: Contents, target: Path) -> None:
    """Export in processes of their own, one after the other: what an export leaves in memory would count against
    --memory."""
    from edge import catalog
    from edge.cli.run.contents import contents_of
    from edge.export.request.export_request import QUICK, ExportRequest

    # By name where that says more: the licence of a model in the catalog, the id of one on the hub.
    by_name = contents.path.is_dir() or catalog.find(str(given)) is not None
    with BundleWriter(target, force=True) as writer:
        request = ExportRequest(str(given if by_name else contents.path), effort=QUICK, in_place=contents.in_place)
        if contents.in_place:  # little is written, and nothing of it is large
            manifest = _apart(given, _stage_and_finish, request, writer)
        else:
            _apart(given, _stage, request, writer)
            manifest = _apart(given, _finish, request, writer)
        if contents_of(contents.path, contents).sha256 != contents.sha256:
            raise ExportError(f"{given} changed while a bundle was made of it, and nothing was left; run it again.")
        writer.commit(manifest)


def _apart(given: str | Path, work: Callable[..., T], *arguments: object) -> T:
    """Run `work` in another process and return its result."""
    from edge.children import ChildEnded, call
    from edge.runtime.kernels.packed_file import packed_dir
    from edge.runtime.kernels.packed_writer import begun

    before = begun(packed_dir())
    try:
        return call(work, *arguments)
    except KeyboardInterrupt as e:
        packed = begun(packed_dir()) != before
        left = "the next run goes on with the packing of its weights" if packed else "nothing was left"
        raise InterruptedExport(f"The making of a bundle of {given} was interrupted; {left}.") from e
    except ChildEnded as e:
        raise ExportError(
            f"The export of {given} ended too early ({e}), as it does where memory runs out; close other programs, or "
            "choose a smaller model."
        ) from None


def _stage(request: ExportRequest, writer: BundleWriter) -> None:
    from edge.cli.export import stages
    from edge.export.pipeline.apart import stage_apart

    with stages() as (progress, say):
        stage_apart(request, writer, progress, say)


def _stage_and_finish(request: ExportRequest, writer: BundleWriter) -> Manifest:
    _stage(request, writer)
    return _finish(request, writer)


def _finish(request: ExportRequest, writer: BundleWriter) -> Manifest:
    from edge.cli.export import stages
    from edge.export.pipeline.apart import finish_apart

    with stages() as (progress, say):
        return finish_apart(request, writer, progress, say)


def _say(sentence: str) -> None:
    print(sentence, file=sys.stderr, flush=True)
