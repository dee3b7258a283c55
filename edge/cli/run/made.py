"""The bundles that `edge run` has made of models, in the cache folder: how they are called, and which are kept."""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import stat
import sys
import time
import zlib
from collections.abc import Callable
from pathlib import Path

from edge import __version__
from edge.adapter import MODEL
from edge.bundle import MANIFEST, Bundle, open_bundle
from edge.cli.run.contents import Contents
from edge.errors import BundleError, ExportError, InputError
from edge.gguf_parts import name_of
from edge.home import cache_dir, mark_used

KEPT = 8
MAX_CONFIG = 1 << 20  # bytes of a model's configuration that is read
LONGEST = 60  # characters of a model's name that a bundle's name has
DIGITS = 16  # of the sha256 of a model's files
_NAME = r".+-[0-9a-f]{16}-(?P<place>[0-9a-f]{8})\.edge"
_LEFT = r"\.(?P<bundle>.+\.edge)\.[0-9]+\.(part|old|gone)"
_USED = dict[str, int]()  # files of bundles that this process uses, which are locked as long as it lives


def bundles_dir() -> Path:
    """Return the folder of the bundles that `edge run` exports."""
    return cache_dir() / "bundles"


def target_of(given: Path, contents: Contents) -> Path:
    """Return the path of a model's bundle in the cache. Its name has a hash of the model's content and one of its path.
    A model that was moved or renamed uses the bundle that it had before. A GGUF file, and a folder in MXFP4, has one
    bundle for our kernels, which alone compute its blocks, and another where they are not there."""
    folder = bundles_dir()
    resolved = given.resolve()
    experts = in_mxfp4(given)
    own = experts or given.suffix == ".gguf"
    form = b"" if not own or reads_in_place(biased_experts=experts) else b"keep"
    named = given if given.name.strip(".") else resolved
    model = named.name if named.is_dir() else name_of(named)
    model = re.sub(r"[^\w.-]", "_", model, flags=re.ASCII)[:LONGEST].lstrip(".-")
    found = contents.sha256[:DIGITS] if not form else contents.sha256[-DIGITS:]
    target = folder / f"{model or 'model'}-{found}-{zlib.crc32(form + os.fsencode(resolved)):08x}.edge"
    others = (each for each in sorted(folder.glob(f"*-{found}-*.edge")) if re.fullmatch(_NAME, each.name))
    return target if target.exists() else next(others, target)


def reads_in_place(*, biased_experts: bool = False) -> bool:
    """True if the weights of GGUF files are read where they are: if our kernels run. biased_experts: and compute
    gpt-oss's experts."""
    from edge.runtime.kernels.library import reads_gguf

    return reads_gguf(biased_experts=biased_experts)


def in_mxfp4(given: Path) -> bool:
    """True if a folder says that its weights are in MXFP4; whoever opens it says what is wrong with it."""
    with contextlib.suppress(OSError, ValueError, RecursionError, AttributeError):
        if (path := given / MODEL).stat().st_size <= MAX_CONFIG:
            config = json.loads(path.read_text(encoding="utf-8"))
            return bool(config.get("quantization_config", {}).get("quant_method") == "mxfp4")
    return False


def kept() -> list[Bundle]:
    """The bundles that are kept and can be opened, by name."""
    found = []
    with contextlib.suppress(OSError):
        for path in sorted(bundles_dir().glob("*.edge")):
            if is_own_folder(path) and not path.name.startswith("."):
                with contextlib.suppress(BundleError):
                    found.append(open_bundle(path))
    return found


def called(name: str) -> list[Bundle]:
    """The bundles that are kept under this name, or of a model of this name."""
    every = kept()
    return [each for each in every if each.root.stem == name] or [each for each in every if each.manifest.name == name]


def made(target: Path) -> Bundle | None:
    """The bundle, where this version of edge has made it before. No other process removes it while this one runs."""
    if not is_own_folder(target) or not _use(target):
        return None
    try:
        bundle = open_bundle(target)
        bundle.check_external()
    except BundleError:
        return None
    if bundle.manifest.producer != f"edge {__version__}":
        return None
    mark_used(target)
    return bundle


