"""The rooms of export: direct children of export/, files or folders. An arrow is one room that imports from another.

Imports inside functions count; those for type checkers alone do not, as in the contracts of pyproject.toml. One of
these says which room may import which.
"""

from __future__ import annotations

from graphlib import CycleError, TopologicalSorter

from imports_of import import_graph
from places import ROOT

EXPORT = "edge.export"
ROOMS, ARROWS = 14, 60  # at most


def circle(graph: dict[str, set[str]]) -> list[str]:
    """Modules each of which imports the next, the last the first; none where no circle is there."""
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as e:
        return list(e.args[1])
    return []


def room(module: str) -> str:
    """The room of a module; '' for the package itself."""
    return module.removeprefix(EXPORT).removeprefix(".").partition(".")[0]


def arrows(graph: dict[str, set[str]]) -> set[tuple[str, str]]:
    pairs = {(room(module), room(to)) for module, found in graph.items() for to in found}
    return {(one, other) for one, other in pairs if one != other}


def test_export_has_few_rooms_and_few_arrows_between_them() -> None:
    graph = import_graph(EXPORT, ROOT / "export")
    assert len(set(map(room, graph))) <= ROOMS
    assert len(arrows(graph)) <= ARROWS


def test_a_circle_of_files_is_found() -> None:
    assert set(circle({"a": {"b"}, "b": {"c"}, "c": {"a"}, "d": {"a"}, "e": set()})) == {"a", "b", "c"}


def test_no_files_of_export_import_each_other() -> None:
    assert circle(import_graph(EXPORT, ROOT / "export")) == []
