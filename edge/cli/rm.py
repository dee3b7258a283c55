"""`edge rm`: remove bundles and models from the cache."""

from __future__ import annotations

import argparse
import shutil
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from edge.cli.arguments import Parser
from edge.errors import InputError

if TYPE_CHECKING:
    from edge.bundle import Bundle

NAME = "rm"
HELP = "Remove bundles and models from the cache."


def add_arguments(parser: Parser) -> None:
    named = "as edge list shows it, or the .gguf file or folder that a bundle was made of, which stays"
    parser.add_argument("names", metavar="NAME", nargs="+", help=named)


def command(args: argparse.Namespace) -> None:
    """Remove what the cache has of each name: the bundles that edge run made, and the model that was fetched. Bundles
    elsewhere are folders of your own, which are not touched."""
    from edge.cli.tables import shown_bytes

    found = {name: _Found(name) for name in args.names}
    for each in found.values():
        each.check()
    for name, each in found.items():
        print(f"{name}: {shown_bytes(each.remove())} removed.")


class _Found:
    """The bundles, models and record that the cache has under a name."""

    def __init__(self, name: str) -> None:
        from edge import names
        from edge.cli.run.here import named_bundles
        from edge.cli.run.recorded import recorded
        from edge.cli.run.source import is_model
        from edge.home import cache_dir

        self.name = name
        here = is_model(Path(name))  # which goes before a model elsewhere of the same name, as in edge run
        named = None if Path(name).exists() else names.find(name)
        canonical = name if named is None else named.name
        self.record = None if here else recorded(canonical)
        self.bundles = of_path(Path(name)) if here else named_bundles(canonical)
        paths = [] if self.record is None else [Path(self.record.path)]
        if named is not None and (path := named.local()) is not None:
            paths.append(path)
        self.models = _in_cache(named, paths)
        self.elsewhere = [path for path in paths if path.exists() and not path.is_relative_to(cache_dir())]

    def check(self) -> None:
        """Raise InputError where there is nothing, or more than one."""
        from edge.cli.run.here import everything

        if len(self.bundles) > 1:
            listed = ", ".join(bundle.root.stem for bundle in self.bundles)
            raise InputError(f"{len(self.bundles)} bundles are called {self.name}; name one of {listed}.")
        if not (self.bundles or self.models or self.record):
            from edge.spelling import nearest

            near = nearest(self.name, [each.name for each in everything()])
            meant = f"; did you mean {near}?" if near else " (see edge list)."
            raise InputError(f"The cache has nothing of the name {self.name}{meant}")

    def remove(self) -> int:
        """Remove them; return the number of bytes that they had."""
        from edge.cli.run.here import size_of
        from edge.cli.run.made import remove
        from edge.cli.run.recorded import forget
        from edge.runtime.kernels.packed import forget_packed

        total = 0
        for bundle in self.bundles:
            if not bundle.root.exists():  # another name of it came before
                continue
            total += sum(bundle.sizes.values())
            forget_packed(bundle)
            if not remove(bundle.root):
                raise InputError(f"{self.name} is in use by another process; end it first.")
        for model in filter(Path.exists, self.models):
            total += size_of(model)
            if model.is_dir():
                shutil.rmtree(model)
            else:
                model.unlink()
        for path in dict.fromkeys(self.elsewhere):
            print(f"{path} stays in the cache of the hub's library; hf cache rm frees it.", file=sys.stderr)
        if self.record is not None:
            forget(self.record)
        return total


def of_path(path: Path) -> list[Bundle]:
    """The bundle that was made of the model at a path."""
    from edge.cli.run.contents import contents_of
    from edge.cli.run.made import kept, reads_in_place, target_of

    targets = [target_of(path, contents_of(path, sampled=sampled)) for sampled in {False, reads_in_place()}]
    return [bundle for bundle in kept() if bundle.root in targets]


def _in_cache(named: object, paths: list[Path]) -> list[Path]:
    """The folders of the cache that hold what was fetched of a model."""
    from edge import names
    from edge.home import cache_dir

    folders = [path.parent for path in paths if path.is_relative_to(cache_dir() / "models" / "web")]
    if isinstance(named, names.InCatalog):
        folders.append(named.entry.folder)
    return [folder for folder in dict.fromkeys(folders) if folder.exists()]