def make_room(target: Path) -> None:
    """Remove what is at a target and is no bundle of this user's.

    Raises:
        ExportError: it cannot be removed.
    """
    if not os.path.lexists(target) or (is_own_folder(target) and (target / MANIFEST).is_file()):
        return
    try:
        if target.is_dir() and not target.is_symlink():
            shutil.rmtree(target)
        else:
            target.unlink()
    except OSError as e:
        raise ExportError(f"{target} is no bundle of yours, and cannot be removed: {e.strerror}; remove it.") from None


def trim(new: Path, say: Callable[[str], None]) -> None:
    """Remove the bundles of what the same model's files held before `new`, those that were not used for the longest
    time where there are more than `KEPT`, and what killed runs left. One that is in use stays."""
    _sweep(new.parent)
    place = _place(new)
    others = [each for each in sorted(new.parent.glob("*.edge")) if each != new and not each.name.startswith(".")]
    before = [each for each in others if place is not None and _place(each) == place]
    for bundle in before:
        if remove(bundle):
            say(f"The bundle of these files as they were before is removed: {bundle.name}.")
    rest = sorted((each for each in others if each not in before), key=last_used, reverse=True)
    for bundle in rest[KEPT - 1 :]:
        if remove(bundle):
            say(f"A bundle that was not used for the longest time is removed, for {KEPT} are kept: {bundle.name}.")


def _place(bundle: Path) -> str | None:
    return match["place"] if (match := re.fullmatch(_NAME, bundle.name)) else None


def last_used(bundle: Path) -> float:
    """Return the time of the last use; 0 if it is unknown, or lies in the future."""
    with contextlib.suppress(OSError):
        if (used := bundle.stat().st_mtime) <= time.time():
            return used
    return 0.0


def is_own_folder(path: Path) -> bool:
    try:
        found = path.lstat()
    except OSError:
        return False
    return stat.S_ISDIR(found.st_mode) and (sys.platform == "win32" or found.st_uid == os.geteuid())


def _use(bundle: Path) -> bool:
    """Let other processes see that this one uses a bundle: whether it is there, and none removes it now."""
    if sys.platform == "win32":  # where nothing is removed that is open
        return (bundle / MANIFEST).is_file()
    import fcntl

    try:
        file = os.open(bundle / MANIFEST, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    except OSError:
        return False
    try:
        fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(file)
        return False
    except OSError:  # the file system has no locks
        pass
    if (before := _USED.pop(str(bundle), None)) is not None:
        os.close(before)
    _USED[str(bundle)] = file
    with contextlib.suppress(OSError):
        return os.path.samestat(os.fstat(file), (bundle / MANIFEST).lstat())
    return False


def remove(bundle: Path) -> bool:
    """Remove a bundle, or whatever has a bundle's name, unless a process uses it; whether it is gone."""
    from edge.lock import locked

    aside = bundle.with_name(f".{bundle.name}.{os.getpid()}.gone")  # nobody sees half of it
    with contextlib.ExitStack() as stack, contextlib.suppress(OSError):
        if not stack.enter_context(locked(bundle.with_suffix(".lock"))):
            return False
        if sys.platform != "win32" and (bundle / MANIFEST).is_file():
            import fcntl

            file = stack.enter_context((bundle / MANIFEST).open("rb"))
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)  # BlockingIOError is an OSError
        bundle.rename(aside)
        _delete(aside)
        return True
    return False


def _sweep(folder: Path) -> None:
    """Remove what killed runs left: locks that nobody holds, and what was being written or removed under them."""
    from edge.lock import locked

    for each in sorted(folder.iterdir()):
        match = re.fullmatch(_LEFT, each.name)
        if match or each.suffix == ".lock":
            lock = (folder / match["bundle"]).with_suffix(".lock") if match else each
            with contextlib.suppress(OSError, InputError), locked(lock) as free:
                if free and match:
                    _delete(each)


def _delete(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path, ignore_errors=True)
    else:
        path.unlink(missing_ok=True)
