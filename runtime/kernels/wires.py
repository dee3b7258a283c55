"""The values of an ONNX graph: the node that makes each, and the nodes that read it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

INT, NUMBER = 2, 1  # AttributeProto.AttributeType


class Wires:
    """The nodes of a graph at the time of this object's creation; nodes inside of branches count as their `If`.

    nodes: in the order of the graph. Nodes are given by their index in it.
    """

    def __init__(self, graph: Any) -> None:
        self.nodes: list[Any] = list(graph.node)
        self._graph = graph
        self._made = {name: place for place, node in enumerate(self.nodes) for name in node.output if name}
        self._readers: dict[str, list[int]] = {}
        for place, node in enumerate(self.nodes):
            for name in set(reads(node)):
                self._readers.setdefault(name, []).append(place)
        self._outputs = {output.name for output in graph.output}

    def maker(self, name: str) -> int | None:
        """Index of the node that makes a value; None for a value from outside."""
        return self._made.get(name)

    def readers(self, name: str) -> list[int]:
        """Indices of the nodes that read a value."""
        return self._readers.get(name, [])

    def only_reader(self, name: str) -> int | None:
        """Index of the node that reads a value which nothing else reads."""
        readers = self.readers(name)
        return readers[0] if len(readers) == 1 and name not in self._outputs else None

    def drop(self, places: Iterable[int]) -> None:
        """Remove these nodes from the graph, and those whose results nothing reads any more."""
        gone, read, kept = set(places), set(self._outputs), list[Any]()
        for place in reversed(range(len(self.nodes))):
            node = self.nodes[place]
            if place not in gone and any(name in read for name in node.output):
                kept.append(node)
                read |= set(reads(node))
        del self._graph.node[:]
        self._graph.node.extend(reversed(kept))


def reads(node: Any) -> list[str]:
    """Names of the values that a node reads, its branches included."""
    found = [*node.input]
    for branch in branches(node):
        found += read_by(branch)
    return found


def read_by(graph: Any) -> Iterator[str]:
    """Names of the values that the nodes of a graph read, and of its outputs."""
    for node in graph.node:
        yield from reads(node)
    for output in graph.output:
        yield output.name


def branches(node: Any) -> list[Any]:
    """The graphs inside of a node, which only `If` has: see `graph_check`."""
    if node.op_type != "If":
        return []
    return [attribute.g for attribute in node.attribute if attribute.HasField("g")]


def graphs(graph: Any) -> Iterator[Any]:
    """A graph, and those inside of its nodes."""
    yield graph
    for node in graph.node:
        for branch in branches(node):
            yield from graphs(branch)


def numbers(node: Any) -> dict[str, int]:
    """The integer attributes of a node, by name."""
    return {attribute.name: attribute.i for attribute in node.attribute if attribute.HasField("i")}


def number(node: Any, name: str, otherwise: float) -> float:
    """Return a float attribute of a node, or `otherwise` where it has none of this name."""
    return next((float(each.f) for each in node.attribute if each.name == name), otherwise)


def set_inputs(node: Any, inputs: Iterable[str]) -> None:
    """Set a node's inputs, without the empty names at the end."""
    given = list(inputs)
    while given and not given[-1]:
        given.pop()
    del node.input[:]
    node.input.extend(given)
