"""The rooms of export: direct children of export/, files or folders. An arrow is one room that imports from another.

Imports inside functions count; those for type checkers alone do not, as in the contracts of pyproject.toml. One of
these says which room may import which.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

from places import ROOT

EXPORT = ROOT / "export"
ROOMS, ARROWS = 14, 60  # at most


def modules() -> dict[str, Path]:
    """Each file of export by its dotted name below `edge.export`; the package itself has the name ''."""
    files = {path.relative_to(EXPORT).with_suffix("").parts: path for path in EXPORT.rglob("*.py")}
    return {".".join(parts[:-1] if parts[-1] == "__init__" else parts): path for parts, path in files.items()}


def nodes(tree: ast.AST) -> Iterator[ast.AST]:
    """All nodes but those under `if TYPE_CHECKING:`."""
    yield tree
    for child in ast.iter_child_nodes(tree):
        if isinstance(child, ast.If) and "TYPE_CHECKING" in ast.unparse(child.test):
            for other in child.orelse:
                yield from nodes(other)
        else:
            yield from nodes(child)


def imported(path: Path) -> Iterator[str]:
    """The full names that a file imports, of modules or of what they hold."""
    for node in nodes(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def import_graph() -> dict[str, set[str]]:
    """Which modules of export each of them imports."""
    known = modules()
    graph: dict[str, set[str]] = {}
    for module, path in known.items():
        graph[module] = set()
        for full in imported(path):
            if full == "edge.export" or full.startswith("edge.export."):
                name = full.removeprefix("edge.export").removeprefix(".")
                graph[module].add(name if name in known else name.rpartition(".")[0])
        assert graph[module] <= known.keys()
        graph[module].discard(module)
    return graph


def circle(graph: dict[str, set[str]]) -> list[str]:
    """Modules each of which imports the next, the last the first; none where no circle is there."""
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as e:
        return list(e.args[1])
    return []


def arrows(graph: dict[str, set[str]]) -> set[tuple[str, str]]:
    pairs = {(module.partition(".")[0], to.partition(".")[0]) for module, found in graph.items() for to in found}
    return {(room, other) for room, other in pairs if room != other}


def test_export_has_few_rooms_and_few_arrows_between_them() -> None:
    graph = import_graph()
    assert len({module.partition(".")[0] for module in graph}) <= ROOMS
    assert len(arrows(graph)) <= ARROWS


def test_a_circle_of_files_is_found() -> None:
    assert set(circle({"a": {"b"}, "b": {"c"}, "c": {"a"}, "d": {"a"}, "e": set()})) == {"a", "b", "c"}


def test_no_files_of_export_import_each_other() -> None:
    assert circle(import_graph()) == []
