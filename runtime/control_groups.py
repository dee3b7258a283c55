"""The control groups of Linux that this process is in: what a container may use is written in their folders."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path, PurePosixPath

ROOT = Path("/")


def groups_of(controller: str, root: Path = ROOT) -> Iterator[Path]:
    """The folders of the groups that this process is in, each before those that it is nested in: of version 2, and of
    version 1 where that limits what `controller` names, such as cpu or memory (man 7 cgroups). Where the system has no
    groups, there are none.

    root: of the file system; another one for tests.
    """
    try:
        own = (root / "proc/self/cgroup").read_text(encoding="utf-8", errors="replace").splitlines()
        mounts = (root / "proc/self/mountinfo").read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return
    paths = {}  # of the group of version 2, and of the one of version 1
    for line in own:
        _, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        if not controllers or controller in controllers.split(","):
            paths["cgroup" if controllers else "cgroup2"] = path
    for line in mounts:
        place, _, kind = line.partition(" - ")
        fields, (system, *more) = place.split(), kind.split() or [""]
        if system not in paths or len(fields) < 5 or (system == "cgroup" and controller not in more[-1].split(",")):
            continue
        # Of a container that sees its own groups alone the mount begins at a group inside the hierarchy.
        below = _below(PurePosixPath(paths[system]), PurePosixPath(_unescaped(fields[3])))
        mount = root / _unescaped(fields[4]).lstrip("/")
        yield from (mount / part for part in (below, *below.parents))


def _below(path: PurePosixPath, start: PurePosixPath) -> PurePosixPath:
    """A group's path from where its hierarchy is mounted on; that place itself where the group is not in it."""
    if not path.is_relative_to(start) or ".." in path.parts:
        return PurePosixPath()
    return path.relative_to(start)


def _unescaped(field: str) -> str:
    """A path of mountinfo, which writes blanks as octal numbers."""
    for code, character in ((r"\040", " "), (r"\011", "\t"), (r"\012", "\n"), (r"\134", "\\")):
        field = field.replace(code, character)
    return field
