"""Graphs compiled ahead of time for named chips, so that a phone opens them at once and needs no compiler."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from edge.children import Child, ChildEnded
from edge.errors import EdgeError, ExportError, InputError
from edge.runtime.providers.qnn import PLUGIN
from edge.targets import SOCS, Compiled, Soc, Target


def socs_of(names: Sequence[str]) -> list[Soc]:
    """Return the chips of these names, without duplicates. InputError if a name is unknown, or if there are names and
    no compiler is installed."""
    for name in names:
        if name not in SOCS:
            known = ", ".join(f"{soc.name} ({soc.sold_as})" for soc in SOCS.values())
            raise InputError(f"There is no chip {name!r}; known are {known}.")
    if names:
        support = PLUGIN.find()
        if support.missing is not None:
            raise InputError(f"Nothing can be compiled for {', '.join(names)} here: {support.missing}")
    return [SOCS[name] for name in dict.fromkeys(names)]


def compile_for(soc: Soc, target: Target, root: Path) -> Compiled:
    """Compile the target's graphs, which are in the bundle at `root`, and write the results next to them: a small model
    for each, and one binary that has the weights of all, or of each part of all that are cut.

    Raises:
        ExportError: they cannot be compiled.
    """
    folder = f"targets/{target.name}/{soc.name}"
    paths = {path: f"{folder}/{Path(path).name}" for path in target.graph_paths}
    (root / folder).mkdir()
    options = {"htp_arch": str(soc.architecture), "soc_model": str(soc.model)}
    for group in _sharing(target):
        compile_apart({str(root / path): str(root / paths[path]) for path in group}, options, soc.name)
    return Compiled(soc.name, soc.architecture, PLUGIN.package() or "", list(paths.values()))


def _sharing(target: Target) -> list[list[str]]:
    """The graphs that share weights."""
    steps = [graph.paths for graphs in target.by_context.values() for graph in graphs]
    groups = [list(paths) for paths in zip(*steps, strict=True)]
    encoder = [] if target.encoder is None else [target.encoder.path]
    return [groups[0] + encoder] if len(groups) == 1 else [*groups, *([encoder] if encoder else [])]


def compile_apart(models: Mapping[str, str], options: Mapping[str, str], soc: str) -> None:
    """`Plugin.compile` in a process of its own: one that compiled for a chip cannot simulate any more."""
    with Child(_compile, models, options, said=Child.QUIET) as other:
        try:
            other.result()
        except (ChildEnded, EdgeError) as e:
            said = str(e).rstrip(".")
            raise ExportError(f"Nothing was compiled for {soc} ({said}); export it without --soc {soc}.") from None


def _compile(models: Mapping[str, str], options: Mapping[str, str]) -> None:
    PLUGIN.compile({Path(model): Path(out) for model, out in models.items()}, options)
